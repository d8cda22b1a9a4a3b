"""The results of a job: listed, printed as rows, or saved as files."""

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from conveyor.cli import output
from conveyor.cli.bars import Bar
from conveyor.cli.connect import Endpoint
from conveyor.cli.output import plain
from conveyor.client import Conveyor, TaskResult, UnreachableError
from conveyor.client.models import ResultRows
from conveyor.client.transport import decoded
from conveyor.domain.media import extension
from conveyor.errors import ConveyorError, RefusedToStart

FIRST_ROWS = 100
INDEX = "results.ndjson"
MARK = ".conveyor-job"  # names the job whose results a folder holds
SAFE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
HEADS = ("task", "status", "url", "type or error")


class NotSaved(ConveyorError):
    """The disk did not take it."""


class SavedPages(msgspec.Struct):
    """How many pages were saved, and why others were not."""

    folder: str
    saved: int = 0
    already_there: int = 0
    without_page: int = 0


class Listing:
    """The results of the latest run of a job, of one status or of all."""

    def __init__(self, service: Endpoint, job: str, status: str | None) -> None:
        self.service, self.job, self.status = service, job, status

    def print_table(self) -> None:
        """Every row on a pipe; on a terminal the first ones, and how to get the rest."""
        with self.service.client() as client:
            if not output.on_terminal():
                output.tabbed(_columns(row) for row in self.rows(client))
                return
            query = {"status": self.status, "limit": FIRST_ROWS}
            raw = client.request("GET", "jobs", self.job, "results", query=query)
        page = decoded(raw, ResultRows)
        output.table(HEADS, [_columns(row) for row in page.results])
        if page.next_cursor:
            output.note(
                f"These are the first {FIRST_ROWS}: --ndjson prints every row, --out saves all"
            )

    def print_document(self) -> None:
        """The API's listing as if it were one page, written row by row."""
        with self.service.client() as client:
            rows = self.rows(client)
            first = list(islice(rows, 1))  # before anything is written: the call may be refused
            sys.stdout.write('{"results":[')
            for number, row in enumerate(chain(first, rows)):
                sys.stdout.write(("," if number else "") + row.decode())
            sys.stdout.write('],"next_cursor":null}\n')

    def print_lines(self) -> None:
        total = self._total()
        with (
            self.service.patient_client() as client,
            _bar(total, hidden=output.on_terminal()) as bar,
        ):
            for row in self.rows(client):
                sys.stdout.write(row.decode() + "\n")
                bar.advance(bar.tasks[0].id)

    def save(self, folder: Path, *, quiet: bool = False) -> SavedPages:
        """Each page as a file named after its task, and all rows beside them."""
        done, total = SavedPages(str(folder)), self._total()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _claim(folder, self.job)
            with (
                self.service.patient_client() as client,
                _bar(total, hidden=quiet) as bar,
                (folder / INDEX).open("w", encoding="utf-8") as index,
            ):
                for row in self.rows(client):
                    index.write(row.decode() + "\n")
                    self._save_one(client, decoded(row, TaskResult), done)
                    bar.advance(bar.tasks[0].id)
        except OSError as error:
            raise NotSaved(f"{error.filename or folder}: {error.strerror}") from None
        return done

    def rows(self, client: Conveyor) -> Iterator[bytes]:
        return client.result_rows(self.job, status=self.status)

    def _save_one(self, client: Conveyor, row: TaskResult, done: SavedPages) -> None:
        if not row.has_body:
            done.without_page += 1
            return
        result = msgspec.structs.replace(row, job_id=self.job)
        file = _file(Path(done.folder), row)
        if client.is_saved(result, file):
            done.already_there += 1
            return
        client.save(result, file)
        done.saved += 1

    def _total(self) -> int | None:
        """How many rows there are, where the numbers of the run say so."""
        with self.service.client() as client:
            run = client.job(self.job).latest_run
        if run is None:
            return None
        known: dict[str | None, int] = {None: run.stats.total, "all": run.stats.total}
        known |= {"successful": run.stats.successful, "failed": run.stats.failed}
        return known.get(self.status)


def save_and_print(listing: Listing, folder: Path, *, as_json: bool) -> None:
    with output.interruptible("The saved pages are whole. Repeat the command for the rest."):
        done = listing.save(folder, quiet=as_json)
    if as_json:
        output.json_line(msgspec.json.encode(done))
    else:
        output.facts(list(msgspec.structs.asdict(done).items()))
    with listing.service.client() as client:
        run = client.job(listing.job).latest_run
    if run and not run.has_ended:
        output.note("The run has not ended: repeat the command for the rest.")


def _claim(folder: Path, job_id: str) -> None:
    """Mark the folder as this job's. One with another job's results is refused: the index would
    be overwritten, and the pages of both would be mixed.
    """
    mark = folder / MARK
    if not (folder / INDEX).exists():
        with suppress(FileExistsError), mark.open("x", encoding="utf-8") as file:
            file.write(job_id)
    known = mark.read_text(encoding="utf-8", errors="replace")[:100] if mark.exists() else ""
    if known != job_id:
        whose = f"job {plain(known)}" if known else "an unknown job"
        raise RefusedToStart(
            f"{folder} holds the results of {whose}: --out must name a folder of its own for job "
            f"{plain(job_id)}; choose another, or remove {INDEX} and {MARK} from this one"
        )


def _file(folder: Path, row: TaskResult) -> Path:
    """Where a page goes; the name comes from the service and must not lead out of the folder."""
    if not SAFE_NAME.fullmatch(row.task_id):
        raise UnreachableError(f"the task id {plain(row.task_id)!r} cannot be used as a file name")
    return folder / f"{row.task_id}.{extension(row.type or '', row.content_type)}"


def _columns(raw: bytes | msgspec.Raw) -> tuple[str, str, str, str]:
    row = decoded(raw, TaskResult)
    return row.task_id, row.status, row.url, row.error.code if row.error else row.type or ""


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
