"""Each thing goes when its time is over, not before, and that is no repair."""

from datetime import timedelta

import pytest

from conveyor.domain.batch import source_list_key
from conveyor.domain.export import (
    EXPORT_LIFE,
    LINK_LIFE,
    Export,
    begun,
    completed,
    export_blob,
    export_message,
    exports_of,
)
from conveyor.domain.failure import FailureReason
from conveyor.domain.file_input import (
    FILE_INPUT_LIFE,
    FileInput,
    released_by,
    upload_key,
    uploaded,
    used_by,
)
from conveyor.domain.ids import ExportId, InputId, JobId, RunId
from conveyor.domain.outbox import Delivery, EventStatus, OutboxEvent, redelivered
from conveyor.domain.run import RunStatus
from conveyor.domain.task import AttemptFailed, Task, TaskStatus
from conveyor.domain.task_list.spec import ListFormat, ListSpec
from conveyor.errors import ResultExpired, Unavailable
from conveyor.ports.blobs import as_stream
from conveyor.steps.shared.attempt import CallResult
from conveyor.steps.sweep import orphans as orphans_step
from conveyor.steps.sweep.checks import YOUNG
from conveyor.testing.factories import an_event
from conveyor.testing.memory.bodies import MemoryBodies
from tests.harness.memory_service import A_PAGE, BODY_LIFE, CALLER, House, a_house, away

A_MOMENT = timedelta(milliseconds=1)
A_MINUTE = timedelta(minutes=1)
A_REFUSAL = AttemptFailed("{}", FailureReason.BLOCKED, retryable=False)


class UnsweptBodies(MemoryBodies):
    is_swept = False


# Bodies.


@pytest.mark.parametrize("ttl", [1, 14, 30, 31, 60])
async def test_bodies_go_when_both_their_ttl_and_the_life_of_bodies_are_over(ttl: int) -> None:
    house = a_house()
    job_id, run_id = await _ended(house, ttl)
    [task, *_] = await house.rows(run_id)

    house.clock.advance(max(BODY_LIFE, timedelta(days=ttl)) + orphans_step.LATE - A_MOMENT)
    await house.sweep.step()
    assert not house.cleared
    house.clock.advance(A_MOMENT)
    await house.sweep.step()

    assert house.cleared == {"body": 3}
    assert not house.swept
    assert not await house.bodies.runs_held(limit=9)
    assert len(await house.rows(run_id)) == 3
    assert (await house.run(run_id)).status is RunStatus.COMPLETED
    with pytest.raises(ResultExpired):
        await house.read.content(CALLER, job_id, run_id, task.id)


async def test_a_live_run_keeps_its_bodies_however_old() -> None:
    house = a_house()
    _, run_id = await house.submit(3, status="open")
    await house.drain(run_id, _page)

    house.clock.advance(timedelta(days=400))
    await house.sweep_twice()

    assert not house.cleared
    assert len(await house.bodies.runs_held(limit=9)) == 1


async def test_what_later_runs_inherited_has_expired_before_the_bodies_of_its_source_go() -> None:
    house = a_house()
    job_id, first = await house.submit(2, result_ttl_days=40, retries=0)
    await house.drain(first, lambda task: A_PAGE if task.index else A_REFUSAL)
    house.clock.advance(timedelta(days=39))
    second, *_ = await house.rerun(job_id, "failed")
    await house.drain(second, _page)
    inherited = next(task for task in await house.rows(second) if task.source_run_id == first)
    assert inherited.status is TaskStatus.SUCCESSFUL

    house.clock.advance(timedelta(days=1))
    with pytest.raises(ResultExpired):
        await house.read.content(CALLER, job_id, second, inherited.id)
    assert not house.cleared
    house.clock.advance(orphans_step.LATE)
    await house.sweep.step()

    assert house.cleared == {"body": 1}
    assert [run_id for _, run_id in await house.bodies.runs_held(limit=9)] == [second]


async def test_a_run_with_more_bodies_than_a_round_may_remove_takes_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orphans_step, "CHUNK", 2)
    monkeypatch.setattr(orphans_step, "MOST_BODIES", 4)
    house = a_house()
    for count in (9, 3):
        _, run_id = await house.submit(count)
        await house.drain(run_id, _page)
    house.clock.advance(BODY_LIFE + orphans_step.LATE)

    gone = []
    for _ in range(5):
        await house.sweep.step()
        gone.append(house.cleared["body"])

    assert gone == [4, 8, 12, 12, 12]
    assert not await house.bodies.runs_held(limit=9)


