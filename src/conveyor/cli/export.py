"""`conveyor export`: all of a run as one file, downloaded from where an earlier download was cut."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from conveyor.cli import output
from conveyor.cli.connect import Endpoint, JobId, Json, with_service
from conveyor.cli.hints import Advised
from conveyor.cli.output import plain
from conveyor.client import Conveyor, ExportError, NotFoundError, RunExport, UnreachableError
from conveyor.errors import ConveyorError, RefusedToStart

POLL = 0.5  # seconds


class SavedExport(msgspec.Struct, frozen=True):
    file: str
    bytes: int
    export_id: str
    run_id: str


class ExportFailed(ConveyorError):
    """The service could not make the file, or the disk did not take it."""


@with_service
def export(
    service: Endpoint,
    job: JobId,
    *,
    out: Annotated[Path, typer.Option(help="The file to write.")],
    run: Annotated[str | None, typer.Option(help="Of this run [the latest].")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="EXPORT", help="Go on with an export by its id.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Json = False,
) -> None:
    """Save all of a run as one zip file, with a manifest."""
    from conveyor.cli.follow import latest_run_id  # noqa: PLC0415 - loads rich

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
    from conveyor.cli.results import SAFE_NAME  # noqa: PLC0415 - loads rich

    if resume is not None and not SAFE_NAME.fullmatch(resume):
        raise UnreachableError(f"the export id {plain(resume)!r} cannot be used as a file name")
    try:
        if resume is None:
            started = client.start_export(job, run_id=run_id)
        else:
            raw = client.request("GET", "jobs", job, "runs", run_id, "exports", resume)
            started = msgspec.json.decode(raw, type=RunExport).of(job, run_id)
    except NotFoundError as error:
        advice = "an export is kept for 12 hours: leave --resume out to start another"
        raise Advised(error, advice if resume else None) from None
    if not SAFE_NAME.fullmatch(started.export_id):
        raise UnreachableError(
            f"the export id {plain(started.export_id)!r} cannot be used as a file name"
        )
    return started


def _saved(service: Endpoint, started: RunExport, out: Path, *, quiet: bool) -> SavedExport:
    from conveyor.cli.bars import DownloadBar  # noqa: PLC0415 - loads rich

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
