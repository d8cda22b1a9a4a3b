"""The life of a job: a reusable submission, with no state of execution.

open → closed → deleted
"""

from datetime import datetime
from enum import StrEnum

import msgspec

from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.errors import IllegalMove


class JobType(StrEnum):
    REGULAR = "regular"
    SCHEDULED = "scheduled"


class JobStatus(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    DELETED = "deleted"


MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.OPEN: frozenset({JobStatus.CLOSED, JobStatus.DELETED}),
    JobStatus.CLOSED: frozenset({JobStatus.DELETED}),
    JobStatus.DELETED: frozenset(),
}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    id: JobId
    caller: CallerId
    status: JobStatus
    format: str
    latest_run_id: RunId
    sealed_key: bytes  # the caller's gateway key, encrypted for this caller and job
    created_at: datetime
    updated_at: datetime
    type: JobType = JobType.REGULAR
    params: str | None = None  # canonical JSON, as `TaskSpec.params`
    name: str | None = None
    external_id: str | None = None
    metadata: str | None = None
    max_inflight: int = 100
    retries: int = 3
    result_ttl_days: int = 14
    last_batch: bool = False  # closed by the last batch of added tasks, not by a call to close
    version: int = 0  # 0: not stored yet; each store raises it


def close(job: Job, now: datetime) -> Job:
    return _moved(job, JobStatus.CLOSED, now)


def delete(job: Job, now: datetime) -> Job:
    return _moved(job, JobStatus.DELETED, now)


def _moved(job: Job, status: JobStatus, now: datetime) -> Job:
    if status not in MOVES[job.status]:
        raise IllegalMove(f"job {job.id}: {job.status} -> {status}")
    return msgspec.structs.replace(job, status=status, updated_at=now)