async def test_bodies_in_storage_that_is_not_swept_expire_by_the_rows_of_their_runs() -> None:
    house = a_house(bodies=UnsweptBodies())
    _, run_id = await _ended(house, 14)
    _, live = await house.submit(1, status="open")
    await house.drain(live, _page)
    house.trace.forget()

    house.clock.advance(BODY_LIFE + orphans_step.LATE - A_MOMENT)
    await house.sweep.step()
    assert not house.cleared
    house.clock.advance(A_MOMENT)
    for _ in range(3):
        await house.sweep.step()

    assert house.cleared == {"body": 3}
    assert [run for _, run in await house.bodies.runs_held(limit=9)] == [live]
    assert (await house.run(run_id)).bodies_removed
    # One call that removes them and one that finds none: later rounds ask for nothing.
    assert house.trace.of("bodies.delete_run") == ["bodies.delete_run"] * 2
    assert house.trace.calls.count("bodies.runs_held") == 1  # the one above


async def test_bodies_in_unswept_storage_are_marked_as_removed_once_all_of_them_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orphans_step, "CHUNK", 2)
    monkeypatch.setattr(orphans_step, "MOST_BODIES", 2)
    house = a_house(bodies=UnsweptBodies())
    _, run_id = await _ended(house, 14)
    house.clock.advance(BODY_LIFE + orphans_step.LATE)

    await house.sweep.step()
    assert not (await house.run(run_id)).bodies_removed
    for _ in range(2):
        await house.sweep.step()

    assert house.cleared == {"body": 3}
    assert (await house.run(run_id)).bodies_removed


# Exports.


async def test_an_export_goes_with_all_its_files_when_its_last_link_has_expired() -> None:
    house = a_house()
    export = await _export(house)
    spool = f"{exports_of(export.job_id, export.run_id)}{export.id}.1.part"
    neighbour = await _export(house)
    for key in (export_blob(export), spool):
        await house.blobs.put(key, as_stream([b"zip"]))
    await house.metadata.commit(completed(export, 3))

    house.clock.advance(EXPORT_LIFE - A_MOMENT)
    await house.sweep.step()
    assert not house.cleared
    house.clock.advance(A_MOMENT)
    await house.sweep.step()
    assert house.cleared == {"export": 1}
    assert await house.metadata.get(Export, neighbour.id) is None  # which has no file
    house.clock.advance(LINK_LIFE - A_MOMENT)
    await house.sweep.step()
    assert len(await house.lists()) == 2
    house.clock.advance(A_MOMENT)
    await house.sweep.step()

    assert house.cleared == {"export": 2}
    assert await house.metadata.get(Export, export.id) is None
    assert await house.lists() == []


async def test_an_export_whose_file_cannot_be_removed_now_stays_on_record_until_it_is() -> None:
    house = a_house()
    export = await _export(house)
    await house.blobs.put(export_blob(export), as_stream([b"zip"]))
    house.clock.advance(EXPORT_LIFE)

    with away(house.trace, "blobs.delete", Unavailable("blobs away")), pytest.raises(Unavailable):
        await house.sweep.step()
    assert await house.metadata.get(Export, export.id) is not None
    await house.sweep_twice()

    assert await house.metadata.get(Export, export.id) is None
    assert await house.lists() == []
    assert not house.swept


async def test_an_export_that_nobody_began_is_asked_for_again_once_in_a_while() -> None:
    house = a_house()
    await _export(house)

    house.clock.advance(YOUNG - A_MOMENT)
    await house.sweep_twice()
    assert not house.swept
    for _ in range(5):
        await house.sweep.step()
        house.clock.advance(A_MINUTE)

    assert house.swept == {"unfinished_export": 1}
    assert await house.handle_messages() == 1


async def test_an_export_that_was_begun_is_left_to_its_message() -> None:
    house = a_house()
    export = await _export(house)
    await house.control_queue.send(export_message(export))
    assert await house.control_queue.receive(1, lease=timedelta(days=1))
    await house.metadata.commit(begun(export))

    await house.sweep_later()
    await house.sweep.at_start([])

    assert not house.swept


