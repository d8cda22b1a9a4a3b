"""Jobs: a submission that can be run again, and its deletion. A job has no execution state.

open → closed → deleted
"""

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from conveyor.domain.api_key import ApiKey, KeyStatus, status
from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.ids import ApiKeyId, CallerId, JobId, RunId
from conveyor.domain.schedule import PauseReason, Schedule, ScheduleState, next_fire
from conveyor.domain.task_list.spec import SourceList
from conveyor.domain.webhook import Webhook
from conveyor.errors import IllegalMove, InvalidArgument

PURGE = "purge"  # the kind of message that removes what was deleted
TOMBSTONE_LIFE = timedelta(hours=24)  # how long a repeated delete is answered like the first
ROW_VERSION = 1  # of the format in which this release writes and reads the rows of a run


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


# Smaller jobs are not worth a query for each shard when they are read.
SHARDED_FROM = 1_000  # tasks


class RunPlace(msgspec.Struct, frozen=True):
    """Where the rows of a run are stored, and in which format. It never changes.

    Readers and writers take the number of shards from here, never from the settings, which may be
    others by now. A process leaves the tasks of a run in a newer format to newer processes.
    """

    job_id: JobId
    shards: int = 1
    v: int = ROW_VERSION

    @property
    def stamp(self) -> str:
        """The place as messages of the run carry it."""
        return f"{self.job_id}/{self.shards}"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    id: JobId
    caller: CallerId
    status: JobStatus
    format: str
    latest_run_id: RunId | None  # the newest that is not deleted
    # For this caller and job. Stored rows have it under its former name.
    encrypted_gateway_key: bytes = msgspec.field(name="encrypted_key")
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
    runs: int = 1  # how many were ever created; the sequence of the next is one more
    source_list: SourceList | None = None  # the list its rows came from, where one is kept
    webhook: Webhook | None = None
    schedule: Schedule | None = None  # of a scheduled job
    schedule_state: ScheduleState = ScheduleState.ACTIVE
    pause_reason: PauseReason | None = None  # of a schedule that the service paused
    api_key_id: ApiKeyId | None = None  # the API key it fires under, with `auth = keys`
    next_fire_at: datetime | None = None  # also while paused; None when there is no further one
    skipped: int = 0  # fires that were skipped because the last run was live
    last_skipped_at: datetime | None = None
    last_batch: bool = False  # closed by the last batch of added tasks, not by a call to close
    task_shard_count: int = 1  # over which an engine may spread the rows of each of its runs
    version: int = 0  # 0: not stored yet; each store raises it

    @property
    def place(self) -> RunPlace:
        """Where the rows of its runs are stored."""
        return RunPlace(self.id, self.task_shard_count)

    @property
    def fires_at(self) -> datetime | None:
        """When its schedule next creates a run; None while it is paused or deleted."""
        is_on = self.status is not JobStatus.DELETED and self.schedule_state is ScheduleState.ACTIVE
        return self.next_fire_at if is_on else None


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted job, or one deleted run of a job, whose data must be purged.

    The commit that deletes the job or run stores it. Once everything is purged the row stays, with
    the tombstone, for `TOMBSTONE_LIFE`.
    """

    id: str  # of the deleted run or job
    job_id: JobId
    sent_at: datetime  # when its message was last sent
    run_id: RunId | None = None
    done_at: datetime | None = None
    version: int = 0


def close(job: Job, now: datetime) -> Job:
    return _moved(job, JobStatus.CLOSED, now)


def run_again(job: Job, run_id: RunId, now: datetime) -> Job:
    """The job with a new run. It is closed: tasks that are added belong to the first run."""
    closed = job if job.status is JobStatus.CLOSED else close(job, now)
    return msgspec.structs.replace(closed, latest_run_id=run_id, runs=job.runs + 1, updated_at=now)


def fire(job: Job, run_id: RunId, next_at: datetime | None, now: datetime) -> Job:
    """The job with a run that its schedule created, and the time of the next fire."""
    return msgspec.structs.replace(run_again(job, run_id, now), next_fire_at=next_at)


def skip_fire(job: Job, next_at: datetime | None, now: datetime) -> Job:
    """The job after a fire that was skipped, because the last run was still live."""
    return msgspec.structs.replace(
        job, skipped=job.skipped + 1, last_skipped_at=now, next_fire_at=next_at, updated_at=now
    )


def reschedule(job: Job, schedule: Schedule, next_at: datetime, now: datetime) -> Job:
    return msgspec.structs.replace(job, schedule=schedule, next_fire_at=next_at, updated_at=now)


def turn_schedule(
    job: Job,
    state: ScheduleState,
    next_at: datetime | None,
    now: datetime,
    *,
    why: PauseReason | None = None,
) -> Job:
    """Pause a job's schedule, or resume it with the next fire. Missed fires are not made up."""
    return msgspec.structs.replace(
        job, schedule_state=state, next_fire_at=next_at, pause_reason=why, updated_at=now
    )


