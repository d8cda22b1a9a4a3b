"""Tasks: one URL to scrape for one run, its states, and the rules of claims.

    pending ⇄ processing → successful | failed

A claim takes a task for a worker under a lease. It ends in a decision, or its lease lapses and
another claim takes the task over. Each claim raises `claim_no`, which never falls, and names its
holder: both are the fence that makes writes of another claim fail. Nothing here reads a clock or touches a store.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from conveyor.domain import media
from conveyor.domain.breaker import HealthSignal
from conveyor.domain.counts import NOTHING, Counts, Spend
from conveyor.domain.failure import AccountReason, FailureReason
from conveyor.domain.failure_groups import FailureKey, failure_key
from conveyor.domain.ids import RunId, TaskId, task_ids
from conveyor.domain.page_facts import NO_FACTS, PageFacts
from conveyor.domain.problem import encoded, problem
from conveyor.domain.retry import RetryPolicy
from conveyor.errors import IllegalMove, Stale

MOST_LOST = 10  # workers that may die with a task before it counts as the cause


class TaskStatus(StrEnum):
    PENDING = "pending"
    PROCESSING = "processing"
    SUCCESSFUL = "successful"
    FAILED = "failed"


MOVES: dict[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.PENDING: frozenset({TaskStatus.PROCESSING}),
    TaskStatus.PROCESSING: frozenset(TaskStatus),  # itself too: a lapsed claim is taken over
    TaskStatus.SUCCESSFUL: frozenset(),
    TaskStatus.FAILED: frozenset(),
}
FINAL = frozenset(status for status, moves in MOVES.items() if not moves)


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What the caller asked for, validated and canonical. Text fields hold JSON as it was given."""

    url: str
    method: str = "GET"
    external_id: str | None = None
    metadata: str | None = None
    params: str | None = None
    body: str | None = None

    @property
    def host(self) -> str:
        """The host of the URL, with its port."""
        return self.url.split("/", 3)[2].rpartition("@")[2]


