"""A run's life: its moves, when it is complete, and what a reader is shown."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.domain import run as run_rules
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.failure import AccountReason
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.run import (
    ENDED,
    LIVE,
    MOVES,
    NO_INHERITANCE,
    IngestStatus,
    Inheritance,
    PauseState,
    Run,
    RunStatus,
)
from conveyor.errors import IllegalMove

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def a_run(**changes: object) -> Run:
    bare = Run(
        id=RunId("01HZZZZZZZZZZZZZZZZZZZZZZZ"),
        job_id=JobId("01HYYYYYYYYYYYYYYYYYYYYYYY"),
        caller=CallerId("someone"),
        created_at=NOW,
        updated_at=NOW,
        total=3,
        next_index=3,
    )
    return msgspec.structs.replace(bare, **changes)


def done(count: int) -> Counts:
    return Counts(successful=count)


# The moves.

ACTIONS: dict[RunStatus, Callable[[Run], Run]] = {
    RunStatus.COMPLETED: lambda run: run_rules.complete(run, done(3), LATER),
    RunStatus.STOPPED: lambda run: run_rules.stop(run, LATER),
    RunStatus.FAILED: lambda run: run_rules.fail(
        run, AccountReason.INSUFFICIENT_CREDITS, "none left", LATER
    ),
}


@pytest.mark.parametrize("start", RunStatus)
@pytest.mark.parametrize("end", sorted(ACTIONS))
def test_each_action_makes_its_move_where_it_is_listed_and_nowhere_else(
    start: RunStatus, end: RunStatus
) -> None:
    run = a_run(status=start, last_batch_received=True)
    if end in MOVES[start]:
        moved = ACTIONS[end](run)
        assert (moved.status, moved.updated_at) == (end, LATER)
    else:
        with pytest.raises(IllegalMove):
            ACTIONS[end](run)


def test_live_and_ended_and_deleted_are_all_the_statuses_there_are() -> None:
    assert LIVE | ENDED | {RunStatus.DELETED} == set(RunStatus) == set(MOVES)
    assert LIVE.isdisjoint(ENDED)


@pytest.mark.parametrize("status", sorted(ENDED))
def test_an_ended_run_can_only_be_deleted(status: RunStatus) -> None:
    assert MOVES[status] == {RunStatus.DELETED}
    assert not a_run(status=status).is_live


def test_nothing_follows_deletion() -> None:
    assert MOVES[RunStatus.DELETED] == frozenset()


# Completion.


@pytest.mark.parametrize(
    ("why", "changes", "settled", "complete"),
    [
        ("all is done and no more can come", {}, 3, True),
        ("a task is not done", {}, 2, False),
        ("more tasks may come", {"last_batch_received": False}, 3, False),
        ("rows still stream in", {"ingest_status": IngestStatus.PENDING}, 3, False),
        ("rows are all in", {"ingest_status": IngestStatus.DONE}, 3, True),
        ("it was idle", {"status": RunStatus.PENDING}, 3, True),
        ("it was stopped", {"status": RunStatus.STOPPED}, 3, False),
        ("it is complete already", {"status": RunStatus.COMPLETED}, 3, False),
        ("an empty list is done from the start", {"total": 0}, 0, True),
    ],
)
def test_a_run_is_complete_when_done_is_total_and_no_more_can_come(
    why: str, changes: dict[str, object], settled: int, complete: bool
) -> None:
    run = a_run(**{"last_batch_received": True, **changes})
    assert run_rules.is_complete(run, done(settled)) is complete, why


def test_completing_freezes_the_counts_with_what_the_run_began_with() -> None:
    run = a_run(
        last_batch_received=True, inherited=Inheritance(counts=Counts(successful=1, nanos=5))
    )
    ended = run_rules.complete(run, Counts(blocked=2, nanos=7), LATER)
    assert ended.frozen == Counts(successful=1, blocked=2, nanos=12)
    assert run_rules.counts(ended, Counts(successful=99)) == ended.frozen


def test_a_run_of_no_tasks_freezes_zero_and_keeps_it() -> None:
    ended = run_rules.complete(a_run(total=0, last_batch_received=True), ZERO, LATER)
    assert ended.frozen == ZERO
    assert run_rules.counts(ended, done(1)) == ZERO


def test_late_settles_of_a_stopped_run_still_count() -> None:
    assert run_rules.counts(run_rules.stop(a_run(), LATER), done(2)) == done(2)


# What a reader is shown.


@pytest.mark.parametrize(
    ("changes", "settled", "shown"),
    [
        ({}, 3, RunStatus.PENDING),
        ({}, 2, RunStatus.RUNNING),
        ({"total": 0}, 0, RunStatus.PENDING),
        ({"last_batch_received": True}, 3, RunStatus.RUNNING),
        ({"ingest_status": IngestStatus.PENDING, "total": 0}, 0, RunStatus.RUNNING),
        ({"ingest_status": IngestStatus.DONE}, 3, RunStatus.PENDING),
        ({"status": RunStatus.STOPPED}, 3, RunStatus.STOPPED),
        ({"status": RunStatus.FAILED}, 3, RunStatus.FAILED),
        ({"status": RunStatus.DELETED}, 3, RunStatus.DELETED),
    ],
)
def test_a_live_run_that_is_idle_and_open_is_shown_as_pending(
    changes: dict[str, object], settled: int, shown: RunStatus
) -> None:
    assert run_rules.shown_status(a_run(**changes), done(settled)) is shown


@given(total=st.integers(0, 1000), settled=st.integers(0, 1000))
def test_while_rows_stream_in_the_shown_total_is_above_what_is_done(
    total: int, settled: int
) -> None:
    run = a_run(total=total, ingest_status=IngestStatus.PENDING)
    assert run_rules.shown_total(run, done(settled)) == max(total, settled + 1)


@pytest.mark.parametrize("ingest", [None, IngestStatus.DONE])
def test_once_rows_are_in_the_shown_total_is_the_total(ingest: IngestStatus | None) -> None:
    assert run_rules.shown_total(a_run(ingest_status=ingest), done(3)) == 3


# Growing and closing.


@given(batches=st.lists(st.integers(0, 10_000), max_size=10))
def test_growing_promises_rows_at_indexes_nobody_else_has(batches: list[int]) -> None:
    run, given_out = a_run(total=0, next_index=0), set[int]()
    for count in batches:
        indexes = set(range(run.next_index, run.next_index + count))
        assert given_out.isdisjoint(indexes)
        given_out |= indexes
        run = run_rules.grow(run, count, LATER)
    assert run.total == run.next_index == len(given_out) == sum(batches)


def test_gaps_in_the_indexes_stay_gaps_as_a_run_grows() -> None:
    grown = run_rules.grow(a_run(total=3, next_index=5), 2, LATER)
    assert (grown.total, grown.next_index, grown.updated_at) == (5, 7, LATER)


@pytest.mark.parametrize("changes", [{"last_batch_received": True}, {"status": RunStatus.STOPPED}])
def test_a_run_that_is_closed_or_over_does_not_grow(changes: dict[str, object]) -> None:
    with pytest.raises(IllegalMove):
        run_rules.grow(a_run(**changes), 1, LATER)


def test_the_latch_says_that_no_more_tasks_will_come() -> None:
    latched = run_rules.latch(a_run(), LATER)
    assert (latched.last_batch_received, latched.updated_at) == (True, LATER)


def test_the_end_of_ingest_sets_the_total_whatever_it_was() -> None:
    run = a_run(total=10, ingest_status=IngestStatus.PENDING)
    once = run_rules.ingested(run, 7, NO_INHERITANCE, LATER)
    assert (once.total, once.ingest_status) == (7, IngestStatus.DONE)
    assert run_rules.ingested(once, 7, NO_INHERITANCE, LATER) == once


def test_a_failed_run_says_why_in_at_most_500_characters() -> None:
    failed = run_rules.fail(a_run(), AccountReason.API_KEY_CAP_REACHED, "é" * 501, LATER)
    assert failed.failure_reason is AccountReason.API_KEY_CAP_REACHED
    assert failed.failure_detail == "é" * 500


@pytest.mark.parametrize("state", PauseState)
def test_a_live_run_is_paused_and_resumed_whatever_else_it_is(state: PauseState) -> None:
    turned = run_rules.pause(a_run(), state, LATER)
    assert (turned.pause_state, turned.is_paused) == (state, state is PauseState.PAUSED)
    assert (turned.status, turned.updated_at) == (RunStatus.RUNNING, LATER)


@pytest.mark.parametrize("status", sorted({*ENDED, RunStatus.DELETED}))
def test_an_ended_run_is_not_paused(status: RunStatus) -> None:
    with pytest.raises(IllegalMove):
        run_rules.pause(a_run(status=status), PauseState.PAUSED, LATER)
