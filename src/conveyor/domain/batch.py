"""A list of tasks on its way into rows, and the answer owed to a repeated call."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import msgspec

from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.task import TaskSpec

REPLAY_LIFE = timedelta(hours=24)
INGEST = "ingest"  # the duty that finishes a batch
LINES_AT_A_TIME = 5_000


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A staged list whose rows are promised: its run's total already counts them.

    It is stored before its rows and removed after them, so whoever finds one finds unfinished
    work, and can finish it: line n of the list becomes the row with index `first + n`.
    """

    run_id: RunId
    job_id: JobId
    first: int
    count: int
    blob: str
    created_at: datetime
    written: int = 0  # lines whose rows exist: where a new ingester goes on
    read: int = 0  # bytes of the list that those lines took
    version: int = 0


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the first call with an idempotency key, to be given again to the byte."""

    caller: CallerId
    key: str
    fingerprint: bytes
    status: int
    body: bytes
    expires_at: datetime


def list_key(job_id: JobId, run_id: RunId, name: str) -> str:
    """Where a staged list is kept."""
    return f"lists/{job_id}/{run_id}/{name}.ndjson"


def lines(specs: Sequence[TaskSpec]) -> Iterator[bytes]:
    """Tasks as lines of JSON, many lines at a time."""
    encoder = msgspec.json.Encoder()
    for start in range(0, len(specs), LINES_AT_A_TIME):
        yield encoder.encode_lines(specs[start : start + LINES_AT_A_TIME])


def ingest_duty(batch: Batch) -> tuple[str, dict[str, str]]:
    """The duty that finishes a batch."""
    return INGEST, {"run_id": batch.run_id, "first": str(batch.first)}
