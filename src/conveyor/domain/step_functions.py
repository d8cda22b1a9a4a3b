"""AWS Step Functions: the task token of a submission, and what is sent to the waiting state.

A token is a credential: anyone who has it can end the state. It is encrypted for its caller and run
wherever it is stored, and quoted nowhere.
"""

import re
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from conveyor.domain.counts import Counts
from conveyor.domain.failure import AccountReason
from conveyor.domain.ids import CallerId, RunId
from conveyor.domain.job import Job, JobType
from conveyor.domain.json_bodies import field_error
from conveyor.domain.retry import backoff
from conveyor.domain.run import Run, RunStatus, Stats, stats
from conveyor.errors import InvalidArgument

FIELD = "step_functions"
LONGEST_TOKEN = 2_048
SHORTEST_HEARTBEAT = 5
LONGEST_HEARTBEAT = 86_400
TOKEN = re.compile(rf"[\x21-\x7e]{{1,{LONGEST_TOKEN}}}")

FIRST_WAIT = timedelta(seconds=1)
LONGEST_WAIT = timedelta(minutes=10)
GIVE_UP = timedelta(days=5)  # after the end of the run


class TaskToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state that waits for the run of a submission."""

    task_token: str
    heartbeat_seconds: int | None = None

    def __repr__(self) -> str:
        """Leaves the token out, so that no log or traceback can show it."""
        return f"TaskToken(heartbeat_seconds={self.heartbeat_seconds})"


class CallbackOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The output of the state when the run has completed."""

    job_id: str
    run_id: str
    status: RunStatus
    ended_at: datetime
    stats: Stats
    external_id: str | UnsetType = UNSET
    metadata: msgspec.Raw | UnsetType = UNSET
    ingest_errors: int | UnsetType = UNSET
    ingest_error: str | UnsetType = UNSET


class CallbackCause(msgspec.Struct, frozen=True, kw_only=True):
    """Why the state failed, as JSON in the cause of its failure."""

    message: str
    job_id: str
    run_id: str
    status: RunStatus
    ended_at: datetime
    failure_reason: str | UnsetType = UNSET
    failure_detail: str | UnsetType = UNSET
    ingest_error: str | UnsetType = UNSET


class CallbackFailure(msgspec.Struct, frozen=True):
    """What the state fails with: an error name that `Catch` can match, and the cause as text."""

    error: str
    cause: str


def check_task_token(given: TaskToken, kind: JobType | None) -> None:
    """Refuse a malformed token or interval, and scheduled jobs. Raises `InvalidArgument`."""
    if kind is JobType.SCHEDULED:
        raise field_error(
            FIELD, "must be left out of a scheduled job: a token is good for a single run"
        )
    if not TOKEN.fullmatch(given.task_token):
        raise field_error(
            f"{FIELD}.task_token",
            f"must have 1 to {LONGEST_TOKEN} printable ASCII characters, no spaces",
        )
    every = given.heartbeat_seconds
    if every is not None and not SHORTEST_HEARTBEAT <= every <= LONGEST_HEARTBEAT:
        bounds = f"from {SHORTEST_HEARTBEAT} to {LONGEST_HEARTBEAT}"
        raise field_error(
            f"{FIELD}.heartbeat_seconds", f"must be a whole number {bounds}, got {every}"
        )


def unconfigured() -> InvalidArgument:
    return field_error(
        FIELD,
        "must be left out: this service is not connected to Step Functions; its operator can "
        "connect it with the setting `step_functions`",
    )


def token_context(caller: CallerId, run_id: RunId) -> str:
    """Return the context that a run's token is encrypted for."""
    return f"{caller}|{run_id}|task_token"


def payload(job: Job | None, run: Run, settled: Counts) -> str:
    """What is sent to the state when the run has just ended: its output, or a failure."""
    completed = run.status is RunStatus.COMPLETED
    return _encoded(_output(job, run, settled) if completed else _failure(run))


def failure_in(payload: str) -> CallbackFailure:
    return msgspec.json.decode(payload, type=CallbackFailure)


def next_wait(tries: int, age: timedelta) -> timedelta | None:
    """The wait after the latest of `tries` failures; None when a run that ended `age` ago is
    given up.
    """
    if age >= GIVE_UP:
        return None
    return backoff(tries, first=FIRST_WAIT, longest=LONGEST_WAIT)


def next_heartbeat_wait(tries: int, every_seconds: int) -> timedelta:
    """The same for a heartbeat, which is never given up: it ends with its run."""
    longest = min(LONGEST_WAIT, timedelta(seconds=every_seconds))
    return backoff(tries, first=FIRST_WAIT, longest=longest)


class RunError(NamedTuple):
    """Why a run did not complete."""

    error: str  # the name that a state machine catches
    message: str


STOPPED = RunError("RunStopped", "The run was stopped by its caller.")
DELETED = RunError("RunDeleted", "The run was deleted by its caller.")
CUT_SHORT = RunError("IngestFailed", "The run was stopped: its list could not be read to its end.")
ACCOUNT: dict[AccountReason, RunError] = {
    AccountReason.INSUFFICIENT_CREDITS: RunError(
        "InsufficientCredits", "The run has failed: the gateway account has no credits left."
    ),
    AccountReason.SUBSCRIPTION_INACTIVE: RunError(
        "SubscriptionInactive", "The run has failed: the gateway account's subscription is off."
    ),
    AccountReason.API_KEY_CAP_REACHED: RunError(
        "ApiKeyCapReached", "The run has failed: the gateway key has spent what it may."
    ),
}


def error_of(run: Run) -> RunError:
    """The error of a run that ended without completing."""
    if run.failure_reason and run.status is RunStatus.FAILED:
        return ACCOUNT[run.failure_reason]
    if run.status is RunStatus.DELETED:
        return DELETED
    return CUT_SHORT if run.is_cut and run.ingest_error else STOPPED


def _output(job: Job | None, run: Run, settled: Counts) -> CallbackOutput:
    return CallbackOutput(
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


def _failure(run: Run) -> CallbackFailure:
    failed = error_of(run)
    cause = CallbackCause(
        message=failed.message,
        job_id=run.job_id,
        run_id=run.id,
        status=run.status,
        ended_at=run.updated_at,
        failure_reason=run.failure_reason or UNSET,
        failure_detail=run.failure_detail or UNSET,
        ingest_error=run.ingest_error or UNSET,
    )
    return CallbackFailure(failed.error, _encoded(cause))


def _encoded(body: CallbackOutput | CallbackFailure | CallbackCause) -> str:
    return msgspec.json.encode(body).decode()
