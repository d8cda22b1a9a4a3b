"""Results of a job: listed, streamed as rows, or saved as files."""

import hashlib
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from conveyor.cli import show
from conveyor.cli.bars import Bar
from conveyor.cli.remote import Page, Remote, Unreachable, read
from conveyor.cli.shapes import Job, Result, Results
from conveyor.domain.media import extension
from conveyor.errors import ConveyorError, RefusedToStart

PAGE = 1000
FIRST_ROWS = 100
LISTING = "results.ndjson"
MARK = ".conveyor-job"  # names the job whose results a folder holds
SAFE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
HEADS = ("task", "status", "url", "type or error")


class Unsaved(ConveyorError):
    """The disk would not take it."""


class Saved(msgspec.Struct):
    """What became of the bodies."""

    folder: str
    saved: int = 0
    already_there: int = 0
    without_page: int = 0


def listed(remote: Remote, job_id: str, status: str | None) -> None:
    """Every row on a pipe; on a terminal the first ones, and how to get at the rest."""
    if not show.on_terminal():
        show.tabbed(_columns(row) for row in rows_of(remote, job_id, status))
        return
    raw = remote.get("jobs", job_id, "results", status=status, limit=FIRST_ROWS)
    page = read(raw, Results)
    show.table(HEADS, [_columns(row) for row in page.results])
    if page.next_cursor:
        show.aside(f"These are the first {FIRST_ROWS}: --ndjson prints every row, --out saves all")


def as_one_document(remote: Remote, job_id: str, status: str | None) -> None:
    """The API's listing as if it were one page, written as it comes."""
    rows = rows_of(remote, job_id, status)
    first = list(islice(rows, 1))  # before anything is written: the listing may be refused
    sys.stdout.write('{"results":[')
    for number, row in enumerate(chain(first, rows)):
        sys.stdout.write(("," if number else "") + bytes(row).decode())
    sys.stdout.write('],"next_cursor":null}\n')


def as_lines(remote: Remote, job_id: str, status: str | None) -> None:
    with _bar(_total(remote, job_id, status), hidden=show.on_terminal()) as bar:
        for row in rows_of(remote, job_id, status):
            _write(sys.stdout, row)
            bar.advance(bar.tasks[0].id)


def save(
    remote: Remote, job_id: str, status: str | None, folder: Path, *, quiet: bool = False
) -> Saved:
    """Each body as a file of its task's name, and all rows beside them; what is whole stays."""
    done, total = Saved(str(folder)), _total(remote, job_id, status)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _take_up(folder, job_id)
        with (
            _bar(total, hidden=quiet) as bar,
            (folder / LISTING).open("w", encoding="utf-8") as index,
        ):
            for row in rows_of(remote, job_id, status):
                _write(index, row)
                _save_one(remote, job_id, read(bytes(row), Result), done)
                bar.advance(bar.tasks[0].id)
    except OSError as error:
        raise Unsaved(f"{error.filename or folder}: {error.strerror}") from None
    return done


def _take_up(folder: Path, job_id: str) -> None:
    """Mark the folder as this job's. One with another job's results is refused: the listing would
    be overwritten, and nobody could tell whose pages are whose.
    """
    mark = folder / MARK
    if not (folder / LISTING).exists():
        with suppress(FileExistsError), mark.open("x", encoding="utf-8") as file:
            file.write(job_id)
    known = mark.read_text(encoding="utf-8", errors="replace")[:100] if mark.exists() else ""
    if known != job_id:
        whose = f"job {show.plain(known)}" if known else "an unknown job"
        raise RefusedToStart(
            f"{folder} holds the results of {whose}: --out must name a folder of its own for job "
            f"{show.plain(job_id)}; choose another, or remove {LISTING} and {MARK} from this one"
        )


def rows_of(remote: Remote, job_id: str, status: str | None) -> Iterator[msgspec.Raw]:
    """All rows of one run as they came, page by page: of the latest when the first was asked for."""
    cursor: str | None = None
    of_run: tuple[str, ...] = ()
    while True:
        parts = ("jobs", job_id, *of_run, "results")
        page = read(remote.get(*parts, status=status, limit=PAGE, cursor=cursor), Results)
        yield from page.results
        cursor = page.next_cursor
        if cursor is None:
            return
        if page.results and not of_run:  # a rerun between two pages has rows of its own
            of_run = ("runs", read(bytes(page.results[0]), Result).run_id)


def _save_one(remote: Remote, job_id: str, row: Result, done: Saved) -> None:
    if row.result_url is None:
        done.without_page += 1
        return
    # By its own path and not by its link: the link may name a host that only others can reach.
    parts = ("jobs", job_id, "runs", row.run_id, "tasks", row.task_id, "content")
    file = _file(Path(done.folder), row)
    if file.exists() and _is_whole(file, remote.head(*parts)):
        done.already_there += 1
        return
    unfinished = file.with_name(f"{file.name}.part")
    with unfinished.open("wb") as into:
        remote.save(*parts, into=into)
    unfinished.replace(file)
    done.saved += 1


def _file(folder: Path, row: Result) -> Path:
    """Where a body goes; the name comes from afar and must not lead out of the folder."""
    if not SAFE_NAME.fullmatch(row.task_id):
        raise Unreachable(f"a task is named {show.plain(row.task_id)!r}, which makes no file name")
    return folder / f"{row.task_id}.{extension(row.type, row.content_type)}"


def _is_whole(file: Path, page: Page) -> bool:
    """By its checksum, or by its length where there is none; a rerun has files of the same name."""
    if page.length != file.stat().st_size:
        return False
    with file.open("rb") as content:
        return page.checksum in {None, hashlib.file_digest(content, "sha256").hexdigest()}


def _write(sink: TextIO, row: msgspec.Raw) -> None:
    sink.write(bytes(row).decode() + "\n")


def _columns(raw: msgspec.Raw) -> tuple[str, str, str, str]:
    row = read(bytes(raw), Result)
    return row.task_id, row.status, row.url, row.error.code if row.error else row.type


def _total(remote: Remote, job_id: str, status: str | None) -> int | None:
    """How many rows are to come, where the job's numbers tell."""
    stats = read(remote.get("jobs", job_id), Job).run.stats
    known = {None: stats.total, "all": stats.total}
    known |= {"successful": stats.successful, "failed": stats.failed}
    return known.get(status)


def _bar(total: int | None, *, hidden: bool) -> Bar:
    bar = Bar(
        TextColumn("results"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        hidden=hidden,
    )
    bar.add_task("results", total=total)
    return bar