async def test_an_export_that_was_begun_and_lost_its_message_is_made_again() -> None:
    house = a_house()
    export = await _export(house)
    await house.metadata.commit(begun(export))

    await house.sweep_later()

    assert house.swept == {"unfinished_export": 1}
    assert await house.handle_messages() == 1


async def test_an_export_that_moves_between_two_sweeps_is_left_alone() -> None:
    house = a_house()
    export = await _export(house)
    house.clock.advance(YOUNG)

    await house.sweep.step()
    await house.metadata.commit(begun(export))
    await house.sweep.step()

    assert not house.swept


async def test_of_two_sweepers_one_asks_for_an_export() -> None:
    house = a_house()
    export = await _export(house)
    house.clock.advance(YOUNG)
    await house.sweep.step()

    house.trace.before("metadata.commit", 1, lambda: _move(house, export))
    await house.sweep.step()

    assert not house.swept
    assert await house.handle_messages() == 0


# Lists.


async def test_a_slot_that_no_job_uses_goes_with_its_list_after_a_day() -> None:
    house = a_house()
    empty, full = await _slot(house), await _full_file_input(house)

    house.clock.advance(FILE_INPUT_LIFE + YOUNG - A_MOMENT)
    await house.sweep.step()
    assert not house.cleared
    assert await house.lists() == [full.blob]
    house.clock.advance(A_MOMENT)
    await house.sweep.step()

    assert house.cleared == {"input": 2}
    assert await house.metadata.get(FileInput, empty.id) is None
    assert await house.metadata.get(FileInput, full.id) is None
    assert await house.lists() == []
    assert not house.swept


async def test_a_list_stays_for_as_long_as_a_job_may_read_it() -> None:
    house = a_house()
    file_input = await _full_file_input(house)
    job_id, _ = await house.submit(1)
    await house.metadata.commit(used_by(file_input, job_id))

    house.clock.advance(timedelta(days=300))
    await house.sweep_twice()
    assert not house.cleared
    assert await house.lists() == [file_input.blob]
    kept = await house.metadata.get(FileInput, file_input.id)
    assert kept is not None
    await house.metadata.commit(released_by(kept, job_id))
    await house.sweep.step()

    assert house.cleared == {"input": 1}
    assert await house.lists() == []


async def test_a_list_is_let_go_of_for_jobs_that_are_no_more() -> None:
    house = a_house()
    file_input = await _full_file_input(house)
    lives, _ = await house.submit(1)
    gone = JobId(house.ids.new())
    await house.metadata.commit(used_by(used_by(file_input, lives), gone))

    house.clock.advance(FILE_INPUT_LIFE + YOUNG)
    await house.sweep.step()
    assert not house.swept
    await house.sweep.step()

    assert house.swept == {"held_input": 1}
    kept = await house.metadata.get(FileInput, file_input.id)
    assert kept is not None
    assert kept.jobs == (lives,)


async def test_a_list_of_a_job_that_is_being_cleared_is_its_deletions() -> None:
    house = a_house()
    file_input = await _full_file_input(house)
    job_id, _ = await house.submit(1)
    await house.metadata.commit(used_by(file_input, job_id))
    await house.delete.job(CALLER, job_id)

    house.clock.advance(FILE_INPUT_LIFE + YOUNG)
    await house.sweep_twice()
    assert house.swept["held_input"] == 0
    await house.handle_messages()
    await house.sweep_twice()

    assert house.swept["held_input"] == 1


# What nothing refers to.