def pause_without_key(job: Job, key: ApiKey | None, now: datetime) -> Job:
    """The job with its schedule paused, if its API key has expired or was revoked."""
    if job.api_key_id is None or job.schedule_state is ScheduleState.PAUSED:
        return job
    match status(key, now) if key else KeyStatus.REVOKED:
        case KeyStatus.ACTIVE:
            return job
        case KeyStatus.EXPIRED:
            why = PauseReason.API_KEY_EXPIRED
        case KeyStatus.REVOKED:
            why = PauseReason.API_KEY_REVOKED
    return turn_schedule(job, ScheduleState.PAUSED, job.next_fire_at, now, why=why)


def next_run(job: Job, now: datetime) -> datetime | None:
    """When the job runs next, or would run if it were not paused.

    While a schedule is paused its stored next fire is not moved on, so it may be in the past.
    """
    at = job.next_fire_at
    is_past = at is not None and at <= now and job.schedule_state is ScheduleState.PAUSED
    if at is None or job.schedule is None or not is_past:
        return at
    try:
        return next_fire(job.schedule, now, anchor=at)
    except InvalidArgument:
        return None  # its time zone is no longer known


def after_clock_set_back(job: Job, now: datetime) -> Job:
    """The job with its next fire repaired after the clock was set back to `now`.

    A next fire that skips a single time of the schedule stays as it is: that time fired before the
    clock was set back, and must not fire twice.
    """
    at, schedule = job.next_fire_at, job.schedule
    if at is None or schedule is None:
        return job
    try:
        first = next_fire(schedule, now, anchor=at)
        second = next_fire(schedule, first, anchor=at) if first else None
    except InvalidArgument:
        return job  # its time zone is no longer known; the next fire pauses the schedule
    is_possible = second is None or at <= second
    return job if is_possible else msgspec.structs.replace(job, next_fire_at=first)


def point_at(job: Job, run_id: RunId | None, now: datetime) -> Job:
    """The job after its latest run was deleted; `run_id` is the newest run that is left."""
    if job.status is JobStatus.DELETED:
        raise IllegalMove(f"job {job.id} is deleted")
    return msgspec.structs.replace(job, latest_run_id=run_id, updated_at=now)


def delete(job: Job, now: datetime) -> Job:
    return _moved(job, JobStatus.DELETED, now)


def tombstone(job: Job) -> Job:
    """What remains of a deleted job once it is purged: its owner, type and times."""
    if job.status is not JobStatus.DELETED:
        raise IllegalMove(f"job {job.id} is {job.status}")
    return Job(
        id=job.id,
        caller=job.caller,
        status=job.status,
        type=job.type,
        format="",
        latest_run_id=None,
        encrypted_gateway_key=b"",
        created_at=job.created_at,
        updated_at=job.updated_at,
        task_shard_count=job.task_shard_count,
        version=job.version,
    )


def is_named(job: Job, text: str) -> bool:
    """Whether the name or the external id of a job contains a text, in upper or lower case."""
    wanted = text.casefold()
    return any(wanted in name.casefold() for name in (job.name, job.external_id) if name)


def purge_message(deletion: Deletion, caller: CallerId | None) -> ControlMessage:
    return ControlMessage(
        kind=PURGE, subject=deletion.id, caller=caller or "", payload={"id": deletion.id}
    )


def _moved(job: Job, status: JobStatus, now: datetime) -> Job:
    if status not in MOVES[job.status]:
        raise IllegalMove(f"job {job.id}: {job.status} -> {status}")
    return msgspec.structs.replace(job, status=status, updated_at=now)
