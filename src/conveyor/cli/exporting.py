"""All of a run as one file: started, waited for, and downloaded from wherever it was cut off."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from conveyor.cli import follow as following
from conveyor.cli import show
from conveyor.cli.bars import Bar
from conveyor.cli.options import ConfigFile, JobId, Json, Key, Url
from conveyor.cli.reach import reach
from conveyor.cli.remote import Refused, Remote, Unreachable, read
from conveyor.cli.results import SAFE_NAME, Unsaved
from conveyor.cli.shapes import Run
from conveyor.errors import ConveyorError, RefusedToStart

POLL = 0.5  # seconds
MOST_CUTS = 5  # in a row, without a byte between them
FAILED, COMPLETED = "failed", "completed"


class Export(msgspec.Struct, frozen=True):
    export_id: str
    status: str
    error: str = ""
    download_url: str = ""


class Saved(msgspec.Struct, frozen=True):
    file: str
    bytes: int
    export_id: str
    run_id: str


class Unmade(ConveyorError):
    """The service could not make the file."""


def export(
    job: JobId,
    *,
    out: Annotated[Path, typer.Option(help="The file to write.")],
    run: Annotated[str | None, typer.Option(help="Of this run [the latest].")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="EXPORT", help="Go on with one that was started.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over the file.")] = False,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Save all of a run as one zip file, with a manifest."""
    if out.is_dir() or (out.exists() and not force):
        raise RefusedToStart(f"{out} is there already: name another, or say --force")
    remote = reach(url, key, config)
    parts = ("jobs", job, "runs", run or following.latest(remote, job))
    has_ended = read(remote.get(*parts), Run).has_ended
    export_id = resume or read(remote.post(*parts, "exports"), Export).export_id
    if not SAFE_NAME.fullmatch(export_id):
        raise Unreachable(f"an export is named {show.plain(export_id)!r}, which makes no file name")
    with show.interruptible(_again(job, parts[-1], export_id, out)):
        saved = _saved(remote, (*parts, "exports", export_id), out, quiet=as_json)
    if as_json:
        show.raw(msgspec.json.encode(saved))
    else:
        show.facts(list(msgspec.structs.asdict(saved).items()))
    if not has_ended:
        show.aside("The run is not over: the file holds what there was.")


def _again(job: str, run: str, export_id: str, out: Path) -> str:
    return (
        "The service keeps the file for 12 hours. Go on with: "
        f"conveyor export {show.plain(job)} --run {show.plain(run)} --resume {export_id} --out {out}"
    )


def _saved(remote: Remote, parts: tuple[str, ...], out: Path, *, quiet: bool) -> Saved:
    export_id, run_id = parts[-1], parts[3]
    # By the export's name: what is there of it is never another's beginning.
    unfinished = out.with_name(f"{out.name}.{export_id}.part")
    _made(remote, parts, quiet=quiet)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _fetch(remote, parts, unfinished, quiet=quiet)
        unfinished.replace(out)
        return Saved(str(out), out.stat().st_size, export_id, run_id)
    except OSError as error:
        raise Unsaved(f"{error.filename or out}: {error.strerror}") from None


def _made(remote: Remote, parts: tuple[str, ...], *, quiet: bool) -> Export:
    """The export once its file is there. Each asking brings a fresh link."""
    with Bar(TextColumn("{task.description}"), TimeElapsedColumn(), hidden=quiet) as bar:
        waiting = bar.add_task("making the file", total=None)
        while True:
            export = read(_asked(remote, parts), Export)
            bar.update(waiting, description=f"{show.plain(export.status)}: making the file")
            if export.status == FAILED:
                raise Unmade(
                    f"the export failed: {show.plain(export.error)}\n"
                    f"  `conveyor results {show.plain(parts[1])} --out FOLDER` saves page by page"
                )
            if export.status == COMPLETED:
                return export
            time.sleep(POLL)


def _asked(remote: Remote, parts: tuple[str, ...]) -> bytes:
    try:
        return following.ask_patiently(remote, *parts)
    except Refused as error:
        if error.problem.status != 404:
            raise
        advice = "an export is kept for 12 hours: leave --resume out to start another"
        raise Refused(error.problem, advice) from None


def _fetch(remote: Remote, parts: tuple[str, ...], file: Path, *, quiet: bool) -> None:
    """Download what is missing of a file, however often the connection is cut."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    cuts = 0
    with Bar(TextColumn("downloading"), *columns, hidden=quiet) as bar:
        task = bar.add_task("downloading", total=None)
        while True:
            had = file.stat().st_size if file.exists() else 0
            try:
                _fetch_rest(
                    _made(remote, parts, quiet=True).download_url,
                    file,
                    lambda done, total: bar.update(task, completed=done, total=total),
                )
                return
            except Unreachable:
                cuts = 0 if file.exists() and file.stat().st_size > had else cuts + 1
                if cuts == MOST_CUTS:
                    raise
                time.sleep(POLL)


def _fetch_rest(link: str, file: Path, tell: Callable[[int, int], None]) -> None:
    address = urlsplit(link)
    # Without the key: the link alone opens it, and its host may be another's.
    host = Remote(f"{address.scheme}://{address.netloc}", None)
    had = file.stat().st_size if file.exists() else 0
    path = f"{address.path}?{address.query}"
    try:
        length, chunks = host.stream(path, {"Range": f"bytes={had}-"} if had else {})
    except Refused as error:
        if error.problem.status != 416:
            raise
        file.unlink()  # it is longer than it should be, or just as long: nobody knows
        raise Unreachable(f"{file} was no part of this export; it is fetched anew") from None
    start = had if had and length.is_rest else 0
    with file.open("ab" if start else "wb") as into:
        done = start
        for chunk in chunks:
            into.write(chunk)
            done += len(chunk)
            tell(done, start + length.value)
    if done != start + length.value:
        raise Unreachable("the connection was cut; run the command again to go on")
