"""The life of a job: a reusable submission, with no state of execution.

open → closed → deleted
"""

from datetime import datetime
from enum import StrEnum

import msgspec

from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.pinned import PinnedList
from conveyor.domain.schedule import Schedule, ScheduleState
from conveyor.domain.webhook import Webhook
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
    latest_run_id: RunId | None  # the newest that is not deleted
    sealed_key: bytes  # the caller's gateway key, encrypted for this caller and job
    created_at: datetime
    updated_at: datetime
    type: JobType = JobType.REGULAR
    params: str | None = None  # canonical JSON, as `TaskSpec.params`
    name: str | None = None
    external_id: str | None = None
    metadata: str | None = None
    max_inflight: int = 100
    max_per_host: int | None = None  # pages of one host at a time
    retries: int = 3
    result_ttl_days: int = 14
    runs: int = 1  # runs there have ever been: the next one's sequence is one more
    pinned: PinnedList | None = None  # the list its rows came from, where one is kept
    webhook: Webhook | None = None
    schedule: Schedule | None = None  # of a scheduled job
    schedule_state: ScheduleState = ScheduleState.ACTIVE
    next_fire_at: datetime | None = None  # computed while paused, too; None when none is to come
    skipped: int = 0  # fires that found the last run live
    last_skipped_at: datetime | None = None
    last_batch: bool = False  # closed by the last batch of added tasks, not by a call to close
    version: int = 0  # 0: not stored yet; each store raises it

    @property
    def fires_at(self) -> datetime | None:
        """When it is to run next by itself."""
        is_on = self.status is not JobStatus.DELETED and self.schedule_state is ScheduleState.ACTIVE
        return self.next_fire_at if is_on else None


def close(job: Job, now: datetime) -> Job:
    return _moved(job, JobStatus.CLOSED, now)


def run_again(job: Job, run_id: RunId, now: datetime) -> Job:
    """The job with a new run. It takes no more tasks: they would be for its first."""
    closed = job if job.status is JobStatus.CLOSED else close(job, now)
    return msgspec.structs.replace(closed, latest_run_id=run_id, runs=job.runs + 1, updated_at=now)


def point_at(job: Job, run_id: RunId | None, now: datetime) -> Job:
    """The job after one of its runs was deleted, with the newest that is left."""
    if job.status is JobStatus.DELETED:
        raise IllegalMove(f"job {job.id} is deleted")
    return msgspec.structs.replace(job, latest_run_id=run_id, updated_at=now)


def delete(job: Job, now: datetime) -> Job:
    return _moved(job, JobStatus.DELETED, now)


def tombstone(job: Job) -> Job:
    """What is left of a deleted job once it is cleared: whose it was, and that it is gone."""
    if job.status is not JobStatus.DELETED:
        raise IllegalMove(f"job {job.id} is {job.status}")
    return Job(
        id=job.id,
        caller=job.caller,
        status=job.status,
        type=job.type,
        format="",
        latest_run_id=None,
        sealed_key=b"",
        created_at=job.created_at,
        updated_at=job.updated_at,
        version=job.version,
    )


def _moved(job: Job, status: JobStatus, now: datetime) -> Job:
    if status not in MOVES[job.status]:
        raise IllegalMove(f"job {job.id}: {job.status} -> {status}")
    return msgspec.structs.replace(job, status=status, updated_at=now)
