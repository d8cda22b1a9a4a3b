"""Batches: rows that a run was promised and that an ingest writes, from a list or an earlier run."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import Job
from conveyor.domain.params import Params
from conveyor.domain.run import NO_INHERITANCE, IngestStatus, Inheritance, Run, Trigger
from conveyor.domain.selection import ALL, Selection
from conveyor.domain.task import TaskSpec, TaskStatus
from conveyor.domain.task_list.reader import START
from conveyor.domain.task_list.rows import Position
from conveyor.domain.task_list.spec import SourceList

INGEST = "ingest"  # the kind of message that finishes a batch
LINES_AT_A_TIME = 5_000
BYTES_AT_A_TIME = 1024 * 1024


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that a run was promised: its total already counts them.

    A batch is stored before its rows and removed after them, so that one on record is unfinished
    work which any process can finish. Its rows come from one of three places:

    - a stored list `blob`: line n becomes the row with index `first + n`;
    - the run `source_run_id`: each of its rows is copied to the same index;
    - the file input `source_list`: each good row becomes the task with its ordinal as index. How
      many those are is not known in advance, so only rows that exist are counted, and the run's
      total grows with them.
    """

    run_id: RunId
    job_id: JobId
    first: int
    count: int
    created_at: datetime
    blob: str | None = None
    source_run_id: RunId | None = None
    statuses: tuple[TaskStatus, ...] | None = None  # as 0.1.0 stored a selection
    selection: Selection = ALL  # of the rows that are scraped again
    params: Params = {}  # that replace those of the rows that are scraped
    inherited: Inheritance = NO_INHERITANCE  # by the rows that exist
    written: int = 0  # rows that exist
    read: int = 0  # where to resume: bytes of the list, or indexes of the source run
    source_list: SourceList | None = None
    position: Position = START  # where to resume in it
    errors: int = 0  # bad rows before that
    checked: bool = False  # a strict list was read once, has no bad row, and is read again
    version: int = 0

    @property
    def scraped_again(self) -> Selection:
        return self.selection if self.statuses is None else Selection(statuses=self.statuses)


def list_key(job_id: JobId, run_id: RunId, name: str) -> str:
    """Where a staged list is kept."""
    return f"{lists_of(job_id, run_id)}{name}.ndjson"


def source_list_key(job_id: JobId) -> str:
    """Where a job keeps the tasks that it was submitted with."""
    return f"pins/{job_id}.ndjson"


def lines(specs: Sequence[TaskSpec]) -> Iterator[bytes]:
    """Tasks as lines of JSON, many lines at a time."""
    encoder = msgspec.json.Encoder()
    for part in parts(specs):
        yield encoder.encode_lines(part)


def parts(specs: Sequence[TaskSpec]) -> Iterator[Sequence[TaskSpec]]:
    """Tasks in groups of bounded number and size, each of which is encoded in a few milliseconds.

    A group ends with the task that reaches the bound, so a large task may exceed it.
    """
    start = size = 0
    for end, spec in enumerate(specs, 1):
        size += len(spec.url)
        if spec.metadata or spec.params or spec.body:
            size += len(spec.metadata or "") + len(spec.params or "") + len(spec.body or "")
        if size >= BYTES_AT_A_TIME or end - start == LINES_AT_A_TIME:
            yield specs[start:end]
            start, size = end, 0
    if start < len(specs):
        yield specs[start:]


def lists_of(job_id: JobId, run_id: RunId) -> str:
    """Where all staged lists of a run are kept."""
    return f"lists/{job_id}/{run_id}/"


def ingest_message(batch: Batch, caller: CallerId | None) -> ControlMessage:
    """The message that finishes a batch."""
    return ControlMessage(
        kind=INGEST,
        subject=f"{batch.run_id}/{batch.first}",
        caller=caller or "",
        payload=ingest_payload(batch),
    )


def ingest_payload(batch: Batch) -> dict[str, str]:
    """The payload names the batch and its version, which shows whether an ingest made progress."""
    place = {"run_id": batch.run_id, "first": str(batch.first)}
    return {**place, "version": str(batch.version)}


def batch_of(source_list: SourceList, job_id: JobId, run_id: RunId, now: datetime) -> Batch:
    """The batch that makes a job's whole source list the rows of a run."""
    rows: dict[str, Any] = (
        {"count": source_list.count, "blob": source_list.blob}
        if source_list.spec is None
        else {"count": 0, "source_list": source_list}
    )
    return Batch(run_id=run_id, job_id=job_id, first=0, created_at=now, **rows)


def run_of(
    job: Job, source_list: SourceList, run_id: RunId, trigger: Trigger, now: datetime
) -> Run:
    """A new run of a job's source list, whose rows follow."""
    return Run(
        id=run_id,
        job_id=job.id,
        caller=job.caller,
        created_at=now,
        updated_at=now,
        total=source_list.count,
        next_index=source_list.count,
        sequence=job.runs + 1,
        trigger=trigger,
        ingest_status=IngestStatus.PENDING,
    )
