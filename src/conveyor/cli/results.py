"""`conveyor results` and `conveyor export`: list results, save pages, or save all in one file."""

import csv
import re
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import Annotated, Literal, Unpack

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from conveyor.cli import output
from conveyor.cli.bars import Bar, DownloadBar
from conveyor.cli.connect import Endpoint, JobId, Json, OfRun, with_service
from conveyor.cli.follow import latest_run_id
from conveyor.cli.hints import Advised
from conveyor.cli.output import plain
from conveyor.cli.reruns import Codes, Hosts, Reasons
from conveyor.client import (
    Conveyor,
    ExportError,
    NotFoundError,
    Run,
    RunExport,
    TaskResult,
    UnreachableError,
)
from conveyor.client.models import RowConditions
from conveyor.client.transport import decoded
from conveyor.domain.media import extension
from conveyor.errors import ConveyorError, RefusedToStart

POLL = 0.5  # seconds
FIRST_ROWS = 100
INDEX = "results.ndjson"
MARK = ".conveyor-job"  # names the job, and with --run the run, whose results a folder holds
SAFE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
AT_ONCE = 8  # pages that are downloaded at a time
COUNTING = Lock()  # threads that save pages count them
CSV_HEADS = (
    *("task_id", "external_id", "url", "status", "type", "http_status", "content_type", "size"),
    *(
        "attempts",
        "duration_ms",
        "credits",
        "cost",
        "final_url",
        "error_code",
        "error_title",
        "updated_at",
    ),
)
HEADS = ("task", "status", "url", "type or error")


class NotSaved(ConveyorError):
    """A result could not be written to disk."""


class SavedPages(msgspec.Struct):
    """How many pages were saved, and why others were not."""

    folder: str
    saved: int = 0
    already_there: int = 0
    without_page: int = 0

    def count(self, what: str) -> None:
        with COUNTING:
            setattr(self, what, getattr(self, what) + 1)


@with_service
def results(
    service: Endpoint,
    job: JobId,
    *,
    run: OfRun = None,
    status: Annotated[
        str | None, typer.Option(help="successful, failed or processing; several with commas.")
    ] = None,
    host: Hosts = None,
    reason: Reasons = None,
    code: Codes = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save every page as a file in this folder.")
    ] = None,
    format_: Annotated[
        Literal["ndjson", "csv"] | None,
        typer.Option("--format", help="Print every row: as JSON, one on each line, or as CSV."),
    ] = None,
    ndjson: Annotated[bool, typer.Option("--ndjson", help="Like --format ndjson.")] = False,
    as_json: Json = False,
) -> None:
    """List results, or save the pages."""
    if ndjson and format_ == "csv":
        raise RefusedToStart("use either --format csv or --ndjson, not both")
    lines_as = "ndjson" if ndjson else format_
    if out and lines_as:
        raise RefusedToStart("use either --out or --format, not both")
    listing = Listing(service, job, run=run, status=status, host=host, reason=reason, code=code)
    if out:
        save_and_print(listing, out, as_json=as_json)
    elif lines_as:
        listing.print_lines(as_csv=lines_as == "csv")
    elif as_json:
        listing.print_document()
    else:
        listing.print_table()


