"""Every lost step happens later, once, and nothing is done where nothing was lost."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from conveyor.domain.batch import list_key
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.run import IngestStatus, PauseState, RunStatus
from conveyor.domain.task import MOST_LOST, Scraped, Task, TaskStatus, decide
from conveyor.errors import Unavailable
from conveyor.ports.blobs import as_stream
from conveyor.ports.bodies import Body
from conveyor.ports.work import Held
from conveyor.steps.shared.attempt import CallResult, Fetched
from conveyor.steps.sweep import sweeper as sweep_step
from conveyor.steps.sweep.checks import YOUNG
from conveyor.testing.factories import a_stored_body, settlement
from tests.harness.memory_service import (
    LEASE,
    House,
    a_call,
    a_house,
    away,
    body_name,
    held,
    ids_as_answer,
    ids_as_reply,
    sized,
)
from tests.harness.trace import Crash

A_MINUTE = timedelta(minutes=1)
A_MOMENT = timedelta(milliseconds=1)
PAST_DOUBT = LEASE + sweep_step.OVERDUE


async def test_a_lapsed_lease_that_nobody_took_over_is_freed_once() -> None:
    house = a_house()
    _, run_id = await house.submit(1)
    await house.work.claim({run_id: 1})
    house.clock.advance(PAST_DOUBT)

    await house.sweep.step()
    await house.sweep.step()

    assert house.swept == {"lapsed_lease": 1}
    [task] = await house.rows(run_id)
    assert (task.status, task.lost, task.attempts) == (TaskStatus.PENDING, 1, 0)


async def test_a_run_that_stands_still_is_looked_at_less_often_each_time() -> None:
    house = a_house()
    await house.submit(1)
    looked = list[int]()
    for number in range(1, 40):
        house.trace.forget()
        await house.sweep.step()
        looked += [number] * len(house.trace.of("work.release_lapsed"))
    assert looked == [1, 2, 4, 8, 16, 32]


async def test_the_rows_of_paused_runs_and_of_runs_without_open_tasks_are_not_read() -> None:
    house = a_house()
    _, paused = await house.submit(1)
    _, empty = await house.submit(1, status="open")
    await house.drain(empty, _page)
    run = await house.run(paused)
    await house.metadata.commit(msgspec.structs.replace(run, pause_state=PauseState.PAUSED))
    house.trace.forget()
    await house.sweep.step()
    assert not house.trace.of("work.release_lapsed")


async def test_a_lease_that_has_only_just_lapsed_is_left_to_the_dispatchers() -> None:
    house = a_house()
    _, run_id = await house.submit(1)
    await house.work.claim({run_id: 1})
    house.clock.advance(PAST_DOUBT - A_MOMENT)

    await house.sweep.step()

    assert not house.swept


async def test_the_body_of_a_claim_that_lapsed_goes_with_it() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1)
    [task] = await house.work.claim({run_id: 1})
    name = body_name(await house.job(job_id), task)
    await house.bodies.put_many([Body(name, b"half a page")])
    house.clock.advance(PAST_DOUBT)

    await house.sweep.step()

    assert house.swept == {"lapsed_lease": 1, "orphan_body": 1}
    assert not await house.has_body(name)


async def test_a_task_that_loses_its_last_worker_to_the_sweeper_ends_its_run() -> None:
    house = a_house()
    _, run_id = await house.submit(1)
    for _ in range(MOST_LOST):
        await house.work.claim({run_id: 1})
        house.clock.advance(PAST_DOUBT)
        await house.sweep.step()

    await house.sweep.step()

    run = await house.run(run_id)
    assert run.status is RunStatus.COMPLETED
    assert run.frozen is not None
    assert run.frozen.reasons == {"other": 1}
    assert house.swept == {"lapsed_lease": MOST_LOST, "missed_completion": 1}


async def test_a_completion_that_was_missed_happens_in_the_second_sweep_that_sees_it() -> None:
    house = a_house()
    _, run_id = await house.submit(2)
    await _settle_and_die(house, run_id)

    await house.sweep.step()
    assert (await house.run(run_id)).status is RunStatus.RUNNING
    assert not house.swept

    await house.sweep.step()
    assert (await house.run(run_id)).status is RunStatus.COMPLETED
    await house.sweep.step()
    assert house.swept == {"missed_completion": 1}
    assert not await house.work.claim({run_id: 1})


async def test_a_completion_that_comes_by_itself_between_two_sweeps_is_not_the_sweepers() -> None:
    house = a_house()
    _, run_id = await house.submit(2)
    await _settle_and_die(house, run_id)

    await house.sweep.step()
    assert await house.complete.check_completion(run_id)
    await house.sweep.step()

    assert not house.swept


async def test_an_idle_open_job_is_not_completed() -> None:
    house = a_house()
    _, run_id = await house.submit(2, status="open")
    await house.drain(run_id, _page)

    await house.sweep_twice()

    assert (await house.run(run_id)).status is RunStatus.RUNNING
    assert not house.swept


async def test_a_message_that_was_never_sent_is_sent_in_the_second_sweep() -> None:
    house = a_house()
    with away(house.trace, "control_queue.send", Unavailable("control queue away")):
        _, run_id = await house.submit(20)

    await house.sweep_twice()
    assert await house.handle_messages() == 0
    house.clock.advance(YOUNG)
    await house.sweep_twice()
    assert await house.handle_messages() == 1
    await house.sweep_twice()

    assert house.swept == {"unfinished_ingest": 1}
    assert len(await house.rows(run_id)) == 20
    assert (await house.run(run_id)).ingest_status is IngestStatus.DONE
    assert await house.handle_messages() == 0


async def test_a_message_that_was_never_sent_waits_for_no_clock_that_was_set_back() -> None:
    house = a_house()
    with away(house.trace, "control_queue.send", Unavailable("control queue away")):
        await house.submit(20)
    house.clock.set_wall(-2 * YOUNG)

    await house.sweep_twice()

    assert await house.handle_messages() == 1


async def test_a_list_whose_watermark_moves_between_sweeps_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized(monkeypatch, chunk_rows=2)
    house = a_house()
    _, run_id = await house.submit(20)
    for _ in range(5):
        await house.sweep.step()
        chunks = len(house.trace.of("tasks.add"))
        house.trace.die_at("tasks.add", 2)
        with pytest.raises(Crash):
            await house.ingest.run(run_id, 0)
        assert len(house.trace.of("tasks.add")) == chunks + 2

    await house.sweep.step()

    assert not house.swept


async def test_rows_that_an_addition_promised_and_could_not_write_are_written_later() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1, status="open")
    with (
        away(house.trace, "tasks.add", Unavailable("tasks away")),
        away(house.trace, "control_queue.send", Unavailable("control queue away")),
    ):
        answer = await house.add_tasks.add(a_call(4, first=1), job_id, ids_as_reply)
    assert answer.status == 200
    assert len(await house.rows(run_id)) == 1

    house.clock.advance(YOUNG)
    await house.sweep_twice()
    await house.handle_messages()

    assert house.swept == {"unfinished_ingest": 1}
    assert [task.index for task in await house.rows(run_id)] == [0, 1, 2, 3, 4]
    await house.check_counts(run_id)


async def test_rows_of_a_submission_that_never_came_to_be_are_cleared_when_old() -> None:
    house = a_house()
    run_id = await _die_before_commit(house, 3)

    await house.sweep_twice()
    assert len(await house.rows(run_id)) == 3
    assert not house.swept

    house.clock.advance(YOUNG)
    await house.sweep.step()
    await house.sweep.step()
    assert await house.tasks.runs_held(limit=9) == []
    assert house.swept == {"orphan_rows": 1}


async def test_a_list_of_a_submission_that_never_came_to_be_is_cleared_when_old() -> None:
    house = a_house()
    await _die_before_commit(house, 20)
    [key] = await house.lists()

    await house.sweep_twice()
    assert await house.lists() == [key]
    assert not house.swept

    house.clock.advance(YOUNG)
    await house.sweep.step()
    await house.sweep.step()
    assert await house.lists() == []
    assert house.swept == {"orphan_source_list": 1}


async def test_a_list_being_added_to_an_old_run_is_judged_by_its_own_age() -> None:
    house = a_house()
    job_id, _ = await house.submit(1, status="open")
    house.clock.advance(timedelta(days=1))

    house.trace.before("metadata.commit", 1, house.sweep.step)
    answer = await house.add_tasks.add(a_call(2, first=1), job_id, ids_as_reply)

    assert answer.status == 200
    assert not house.swept
    assert await house.batches() == []


async def test_a_list_whose_addition_failed_is_cleared_when_old_though_its_run_lives_on() -> None:
    house = a_house()
    job_id, _ = await house.submit(1, status="open")
    with (
        away(house.trace, "metadata.commit", Crash()),
        pytest.raises(Crash),
    ):
        await house.add_tasks.add(a_call(2, first=1), job_id, ids_as_reply)

    house.clock.advance(YOUNG + A_MINUTE)
    await house.sweep.step()

    assert house.swept == {"orphan_list": 1}
    assert await house.lists() == []


async def test_the_lists_of_unfinished_batches_stay_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep_step, "PAGE", 2)
    house = a_house()
    job_id, run_id = await house.submit(1, status="open")
    other, _ = await house.submit(1, status="open")
    with away(house.trace, "tasks.add", Unavailable("tasks away")):
        for number in range(5):
            await house.add_tasks.add(a_call(1, first=1 + number), job_id, ids_as_reply)
        await house.add_tasks.add(a_call(1, first=1), other, ids_as_reply)
    stray = list_key(job_id, run_id, house.ids.new())
    await house.blobs.put(stray, as_stream([b""]))
    house.clock.advance(YOUNG + A_MINUTE)

    await house.sweep.step()

    assert house.swept == {"orphan_list": 1}
    assert len(await house.lists()) == 6
    assert stray not in await house.lists()


async def test_at_start_everything_is_repaired_at_once() -> None:
    house = a_house()
    _, missed = await house.submit(2)
    await _settle_and_die(house, missed)
    with away(house.trace, "control_queue.send", Unavailable("control queue away")):
        _, unsent = await house.submit(20)
    await _die_before_commit(house, 3)
    await _die_before_commit(house, 20)
    job_id, dead = await house.submit(1)
    [task] = await house.work.claim({dead: 1})
    name = body_name(await house.job(job_id), task)
    await house.bodies.put_many([Body(name, b"half a page")])

    await house.sweep.at_start([held(task)])

    assert house.swept == {
        "orphan_body": 1,
        "missed_completion": 1,
        "unfinished_ingest": 1,
        "orphan_rows": 1,
        "orphan_source_list": 1,
    }
    await house.handle_messages()
    assert len(await house.rows(unsent)) == 20
    house.swept.clear()
    await house.sweep.at_start([])
    assert not house.swept


async def test_at_start_the_bodies_of_dead_claims_go_before_the_claims_themselves() -> None:
    house = a_house()
    _, run_id = await house.submit(7)
    dead = await house.work.claim({run_id: 7})
    house.trace.forget()

    await house.sweep.at_start([held(task) for task in dead])

    first_release = house.trace.calls.index("work.release_lapsed")
    assert house.trace.calls.index("bodies.discard") < first_release
    assert len(await house.work.claim({run_id: 9})) == 7


async def test_dead_claims_without_a_body_or_a_run_are_nothing_to_repair() -> None:
    house = a_house()
    _, run_id = await house.submit(1)
    [task] = await house.work.claim({run_id: 1})
    unknown = Held(RunId(house.ids.new()), TaskId("00000000-" + 24 * "0"), 1)

    await house.sweep.at_start([held(task), unknown])
    await house.sweep.remove_bodies([unknown])

    assert not house.swept


async def test_however_small_its_page_a_sweep_reaches_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep_step, "PAGE", 2)
    monkeypatch.setattr(sweep_step, "CHUNK", 3)
    house = a_house()
    for _ in range(5):
        _, run_id = await house.submit(2)
        await _settle_and_die(house, run_id)
        await house.submit(1)
        with away(house.trace, "control_queue.send", Unavailable("control queue away")):
            await house.submit(20)
        await _die_before_commit(house, 7)
        await _die_before_commit(house, 20)

    await house.sweep.at_start([])

    assert house.swept == {
        "missed_completion": 5,
        "unfinished_ingest": 5,
        "orphan_rows": 5,
        "orphan_source_list": 5,
    }
    assert len(await house.tasks.runs_held(limit=99)) == 10
    assert len(await house.lists()) == 5


async def test_more_lapsed_leases_than_a_bite_are_freed_over_several_sweeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep_step, "CHUNK", 3)
    house = a_house()
    _, run_id = await house.submit(7)
    await house.work.claim({run_id: 7})
    house.clock.advance(PAST_DOUBT)

    freed = []
    for _ in range(4):
        await house.sweep.step()
        freed.append(house.swept["lapsed_lease"])

    assert freed == [3, 6, 7, 7]


async def test_two_sweepers_at_once_repair_once() -> None:
    house = a_house()
    _, missed = await house.submit(2)
    await _settle_and_die(house, missed)
    _, lapsed = await house.submit(1)
    await house.work.claim({lapsed: 1})
    house.clock.advance(PAST_DOUBT)
    others: Counter[str] = Counter()
    other = replace(house.sweep, cursors={}, count=lambda action, n: others.update({action: n}))

    for _ in range(3):
        async with asyncio.TaskGroup() as group:
            group.create_task(house.sweep.step())
            group.create_task(other.step())

    assert house.swept + others == {"missed_completion": 1, "lapsed_lease": 1}


async def test_a_sweep_cut_short_by_an_engine_is_made_up_for_by_the_next() -> None:
    house = a_house()
    _, run_id = await house.submit(2)
    await _settle_and_die(house, run_id)
    await house.sweep.step()
    with (
        away(house.trace, "metadata.live_runs", Unavailable("metadata away")),
        pytest.raises(Unavailable),
    ):
        await house.sweep.step()

    await house.sweep.step()

    assert house.swept == {"missed_completion": 1}


async def test_in_a_run_without_faults_the_sweeper_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized(monkeypatch, chunk_rows=5)
    house = a_house()

    async def time_passes() -> None:
        house.clock.advance(timedelta(minutes=11))
        await house.sweep.step()

    _, small = await house.submit(3)
    await time_passes()
    _, large = await house.submit(23)
    await time_passes()
    await house.handle_messages()
    await time_passes()
    job_id, opened = await house.submit(1, status="open")
    await time_passes()
    await house.add_tasks.add(a_call(4, first=1), job_id, ids_as_reply)
    await time_passes()
    for run_id in (small, large, opened):
        await house.drain(run_id, _page)
        await time_passes()
    await house.lifecycle.close(a_call().caller, job_id)
    await time_passes()
    await time_passes()

    assert not house.swept
    for run_id in (small, large, opened):
        assert (await house.run(run_id)).status is RunStatus.COMPLETED
        await house.check_counts(run_id)
    assert await house.loose_lists() == []
    assert await house.batches() == []


def _page(_task: Task) -> CallResult:
    return Fetched(content=b"page", format="html")


async def _settle_and_die(house: House, run_id: RunId) -> None:
    """Settle all tasks of a run, as a worker does that dies before the completion check."""
    tasks = await house.work.claim({run_id: 100})
    decision = decide(tasks[0], Scraped(a_stored_body()), RetryPolicy())
    assert all(await house.work.settle([settlement(task, decision) for task in tasks]))


async def _die_before_commit(house: House, count: int) -> RunId:
    """A submission whose process dies when all is written but the job itself; its run's id."""
    known = set(await house.tasks.runs_held(limit=100))
    with away(house.trace, "metadata.commit", Crash()), pytest.raises(Crash):
        await house.submit_job.submit(a_call(count), ids_as_answer)
    new = set(await house.tasks.runs_held(limit=100)) - known
    return new.pop() if new else RunId("")
