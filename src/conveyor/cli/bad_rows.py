"""The report of a list's bad lines, shown as it comes: it may be as long as the list."""

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from conveyor.cli import show
from conveyor.cli.options import ConfigFile, JobId, Json, Key, Url
from conveyor.cli.reach import reach
from conveyor.cli.remote import Remote, read
from conveyor.cli.shapes import BadRow, Job, Run


def errors(
    job: JobId,
    *,
    run: Annotated[str | None, typer.Option(help="Of this run [the latest].")] = None,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Report the lines of an uploaded list that are no tasks."""
    remote = reach(url, key, config)
    of_run = ("jobs", job, *(("runs", run) if run else ()))
    lines = remote.lines(*of_run, "ingest_errors")
    as_they_come = as_json or not show.on_terminal()
    if not (_pass_on(lines) if as_they_come else _draw(lines)):
        _tell_there_is_none(remote, job, run)


def _pass_on(lines: Iterator[bytes]) -> int:
    count = 0
    for count, line in enumerate(lines, 1):  # noqa: B007 - it is told at the end
        sys.stdout.buffer.write(line)
    sys.stdout.flush()
    return count


def _draw(lines: Iterator[bytes]) -> int:
    """In columns of a fixed width: a table would have to be held to be drawn."""
    count = 0
    for count, line in enumerate(lines, 1):
        if count == 1:
            print(f"{'line':>9}  {'reason':<22}  value")
        row = read(line, BadRow)
        print(f"{row.line:>9}  {show.plain(row.reason):<22}  {show.plain(row.value)}")
    return count


def _tell_there_is_none(remote: Remote, job_id: str, run_id: str | None) -> None:
    if run_id:
        run = read(remote.get("jobs", job_id, "runs", run_id), Run)
    else:
        run = read(remote.get("jobs", job_id), Job).run
    so_far = " so far" if run.is_growing else ""
    show.aside(f"No line of its list is reported{so_far}.")
    if run.ingest_error:
        show.aside(f"But of the list as a whole: {show.plain(run.ingest_error)}")
