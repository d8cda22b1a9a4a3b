"""What operators see of all callers: page by page, whole, and with bounded memory."""

from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from conveyor.domain.api_key import ApiKey
from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.ids import ApiKeyId, CallerId, JobId, RunId
from conveyor.domain.job import PURGE
from conveyor.domain.progress import Waiting, WaitReason
from conveyor.domain.task import Task
from conveyor.errors import NotFound, Unavailable
from conveyor.ports.coordination import Member
from conveyor.steps.operators import CallerView, LiveRun, Operators
from conveyor.steps.shared.attempt import FinishedAttempt
from conveyor.testing.clock import NOON
from tests.harness.memory_service import (
    A_PAGE,
    House,
    a_call,
    a_house,
    an_assignment,
    ids_as_answer,
    ids_in,
)

ANN, BOB, CLEO = CallerId("ann"), CallerId("bob"), CallerId("cleo")
HOUR = timedelta(hours=1)
ME = Member(id="M", role="serve", host="here", version="1", started_at=NOON)


@pytest.fixture
def house() -> House:
    return a_house()


def operators(house: House, **given: Any) -> Operators:
    return Operators(
        metadata=house.metadata,
        tasks=house.tasks,
        control_queue=house.control_queue,
        coordination=house.coordination,
        clock=house.clock,
        me=ME,
        check_health=Mock(),
        **given,
    )


async def submit(house: House, caller: CallerId, count: int = 3) -> tuple[JobId, RunId]:
    house.clock.advance(timedelta(seconds=1))
    call = a_call(count, caller=caller, name=f"of {caller}")
    return ids_in(await house.submit_job.submit(call, ids_as_answer))


async def add_key(house: House, caller: CallerId, **given: Any) -> None:
    key_id = ApiKeyId(house.ids.new())
    key = ApiKey(id=key_id, caller=caller, digest=b"", created_at=NOON, **given)
    await house.metadata.commit(key)


async def every_caller(one: Operators, limit: int) -> list[CallerView]:
    found, after = list[CallerView](), ""
    while True:
        page, cursor = await one.callers(limit=limit, after=after)
        assert len(page) <= limit
        found += page
        if cursor is None:
            return found
        after = cursor


async def every_run(one: Operators, limit: int, caller: CallerId | None = None) -> list[LiveRun]:
    found, after = list[LiveRun](), ""
    while True:
        page, cursor = await one.live_runs(limit=limit, after=after, caller=caller)
        assert len(page) <= limit
        found += page
        if cursor is None:
            return found
        after = cursor


async def test_a_caller_is_listed_with_its_keys_and_its_live_runs(house: House) -> None:
    _, run_id = await submit(house, ANN)
    await submit(house, ANN, 2)
    await add_key(house, ANN, last_used_at=NOON)
    await add_key(house, ANN, last_used_at=NOON - HOUR)
    await add_key(house, ANN, revoked_at=NOON)
    await add_key(house, BOB)
    [task] = await house.work.claim({run_id: 1})
    await settle(house, task)
    ann, bob = await every_caller(operators(house), 50)
    assert (ann.caller, ann.active_keys, ann.last_used_at) == (ANN, 2, NOON)
    assert (ann.live_runs, ann.open_tasks, ann.counts.successful) == (2, 4, 1)
    assert (bob.caller, bob.active_keys, bob.live_runs, bob.open_tasks) == (BOB, 1, 0, 0)


async def settle(house: House, task: Task) -> None:
    job = await house.job((await house.run(task.run_id)).job_id)
    await house.settle.settle([FinishedAttempt(task, an_assignment(job), A_PAGE)])


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_of_callers_have_each_of_them_once_in_order(house: House, limit: int) -> None:
    """Whatever the order of their keys and runs: later rows belong to earlier names."""
    names = [CallerId(f"caller-{number * 7 % 23:02}") for number in range(23)]
    for name in names:
        await add_key(house, name)
    for name in reversed(names[::2]):
        await submit(house, name, 1)
    found = await every_caller(operators(house), limit)
    assert [one.caller for one in found] == sorted(names)
    assert {one.caller for one in found if one.live_runs == 1} == set(names[::2])
    assert all(one.active_keys == 1 for one in found)


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_live_runs_of_all_callers_come_oldest_first(house: House, limit: int) -> None:
    made = [await submit(house, caller) for caller in (CLEO, ANN, BOB, ANN)]
    await house.lifecycle.stop(BOB, made[2][0])
    found = await every_run(operators(house), limit)
    assert [one.run.id for one in found] == [run for _, run in made if run != made[2][1]]
    assert [one.job.caller for one in found] == [CLEO, ANN, ANN]
    of_ann = await every_run(operators(house), limit, ANN)
    assert [one.run.id for one in of_ann] == [made[1][1], made[3][1]]


async def test_a_live_run_tells_what_it_waits_for(house: House) -> None:
    _, run_id = await submit(house, ANN)
    waiting = Waiting(reason=WaitReason.STORAGE_FULL, since=NOON, detail="full")

    async def waits(_: object) -> dict[RunId, Waiting]:
        return {run_id: waiting}

    [found] = await every_run(operators(house, waits=waits), 10)
    assert found.waiting == waiting


async def test_a_dead_letter_is_listed_and_redriven_once(house: House) -> None:
    for subject in ("a", "b", "c"):
        await house.control_queue.send(ControlMessage(kind=PURGE, subject=subject, payload={}))
    for message in await house.control_queue.receive(3, lease=HOUR):
        await house.control_queue.dead_letter(message, "bug: ZeroDivisionError")
    one = operators(house)
    first, cursor = await one.dead_letters(limit=2, after="")
    assert cursor == first[-1].id
    rest, end = await one.dead_letters(limit=2, after=cursor)
    assert (len(first), len(rest), end) == (2, 1, None)
    with capture_logs() as logs:
        await one.redrive(first[0].id, ApiKeyId("key"))
    assert [(line["event"], line["key_id"]) for line in logs] == [("control.redriven", "key")]
    with pytest.raises(NotFound):
        await one.redrive(first[0].id, None)
    assert len(await house.control_queue.receive(3, lease=HOUR)) == 1


async def test_this_process_is_always_among_the_live_ones(house: House) -> None:
    assert await operators(house).processes() == [ME]
    for name in ("A", "M", "Z"):
        other = Member(id=name, role="worker", host="there", version="1", started_at=NOON)
        await house.coordination.announce(other, life=HOUR)
    assert [one.id for one in await operators(house).processes()] == ["A", "M", "Z"]
    house.trace.broken["coordination.members"] = Unavailable("away")
    with pytest.raises(Unavailable):
        await operators(house).processes()


async def test_a_deleted_job_belongs_to_nobody(house: House) -> None:
    job_id, _ = await submit(house, ANN)
    assert await operators(house).caller_of(job_id) == ANN
    await house.delete.job(ANN, job_id)
    for unknown in (job_id, JobId("nothing")):
        with pytest.raises(NotFound):
            await operators(house).caller_of(unknown)
