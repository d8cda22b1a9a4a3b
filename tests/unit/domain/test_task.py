"""A task's life as pure functions: what moves it, what ends it, and who may write."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.domain import task as task_rules
from conveyor.domain.counts import Counts, Spend
from conveyor.domain.failure import AccountReason, FailureReason
from conveyor.domain.failure_groups import FailureKey
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.page_facts import NO_FACTS, PageFacts
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.task import (
    FINAL,
    MOST_LOST,
    MOVES,
    AccountBlocked,
    AttemptFailed,
    Interrupted,
    Outcome,
    Scraped,
    SettleDecision,
    StoredBody,
    Task,
    TaskSpec,
    TaskStatus,
    Throttled,
)
from conveyor.errors import IllegalMove, Stale

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LEASE = timedelta(seconds=30)
PAGE = StoredBody(locator="somewhere", length=5, checksum="abc", format="html")
COST = Spend(25, 2_500_000)
NO = '{"code":"RESP001"}'
FACTS = PageFacts(http_status=203, duration_ms=40, final_url="https://a.example/at-last")


def a_task(status: TaskStatus = TaskStatus.PENDING, **changes: object) -> Task:
    fields: dict[str, object] = {
        "status": status,
        "due_at": None if status in FINAL else NOW,
        "claim_no": 0 if status is TaskStatus.PENDING else 1,
        **changes,
    }
    bare = Task(
        run_id=RunId("01HZZZZZZZZZZZZZZZZZZZZZZZ"),
        id=TaskId("00000000-0123456789abcdef01234567"),
        index=0,
        spec=TaskSpec(url="https://a.example/"),
        created_at=NOW,
        updated_at=NOW,
        due_at=NOW,
    )
    return msgspec.structs.replace(bare, **fields)


def refused(*, retryable: bool = True) -> AttemptFailed:
    return AttemptFailed(NO, FailureReason.BLOCKED, retryable, COST, facts=FACTS)


SOME_POLICY = RetryPolicy(retries=2)
EVERY_OUTCOME: list[Outcome] = [
    Scraped(PAGE, COST),
    refused(),
    refused(retryable=False),
    Throttled(timedelta(seconds=7)),
    Interrupted(),
    Interrupted(timedelta(seconds=3)),
    AccountBlocked(AccountReason.INSUFFICIENT_CREDITS, "no credits"),
]


# What an outcome means.


def test_a_scraped_page_ends_its_task_with_the_body_and_the_cost() -> None:
    decision = task_rules.decide(a_task(), Scraped(PAGE, COST, FACTS), SOME_POLICY)
    assert decision == SettleDecision(
        status=TaskStatus.SUCCESSFUL, charged=True, result=PAGE, spend=COST, facts=FACTS
    )


def test_a_refusal_that_may_pass_sends_the_task_back_with_a_delay() -> None:
    task = a_task()
    decision = task_rules.decide(task, refused(), SOME_POLICY)
    assert decision.status is TaskStatus.PENDING
    assert decision.charged
    assert decision.delay == SOME_POLICY.delay(task.id, 0)
    assert decision.problem == NO
    assert decision.spend == COST
    assert decision.reason is FailureReason.BLOCKED


@pytest.mark.parametrize(
    ("attempts", "retryable", "status"),
    [
        (0, True, TaskStatus.PENDING),
        (1, True, TaskStatus.PENDING),
        (2, True, TaskStatus.FAILED),
        (0, False, TaskStatus.FAILED),
        (2, False, TaskStatus.FAILED),
    ],
)
def test_a_refusal_fails_the_task_when_it_is_final_or_the_retries_are_used_up(
    attempts: int, retryable: bool, status: TaskStatus
) -> None:
    decision = task_rules.decide(
        a_task(attempts=attempts), refused(retryable=retryable), SOME_POLICY
    )
    assert decision.status is status
    if status is TaskStatus.FAILED:
        assert (decision.problem, decision.reason) == (NO, FailureReason.BLOCKED)


def test_a_refusal_that_asks_for_a_wait_is_not_tried_again_before() -> None:
    long, short = timedelta(hours=1), timedelta(milliseconds=1)
    for wait in (long, short):
        refusal = AttemptFailed(NO, FailureReason.RATE_LIMITED, retryable=True, wait=wait)
        decision = task_rules.decide(a_task(), refusal, SOME_POLICY)
        assert decision.delay == max(wait, SOME_POLICY.delay(a_task().id, 0))
        assert decision.charged


def test_without_retries_the_first_refusal_is_the_last() -> None:
    decision = task_rules.decide(a_task(), refused(), RetryPolicy(retries=0))
    assert decision.status is TaskStatus.FAILED


@pytest.mark.parametrize(
    ("outcome", "delay", "reason"),
    [
        (Throttled(timedelta(seconds=7)), timedelta(seconds=7), FailureReason.RATE_LIMITED),
        (Interrupted(timedelta(seconds=3)), timedelta(seconds=3), None),
        (Interrupted(), timedelta(), None),
        (
            Throttled(timedelta(seconds=7), reason=FailureReason.BLOCKED),
            timedelta(seconds=7),
            FailureReason.BLOCKED,
        ),
        (
            AccountBlocked(AccountReason.API_KEY_CAP_REACHED, "cap"),
            timedelta(),
            FailureReason.AUTH_FAILED,
        ),
    ],
)
def test_what_is_not_the_pages_fault_is_not_an_attempt(
    outcome: Outcome, delay: timedelta, reason: FailureReason | None
) -> None:
    decision = task_rules.decide(a_task(attempts=2), outcome, SOME_POLICY)
    assert decision == SettleDecision(
        status=TaskStatus.PENDING, charged=False, delay=delay, reason=reason
    )


@given(outcome=st.sampled_from(EVERY_OUTCOME), attempts=st.integers(0, 12))
def test_no_outcome_leaves_a_task_processing(outcome: Outcome, attempts: int) -> None:
    decision = task_rules.decide(a_task(attempts=attempts), outcome, SOME_POLICY)
    assert decision.status is not TaskStatus.PROCESSING


# The delay before a retry.


@given(attempts=st.integers(0, 10_000), name=st.text(max_size=30))
def test_a_delay_lies_between_half_the_grown_base_and_the_whole(attempts: int, name: str) -> None:
    policy = RetryPolicy()
    base = min(policy.first_delay * 8 ** min(attempts, 10), policy.longest_delay)
    delay = policy.delay(TaskId(name), attempts)
    assert base / 2 <= delay <= base


def test_the_default_delays_grow_by_eight_up_to_five_minutes() -> None:
    bases = [timedelta(seconds=seconds) for seconds in (1, 8, 64, 300, 300)]
    for attempts, base in enumerate(bases):
        assert base / 2 <= RetryPolicy().delay(a_task().id, attempts) <= base


@given(attempts=st.integers(0, 100))
def test_the_same_attempt_of_the_same_task_waits_equally_long_every_time(attempts: int) -> None:
    assert RetryPolicy().delay(a_task().id, attempts) == RetryPolicy().delay(a_task().id, attempts)


def test_tasks_that_failed_together_do_not_come_back_together() -> None:
    delays = {RetryPolicy().delay(TaskId(f"task-{n}"), 0) for n in range(100)}
    assert len(delays) > 90
    assert max(delays) - min(delays) > timedelta(milliseconds=400)


# Claims.


@pytest.mark.parametrize("due_at", [None, NOW + timedelta(microseconds=1)])
def test_a_task_that_is_not_due_cannot_be_claimed(due_at: datetime | None) -> None:
    task = a_task(due_at=due_at)
    assert not task_rules.is_due(task, NOW)
    with pytest.raises(IllegalMove):
        task_rules.claim(task, NOW, LEASE)


def test_a_claim_takes_a_pending_task_under_a_lease() -> None:
    claimed = task_rules.claim(a_task(), NOW, LEASE)
    assert claimed.status is TaskStatus.PROCESSING
    assert (claimed.claim_no, claimed.lost) == (1, 0)
    assert (claimed.claimed_at, claimed.due_at) == (NOW, NOW + LEASE)


def test_a_task_under_a_running_lease_cannot_be_claimed() -> None:
    claimed = task_rules.claim(a_task(), NOW, LEASE)
    with pytest.raises(IllegalMove):
        task_rules.claim(claimed, NOW + LEASE - timedelta(microseconds=1), LEASE)


def test_taking_over_a_lapsed_claim_counts_its_worker_as_lost() -> None:
    claimed = task_rules.claim(a_task(), NOW, LEASE)
    taken = task_rules.claim(claimed, NOW + LEASE, LEASE)
    assert (taken.status, taken.claim_no, taken.lost) == (TaskStatus.PROCESSING, 2, 1)
    assert taken.attempts == 0


@pytest.mark.parametrize(
    "let_go", [task_rules.release, lambda task, now: task_rules.claim(task, now, LEASE)]
)
def test_the_tenth_lost_worker_fails_the_task(let_go: Callable[[Task, datetime], Task]) -> None:
    last = let_go(a_task(TaskStatus.PROCESSING, lost=MOST_LOST - 1), NOW)
    assert (last.status, last.lost, last.due_at) == (TaskStatus.FAILED, MOST_LOST, None)
    assert last.reason is FailureReason.OTHER
    assert msgspec.json.decode(last.problem or "")["code"] == "worker_lost"
    assert let_go(a_task(TaskStatus.PROCESSING, lost=MOST_LOST - 2), NOW).status not in FINAL


def test_failing_over_lost_workers_outdates_the_last_claim() -> None:
    last = task_rules.claim(
        a_task(TaskStatus.PROCESSING, lost=MOST_LOST - 1, claim_no=4), NOW, LEASE
    )
    assert last.claim_no == 5


def test_releasing_a_dead_workers_task_makes_it_due_at_once() -> None:
    released = task_rules.release(a_task(TaskStatus.PROCESSING, due_at=NOW + LEASE), NOW)
    assert (released.status, released.due_at, released.lost) == (TaskStatus.PENDING, NOW, 1)


def test_a_released_claim_can_no_longer_be_settled() -> None:
    released = task_rules.release(a_task(TaskStatus.PROCESSING), NOW)
    with pytest.raises(Stale):
        task_rules.settle(released, 1, task_rules.decide(released, Scraped(PAGE), SOME_POLICY), NOW)


def test_renewing_moves_the_end_of_the_lease_and_nothing_else() -> None:
    held = a_task(TaskStatus.PROCESSING)
    renewed = task_rules.renew(held, 1, NOW + timedelta(seconds=10), LEASE)
    assert renewed == msgspec.structs.replace(held, due_at=NOW + timedelta(seconds=10) + LEASE)


@pytest.mark.parametrize("status", TaskStatus)
@pytest.mark.parametrize("claim_no", [0, 2])
def test_a_claim_that_does_not_hold_its_task_changes_nothing(
    status: TaskStatus, claim_no: int
) -> None:
    task = a_task(status, claim_no=1)
    decision = task_rules.decide(task, Scraped(PAGE), SOME_POLICY)
    with pytest.raises(Stale):
        task_rules.settle(task, claim_no, decision, NOW)
    with pytest.raises(Stale):
        task_rules.renew(task, claim_no, NOW, LEASE)


def test_only_a_processing_task_is_held_even_by_its_newest_claim() -> None:
    for status in TaskStatus:
        if status is not TaskStatus.PROCESSING:
            with pytest.raises(Stale):
                task_rules.renew(a_task(status, claim_no=1), 1, NOW, LEASE)


# Settling.


def test_success_keeps_the_body_and_is_never_due_again() -> None:
    held = a_task(TaskStatus.PROCESSING)
    done = task_rules.settle(held, 1, task_rules.decide(held, Scraped(PAGE), SOME_POLICY), NOW)
    assert (done.status, done.result, done.due_at) == (TaskStatus.SUCCESSFUL, PAGE, None)
    assert done.is_final
    assert done.attempts == 1
    assert (done.problem, done.reason) == (None, None)


def test_a_retry_is_due_after_its_delay_and_shows_no_problem_meanwhile() -> None:
    held = a_task(TaskStatus.PROCESSING)
    decision = task_rules.decide(held, refused(), SOME_POLICY)
    back = task_rules.settle(held, 1, decision, NOW)
    assert (back.status, back.due_at) == (TaskStatus.PENDING, NOW + decision.delay)
    assert (back.attempts, back.problem, back.reason) == (1, None, None)


def test_failure_keeps_the_problem_and_its_reason() -> None:
    held = a_task(TaskStatus.PROCESSING)
    failed = task_rules.settle(
        held, 1, task_rules.decide(held, refused(retryable=False), SOME_POLICY), NOW
    )
    assert (failed.status, failed.problem) == (TaskStatus.FAILED, NO)
    assert failed.reason is FailureReason.BLOCKED


def test_a_final_task_has_the_facts_of_the_call_that_ended_it() -> None:
    held = a_task(TaskStatus.PROCESSING)
    for outcome in (Scraped(PAGE, COST, FACTS), refused(retryable=False)):
        ended = task_rules.settle(held, 1, task_rules.decide(held, outcome, SOME_POLICY), NOW)
        assert ended.facts == task_rules.inherit(ended).facts == FACTS
    back = task_rules.settle(held, 1, task_rules.decide(held, refused(), SOME_POLICY), NOW)
    assert back.facts == NO_FACTS


def test_a_decision_that_fails_a_task_names_its_failure_group() -> None:
    held = a_task(TaskStatus.PROCESSING)
    decision = task_rules.decide(held, refused(retryable=False), SOME_POLICY)
    failed = task_rules.settle(held, 1, decision, NOW)
    assert decision.failure == FailureKey("a.example", FailureReason.BLOCKED, "RESP001")
    assert decision.failure == task_rules.failure_of(failed)
    for outcome in EVERY_OUTCOME:
        decision = task_rules.decide(held, outcome, SOME_POLICY)
        assert bool(decision.failure) is (decision.status is TaskStatus.FAILED)


def test_a_task_that_lost_too_many_workers_has_a_failure_group() -> None:
    lapsed = a_task(TaskStatus.PROCESSING, lost=MOST_LOST - 1)
    for failed in (task_rules.claim(lapsed, NOW, LEASE), task_rules.release(lapsed, NOW)):
        key = FailureKey("a.example", FailureReason.OTHER, "worker_lost")
        assert task_rules.failure_of(failed) == key


@pytest.mark.parametrize(
    "decision",
    [
        SettleDecision(status=TaskStatus.FAILED, charged=True),
        SettleDecision(
            status=TaskStatus.SUCCESSFUL,
            charged=True,
            failure=FailureKey("a.example", FailureReason.BLOCKED, "RESP001"),
        ),
    ],
)
def test_a_failure_that_is_not_counted_is_refused_and_so_is_a_success_that_is(
    decision: SettleDecision,
) -> None:
    with pytest.raises(IllegalMove, match="failure group"):
        task_rules.settle(a_task(TaskStatus.PROCESSING), 1, decision, NOW)


def test_giving_a_task_back_charges_nothing() -> None:
    held = a_task(TaskStatus.PROCESSING)
    back = task_rules.settle(held, 1, task_rules.decide(held, Interrupted(), SOME_POLICY), NOW)
    assert (back.status, back.attempts, back.due_at) == (TaskStatus.PENDING, 0, NOW)


@pytest.mark.parametrize("claim_no", [1, 2])
@pytest.mark.parametrize("charged", [True, False])
def test_a_decision_that_leaves_its_task_processing_is_refused(
    claim_no: int, charged: bool
) -> None:
    """It would end a claim and leave nobody to hold the task, due never again."""
    endless = SettleDecision(status=TaskStatus.PROCESSING, charged=charged)
    with pytest.raises(IllegalMove, match="processing"):
        task_rules.settle(a_task(TaskStatus.PROCESSING), claim_no, endless, NOW)


@pytest.mark.parametrize(("start", "end"), list(product(TaskStatus, TaskStatus)))
def test_only_listed_moves_are_made(start: TaskStatus, end: TaskStatus) -> None:
    task = a_task(start)
    if end in MOVES[start]:
        assert task_rules._moved(task, end, NOW).status is end
    else:
        with pytest.raises(IllegalMove):
            task_rules._moved(task, end, NOW)


@pytest.mark.parametrize("status", [TaskStatus.PENDING, *sorted(FINAL)])
def test_only_a_processing_task_can_be_released(status: TaskStatus) -> None:
    with pytest.raises(IllegalMove):
        task_rules.release(a_task(status), NOW)


# History and counts.


def test_a_charged_claim_leaves_a_line_from_claim_to_end() -> None:
    held = a_task(TaskStatus.PROCESSING, attempts=1, claimed_at=NOW - LEASE)
    line = task_rules.line(held, task_rules.decide(held, refused(), SOME_POLICY), NOW)
    assert line == task_rules.Attempt(
        attempt=2,
        started_at=NOW - LEASE,
        ended_at=NOW,
        problem=NO,
        spend=COST,
        http_status=203,
        duration_ms=40,
    )


def test_an_uncharged_claim_leaves_no_line() -> None:
    held = a_task(TaskStatus.PROCESSING)
    assert (
        task_rules.line(held, task_rules.decide(held, Throttled(LEASE), SOME_POLICY), NOW) is None
    )


def test_a_lost_workers_line_bears_the_number_of_the_next_attempt() -> None:
    held = a_task(TaskStatus.PROCESSING, attempts=1, claimed_at=NOW - LEASE)
    lost = task_rules.lost_line(held, NOW)
    assert (lost.attempt, lost.started_at, lost.ended_at) == (2, NOW - LEASE, NOW)
    assert lost.problem == task_rules.WORKER_LOST
    line = task_rules.line(held, task_rules.decide(held, Scraped(PAGE), SOME_POLICY), NOW)
    assert line is not None
    assert line.attempt == lost.attempt


def test_a_line_without_a_known_start_begins_where_it_ends() -> None:
    held = a_task(TaskStatus.PROCESSING)
    line = task_rules.line(held, task_rules.decide(held, Scraped(PAGE), SOME_POLICY), NOW)
    assert line is not None
    assert line.started_at == task_rules.lost_line(held, NOW).started_at == NOW


@pytest.mark.parametrize(
    ("decision", "counts"),
    [
        (SettleDecision(status=TaskStatus.SUCCESSFUL, charged=True), Counts(successful=1)),
        (
            SettleDecision(status=TaskStatus.SUCCESSFUL, charged=True, spend=Spend(1, 2)),
            Counts(successful=1, credits=1, nanos=2),
        ),
        (
            SettleDecision(status=TaskStatus.FAILED, charged=True, reason=FailureReason.TIMEOUT),
            Counts(timeout=1),
        ),
        (SettleDecision(status=TaskStatus.FAILED, charged=True), Counts(other=1)),
        (SettleDecision(status=TaskStatus.PENDING, charged=False), Counts()),
        (
            SettleDecision(status=TaskStatus.PENDING, charged=True, reason=FailureReason.TIMEOUT),
            Counts(),
        ),
        (
            SettleDecision(status=TaskStatus.PENDING, charged=True, spend=Spend(3, 4)),
            Counts(credits=3, nanos=4),
        ),
    ],
)
def test_a_decision_counts_its_end_and_its_cost(decision: SettleDecision, counts: Counts) -> None:
    assert task_rules.counted(decision) == counts


# Whole histories.

Event = str | Outcome
CHARGED_OR_LOST: list[Event] = [
    "worker dies",
    "process restarts",
    refused(),
    refused(retryable=False),
    Scraped(PAGE, COST),
]
events = st.sampled_from([*CHARGED_OR_LOST, *EVERY_OUTCOME, "lease renewed"])


def lived(task: Task, history: list[Event], policy: RetryPolicy) -> list[Task]:
    """Every state of a task that is claimed whenever it is due, each claim ending as told."""
    states, now = [task], task.created_at
    for event in history:
        if states[-1].is_final:
            break
        now = max(now, states[-1].due_at or now)
        states.append(task_rules.claim(states[-1], now, LEASE))
        if not states[-1].is_final:
            now, after = _ended(states[-1], event, policy, now)
            states.append(after)
    return states


def _ended(held: Task, event: Event, policy: RetryPolicy, now: datetime) -> tuple[datetime, Task]:
    match event:
        case "worker dies":
            return now, held  # nothing is written: the lease lapses
        case "process restarts":
            return now, task_rules.release(held, now)
        case "lease renewed":
            renewed = task_rules.renew(held, held.claim_no, now + LEASE / 3, LEASE)
            back = task_rules.decide(renewed, Interrupted(), policy)
            return now + LEASE / 3, task_rules.settle(
                renewed, renewed.claim_no, back, now + LEASE / 3
            )
        case str():
            raise AssertionError(event)
        case outcome:
            return now, task_rules.settle(
                held, held.claim_no, task_rules.decide(held, outcome, policy), now
            )


@settings(deadline=None)
@given(retries=st.integers(0, 8), data=st.data())
def test_every_history_of_attempts_and_lost_workers_ends(retries: int, data: st.DataObject) -> None:
    longest = retries + 1 + MOST_LOST
    history = data.draw(
        st.lists(st.sampled_from(CHARGED_OR_LOST), min_size=longest, max_size=longest)
    )
    last = lived(a_task(), history, RetryPolicy(retries=retries))[-1]
    assert last.is_final


@settings(deadline=None)
@given(history=st.lists(events, max_size=40), retries=st.integers(0, 5))
def test_every_history_keeps_the_rules_of_a_task(history: list[Event], retries: int) -> None:
    states = lived(a_task(), history, RetryPolicy(retries=retries))
    for before, after in pairwise(states):
        assert before == after or after.status in MOVES[before.status]
        assert before.status not in FINAL
        assert after.claim_no >= before.claim_no
        assert after.attempts - before.attempts in {0, 1}
        assert after.lost - before.lost in {0, 1}
        assert after.updated_at >= before.updated_at
    for state in states:
        assert state.attempts <= retries + 1
        assert state.lost <= MOST_LOST
        assert (state.due_at is None) == state.is_final
        assert (state.result is None) == (state.status is not TaskStatus.SUCCESSFUL)
        assert (state.problem is None) == (state.status is not TaskStatus.FAILED)
        assert (state.reason is None) == (state.status is not TaskStatus.FAILED)


@settings(deadline=None)
@given(history=st.lists(events, max_size=40), outcome=st.sampled_from(EVERY_OUTCOME))
def test_no_earlier_claim_can_write_at_any_point_of_a_history(
    history: list[Event], outcome: Outcome
) -> None:
    for state in lived(a_task(), history, SOME_POLICY):
        decision = task_rules.decide(state, outcome, SOME_POLICY)
        for stale in range(state.claim_no):
            with pytest.raises(Stale):
                task_rules.settle(state, stale, decision, NOW)
            with pytest.raises(Stale):
                task_rules.renew(state, stale, NOW, LEASE)


@settings(deadline=None)
@given(history=st.lists(st.sampled_from(CHARGED_OR_LOST), min_size=13, max_size=13))
def test_a_final_task_is_beyond_every_function(history: list[Event]) -> None:
    last = lived(a_task(), history, SOME_POLICY)[-1]
    decision = task_rules.decide(last, Scraped(PAGE), SOME_POLICY)
    some_day = NOW + timedelta(days=1000)
    changes: list[Callable[[], Task]] = [
        lambda: task_rules.claim(last, some_day, LEASE),
        lambda: task_rules.release(last, some_day),
        lambda: task_rules.renew(last, last.claim_no, some_day, LEASE),
        lambda: task_rules.settle(last, last.claim_no, decision, some_day),
    ]
    assert last.is_final
    assert not task_rules.is_due(last, some_day)
    for change in changes:
        with pytest.raises((IllegalMove, Stale)):
            change()


def test_the_final_statuses_are_those_with_no_moves() -> None:
    assert set(MOVES) == set(TaskStatus)
    assert {TaskStatus.SUCCESSFUL, TaskStatus.FAILED} == FINAL


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://a.example/b", "a.example"),
        ("http://a.example:8080/?q=@b", "a.example:8080"),
        ("http://me:secret@[::1]:81/", "[::1]:81"),
    ],
)
def test_the_host_of_a_task_is_that_of_its_url_with_the_port(url: str, host: str) -> None:
    assert TaskSpec(url=url).host == host
