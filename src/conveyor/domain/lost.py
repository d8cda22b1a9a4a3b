"""What the sweeper calls the things it finds, and what it says of them."""

from conveyor.domain.batch import Batch
from conveyor.domain.deletion import Deletion
from conveyor.domain.export import Export
from conveyor.domain.file_input import FileInput
from conveyor.domain.finding import Lost
from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.domain.run import Run


def lapsed_lease(run_id: RunId, task_id: TaskId, claim_no: int, job_id: JobId | None) -> Lost:
    return Lost(
        action="lapsed_lease",
        mark=f"lease {run_id} {task_id} {claim_no}",
        what=f"a worker took it (claim {claim_no}) and stopped without a word",
        job_id=job_id,
        run_id=run_id,
        task_id=task_id,
    )


def unfinished_ingest(batch: Batch) -> Lost:
    return Lost(
        action="unfinished_ingest",
        mark=f"batch {batch.run_id} {batch.first} {batch.version}",
        what=_what_is_owed(batch),
        job_id=batch.job_id,
        run_id=batch.run_id,
    )


def _what_is_owed(batch: Batch) -> str:
    since = f"{batch.created_at:%Y-%m-%d %H:%M:%S}"
    if batch.source_list:  # how many rows it has shows at its end
        return (
            f"its list is to be read since {since}, and is read up to line {batch.position.line:,}"
        )
    missing = batch.count - batch.written
    return (
        f"{missing:,} of its rows, from index {batch.first:,} on, are promised since {since} "
        "and not written"
    )


def missed_completion(run: Run) -> Lost:
    return Lost(
        action="missed_completion",
        mark=f"run {run.id}",
        what=f"all is done, and it still is {run.status}",
        job_id=run.job_id,
        run_id=run.id,
    )


def unfinished_purge(deletion: Deletion) -> Lost:
    return Lost(
        action="unfinished_purge",
        mark=f"deletion {deletion.id}",
        what="it is deleted and not cleared away; that was last asked for at "
        f"{deletion.sent_at:%Y-%m-%d %H:%M:%S}",
        job_id=deletion.job_id,
        run_id=deletion.run_id,
    )


def unfinished_export(export: Export) -> Lost:
    return Lost(
        action="unfinished_export",
        mark=f"export {export.id} {export.version}",
        what=f"its export {export.id} is not begun; that was last asked for at "
        f"{export.sent_at:%Y-%m-%d %H:%M:%S}",
        job_id=export.job_id,
        run_id=export.run_id,
    )


def held_input(file_input: FileInput, job_id: JobId) -> Lost:
    return Lost(
        action="held_input",
        mark=f"slot {file_input.id} {job_id}",
        what=f"the list {file_input.id} is kept for it, and there is no such job",
        job_id=job_id,
    )


def orphan_rows(run_id: RunId) -> Lost:
    return Lost(
        action="orphan_rows",
        mark=f"rows {run_id}",
        what="there are rows of it, and no such run",
        run_id=run_id,
    )


def orphan_bodies(job_id: JobId, run_id: RunId) -> Lost:
    return Lost(
        action="orphan_body",
        mark=f"bodies {run_id}",
        what="there are bodies of it, and no such run",
        job_id=job_id,
        run_id=run_id,
    )


def orphan_blob(action: str, key: str) -> Lost:
    """An object that nothing refers to, under `<kind>/<job>/<run>/`, or of a job, or an input."""
    job_id: str | None = None
    run_id: str | None = None
    match key.split("/"):
        case ["pins", name]:
            job_id = name.removesuffix(".ndjson")
        case [kind, job, run, *_] if kind != "inputs":
            job_id, run_id = job, run
    return Lost(
        action=action,
        mark=f"blob {key}",
        what=f"the object {key} is of no use to anyone",
        job_id=JobId(job_id) if job_id else None,
        run_id=RunId(run_id) if run_id else None,
    )
