"""`conveyor errors`: the bad lines of an uploaded list, printed as they come."""

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from conveyor.cli import output
from conveyor.cli.connect import Endpoint, JobId, Json, with_service
from conveyor.cli.output import plain
from conveyor.client import BadRow, Conveyor, Run
from conveyor.client.transport import decoded


@with_service
def errors(
    service: Endpoint,
    job: JobId,
    *,
    run: Annotated[str | None, typer.Option(help="Of this run [the latest].")] = None,
    as_json: Json = False,
) -> None:
    """Report the lines of an uploaded list that are not tasks."""
    with service.client() as client:
        lines = client.error_rows(job, run_id=run)
        count = _copy(lines) if as_json or not output.on_terminal() else _draw(lines)
        note_rest(_run(client, job, run), count)


def _copy(lines: Iterator[bytes]) -> int:
    count = 0
    for count, line in enumerate(lines, 1):  # noqa: B007 - the last one is returned
        sys.stdout.buffer.write(line)
    sys.stdout.flush()
    return count


def _draw(lines: Iterator[bytes]) -> int:
    """In columns of a fixed width: a table would have to be held in memory to be drawn."""
    count = 0
    for count, line in enumerate(lines, 1):
        if count == 1:
            print(f"{'line':>9}  {'reason':<22}  value")
        row = decoded(line, BadRow)
        print(f"{row.line:>9}  {plain(row.reason):<22}  {plain(row.value or '')}")
    return count


def _run(client: Conveyor, job: str, run_id: str | None) -> Run | None:
    return client.run(job, run_id) if run_id else client.job(job).latest_run


def note_rest(run: Run | None, count: int) -> None:
    """Note that there are no bad lines, or more than are reported one by one."""
    if run and output.is_growing(run):
        output.note(f"{count:,} so far: the service is still reading the list.")
    elif not count:
        output.note("No line of its list is reported.")
    elif run and run.ingest_errors > count:
        output.note(f"These are the first of {run.ingest_errors:,}: the rest is only counted.")
    if run and run.ingest_error:
        output.note(f"Of the list as a whole: {plain(run.ingest_error)}")
