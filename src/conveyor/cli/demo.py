"""The demo: the official client scrapes URLs through a service with a mock gateway."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from conveyor.app.engines import running_service
from conveyor.cli.bars import Bar
from conveyor.errors import RefusedToStart
from conveyor.settings import Settings

try:
    import httpx
    from zenrows.batch import ZenRowsBatchClient
    from zenrows.batch.models import Run
except ImportError:
    raise RefusedToStart(
        "the demo uses the official client: pip install 'conveyor-batch[demo]'"
    ) from None

KEY = "demo-key"
MARKER = ".conveyor-demo"  # in a folder that the demo may empty
POLL = 0.1  # seconds
PATIENCE = 300.0  # seconds
STARTS_WITHIN = 300.0  # seconds, on a machine that is busy with something else


def run_demo(count: int, folder: str, engine: str | None = None) -> None:
    """Run it from start to end; exits with 1 if a URL is not accounted for."""
    console = Console()
    target = Path(folder)
    _make_empty(target)
    what = f"a deployment on {engine}" if engine else "Conveyor and a mock gateway"
    console.print(f"Starting {what}; everything is kept in [b]{target}/[/b]")
    with (
        _deployment(engine, target / "deployment")
        if engine
        else _service(target / "data", target / "service.log") as url,
        ZenRowsBatchClient(KEY, base_url=url, retries=10) as client,
    ):
        whole = _scrape(client, count, target, console)
    if not whole:
        sys.exit(1)


def _make_empty(target: Path) -> None:
    """Create the folder, or remove what an earlier demo left in it; leave any other folder alone."""
    marker = target / MARKER
    if target.exists() and not marker.exists() and not (target.is_dir() and _is_empty(target)):
        raise RefusedToStart(
            f"{target} exists and was not made by the demo: name another folder with --data"
        )
    target.mkdir(parents=True, exist_ok=True)
    marker.touch()
    for path in target.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != marker:
            path.unlink()


def _is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


@contextmanager
def _service(data: Path, log_file: Path) -> Iterator[str]:
    """Run `conveyor dev` with a mock gateway on a free port; yield its base URL."""
    command = ["dev", "--mock-gateway", "--port", "0", "--data", str(data)]
    with log_file.open("wb") as sink:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "conveyor", *command], stdout=sink, stderr=sink
        )
    try:
        yield _base_url(process, data, log_file)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _deployment(engine: str, folder: Path) -> Iterator[str]:
    """Run an api and two workers on an engine of this machine; yield the base URL."""
    folder.mkdir()
    command = ["conveyor.testing.local", engine, "--folder", str(folder), "--port", "0"]
    with subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("ready "):
                    yield line.split()[1]
                    return
            raise RefusedToStart("the deployment of the demo did not start")
        finally:
            process.terminate()
            process.wait()


def _base_url(process: "subprocess.Popen[bytes]", data: Path, log_file: Path) -> str:
    """The service writes its address to its data folder when it is about to serve."""
    deadline = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        info = running_service(Settings(data=str(data)))
        if info is not None:
            return f"{info.url}/v1"
        time.sleep(POLL)
    raise RefusedToStart(f"the service of the demo did not start: see {log_file}")


def _scrape(client: ZenRowsBatchClient, count: int, target: Path, console: Console) -> bool:
    started = time.monotonic()
    job = client.submit_regular(list(demo_urls(count)), name="demo")
    console.print(f"Submitted {count} URLs as job [b]{job.job_id}[/b] with the official client")
    run = _follow(client, job.job_id, count)
    taken = time.monotonic() - started
    saved = _save(client, job.job_id, target)
    console.print(_summary(run, count / taken))
    console.print(f"{saved} pages are in [b]{target}/pages/[/b], every row in results.ndjson")
    console.print(
        "Next: [b]conveyor dev --mock-gateway[/b] or, in a clone, [b]make dev[/b], then point your "
        "client at http://127.0.0.1:8080/v1"
    )
    return run.stats.completed == run.stats.total == count and saved == run.stats.successful


def _save(client: ZenRowsBatchClient, job_id: str, target: Path) -> int:
    """Write every result row, and each page by its signed link; return how many pages."""
    pages = target / "pages"
    pages.mkdir()
    saved = 0
    with httpx.Client() as links, (target / "results.ndjson").open("w") as rows:
        for result in client.iter_results(job_id):
            rows.write(result.model_dump_json(exclude_none=True) + "\n")
            if result.result_url:
                page = links.get(result.result_url).raise_for_status()
                (pages / f"{result.task_id}.html").write_bytes(page.content)
                saved += 1
    return saved


def demo_urls(count: int) -> Iterator[str]:
    """URLs of the mock gateway: most give a page; some are flaky, some slow, some always fail."""
    kinds = {
        7: "flaky.example/{}?fails=1",
        23: "slow.example/{}?ms=300",
        41: "permanent.example/{}",
    }
    kinds |= {59: "flaky.example/{}?fails=1&status=502", 83: "blocked.example/{}"}
    for number in range(count):
        yield "https://" + kinds.get(number % 100, "ok.example/{}").format(number)


def _follow(client: ZenRowsBatchClient, job_id: str, count: int) -> Run:
    """Poll until the run ends, with a live bar."""
    deadline = time.monotonic() + PATIENCE
    columns = (
        TextColumn("scraping"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("[green]{task.fields[good]} successful[/] [red]{task.fields[bad]} failed[/]"),
        TimeElapsedColumn(),
    )
    with Bar(*columns) as progress:
        bar = progress.add_task("scraping", total=count, good=0, bad=0)
        while time.monotonic() < deadline:
            run = client.get_job(job_id).data.latest_run
            assert run is not None
            stats = run.stats
            progress.update(bar, completed=stats.completed, good=stats.successful, bad=stats.failed)
            if run.status.value not in {"running", "pending"}:
                return run
            time.sleep(POLL)
    raise RefusedToStart(f"the demo did not end within {PATIENCE:.0f} s: see its logs")


def _summary(run: Run, rate: float) -> Table:
    table = Table(title=f"Run {run.status.value}: every URL accounted for", show_header=False)
    table.add_row("total", str(run.stats.total))
    table.add_row("successful", str(run.stats.successful))
    table.add_row("failed", str(run.stats.failed))
    for reason, times in (run.stats.failure_reasons or {}).items():
        table.add_row(f"  {reason}", str(times))
    table.add_row("rate", f"{rate:.0f} URLs a second, submit to completed")
    return table
