"""`make up-aws` and `make up-postgres`: the whole on loopback, of which every process is killed while it works."""

import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from conveyor.client import Conveyor, Patience
from tests.e2e.polling import until

PATIENT = Patience(first=0.1, longest=1.0, attempts=200)
PAGES = 300


@contextmanager
def deployed(stack: str, folder: Path) -> Iterator[str]:
    """A deployment that is ready; the base URL of its api."""
    command = ["-m", "conveyor.testing.local", stack, "--folder", str(folder), "--port", "0"]
    with (
        (folder / "err").open("wb") as errors,
        subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout
            last = ""
            for line in process.stdout:
                last = line
                if line.startswith("ready "):
                    break
            assert last.startswith("ready "), (folder / "err").read_text()
            yield last.split()[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=200)


@pytest.mark.long
@pytest.mark.parametrize(
    ("stack", "engines"),
    [
        ("postgres", ["postgres", "valkey", "s3", "gateway"]),
        ("aws", ["valkey", "s3", "gateway"]),  # the emulator keeps nothing when it is killed
    ],
)
def test_every_process_may_be_killed_while_tasks_are_scraped(
    stack: str, engines: list[str], tmp_path: Path
) -> None:
    with deployed(stack, tmp_path) as url, Conveyor(url, "any-key", patience=PATIENT) as client:
        for name in ("worker-1", "worker-2", "api", *engines):
            urls = [f"https://slow.example/{name}/{n}?ms=50" for n in range(PAGES)]
            job = client.submit(urls, retries=20)
            kill(tmp_path, name)
            run = client.wait(job.job_id)
            assert (run.status, run.stats.successful, run.stats.total) == (
                "completed",
                PAGES,
                PAGES,
            )
            assert len(list(client.results(job.job_id, bodies=False))) == PAGES
    assert not list(tmp_path.glob("*.pid"))


@pytest.mark.long
def test_the_emulator_may_be_restarted_in_order_while_tasks_are_scraped(tmp_path: Path) -> None:
    """At SIGTERM it stores tables and queues, and the next process has them."""
    with deployed("aws", tmp_path) as url, Conveyor(url, "any-key", patience=PATIENT) as client:
        for restart in range(2):
            urls = [f"https://slow.example/{restart}/{n}?ms=50" for n in range(PAGES)]
            job = client.submit(urls, retries=20)
            until(lambda: completed(client, job.job_id) > PAGES // 10)  # noqa: B023
            kill(tmp_path, "aws", signal.SIGTERM)
            run = client.wait(job.job_id)
            assert (run.status, run.stats.successful, run.stats.total) == (
                "completed",
                PAGES,
                PAGES,
            )
            assert len(list(client.results(job.job_id, bodies=False))) == PAGES


@pytest.mark.long
@pytest.mark.parametrize("engine", ["aws", "postgres"])
def test_the_demo_on_a_deployment_accounts_for_every_url_and_leaves_no_process(
    engine: str, tmp_path: Path
) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "conveyor", "demo", "--engine", engine, "--data", "demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    for name, count in {"total": 1000, "successful": 980, "failed": 20}.items():
        assert re.search(rf"│ {name} +│ {count} +│", told.stdout), told.stdout
    assert len(list((tmp_path / "demo" / "pages").iterdir())) == 980
    assert not processes_in(tmp_path)


def test_a_second_deployment_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["-m", "conveyor.testing.local", "postgres", "--folder", str(tmp_path)]
        told = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, timeout=200
        )
    assert told.returncode == 1
    assert "is running: stop it, or choose --folder" in told.stderr


def completed(client: Conveyor, job_id: str) -> int:
    run = client.job(job_id).latest_run
    return run.stats.completed if run else 0


def processes_in(folder: Path) -> list[str]:
    """What runs in a folder, or in one below it."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (one / "cwd").readlink().is_relative_to(folder):
                found.append((one / "cmdline").read_text())
    return found


def kill(folder: Path, name: str, how: signal.Signals = signal.SIGKILL) -> None:
    """Kill a process, and wait for the one that takes its place."""
    before = pid_of(folder, name)
    os.kill(before, how)
    until(lambda: pid_of(folder, name) != before)


def pid_of(folder: Path, name: str) -> int:
    try:
        return int((folder / f"{name}.pid").read_text())
    except FileNotFoundError:
        return 0
