"""Delete: gone at once, cleared away by a control message, whatever happens meanwhile."""

from contextlib import suppress
from datetime import timedelta

import pytest

from conveyor.domain import job as job_rules
from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.job import PURGE, TOMBSTONE_LIFE, Deletion, Job, JobStatus
from conveyor.domain.run import Run, RunStatus
from conveyor.domain.task import AttemptFailed, Task
from conveyor.errors import (
    ConveyorError,
    IllegalMove,
    NotFound,
    RunHasDescendants,
    Unavailable,
)
from conveyor.ports.metadata import Removed
from conveyor.steps.shared.attempt import CallResult, FinishedAttempt
from conveyor.testing.factories import a_job
from tests.harness.memory_service import (
    A_PAGE,
    CALLER,
    STRANGER,
    House,
    a_call,
    a_house,
    an_assignment,
    away,
    ids_as_reply,
    sized,
)
from tests.harness.trace import Moment

LARGE = 25
MOMENTS = pytest.mark.parametrize("moment", ["before", "after"])


async def test_a_deleted_job_is_gone_at_once() -> None:
    house = a_house()
    job_id, run_id = await house.submit(5)

    await house.delete.job(CALLER, job_id)

    with pytest.raises(NotFound):
        await house.read.job(CALLER, job_id)
    with pytest.raises(NotFound):
        await house.read.run(CALLER, job_id, run_id)
    assert await house.read.jobs(CALLER, limit=9, before=None, status=None, kind=None) == ([], None)
    assert await house.work.claim({run_id: 5}) == []
    assert list(await house.metadata.live_runs(limit=9)) == []
    assert run_id in house.woken


async def test_nothing_of_a_deleted_job_is_left_behind() -> None:
    house = a_house()
    job_id, first = await house.submit(LARGE)
    await house.handle_messages()
    await house.drain(first, _page)
    second, *_ = await house.rerun(job_id)  # its copy is under way
    other_job, other_run = await house.submit(2)
    await house.drain(other_run, _page)

    await house.delete.job(CALLER, job_id)
    await house.handle_messages()

    assert list(await house.tasks.runs_held(limit=9)) == [other_run]
    assert list(await house.bodies.runs_held(limit=9)) == [(other_job, other_run)]
    assert await house.lists() == []
    assert await house.batches() == []
    assert [await house.metadata.get(Run, one) for one in (first, second)] == [None, None]
    stone = await house.metadata.get(Job, job_id)
    assert stone is not None
    assert (stone.status, stone.encrypted_gateway_key, stone.params) == (
        JobStatus.DELETED,
        b"",
        None,
    )
    assert not house.swept


async def test_a_tombstone_goes_after_a_day() -> None:
    house, job_id, _ = await _ended(3)
    await house.delete.job(CALLER, job_id)
    await house.handle_messages()
    await house.delete.job(CALLER, job_id)  # answered as the first time

    house.clock.advance(TOMBSTONE_LIFE)
    await house.sweep.step()

    assert await house.metadata.get(Job, job_id) is None
    assert list(await house.metadata.page(Deletion, limit=9)) == []
    with pytest.raises(NotFound):
        await house.delete.job(CALLER, job_id)
    assert not house.swept


async def test_deleting_again_changes_nothing() -> None:
    house, job_id, _ = await _ended(3)
    await house.delete.job(CALLER, job_id)
    before = await house.metadata.get(Job, job_id)

    await house.delete.job(CALLER, job_id)

    assert await house.metadata.get(Job, job_id) == before
    assert len(await house.control_queue.receive(9, lease=timedelta(seconds=1))) == 1


async def test_what_is_not_ones_own_cannot_be_deleted() -> None:
    house, job_id, run_id = await _ended(2)
    for attempt in (
        house.delete.job(STRANGER, job_id),
        house.delete.run(STRANGER, job_id, run_id),
        house.delete.job(CALLER, JobId("nothing")),
        house.delete.run(CALLER, job_id, RunId("nothing")),
    ):
        with pytest.raises(NotFound):
            await attempt
    other_job, _ = await house.submit(1)
    with pytest.raises(NotFound):
        await house.delete.run(CALLER, other_job, run_id)
    assert (await house.read.run(CALLER, job_id, run_id)).run.status is RunStatus.COMPLETED


