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
    told = _pass_on(lines) if as_they_come else _draw(lines)
    _tell_what_is_not_told(_run(remote, job, run), told)


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


def _run(remote: Remote, job_id: str, run_id: str | None) -> Run:
    if run_id:
        return read(remote.get("jobs", job_id, "runs", run_id), Run)
    return read(remote.get("jobs", job_id), Job).run


def _tell_what_is_not_told(run: Run, told: int) -> None:
    """To a person, aside: that there are no bad lines, or more than are told one by one."""
    if run.is_growing:
        show.aside(f"{told:,} so far: the list is still read.")
    elif not told:
        show.aside("No line of its list is reported.")
    elif run.ingest_errors > told:
        show.aside(f"These are the first of {run.ingest_errors:,}: no more are told one by one.")
    if run.ingest_error:
        show.aside(f"Of the list as a whole: {show.plain(run.ingest_error)}")
