"""Task tokens of Step Functions: what a caller hands in, and what the state that waits is told.

A token is a credential: whoever has it can end the state. It is encrypted wherever it is kept, for
its caller and run, and quoted nowhere.
"""

import re
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from conveyor.domain.counts import Counts
from conveyor.domain.failure import AccountReason
from conveyor.domain.ids import CallerId, EventId, RunId
from conveyor.domain.job import Job, JobType
from conveyor.domain.outbox import Channel, EventType, OutboxEvent
from conveyor.domain.run import Run, RunStatus
from conveyor.domain.stats import Stats, stats
from conveyor.errors import InvalidArgument

FIELD = "step_functions"
LONGEST_TOKEN = 2_048
SHORTEST_HEARTBEAT = 5
LONGEST_HEARTBEAT = 86_400
TOKEN = re.compile(rf"[\x21-\x7e]{{1,{LONGEST_TOKEN}}}")

KINDS: dict[RunStatus, EventType] = {
    RunStatus.COMPLETED: EventType.RUN_COMPLETED,
    RunStatus.FAILED: EventType.RUN_FAILED,
    RunStatus.STOPPED: EventType.RUN_STOPPED,
    RunStatus.DELETED: EventType.RUN_DELETED,
}


class TaskToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a submission says of the state that waits for its run."""

    task_token: str
    heartbeat_seconds: int | None = None

    def __repr__(self) -> str:
        """Without the token, wherever this may be printed."""
        return f"TaskToken(heartbeat_seconds={self.heartbeat_seconds})"


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What the state gives to the next one when the run has completed."""

    job_id: str
    run_id: str
    status: RunStatus
    ended_at: datetime
    stats: Stats
    external_id: str | UnsetType = UNSET
    metadata: msgspec.Raw | UnsetType = UNSET
    ingest_errors: int | UnsetType = UNSET
    ingest_error: str | UnsetType = UNSET


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why the state failed, for people and programs."""

    message: str
    job_id: str
    run_id: str
    status: RunStatus
    ended_at: datetime
    failure_reason: str | UnsetType = UNSET
    failure_detail: str | UnsetType = UNSET
    ingest_error: str | UnsetType = UNSET


class Failure(msgspec.Struct, frozen=True):
    """What the state fails with: a name for its `Catch`, and the cause as text."""

    error: str
    cause: str


def check(given: TaskToken, kind: JobType | None) -> None:
    """Refuse what cannot be a token, and jobs that no single state can wait for."""
    if kind is JobType.SCHEDULED:
        raise _at("", "is for a single run: a scheduled job has many")
    if not TOKEN.fullmatch(given.task_token):
        raise _at(
            ".task_token", f"is the state's token: 1 to {LONGEST_TOKEN} characters without spaces"
        )
    beat = given.heartbeat_seconds
    if beat is not None and not SHORTEST_HEARTBEAT <= beat <= LONGEST_HEARTBEAT:
        raise _at(
            ".heartbeat_seconds",
            f"is a whole number from {SHORTEST_HEARTBEAT} to {LONGEST_HEARTBEAT}",
        )


def unconfigured() -> InvalidArgument:
    return _at(
        "",
        "cannot be served: this service is not connected to Step Functions; its operator can "
        "do so by the setting `step_functions`",
    )


def token_context(caller: CallerId, run_id: RunId) -> str:
    """What a encrypted token belongs to."""
    return f"{caller}|{run_id}|task_token"


def end_of(job: Job | None, run: Run, settled: Counts, event_id: EventId) -> OutboxEvent:
    """What is owed to the token of a run that has just ended.

    It has all that is to be sent in it: the run and its job may be gone by then.
    """
    completed = run.status is RunStatus.COMPLETED
    said = _output(job, run, settled) if completed else _failure(run)
    return OutboxEvent(
        id=event_id,
        caller=run.caller,
        job_id=run.job_id,
        run_id=run.id,
        channel=Channel.TASK_TOKEN,
        type=KINDS[run.status],
        occurred_at=run.updated_at,
        payload=_encoded(said),
        due_at=run.updated_at,
        encrypted_token=run.encrypted_token,
    )


def beats_of(run: Run, every: int | None, event_id: EventId) -> OutboxEvent | None:
    """What keeps the state waiting while its run is live, if that is wanted."""
    if every is None:
        return None
    return OutboxEvent(
        id=event_id,
        caller=run.caller,
        job_id=run.job_id,
        run_id=run.id,
        channel=Channel.HEARTBEAT,
        type=EventType.RUN_ALIVE,
        occurred_at=run.created_at,
        payload="",
        due_at=run.created_at + timedelta(seconds=every),
        encrypted_token=run.encrypted_token,
        every_seconds=every,
    )


def failure_in(payload: str) -> Failure:
    return msgspec.json.decode(payload, type=Failure)


class Failed(NamedTuple):
    error: str  # the name that a state machine catches
    message: str


STOPPED = Failed("RunStopped", "The run was stopped by its caller.")
DELETED = Failed("RunDeleted", "The run was deleted by its caller.")
CUT_SHORT = Failed("IngestFailed", "The run was stopped: its list could not be read to its end.")
ACCOUNT: dict[AccountReason, Failed] = {
    AccountReason.INSUFFICIENT_CREDITS: Failed(
        "InsufficientCredits", "The run has failed: the gateway account has no credits left."
    ),
    AccountReason.SUBSCRIPTION_INACTIVE: Failed(
        "SubscriptionInactive", "The run has failed: the gateway account's subscription is off."
    ),
    AccountReason.API_KEY_CAP_REACHED: Failed(
        "ApiKeyCapReached", "The run has failed: the gateway key has spent what it may."
    ),
}


def failed_by(run: Run) -> Failed:
    """Why a run that did not complete is over."""
    if run.failure_reason and run.status is RunStatus.FAILED:
        return ACCOUNT[run.failure_reason]
    if run.status is RunStatus.DELETED:
        return DELETED
    return CUT_SHORT if run.is_cut and run.ingest_error else STOPPED


def _output(job: Job | None, run: Run, settled: Counts) -> Output:
    return Output(
        job_id=run.job_id,
        run_id=run.id,
        status=run.status,
        ended_at=run.updated_at,
        stats=stats(run, settled),
        external_id=job.external_id if job and job.external_id else UNSET,
        metadata=msgspec.Raw(job.metadata.encode()) if job and job.metadata else UNSET,
        ingest_errors=run.ingest_errors or UNSET,
        ingest_error=run.ingest_error or UNSET,
    )


def _failure(run: Run) -> Failure:
    failed = failed_by(run)
    cause = Cause(
        message=failed.message,
        job_id=run.job_id,
        run_id=run.id,
        status=run.status,
        ended_at=run.updated_at,
        failure_reason=run.failure_reason or UNSET,
        failure_detail=run.failure_detail or UNSET,
        ingest_error=run.ingest_error or UNSET,
    )
    return Failure(failed.error, _encoded(cause))


def _encoded(said: Output | Failure | Cause) -> str:
    return msgspec.json.encode(said).decode()


def _at(below: str, what: str) -> InvalidArgument:
    field = f"{FIELD}{below}"
    return InvalidArgument(f"`{field}` {what}", extras={"field": field})