async def test_deleting_a_run_moves_the_latest_to_the_newest_left() -> None:
    house, job_id, first = await _ended(3)
    second, *_ = await house.rerun(job_id)
    await house.drain(second, _page)
    third, *_ = await house.rerun(job_id)

    await house.delete.run(CALLER, job_id, second)
    assert (await house.job(job_id)).latest_run_id == third
    await house.delete.run(CALLER, job_id, third)
    assert (await house.job(job_id)).latest_run_id == first
    await house.delete.run(CALLER, job_id, first)
    assert (await house.job(job_id)).latest_run_id is None

    view = await house.read.job(CALLER, job_id)
    assert view.latest is None
    assert (await house.read.runs(CALLER, job_id, limit=9, before=None))[0] == []
    await house.handle_messages()
    assert list(await house.tasks.runs_held(limit=9)) == []
    assert list(await house.bodies.runs_held(limit=9)) == []
    await house.delete.run(CALLER, job_id, first)  # answered as the first time


async def test_a_live_run_can_be_deleted() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3, status="open")
    job = await house.job(job_id)
    [task] = await house.work.claim({run_id: 1})

    await house.delete.run(CALLER, job_id, run_id)

    assert await house.work.claim({run_id: 5}) == []
    with pytest.raises(ConveyorError, match="must be open"):
        await house.add_tasks.add(a_call(1), job_id, ids_as_reply)
    await house.settle.settle([FinishedAttempt(task, an_assignment(job), A_PAGE)])
    await house.handle_messages()
    assert list(await house.bodies.runs_held(limit=9)) == []
    await house.lifecycle.close(CALLER, job_id)
    assert (await house.job(job_id)).status is JobStatus.CLOSED


async def test_a_run_whose_rows_are_shown_by_a_newer_one_stays() -> None:
    house, job_id, first = await _ended(4)
    second, *_ = await house.rerun(job_id, "successful")  # inherits what failed
    await house.drain(second, _page)
    third, *_ = await house.rerun(job_id, "failed")
    await house.drain(third, _page)

    with pytest.raises(RunHasDescendants, match=third):
        await house.delete.run(CALLER, job_id, second)

    await house.delete.run(CALLER, job_id, third)
    with pytest.raises(RunHasDescendants, match=second):
        await house.delete.run(CALLER, job_id, first)
    await house.delete.run(CALLER, job_id, second)
    await house.delete.run(CALLER, job_id, first)


async def test_a_run_in_the_middle_that_owns_nothing_shown_can_be_deleted() -> None:
    house, job_id, first = await _ended(4)
    second, *_ = await house.rerun(job_id, "failed")
    await house.drain(second, lambda _: A_PAGE)
    third, *_ = await house.rerun(job_id, "successful,failed")
    await house.drain(third, _page)

    await house.delete.run(CALLER, job_id, second)
    await house.delete.run(CALLER, job_id, first)


@pytest.mark.parametrize("status", ["failed", None])
async def test_a_source_stays_while_it_is_being_copied(status: str | None) -> None:
    house, job_id, first = await _ended(LARGE)
    second, *_ = await house.rerun(job_id, status)

    with pytest.raises(RunHasDescendants, match=second):
        await house.delete.run(CALLER, job_id, first)


async def test_a_source_can_go_once_all_of_it_was_copied_to_be_done_again() -> None:
    house, job_id, first = await _ended(LARGE)
    second, *_ = await house.rerun(job_id)
    await house.handle_messages()

    await house.delete.run(CALLER, job_id, first)
    await house.handle_messages()

    assert len(await house.rows(second)) == LARGE


@MOMENTS
async def test_a_delete_and_a_settle(moment: Moment) -> None:
    """A page that comes back after the delete leaves no body, whenever it comes."""
    for name in ("bodies.put_many", "work.settle"):
        house = a_house()
        job_id, run_id = await house.submit(3)
        job = await house.job(job_id)
        tasks = await house.work.claim({run_id: 3})
        getattr(house.trace, moment)(name, 1, lambda h=house, j=job_id: _delete_and_purge(h, j))

        await house.settle.settle(
            [FinishedAttempt(task, an_assignment(job), A_PAGE) for task in tasks]
        )

        assert list(await house.tasks.runs_held(limit=9)) == []
        assert list(await house.bodies.runs_held(limit=9)) == []