class StoredBody(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a result is stored, and how to verify it. Only the bodies port reads a locator."""

    locator: str
    length: int
    checksum: str
    format: str
    content_type: str | None = None  # as its site labelled it; None: the one of its format

    @property
    def served_as(self) -> str:
        """The content type of responses with it."""
        return media.type_of(self.format, self.content_type)


class Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    run_id: RunId
    id: TaskId
    index: int
    spec: TaskSpec
    created_at: datetime
    updated_at: datetime
    # When it is next up for claiming: the retry time of a pending task, the end of the lease
    # of a processing one, None once final. So the task of a dead worker becomes due by itself.
    due_at: datetime | None
    status: TaskStatus = TaskStatus.PENDING
    claim_no: int = 0
    attempts: int = 0  # that ended and were charged
    lost: int = 0  # workers that died holding it
    claimed_at: datetime | None = None
    holder: str | None = None  # the process whose claim is the latest; None once that has ended
    result: StoredBody | None = None
    problem: str | None = None
    reason: FailureReason | None = None
    facts: PageFacts = NO_FACTS  # of the call that ended it
    # Of all its calls, charged as attempts or not; None if an earlier release made some of them.
    spend: Spend | None = NOTHING
    source_run_id: RunId | None = None
    scraped_at: datetime | None = None  # of an inherited outcome: when its own run settled it

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def made_at(self) -> datetime:
        """When its result was made. A row that a rerun copied is younger than its result."""
        return self.scraped_at or self.updated_at


def as_listed(task: Task) -> Task:
    """The task without the parts of its spec that no listing shows: they may be large."""
    return _without(task, params=None, body=None)


def as_claimed(task: Task) -> Task:
    """The task without the parts of its spec that no call to the gateway needs."""
    return _without(task, external_id=None, metadata=None)


def as_redelivered(task: Task) -> Task:
    """A final task as a claim returns it because its message was delivered again.

    It has no problem, so that it differs from a task which that claim has failed.
    """
    return msgspec.structs.replace(task, problem=None)


def size_of(task: Task) -> int:
    """Bytes of the texts that a caller or a gateway chose; all else about a task is small."""
    texts = (task.problem, task.facts.final_url)
    return spec_size(task.spec) + sum(len(text.encode()) for text in texts if text)


def spec_size(spec: TaskSpec) -> int:
    texts = (spec.url, spec.external_id, spec.metadata, spec.params, spec.body)
    return sum(len(text.encode()) for text in texts if text)


class Inherited(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of a row of an earlier run, copied by a rerun that does not repeat the task."""

    status: TaskStatus
    attempts: int
    created_at: datetime
    source_run_id: RunId
    scraped_at: datetime | None = None
    result: StoredBody | None = None
    problem: str | None = None
    reason: FailureReason | None = None
    facts: PageFacts = NO_FACTS
    spend: Spend | None = NOTHING  # in the run that paid it; the copy costs nothing

    @property
    def is_final(self) -> bool:
        return self.status in FINAL


class NewRow(msgspec.Struct, frozen=True, gc=False):
    """A row to be added. The engine dates it and makes it due at once.

    An inherited row is stored exactly as it is given, and is never due. It keeps its creation time;
    its update time is the time of the copy.
    """

    index: int
    id: TaskId
    spec: TaskSpec
    inherited: Inherited | None = None


def new_tasks(run_id: RunId, first: int, specs: Sequence[TaskSpec]) -> list[NewRow]:
    """New rows at the indexes from `first`, with the ids that this run gives them."""
    task_id = task_ids(run_id)
    return [NewRow(index, task_id(index), spec) for index, spec in enumerate(specs, first)]


# The outcomes of an attempt. Expected failures are values, not exceptions.


class Scraped(msgspec.Struct, frozen=True):
    """The page was fetched, and its body is stored."""

    body: StoredBody
    spend: Spend = NOTHING
    facts: PageFacts = NO_FACTS


class AttemptFailed(msgspec.Struct, frozen=True):
    """There is no page, and the attempt is charged; `problem` is the whole answer as JSON.

    The gateway refused the page, failed or did not answer. A retry must not start before `wait` is
    over.
    """

    problem: str
    reason: FailureReason
    retryable: bool
    spend: Spend = NOTHING
    wait: timedelta = timedelta()
    signal: HealthSignal = HealthSignal.ALIVE  # what the call says about the gateway
    facts: PageFacts = NO_FACTS


class Throttled(msgspec.Struct, frozen=True):
    """Too many requests: the page is not to blame, so it is not an attempt."""

    wait: timedelta
    spend: Spend = NOTHING
    reason: FailureReason = FailureReason.RATE_LIMITED


class Interrupted(msgspec.Struct, frozen=True):
    """The call says nothing about the page: it is not an attempt, but may have been paid for.

    The causes: the worker stops, the claim was lost, the run was paused or has ended, the breaker
    is open or its gateway failed the call, the gateway postpones the call, the account was paid
    since it was refused, or the page could not be stored (`not_stored`). In the last case the next
    pages would be lost as well.
    """

    wait: timedelta = timedelta()
    spend: Spend = NOTHING
    not_stored: bool = False


class AccountBlocked(msgspec.Struct, frozen=True):
    """The account cannot scrape: the run ends, and the task stays as it was."""

    reason: AccountReason
    detail: str
    spend: Spend = NOTHING


# What an attempt came to. `decide` turns it into a `SettleDecision`.
Outcome = Scraped | AttemptFailed | Throttled | Interrupted | AccountBlocked


class SettleDecision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the end of a claim writes. It has durations; the engine's clock turns them into times."""

    status: TaskStatus
    charged: bool
    delay: timedelta = timedelta()
    result: StoredBody | None = None
    problem: str | None = None
    reason: FailureReason | None = None
    spend: Spend = NOTHING
    facts: PageFacts = NO_FACTS
    failure: FailureKey | None = None  # the group in which a failed task counts


class Attempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One line of a task's history.

    A lost worker is not charged, so its line has the same number as the attempt that follows it.
    """

    attempt: int
    started_at: datetime
    ended_at: datetime
    problem: str | None = None
    spend: Spend = NOTHING
    http_status: int | None = None  # as in `PageFacts`
    duration_ms: int | None = None


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decision with the claim it belongs to."""

    run_id: RunId
    task_id: TaskId
    claim_no: int
    decision: SettleDecision


WORKER_LOST = encoded(
    problem(
        status=500,
        code="worker_lost",
        title="Worker lost",
        detail="The worker that held this task stopped without reporting a result.",
    )
)
FAILED_BY_LOSSES = {"due_at": None, "problem": WORKER_LOST, "reason": FailureReason.OTHER}


def decide(task: Task, outcome: Outcome, policy: RetryPolicy) -> SettleDecision:
    """What one attempt's outcome means for its task."""
    match outcome:
        case Scraped(body, spend, facts):
            return SettleDecision(
                status=TaskStatus.SUCCESSFUL, charged=True, result=body, spend=spend, facts=facts
            )
        case AttemptFailed(text, reason, True, spend, wait, facts=facts) if (
            task.attempts < policy.retries
        ):
            return SettleDecision(
                status=TaskStatus.PENDING,
                charged=True,
                delay=max(policy.delay(task.id, task.attempts), wait),
                problem=text,
                reason=reason,
                spend=spend,
                facts=facts,
            )
        case AttemptFailed(text, reason, _, spend, facts=facts):
            return SettleDecision(
                status=TaskStatus.FAILED,
                charged=True,
                problem=text,
                reason=reason,
                spend=spend,
                facts=facts,
                failure=failure_key(task.spec.host, reason, text),
            )
        case Throttled(wait, spend, reason):
            return SettleDecision(
                status=TaskStatus.PENDING, charged=False, delay=wait, reason=reason, spend=spend
            )
        case Interrupted(wait, spend):
            return SettleDecision(status=TaskStatus.PENDING, charged=False, delay=wait, spend=spend)
        case AccountBlocked(spend=spend):  # pragma: no branch - the last of the union
            return SettleDecision(
                status=TaskStatus.PENDING,
                charged=False,
                reason=FailureReason.AUTH_FAILED,
                spend=spend,
            )


def inherit(task: Task) -> Inherited:
    """The row as it stands, pointing at the run that owns its result.

    A task that an ended run still holds as processing counts as pending: the copy has no worker.
    """
    return Inherited(
        status=task.status if task.is_final else TaskStatus.PENDING,
        attempts=task.attempts,
        created_at=task.created_at,
        scraped_at=task.made_at if task.is_final else None,
        source_run_id=task.source_run_id or task.run_id,
        result=task.result,
        problem=task.problem,
        reason=task.reason,
        facts=task.facts,
        spend=task.spend,
    )


def is_due(task: Task, now: datetime) -> bool:
    return task.due_at is not None and task.due_at <= now


def claim(task: Task, now: datetime, lease: timedelta, *, holder: str = "") -> Task:
    """The task as a new claim holds it. Taking over a lapsed claim counts its worker as lost."""
    if not is_due(task, now):
        raise IllegalMove(f"task {task.id} is not due")
    lost = task.lost + (task.status is TaskStatus.PROCESSING)
    # The number is raised even when the task fails here: the write that the lost worker may still
    # attempt must not find its own claim.
    changes = {"lost": lost, "claim_no": task.claim_no + 1, "holder": holder}
    if lost >= MOST_LOST:
        return _moved(task, TaskStatus.FAILED, now, **changes, **FAILED_BY_LOSSES)
    held = {"claimed_at": now, "due_at": now + lease}
    return _moved(task, TaskStatus.PROCESSING, now, **changes, **held)


def release(task: Task, now: datetime) -> Task:
    """A processing task whose worker is known to be dead, up for claiming again at once."""
    changes = {"lost": task.lost + 1, "holder": None}
    if task.lost + 1 >= MOST_LOST:
        return _moved(task, TaskStatus.FAILED, now, **changes, **FAILED_BY_LOSSES)
    return _moved(task, TaskStatus.PENDING, now, **changes, due_at=now)


def renew(task: Task, claim_no: int, now: datetime, lease: timedelta, *, holder: str = "") -> Task:
    _check_held(task, claim_no, holder)
    return msgspec.structs.replace(task, due_at=now + lease)


def settle(
    task: Task, claim_no: int, decision: SettleDecision, now: datetime, *, holder: str = ""
) -> Task:
    """The task after its claim ended; `Stale` unless that claim still holds it."""
    check_ends(decision)
    _check_held(task, claim_no, holder)
    return _moved(
        task,
        decision.status,
        now,
        attempts=task.attempts + decision.charged,
        holder=None,
        due_at=now + decision.delay if decision.status is TaskStatus.PENDING else None,
        result=decision.result,
        problem=decision.problem if decision.status is TaskStatus.FAILED else None,
        reason=decision.reason if decision.status is TaskStatus.FAILED else None,
        facts=decision.facts if decision.status in FINAL else NO_FACTS,
        spend=None if task.spend is None else task.spend + decision.spend,
    )


def check_ends(decision: SettleDecision) -> None:
    """Refuse a decision that does not end the claim, or whose failure would not be counted."""
    if decision.status is TaskStatus.PROCESSING:
        raise IllegalMove("a claim cannot end with its task processing")
    if (decision.status is TaskStatus.FAILED) != (decision.failure is not None):
        raise IllegalMove("a decision names a failure group if and only if it fails its task")


def line(task: Task, decision: SettleDecision, now: datetime) -> Attempt | None:
    """The history line that the end of a claim writes; None if it was not a charged attempt."""
    if not decision.charged:
        return None
    return Attempt(
        attempt=task.attempts + 1,
        started_at=task.claimed_at or now,
        ended_at=now,
        problem=decision.problem,
        spend=decision.spend,
        http_status=decision.facts.http_status,
        duration_ms=decision.facts.duration_ms,
    )


def lost_line(task: Task, now: datetime) -> Attempt:
    """The history line of an attempt whose worker died, with the time at which that was found."""
    return Attempt(
        attempt=task.attempts + 1,
        started_at=task.claimed_at or now,
        ended_at=now,
        problem=WORKER_LOST,
    )


def in_brief(line: Attempt) -> Attempt:
    """The line without the gateway's answer, which may be large; a lost worker stays visible."""
    lost = WORKER_LOST if line.problem == WORKER_LOST else None
    return msgspec.structs.replace(line, problem=lost)


def counted(decision: SettleDecision) -> Counts:
    """What a decision adds to its run's counts."""
    ended = {counter_of(decision): 1} if decision.status in FINAL else {}
    return Counts(**ended, credits=decision.spend.credits, nanos=decision.spend.nanos)


def counter_of(ended: Task | Inherited | SettleDecision) -> str:
    """The field of `Counts` in which a final task is counted."""
    if ended.status is TaskStatus.SUCCESSFUL:
        return "successful"
    return ended.reason or FailureReason.OTHER


def failure_of(failed: Task) -> FailureKey:
    """The group in which a failed task counts."""
    return failure_key(failed.spec.host, failed.reason, failed.problem)


def _check_held(task: Task, claim_no: int, holder: str) -> None:
    """Refuse a claim that does not hold its task. Claims of earlier releases name no holder."""
    is_held = task.status is TaskStatus.PROCESSING and task.claim_no == claim_no
    if not is_held or task.holder not in {None, holder}:
        raise Stale(f"task {task.id}: claim {claim_no} no longer holds it")


def _without(task: Task, **absent: None) -> Task:
    spec = msgspec.structs.replace(task.spec, **absent)
    return msgspec.structs.replace(task, spec=spec)


def _moved(task: Task, status: TaskStatus, now: datetime, **changes: object) -> Task:
    if status not in MOVES[task.status]:
        raise IllegalMove(f"task {task.id}: {task.status} -> {status}")
    return msgspec.structs.replace(task, status=status, updated_at=now, **changes)


def has_expired(task: Task, ttl_days: int, now: datetime) -> bool:
    """Whether a result is past its retention."""
    return task.result is not None and expires_at(task, ttl_days) <= now


def expires_at(task: Task, ttl_days: int) -> datetime:
    """The end of a result's retention, which runs from when its body was made."""
    return task.made_at + timedelta(days=ttl_days)
