"""What came of attempts becomes bodies, rows and counts: each once, or not at all."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from conveyor.adapters.files.bodies import FileBodies
from conveyor.domain.counts import Counts, Spend
from conveyor.domain.failure import AccountReason, FailureReason
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.job import Job
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.run import RunStatus
from conveyor.domain.task import (
    AccountBlocked,
    AttemptFailed,
    Interrupted,
    Outcome,
    Settlement,
    Task,
    TaskStatus,
    Throttled,
)
from conveyor.errors import StorageFull, Unavailable
from conveyor.ports.bodies import Spool
from conveyor.ports.work import Held, Work
from conveyor.steps.shared.attempt import STORAGE_FULL_WAIT, CallResult, Fetched, FinishedAttempt
from conveyor.testing.clock import FakeIds
from conveyor.testing.factories import a_problem, scraped, settlement
from tests.harness.memory_service import (
    CALLER,
    LEASE,
    House,
    a_house,
    an_assignment,
    away,
    body_name,
)
from tests.harness.trace import Crash, Moment

SPEND = Spend(credits=5, nanos=700)
PAGE = Fetched(content=b"page", format="html", spend=SPEND)
BLOCKED = AccountBlocked(AccountReason.INSUFFICIENT_CREDITS, "no credits left")


async def test_a_page_is_kept_and_its_task_successful() -> None:
    house, job, [task] = await _claimed(1)

    await _settle(house, job, (task, PAGE))

    [row] = await house.rows(task.run_id)
    assert (row.status, row.attempts) == (TaskStatus.SUCCESSFUL, 1)
    assert row.result is not None
    assert row.result.length == 4
    assert [part async for part in house.bodies.read(row.result.locator)] == [b"page"]
    run = await house.run(task.run_id)
    assert run.status is RunStatus.COMPLETED
    assert run.frozen == Counts(successful=1, credits=5, nanos=700)


def a_refusal(*, retryable: bool) -> AttemptFailed:
    return AttemptFailed(a_problem("RESP001"), FailureReason.BLOCKED, retryable, SPEND)


@pytest.mark.parametrize(
    ("outcome", "status", "charged", "due_in"),
    [
        (a_refusal(retryable=False), TaskStatus.FAILED, 1, None),
        (a_refusal(retryable=True), TaskStatus.PENDING, 1, timedelta(seconds=1)),
        (Throttled(timedelta(seconds=7)), TaskStatus.PENDING, 0, timedelta(seconds=7)),
        (Interrupted(), TaskStatus.PENDING, 0, timedelta()),
        (Interrupted(timedelta(seconds=3)), TaskStatus.PENDING, 0, timedelta(seconds=3)),
        (BLOCKED, TaskStatus.PENDING, 0, timedelta()),
    ],
    ids=["failed", "retry", "throttled", "interrupted", "interrupted for a while", "account"],
)
async def test_each_outcome_becomes_what_the_domain_says(
    outcome: Outcome, status: TaskStatus, charged: int, due_in: timedelta | None
) -> None:
    house, job, [task] = await _claimed(1)

    await _settle(house, job, (task, outcome))

    [row] = await house.rows(task.run_id)
    assert (row.status, row.attempts, row.result) == (status, charged, None)
    assert len(await house.tasks.history(task.run_id, task.id)) == charged
    if due_in is None:
        assert row.due_at is None
    else:
        assert row.due_at is not None
        assert row.due_at - house.clock.now() <= due_in
    spent = (await house.tasks.counts([task.run_id]))[task.run_id].spend
    assert spent == (SPEND if charged else Spend())


async def test_a_retry_beyond_the_last_is_a_failure() -> None:
    house, job, [task] = await _claimed(1)
    policy = RetryPolicy(retries=0)

    ended = FinishedAttempt(task, an_assignment(job, policy), a_refusal(retryable=True))
    await house.settle.settle([ended])

    assert (await house.run(task.run_id)).status is RunStatus.COMPLETED
    assert await house.done(task.run_id) == 1


async def test_many_are_settled_in_one_write_each_by_its_own_outcome() -> None:
    house, job, tasks = await _claimed(4)
    house.trace.forget()

    await _settle(
        house,
        job,
        (tasks[0], PAGE),
        (tasks[1], Throttled(timedelta(seconds=1))),
        (tasks[2], Fetched(content=b"other page", format="html")),
        (tasks[3], a_refusal(retryable=False)),
    )

    assert house.trace.of("bodies.put_many", "work.settle") == ["bodies.put_many", "work.settle"]
    rows = await house.rows(_run_of(job))
    assert [row.result.length if row.result else None for row in rows] == [4, None, 10, None]
    await house.check_counts(_run_of(job))


async def test_bodies_come_before_rows_before_the_check_and_the_ack_is_last() -> None:
    house, job, [task] = await _claimed(1)
    house.trace.forget()

    await _settle(house, job, (task, PAGE))

    assert house.trace.calls == [
        "bodies.put_many",
        "work.settle",
        "metadata.get(Run)",
        "tasks.counts",
        "metadata.get(Job)",
        "metadata.commit",
        "work.close",
        "work.ack",
    ]


async def test_an_account_that_cannot_go_on_fails_the_run_and_burns_no_task() -> None:
    house, job, tasks = await _claimed(3)

    await _settle(house, job, (tasks[0], BLOCKED), (tasks[1], PAGE), (tasks[2], BLOCKED))

    run = await house.run(_run_of(job))
    assert run.status is RunStatus.FAILED
    assert (run.failure_reason, run.failure_detail) == (
        AccountReason.INSUFFICIENT_CREDITS,
        "no credits left",
    )
    rows = await house.rows(run.id)
    assert [(row.status, row.attempts) for row in rows] == [
        (TaskStatus.PENDING, 0),
        (TaskStatus.SUCCESSFUL, 1),
        (TaskStatus.PENDING, 0),
    ]
    assert await house.work.claim({run.id: 9}) == []


async def test_a_run_that_has_ended_is_not_failed_by_a_late_refusal_of_the_account() -> None:
    house, job, [task] = await _claimed(1)
    await house.lifecycle.stop(CALLER, job.id)

    await _settle(house, job, (task, BLOCKED))

    assert (await house.run(_run_of(job))).status is RunStatus.STOPPED


async def test_a_run_that_changes_while_it_is_being_failed_is_failed_all_the_same() -> None:
    house, job, [task] = await _claimed(1, status="open")
    house.trace.before("metadata.commit", 1, lambda: house.lifecycle.close(CALLER, job.id))

    await _settle(house, job, (task, BLOCKED))

    run = await house.run(_run_of(job))
    assert (run.status, run.last_batch_received) == (RunStatus.FAILED, True)


async def test_failing_a_run_whose_work_cannot_be_closed_is_repeated_until_it_is() -> None:
    house, job, [task] = await _claimed(1)
    house.trace.before("work.close", 1, _be_away)

    await _settle(house, job, (task, BLOCKED))

    assert (await house.run(_run_of(job))).status is RunStatus.FAILED
    assert len(house.trace.of("work.close")) == 2
    assert await house.work.claim({_run_of(job): 9}) == []


async def test_a_completed_run_whose_work_could_not_be_closed_is_closed_and_woken_all_the_same() -> (
    None
):
    house, job, [task] = await _claimed(1)
    house.woken.clear()
    house.trace.before("work.close", 1, _be_away)

    await _settle(house, job, (task, PAGE))

    assert len(house.trace.of("work.close")) == 2
    assert house.woken == [task.run_id]


@pytest.mark.parametrize("error", [StorageFull("no room"), Unavailable("away")], ids=repr)
async def test_pages_there_is_no_room_for_go_back_uncharged_and_leave_nothing(
    tmp_path: Path, error: Exception
) -> None:
    house, job, tasks = await _claimed(3, bodies=FileBodies(tmp_path, FakeIds()))
    spool = await _spooled(house, b"large")
    house.trace.forget()
    house.trace.break_at(0, "before", error)

    large = Fetched(content=spool, format="html")
    await _settle(house, job, (tasks[0], PAGE), (tasks[1], large), (tasks[2], BLOCKED))

    rows = await house.rows(_run_of(job))
    assert {(row.status, row.attempts, row.lost) for row in rows} == {(TaskStatus.PENDING, 0, 0)}
    assert rows[0].due_at == rows[1].due_at == house.clock.now() + STORAGE_FULL_WAIT
    assert _files(tmp_path) == []


async def test_what_a_page_cost_that_found_no_room_counts_and_dispatch_pauses() -> None:
    house, job, tasks = await _claimed(2)
    unspooled = Interrupted(STORAGE_FULL_WAIT, SPEND, not_stored=True)

    assignment = an_assignment(job)
    stored = await house.settle.settle(
        [FinishedAttempt(task, assignment, unspooled) for task in tasks]
    )

    assert stored is False
    assert (await house.tasks.counts([_run_of(job)]))[_run_of(job)].spend == Spend(
        2 * SPEND.credits, 2 * SPEND.nanos
    )
    assert {row.attempts for row in await house.rows(_run_of(job))} == {0}


@pytest.mark.parametrize(
    "outcome",
    [
        Throttled(timedelta(seconds=1), SPEND),
        Interrupted(timedelta(seconds=1), SPEND),
        AccountBlocked(AccountReason.INSUFFICIENT_CREDITS, "no credits left", SPEND),
    ],
    ids=["throttled", "interrupted", "account"],
)
async def test_what_an_answer_cost_counts_although_it_was_no_attempt(outcome: Outcome) -> None:
    house, job, [task] = await _claimed(1)

    await _settle(house, job, (task, outcome))

    [row] = await house.rows(task.run_id)
    assert (row.status, row.attempts) == (TaskStatus.PENDING, 0)
    assert (await house.tasks.counts([task.run_id]))[task.run_id].spend == SPEND
    run = await house.run(task.run_id)
    assert run.frozen is None or run.frozen.spend == SPEND
    await house.check_counts(task.run_id)


async def test_pages_that_went_back_are_kept_when_there_is_room_again() -> None:
    house, job, tasks = await _claimed(2)
    with away(house.trace, "bodies.put_many", StorageFull("no room")):
        await _settle(house, job, *[(task, PAGE) for task in tasks])

    house.clock.advance(STORAGE_FULL_WAIT)
    await house.drain(_run_of(job), lambda _: PAGE)

    assert (await house.run(_run_of(job))).status is RunStatus.COMPLETED
    assert {row.attempts for row in await house.rows(_run_of(job))} == {1}


async def test_a_body_that_cannot_be_removed_does_no_harm() -> None:
    house, job, [task] = await _claimed(1)
    house.clock.advance(LEASE)
    [again] = await house.work.claim({_run_of(job): 1})
    with away(house.trace, "bodies.remove", Unavailable("away")):
        await _settle(house, job, (task, PAGE))

    await _settle(house, job, (again, PAGE))
    assert (await house.run(_run_of(job))).status is RunStatus.COMPLETED


async def test_a_claim_that_lost_its_task_writes_nothing_and_its_body_goes(
    tmp_path: Path,
) -> None:
    house, job, [lost, kept] = await _claimed(2, bodies=FileBodies(tmp_path, FakeIds()))
    house.clock.advance(LEASE)
    again = {task.id: task for task in await house.work.claim({_run_of(job): 2})}
    large = Fetched(content=await _spooled(house, b"large"), format="html")

    await _settle(house, job, (lost, large), (again[kept.id], PAGE))

    assert not await house.has_body(body_name(job, lost))
    rows = await house.rows(_run_of(job))
    assert [row.status for row in rows] == [TaskStatus.PROCESSING, TaskStatus.SUCCESSFUL]
    await _settle(house, job, (again[lost.id], PAGE))
    await house.check_counts(_run_of(job))
    assert (await house.run(_run_of(job))).status is RunStatus.COMPLETED


async def test_a_death_between_a_segment_and_its_rows_leaves_no_row_without_its_body(
    tmp_path: Path,
) -> None:
    bodies = FileBodies(tmp_path, FakeIds(), sync=False, packs=True)
    house, job, tasks = await _claimed(3, bodies=bodies)
    house.trace.die_at("work.settle", 1)
    with pytest.raises(Crash):
        await _settle(house, job, *[(task, PAGE) for task in tasks])
    rows = await house.rows(_run_of(job))
    assert [row.result for row in rows] == [None] * 3
    assert len(_files(tmp_path)) == 1  # which no row refers to

    house.clock.advance(LEASE)
    again = await house.work.claim({_run_of(job): 3})
    await _settle(house, job, *[(task, PAGE) for task in again])

    for row in await house.rows(_run_of(job)):
        assert row.result
        assert [part async for part in bodies.read(row.result.locator)] == [b"page"]
    assert len(_files(tmp_path)) == 2
    await bodies.delete_run(job.id, _run_of(job), limit=9)
    assert _files(tmp_path) == []


async def test_a_settle_whose_answer_was_lost_keeps_its_bodies() -> None:
    house, job, tasks = await _claimed(3)
    house.trace.after("work.settle", 1, _be_away)

    await _settle(house, job, *[(task, PAGE) for task in tasks])

    rows = await house.rows(_run_of(job))
    for row in rows:
        assert row.result is not None
        assert [part async for part in house.bodies.read(row.result.locator)] == [b"page"]
    run = await house.run(_run_of(job))
    assert run.frozen is not None
    assert run.frozen.successful == 3


@pytest.mark.parametrize(
    "call", ["work.settle", "metadata.get(Run)", "tasks.counts", "metadata.commit", "work.close"]
)
@pytest.mark.parametrize("times", [1, 3])
async def test_settling_insists_while_an_engine_is_away(call: str, times: int) -> None:
    house, job, tasks = await _claimed(2)
    for nth in range(1, times + 1):
        house.trace.before(call, nth, _be_away)

    await _settle(house, job, *[(task, PAGE) for task in tasks])

    run = await house.run(_run_of(job))
    assert run.status is RunStatus.COMPLETED
    await house.check_counts(run.id)


@pytest.mark.parametrize("call", ["settle", "close"])
async def test_a_run_whose_writes_are_refused_holds_back_no_other(call: str) -> None:
    house, job, [task] = await _claimed(1)
    other_id, other_run = await house.submit(1)
    other = await house.job(other_id)
    [of_other] = await house.work.claim({other_run: 1})
    refused = asyncio.Event()
    work = _Refusing(house.work, _run_of(job), call, refused)
    steps = replace(house.settle, work=cast("Work", work), outage=timedelta(milliseconds=1))
    result = BLOCKED if call == "close" else PAGE  # a blocked account closes its run
    settling = asyncio.create_task(
        steps.settle(
            [
                FinishedAttempt(task, an_assignment(job), result),
                FinishedAttempt(of_other, an_assignment(other), PAGE),
            ]
        )
    )
    async with asyncio.timeout(5):
        while (await house.run(other_run)).is_live or work.refusals < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert not settling.done()
    assert (await house.run(other_run)).status is RunStatus.COMPLETED
    assert work.acked == {other_run}

    refused.set()
    assert await settling is True
    await house.check_counts(_run_of(job))
    await house.check_counts(other_run)


async def test_an_ack_that_fails_is_not_insisted_upon() -> None:
    house, job, [task] = await _claimed(1)
    with away(house.trace, "work.ack", Unavailable("away")):
        await _settle(house, job, (task, PAGE))

    assert house.trace.of("work.ack") == ["work.ack"]
    assert (await house.run(_run_of(job))).status is RunStatus.COMPLETED


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_crash_at_any_call_loses_no_task_and_counts_none_twice(moment: Moment) -> None:
    for number in count():
        house, job, tasks = await _claimed(3)
        house.trace.forget()
        house.trace.break_at(number, moment, Crash())
        try:
            await _settle(house, job, *[(task, PAGE) for task in tasks])
        except Crash:
            house.clock.advance(LEASE)
        reached = len(house.trace.calls) > number
        house.trace.forget()
        await house.drain(_run_of(job), lambda _: PAGE)
        await house.sweep_twice()
        run = await house.run(_run_of(job))
        assert run.status is RunStatus.COMPLETED
        assert run.frozen is not None
        assert run.frozen.successful == run.total == 3
        await house.check_counts(run.id)
        if not reached:
            return


async def test_tasks_found_final_have_their_runs_checked_once_and_are_acked() -> None:
    house, job, tasks = await _claimed(3)
    assert all(await house.work.settle([settlement(task, scraped()) for task in tasks]))
    house.trace.forget()

    await house.settle.settle_final(tasks)

    assert house.trace.of("metadata.commit", "work.ack") == ["metadata.commit", "work.ack"]
    assert (await house.run(_run_of(job))).status is RunStatus.COMPLETED


async def test_a_row_that_cannot_be_written_takes_no_other_with_it() -> None:
    house, job, tasks = await _claimed(3)
    work = _Poisoned(house.work, tasks[1].id)
    steps = replace(house.settle, work=cast("Work", work))

    with capture_logs() as logs:
        await steps.settle([FinishedAttempt(task, an_assignment(job), PAGE) for task in tasks])

    statuses = [row.status for row in await house.rows(_run_of(job))]
    assert statuses == [TaskStatus.SUCCESSFUL, TaskStatus.PROCESSING, TaskStatus.SUCCESSFUL]
    await house.check_counts(_run_of(job))
    assert [line["tasks"] for line in logs if line["event"] == "step.bug"][-1] == [tasks[1].id]


class _Poisoned:
    """Work with a row that no engine can write."""

    def __init__(self, work: Work, task_id: TaskId) -> None:
        self._work, self._task_id = work, task_id

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        if any(one.task_id == self._task_id for one in settlements):
            raise ValueError("this row cannot be written")
        return await self._work.settle(settlements)

    async def ack(self, final: Sequence[Held]) -> None:
        await self._work.ack(final)


class _Refusing:
    """Work that refuses a call as long as it concerns a run."""

    def __init__(self, work: Work, run_id: RunId, call: str, ended: asyncio.Event) -> None:
        self._work, self._run_id, self._call, self._ended = work, run_id, call, ended
        self.refusals = 0
        self.acked: set[RunId] = set()

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        self._check("settle", {one.run_id for one in settlements})
        return await self._work.settle(settlements)

    async def close(self, run_id: RunId) -> None:
        self._check("close", {run_id})
        await self._work.close(run_id)

    async def ack(self, final: Sequence[Held]) -> None:
        self.acked |= {one.run_id for one in final}
        await self._work.ack(final)

    def _check(self, call: str, run_ids: set[RunId]) -> None:
        if call == self._call and self._run_id in run_ids and not self._ended.is_set():
            self.refusals += 1
            raise Unavailable("refused")


async def _claimed(
    count_: int, *, bodies: FileBodies | None = None, **given: str
) -> tuple[House, Job, Sequence[Task]]:
    """A job whose tasks are all claimed."""
    house = a_house(bodies=bodies)
    job_id, run_id = await house.submit(count_, **given)
    return house, await house.job(job_id), await house.work.claim({run_id: count_})


async def _settle(house: House, job: Job, *ended: tuple[Task, CallResult]) -> None:
    await house.settle.settle(
        [FinishedAttempt(task, an_assignment(job), result) for task, result in ended]
    )


async def _spooled(house: House, content: bytes) -> Spool:
    spool = house.bodies.spool()
    await spool.write(content)
    return spool


async def _be_away() -> None:
    raise Unavailable("away")


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _run_of(job: Job) -> RunId:
    assert job.latest_run_id
    return job.latest_run_id