class Listing:
    """The results of a run, the latest if none is given: all, or those that meet every condition."""

    def __init__(
        self,
        service: Endpoint,
        job: str,
        *,
        run: str | None = None,
        status: str | None = None,
        **conditions: Unpack[RowConditions],
    ) -> None:
        self.service, self.job, self.run = service, job, run
        self.status, self.conditions = status, conditions

    def print_table(self) -> None:
        """Every row on a pipe; on a terminal the first ones, and how to get the rest."""
        with self.service.client() as client:
            if not output.on_terminal():
                output.tabbed(_columns(row) for row in self.rows(client))
                return
            first = list(islice(self.rows(client), FIRST_ROWS + 1))
        output.table(HEADS, [_columns(row) for row in first[:FIRST_ROWS]])
        if len(first) > FIRST_ROWS:
            output.note(
                f"These are the first {FIRST_ROWS}: --format prints every row, --out saves all"
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

    def print_lines(self, *, as_csv: bool = False) -> None:
        total = self._total()
        table = csv.writer(sys.stdout, lineterminator="\n") if as_csv else None
        if table:
            table.writerow(CSV_HEADS)
        with (
            self.service.patient_client() as client,
            _bar(total, hidden=output.on_terminal()) as bar,
        ):
            for row in self.rows(client):
                if table:
                    table.writerow(_csv_row(row))
                else:
                    sys.stdout.write(row.decode() + "\n")
                bar.advance(bar.tasks[0].id)

    def save(self, folder: Path, *, quiet: bool = False) -> SavedPages:
        """Each page as a file named after its task, and all rows beside them, with these names."""
        done, total = SavedPages(str(folder)), self._total()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _claim(folder, f"{self.job}, run {self.run}" if self.run else self.job)
            with (
                self.service.patient_client() as client,
                _bar(total, hidden=quiet) as bar,
                (folder / INDEX).open("w", encoding="utf-8") as index,
            ):
                for row in self._saved_rows(client, done):
                    index.write(row.decode() + "\n")
                    bar.advance(bar.tasks[0].id)
        except OSError as error:
            raise NotSaved(f"{error.filename or folder}: {error.strerror}") from None
        return done

    def rows(self, client: Conveyor) -> Iterator[bytes]:
        return client.result_rows(self.job, run_id=self.run, status=self.status, **self.conditions)

    def read_run(self) -> Run | None:
        with self.service.client() as client:
            if self.run:
                return client.run(self.job, self.run)
            return client.job(self.job).latest_run

    def _saved_rows(self, client: Conveyor, done: SavedPages) -> Iterator[bytes]:
        """The rows in their order, each once its page is saved, up to `AT_ONCE` ahead."""
        ahead: deque[Future[bytes]] = deque()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            try:
                for row in self.rows(client):
                    ahead.append(threads.submit(self._save_one, client, row, done))
                    if len(ahead) > AT_ONCE:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                threads.shutdown(wait=False, cancel_futures=True)

    def _save_one(self, client: Conveyor, raw: bytes, done: SavedPages) -> bytes:
        """Save a page unless it is there; return its row with the name of the file."""
        row = decoded(raw, TaskResult)
        if not row.has_body:
            done.count("without_page")
            return raw
        result = msgspec.structs.replace(row, job_id=self.job)
        file = _file(Path(done.folder), row)
        if client.is_saved(result, file):
            done.count("already_there")
        else:
            client.save(result, file)
            done.count("saved")
        return msgspec.json.encode({**msgspec.json.decode(raw), "file": file.name})

    def _total(self) -> int | None:
        """How many rows there are, where the numbers of the run say so."""
        if any(self.conditions.values()):
            return None
        run = self.read_run()
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
    run = listing.read_run()
    if run and not run.has_ended:
        output.note("The run has not ended: repeat the command for the rest.")


def _claim(folder: Path, source: str) -> None:
    """Mark the folder with the job, and the run if one is given, whose results it holds.

    One with other results is refused: the index would be overwritten, and the pages of both would
    be mixed.
    """
    mark = folder / MARK
    if not (folder / INDEX).exists():
        with suppress(FileExistsError), mark.open("x", encoding="utf-8") as file:
            file.write(source)
    known = mark.read_text(encoding="utf-8", errors="replace")[:100] if mark.exists() else ""
    if known != source:
        whose = f"job {plain(known)}" if known else "an unknown job"
        raise RefusedToStart(
            f"{folder} holds the results of {whose}: --out must name a folder of its own for job "
            f"{plain(source)}; choose another, or remove {INDEX} and {MARK} from this one"
        )


def _file(folder: Path, row: TaskResult) -> Path:
    """Where a page goes; the name comes from the service and must not lead out of the folder."""
    if not SAFE_NAME.fullmatch(row.task_id):
        raise UnreachableError(f"the task id {plain(row.task_id)!r} cannot be used as a file name")
    return folder / f"{row.task_id}.{extension(row.type or '', row.content_type)}"


def _columns(raw: bytes | msgspec.Raw) -> tuple[str, str, str, str]:
    row = decoded(raw, TaskResult)
    return row.task_id, row.status, row.url, row.error.code if row.error else row.type or ""


def _csv_row(raw: bytes) -> list[object]:
    row = decoded(raw, TaskResult)
    error = row.error
    own = {
        "error_code": error and error.code,
        "error_title": error and error.title,
        "updated_at": output.moment(row.updated_at),
    }
    return [own[name] if name in own else getattr(row, name) for name in CSV_HEADS]


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


class SavedExport(msgspec.Struct, frozen=True):
    file: str
    bytes: int
    export_id: str
    run_id: str


class ExportFailed(ConveyorError):
    """The service could not make the file, or it could not be written to disk."""


@with_service
def export(
    service: Endpoint,
    job: JobId,
    *,
    out: Annotated[Path, typer.Option(help="The file to write.")],
    run: OfRun = None,
    resume: Annotated[
        str | None, typer.Option(metavar="EXPORT", help="Go on with an export by its id.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Json = False,
) -> None:
    """Save all of a run as one zip file, with a manifest."""
    if out.is_dir() or (out.exists() and not force):
        raise RefusedToStart(f"{out} exists already: name another file, or give --force")
    with service.client() as client:
        run_id = run or latest_run_id(client, job)
        has_ended = client.run(job, run_id).has_ended
        started = _started(client, job, run_id, resume)
    hint = (
        "The service keeps the file for 12 hours. Go on with: conveyor export "
        f"{plain(job)} --run {plain(run_id)} --resume {started.export_id} --out {out}"
    )
    with output.interruptible(hint):
        saved = _saved(service, started, out, quiet=as_json)
    if as_json:
        output.json_line(msgspec.json.encode(saved))
    else:
        output.facts(list(msgspec.structs.asdict(saved).items()))
    if not has_ended:
        output.note("The run has not ended: the file holds its results so far.")


def _started(client: Conveyor, job: str, run_id: str, resume: str | None) -> RunExport:
    try:
        if resume is None:
            return _checked(client.start_export(job, run_id=run_id))
        asked = RunExport(export_id=resume, status="", job_id=job, run_id=run_id)
        return _checked(client.export(_checked(asked)))
    except NotFoundError as error:
        advice = "an export is kept for 12 hours: leave --resume out to start another"
        raise Advised(error, advice if resume else None) from None


def _checked(export: RunExport) -> RunExport:
    """The id becomes a part of a file name."""
    if not SAFE_NAME.fullmatch(export.export_id):
        raise UnreachableError(
            f"the export id {plain(export.export_id)!r} cannot be used as a file name"
        )
    return export


def _saved(service: Endpoint, started: RunExport, out: Path, *, quiet: bool) -> SavedExport:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with service.patient_client() as client, DownloadBar(hidden=quiet) as bar:
            length = client.save_export(started, out, poll_every=POLL, on_received=bar.received)
    except ExportError as error:
        raise ExportFailed(
            f"the export failed: {plain(error.reason)}\n"
            f"  `conveyor results {plain(started.job_id)} --out FOLDER` saves page by page"
        ) from None
    except OSError as error:
        raise ExportFailed(f"{error.filename or out}: {error.strerror}") from None
    return SavedExport(str(out), length, started.export_id, started.run_id)
