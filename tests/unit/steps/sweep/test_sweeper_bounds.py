"""A round ends however much there is, everything has its turn, and nothing keeps others from it."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from conveyor.domain.audit import MissedStep
from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.domain.run import RunStatus
from conveyor.domain.task import Task
from conveyor.errors import IllegalMove, Stale, Unavailable
from conveyor.ports.bodies import Body, BodyName
from conveyor.steps.shared.attempt import CallResult
from conveyor.steps.sweep import checks as check_step
from conveyor.steps.sweep import orphans as orphans_step
from conveyor.steps.sweep import sweeper as sweep_step
from conveyor.steps.sweep.checks import (
    YOUNG,
    Entry,
    Removal,
    Repair,
    SweepAction,
    SweepCheck,
    SweepCursor,
)
from conveyor.steps.sweep.stalled import StalledWork
from conveyor.steps.sweep.sweeper import Sweeper
from tests.harness.memory_service import (
    A_PAGE,
    BODY_LIFE,
    House,
    a_call,
    a_house,
    away,
    ids_as_answer,
)
from tests.harness.trace import Crash

A_MINUTE = timedelta(minutes=1)
STUCK = [f"{number:03}" for number in range(7)]
GOOD = "999"
ERRORS = [ValueError("a bug"), IllegalMove("no such move"), Stale("it moved on")]

RepairByName = Callable[[str], Awaitable[int]]


# Bites.


async def test_a_round_reads_no_more_runs_than_a_bite_and_rounds_come_by_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep_step, "ROUND", 5)
    house = a_house()
    runs = await _ended_runs(house, 23)
    house.clock.advance(timedelta(days=1))
    await house.sweep.step()

    reads = []
    for _ in range(10):
        house.trace.forget()
        await house.sweep.step()
        reads.append(len(house.trace.of("metadata.get(Run)", "metadata.get(Job)")))

    assert max(reads) <= 2 * 5  # for rows, and for bodies
    assert sum(reads) >= 2 * 2 * 20
    house.clock.advance(BODY_LIFE + orphans_step.LATE)
    for _ in range(6):
        await house.sweep.step()
    assert house.cleared == {"body": len(runs)}


async def test_what_lies_beyond_the_first_bite_is_cleared_the_second_time_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep_step, "ROUND", 2)
    house = a_house()
    await _ended_runs(house, 5)
    orphan = await _die_before_commit(house)
    house.clock.advance(YOUNG + A_MINUTE)

    rounds = 0
    while orphan in await house.tasks.runs_held(limit=99):
        await house.sweep.step()
        rounds += 1
        assert rounds < 20

    assert house.swept == {"orphan_rows": 1}
    assert rounds > 4  # not the first time that it was seen


async def test_a_mark_is_forgotten_when_its_thing_is_gone() -> None:
    house = a_house()
    orphan = await _die_before_commit(house)
    house.clock.advance(YOUNG + A_MINUTE)

    await house.sweep.step()
    assert house.sweep.cursors["rows"].suspects == {f"rows {orphan}"}
    await house.tasks.discard(orphan, limit=9)
    await house.sweep.step()

    assert not any(cursor.suspects | cursor.seen for cursor in house.sweep.cursors.values())


def test_marks_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_step, "MOST_KEYS", 3)
    cursor = SweepCursor()
    for number in range(9):
        cursor.note(str(number))

    assert len(cursor.seen) == 3


async def test_a_start_sees_to_the_last_day_first_and_to_no_more_than_a_bite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = a_house()
    long_ago = await _die_before_commit(house)
    await _ended_runs(house, 20)
    house.clock.advance(timedelta(days=3))
    orphan = await _die_before_commit(house)
    monkeypatch.setattr(sweep_step, "ROUND", 4)
    house.trace.forget()

    await house.sweep.at_start([])

    assert house.swept == {"orphan_rows": 2}
    assert not {orphan, long_ago} & set(await house.tasks.runs_held(limit=99))
    assert len(house.trace.of("metadata.get(Run)")) <= 2 * 4


async def test_a_start_sees_to_everything_where_there_is_not_much() -> None:
    house = a_house()
    orphans = [await _die_before_commit(house) for _ in range(3)]
    house.clock.advance(timedelta(days=300))

    await house.sweep.at_start([])

    assert house.swept == {"orphan_rows": len(orphans)}


# Nothing starves.


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_what_cannot_be_repaired_is_passed_by(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_step, "PAGE", 2)
    tried: Counter[str] = Counter()

    async def repair(place: str) -> int:
        tried[place] += 1
        if place != GOOD:
            raise error
        return 1

    house = a_house()
    sweep = _sweep_of(house, SweepCheck(name="things", listing=_broken_things(repair)))
    await sweep.step()
    await sweep.step()

    assert tried == Counter([*STUCK, GOOD])
    assert house.swept == {"mended": 1}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_what_cannot_be_judged_is_passed_by(error: Exception) -> None:
    async def judge(place: str, _patient: bool) -> SweepAction | None:
        if place != GOOD:
            raise error
        return Removal("things", _one)

    house = a_house()
    sweep = _sweep_of(house, SweepCheck(name="things", listing=partial(_listed, judge)))
    await sweep.step()

    assert house.cleared == {"things": 1}
    assert [lost async for lost in sweep.findings(patient=True)] == []


@pytest.mark.parametrize("long", [True, False])
async def test_an_engine_that_is_away_for_some_things_keeps_no_others_waiting(long: bool) -> None:
    """One round stops at it, the next goes on behind it."""
    tried: list[str] = []

    async def judge(place: str, _patient: bool) -> SweepAction | None:
        tried.append(place)
        if place != GOOD:
            raise Unavailable("it cannot be read")
        return Removal("things", _one)

    house = a_house()
    sweep = _sweep_of(house, SweepCheck(name="things", listing=partial(_listed, judge), long=long))
    for _ in STUCK:
        with pytest.raises(Unavailable):
            await sweep.step()
    await sweep.step()

    assert tried == [*STUCK, GOOD]
    assert house.cleared == {"things": 1}


async def test_an_engine_that_is_away_keeps_no_other_check_from_its_round() -> None:
    async def gone(_after: str, _limit: int) -> Sequence[Entry]:
        raise Unavailable("away")

    async def judge(place: str, _patient: bool) -> SweepAction | None:
        return Removal("things", _one) if place == GOOD else None

    house = a_house()
    sweep = _sweep_of(
        house,
        SweepCheck(name="first", listing=gone),
        SweepCheck(name="second", listing=partial(_listed, judge)),
    )
    with pytest.raises(Unavailable):
        await sweep.step()

    assert house.cleared == {"things": 1}
    assert "metadata.clear_expired" in house.trace.calls


async def test_runs_whose_completion_fails_keep_no_other_run_from_being_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep_step, "PAGE", 2)
    house = a_house()
    runs = [await _missed(house) for _ in range(5)]

    async def check(run_id: RunId) -> bool:
        if run_id != runs[-1]:
            raise IllegalMove("it is stuck")
        return await house.complete.check_completion(run_id)

    stalled = StalledWork(
        metadata=house.metadata,
        control_queue=house.control_queue,
        blobs=house.blobs,
        clock=house.clock,
        is_due=house.complete.is_due,
        check_completion=check,
    )
    sweep = replace(house.sweep, checks=stalled.checks())
    await sweep.step()
    await sweep.step()

    states = [(await house.run(run_id)).status for run_id in runs]
    assert states == [*(4 * [RunStatus.RUNNING]), RunStatus.COMPLETED]
    assert house.swept == {"missed_completion": 1}


async def test_bodies_that_cannot_be_removed_keep_no_others() -> None:
    house = a_house()
    runs = await _ended_runs(house, 4)
    house.clock.advance(BODY_LIFE + orphans_step.LATE)
    house.trace.before("bodies.delete_run", 1, _fail)
    house.trace.before("bodies.delete_run", 2, _fail)

    for stuck in (True, True, False):
        with pytest.raises(Unavailable) if stuck else nullcontext():
            await house.sweep.step()

    assert house.cleared == {"body": 2}
    await house.sweep.step()
    assert house.cleared == {"body": len(runs)}


async def test_a_list_whose_message_waits_is_sent_no_second_one() -> None:
    house = a_house()
    with away(house.trace, "control_queue.send", Unavailable("control queue away")):
        await house.submit(20)
    house.clock.advance(YOUNG)

    for _ in range(25):
        await house.sweep.step()
        house.clock.advance(A_MINUTE)

    assert house.swept == {"unfinished_ingest": 1}
    await house.sweep.at_start([])
    assert house.swept == {"unfinished_ingest": 1}
    assert await house.handle_messages() == 1


async def test_bodies_of_a_run_that_bears_no_name_of_ours_are_left_alone() -> None:
    house = a_house()
    name = BodyName(JobId("lost+found"), RunId("2024"), TaskId("0-0"), 1)
    await house.bodies.put_many([Body(name, b"somebody's")])

    await house.sweep.at_start([])
    house.clock.advance(timedelta(days=400))
    await house.sweep_twice()

    assert not house.swept
    assert await house.has_body(name)


def _sweep_of(house: House, *checks: SweepCheck) -> Sweeper:
    return replace(house.sweep, checks=checks, cursors={})


async def _listed(
    judge: Callable[[str, bool], Awaitable[SweepAction | None]], after: str, limit: int
) -> Sequence[Entry]:
    places = [place for place in [*STUCK, GOOD] if place > after]
    return [(place, partial(judge, place)) for place in places[:limit]]


def _broken_things(repair: RepairByName) -> Callable[[str, int], Awaitable[Sequence[Entry]]]:
    async def judge(place: str, _patient: bool) -> SweepAction | None:
        lost = MissedStep(action="mended", key=place, what="it is broken")
        return Repair(lost, partial(repair, place))

    return partial(_listed, judge)


async def _one() -> int:
    return 1


async def _fail() -> None:
    raise Unavailable("it cannot be removed")


async def _ended_runs(house: House, count: int) -> list[RunId]:
    runs = [(await house.submit(1))[1] for _ in range(count)]
    for run_id in runs:
        await house.drain(run_id, _page)
    return runs


async def _missed(house: House) -> RunId:
    """A run of which all is done, whose last worker died before it could say so."""
    _, run_id = await house.submit(1)
    with away(house.trace, "metadata.commit", Crash()), pytest.raises(Crash):
        await house.drain(run_id, _page)
    return run_id


async def _die_before_commit(house: House) -> RunId:
    known = set(await house.tasks.runs_held(limit=100))
    with away(house.trace, "metadata.commit", Crash()), pytest.raises(Crash):
        await house.submit_job.submit(a_call(3), ids_as_answer)
    [new] = set(await house.tasks.runs_held(limit=100)) - known
    return new


def _page(_task: Task) -> CallResult:
    return A_PAGE