async def test_an_object_that_nothing_refers_to_goes_in_the_second_sweep_when_old() -> None:
    house = a_house()
    file_input = await _full_file_input(house)
    job_id, run_id = await house.submit(1)
    export = await _export(house, job_id, run_id)
    gone = JobId(house.ids.new()), RunId(house.ids.new())
    kept = [str(file_input.blob), export_blob(export), f"reports/{job_id}/{run_id}/0.ndjson"]
    strays = {
        "orphan_input": upload_key(file_input, house.ids.new()),
        "orphan_export": f"{exports_of(job_id, run_id)}{house.ids.new()}.1.zip",
        "orphan_report": f"reports/{gone[0]}/{gone[1]}/0.ndjson",
        "orphan_source_list": source_list_key(gone[0]),
        "orphan_list": f"lists/{gone[0]}/{gone[1]}/0.ndjson",
    }
    not_ours = ["exports/.keep", "inputs/readme.txt", "lists/a/b/c", "reports/a/b/c/d"]
    for key in (*kept[1:], *strays.values(), *not_ours):
        await house.blobs.put(key, as_stream([b"1"]))

    house.clock.advance(YOUNG)
    await house.sweep.step()
    await house.sweep.step()
    assert set(house.swept) <= {"unfinished_export"}
    house.clock.advance(A_MINUTE)
    await house.sweep.step()
    assert house.swept["orphan_list"] == 1
    assert not house.swept.keys() & {"orphan_input", "orphan_export", "orphan_report"}
    await house.sweep.step()

    assert {action: house.swept[action] for action in strays} == dict.fromkeys(strays, 1)
    assert await house.lists() == sorted([*kept, *not_ours])


@pytest.mark.parametrize("status", list(EventStatus))
async def test_an_event_goes_thirty_days_after_its_last_attempt_unless_it_is_owed(
    status: EventStatus,
) -> None:
    house = a_house()
    tried = house.clock.now() + timedelta(days=3)
    delivery = Delivery(attempt=1, started_at=tried, elapsed_ms=1, error="timeout")
    owed = status is EventStatus.OWED
    event = an_event(
        status=status, deliveries=(delivery,), due_at=house.clock.now() if owed else None
    )
    await house.metadata.commit(event)

    house.clock.advance(timedelta(days=32, hours=23))
    await house.sweep.step()
    assert await house.metadata.get(OutboxEvent, (event.job_id, event.id))
    house.clock.advance(timedelta(hours=2))
    await house.sweep.step()

    assert bool(await house.metadata.get(OutboxEvent, (event.job_id, event.id))) == owed
    assert house.cleared["event"] == (not owed)
    assert not house.swept


async def test_an_event_that_is_redelivered_this_moment_stays() -> None:
    house = a_house()
    await house.metadata.commit(an_event(status=EventStatus.FAILED, due_at=None))
    house.clock.advance(timedelta(days=31))

    async def owe() -> None:
        [event] = await house.metadata.page(OutboxEvent, limit=9)
        await house.metadata.commit(redelivered(event, house.clock.now()))

    house.trace.before("metadata.commit", 1, owe)
    await house.sweep.step()

    assert len(await house.metadata.page(OutboxEvent, limit=9)) == 1
    assert not house.cleared


async def _ended(house: House, ttl: int) -> tuple[JobId, RunId]:
    job_id, run_id = await house.submit(3, result_ttl_days=ttl)
    await house.drain(run_id, _page)
    return job_id, run_id


async def _export(house: House, job_id: JobId | None = None, run_id: RunId | None = None) -> Export:
    export = Export(
        id=ExportId(house.ids.new()),
        job_id=job_id or JobId(house.ids.new()),
        run_id=run_id or RunId(house.ids.new()),
        caller=CALLER,
        created_at=house.clock.now(),
        sent_at=house.clock.now(),
    )
    await house.metadata.commit(export)
    return await _found(house, export)


async def _found(house: House, export: Export) -> Export:
    found = await house.metadata.get(Export, export.id)
    assert found is not None
    return found


async def _move(house: House, export: Export) -> None:
    await house.metadata.commit(begun(await _found(house, export)))


async def _slot(house: House) -> FileInput:
    file_input = FileInput(
        id=InputId(house.ids.new()),
        caller=CALLER,
        spec=ListSpec(format=ListFormat.TXT),
        created_at=house.clock.now(),
    )
    await house.metadata.commit(file_input)
    found = await house.metadata.get(FileInput, file_input.id)
    assert found is not None
    return found


async def _full_file_input(house: House) -> FileInput:
    file_input = await _slot(house)
    key = upload_key(file_input, house.ids.new())
    await house.blobs.put(key, as_stream([b"https://a.example/\n"]))
    await house.metadata.commit(uploaded(file_input, key, 19, ()))
    found = await house.metadata.get(FileInput, file_input.id)
    assert found is not None
    return found


def _page(_task: Task) -> CallResult:
    return A_PAGE