@pytest.mark.parametrize("call", ["tasks.add", "work.enqueue", "metadata.commit"])
@MOMENTS
async def test_a_delete_and_an_ingest(
    call: str, moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    sized(monkeypatch, chunk_rows=10)
    house = a_house()
    job_id, run_id = await house.submit(LARGE)
    getattr(house.trace, moment)(call, 2, lambda: _delete_and_purge(house, job_id))

    await house.ingest.run(run_id, 0)
    await house.handle_messages()
    await house.sweep_later()

    assert list(await house.tasks.runs_held(limit=9)) == []
    assert await house.batches() == []
    assert await house.lists() == []


@MOMENTS
async def test_a_delete_and_added_tasks(moment: Moment) -> None:
    house = a_house()
    job_id, _ = await house.submit(2, status="open")
    getattr(house.trace, moment)("metadata.commit", 1, lambda: _delete_and_purge(house, job_id))

    with suppress(NotFound):
        await house.add_tasks.add(a_call(3), job_id, ids_as_reply)

    await house.handle_messages()
    await house.sweep_later()
    assert list(await house.tasks.runs_held(limit=9)) == []
    assert await house.lists() == []
    assert await house.batches() == []


async def test_a_delete_and_a_completion() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1)

    async def delete() -> None:
        await house.delete.run(CALLER, job_id, run_id)

    house.trace.before("metadata.commit", 1, delete)
    await house.drain(run_id, _page)

    assert (await house.run(run_id)).status is RunStatus.DELETED


async def test_a_purge_that_was_not_sent_is_found() -> None:
    house, job_id, _ = await _ended(3)
    with away(house.trace, "control_queue.send", Unavailable("no queue")):
        await house.delete.job(CALLER, job_id)
    assert await house.handle_messages() == 0

    await house.sweep_later()
    await house.handle_messages()

    assert house.swept == {"unfinished_purge": 1}
    assert list(await house.tasks.runs_held(limit=9)) == []


async def test_a_purge_whose_message_waits_is_sent_no_second_one() -> None:
    house, job_id, _ = await _ended(3)
    await house.delete.job(CALLER, job_id)
    house.clock.advance(timedelta(minutes=11))

    for _ in range(15):
        await house.sweep.step()
        house.clock.advance(timedelta(minutes=1))
    await house.sweep.at_start([])

    assert house.swept == {}
    assert await house.handle_messages() == 1


async def test_bodies_of_a_run_that_is_no_more_are_found() -> None:
    house, job_id, run_id = await _ended(3)
    while await house.tasks.discard(run_id, limit=9):
        pass
    run, job = await house.run(run_id), await house.job(job_id)
    await house.metadata.commit(Removed(run), Removed(job))

    await house.sweep_later()

    assert list(await house.bodies.runs_held(limit=9)) == []
    assert house.swept == {"orphan_body": 2}


async def test_a_purge_of_nothing_known_does_nothing() -> None:
    house = a_house()
    payload = {"id": "01HZZZZZZZZZZZZZZZZZZZZZZZ"}
    await house.control_queue.send(ControlMessage(kind=PURGE, subject="nothing", payload=payload))
    assert await house.handle_messages() == 1


def test_only_a_deleted_job_has_a_tombstone() -> None:
    with pytest.raises(IllegalMove):
        job_rules.tombstone(a_job())
    deleted = job_rules.delete(a_job(name="mine", metadata="{}"), a_job().created_at)
    with pytest.raises(IllegalMove):
        job_rules.point_at(deleted, None, a_job().created_at)
    assert job_rules.tombstone(deleted).name is None


async def _delete_and_purge(house: House, job_id: JobId) -> None:
    await house.delete.job(CALLER, job_id)
    await house.handle_messages()


async def _ended(count: int) -> tuple[House, JobId, RunId]:
    house = a_house()
    job_id, run_id = await house.submit(count)
    await house.handle_messages()
    refusal = AttemptFailed('{"status":403}', FailureReason.BLOCKED, retryable=False)
    await house.drain(run_id, lambda task: refusal if task.index == 1 else A_PAGE)
    return house, job_id, run_id


def _page(_task: Task) -> CallResult:
    return A_PAGE
