"""A staged list becomes exactly its rows, whoever dies on the way and however often it is tried."""

import asyncio
from datetime import timedelta
from itertools import count

import pytest
from msgspec.structs import replace

from conveyor.domain import run as run_rules
from conveyor.domain.batch import INGEST
from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.failure import AccountReason
from conveyor.domain.ids import JobId, RunId, task_ids
from conveyor.domain.run import IngestStatus, RunStatus
from conveyor.domain.task import Task, TaskStatus
from conveyor.errors import NotFound, StorageFull, Unavailable
from conveyor.steps.shared.attempt import CallResult, Fetched
from tests.harness.memory_service import (
    A_PAGE,
    CALLER,
    House,
    a_call,
    a_house,
    away,
    ids_as_reply,
    sized,
)
from tests.harness.trace import Crash, Moment

A_LONG_TIME = timedelta(minutes=10)
COUNT = 11
CHUNK = 4
WRITES = (
    "tasks.add",
    "work.enqueue",
    "metadata.commit",
    "blobs.delete",
    "work.close",
)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    sized(monkeypatch, chunk_rows=CHUNK)


async def test_a_list_becomes_its_rows_in_order_with_the_ids_of_its_run() -> None:
    house, _, run_id = await _staged()

    await house.handle_messages()

    rows = await house.rows(run_id)
    assert [row.index for row in rows] == list(range(COUNT))
    assert [row.spec.url for row in rows] == [f"https://ok.example/{n}" for n in range(COUNT)]
    assert [row.id for row in rows] == [task_ids(run_id)(n) for n in range(COUNT)]
    run = await house.run(run_id)
    assert (run.total, run.ingest_status, run.last_batch_received) == (
        COUNT,
        IngestStatus.DONE,
        True,
    )
    assert await house.batches() == []
    assert await house.loose_lists() == []


async def test_rows_come_before_the_offer_before_the_watermark_and_the_total_comes_last() -> None:
    house, _, run_id = await _staged()
    house.trace.forget()

    await house.ingest.run(run_id, 0)

    chunk = ["tasks.add", "work.enqueue", "metadata.commit"]
    assert house.trace.of(*WRITES) == [*chunk * 3, "metadata.commit"]
    # The completion check reads the run and its counts after all that.
    assert house.trace.calls[-2:] == ["metadata.get(Run)", "tasks.counts"]


async def test_whoever_waits_for_rows_is_woken_with_every_chunk() -> None:
    house, _, run_id = await _staged()
    house.woken.clear()

    await house.ingest.run(run_id, 0)

    assert house.woken == [run_id] * 3


async def test_a_resumed_ingest_begins_at_the_watermark_and_adds_nothing_again() -> None:
    house, _, run_id = await _staged()
    house.trace.forget()
    house.trace.die_at("tasks.add", 3)
    with pytest.raises(Crash):
        await house.ingest.run(run_id, 0)
    [batch] = await house.batches()
    assert (batch.written, batch.version) == (2 * CHUNK, 3)
    house.trace.forget()

    await house.ingest.run(run_id, 0)

    assert house.trace.of("tasks.add") == ["tasks.add"]
    await _check_whole(house, run_id)


async def test_an_open_job_may_go_on_after_its_list_is_in() -> None:
    house, job_id, run_id = await _staged(status="open")

    await house.handle_messages()

    run = await house.run(run_id)
    assert (run.ingest_status, run.last_batch_received) == (IngestStatus.DONE, False)
    await house.add_tasks.add(a_call(2, first=COUNT), job_id, ids_as_reply)
    assert len(await house.rows(run_id)) == COUNT + 2


async def test_a_job_closed_while_its_list_comes_in_completes_at_the_end() -> None:
    house, job_id, run_id = await _staged(status="open")
    house.trace.before("work.enqueue", 1, lambda: house.lifecycle.close(CALLER, job_id))

    await house.handle_messages()
    await house.drain(run_id, _page)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED


async def test_a_close_that_slips_in_before_the_total_is_written_is_not_lost() -> None:
    house, job_id, run_id = await _staged(status="open")
    house.trace.forget()
    house.trace.before("metadata.commit", 4, lambda: house.lifecycle.close(CALLER, job_id))

    await house.ingest.run(run_id, 0)

    run = await house.run(run_id)
    assert (run.last_batch_received, run.ingest_status) == (True, IngestStatus.DONE)


async def test_a_list_all_of_whose_tasks_are_done_before_its_end_completes_by_its_latch() -> None:
    house, _, run_id = await _staged()

    async def drain() -> None:
        await house.drain(run_id, _page)

    house.trace.before("metadata.commit", 4, drain)
    await house.ingest.run(run_id, 0)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED


async def test_a_finished_task_is_not_reset_by_rows_that_are_written_again() -> None:
    house, _, run_id = await _staged()
    house.trace.die_at("work.enqueue", 1)
    with pytest.raises(Crash):
        await house.ingest.run(run_id, 0)
    await house.drain(run_id, _page)
    before = await house.rows(run_id)
    assert {row.status for row in before} == {TaskStatus.SUCCESSFUL}

    await house.ingest.run(run_id, 0)

    assert (await house.rows(run_id))[:CHUNK] == before
    await _check_whole(house, run_id)


async def test_two_ingesters_at_the_same_list_do_no_harm() -> None:
    house, _, run_id = await _staged()

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(house.ingest.run(run_id, 0))

    await _check_whole(house, run_id)


@pytest.mark.parametrize("number", range(1, 5))
async def test_an_ingester_that_was_overtaken_leaves_it_to_the_other(number: int) -> None:
    house, _, run_id = await _staged()
    house.trace.before("metadata.commit", number, lambda: house.ingest.run(run_id, 0))

    await house.ingest.run(run_id, 0)

    await _check_whole(house, run_id)


async def test_an_ingester_that_finds_the_list_removed_by_another_is_done() -> None:
    house, _, run_id = await _staged()
    house.trace.before("blobs.read", 1, lambda: house.ingest.run(run_id, 0))

    await house.ingest.run(run_id, 0)

    await _check_whole(house, run_id)


async def test_a_list_that_is_lost_while_its_rows_are_owed_is_told() -> None:
    house, _, run_id = await _staged()
    await house.blobs.delete(await house.lists())

    with pytest.raises(NotFound):
        await house.ingest.run(run_id, 0)
    await house.handle_messages()

    [dead] = await house.control_queue.dead_letters(limit=9)
    assert dead.payload["run_id"] == run_id


async def test_a_message_delivered_three_times_makes_the_rows_once() -> None:
    house, _, run_id = await _staged()
    payload = {"run_id": run_id, "first": "0"}
    for nth in "12":
        await house.control_queue.send(ControlMessage(kind=INGEST, subject=nth, payload=payload))

    assert await house.handle_messages() == 3

    await _check_whole(house, run_id)
    assert await house.control_queue.dead_letters(limit=9) == []


async def test_a_message_for_an_unknown_run_or_batch_is_done_with() -> None:
    house, _, run_id = await _staged()

    await house.ingest.run(RunId(house.ids.new()), 0)
    await house.ingest.run(run_id, 1)

    assert await house.rows(run_id) == []


async def test_a_message_for_a_finished_batch_makes_up_for_a_missed_completion_check() -> None:
    house, _, run_id = await _staged()

    async def drain() -> None:
        await house.drain(run_id, _page)
        house.trace.die_at("tasks.counts", 1)

    house.trace.before("metadata.commit", 4, drain)
    with pytest.raises(Crash):
        await house.ingest.run(run_id, 0)
    assert (await house.run(run_id)).status is RunStatus.RUNNING

    await house.ingest.run(run_id, 0)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED


async def test_a_run_that_is_gone_leaves_no_batch_behind() -> None:
    house, _, run_id = await _staged()
    [batch] = await house.batches()
    orphan = replace(batch, run_id=RunId(house.ids.new()), version=0)
    await house.metadata.commit(orphan)

    await house.ingest.run(orphan.run_id, 0)

    assert await house.batches() == [batch]
    assert await house.rows(orphan.run_id) == []
    assert run_id == batch.run_id


async def test_a_stop_in_the_middle_cuts_the_total_to_the_rows_there_are() -> None:
    house, job_id, run_id = await _staged()
    house.trace.before("metadata.commit", 2, lambda: _stop(house, job_id))

    await house.handle_messages()

    run = await house.run(run_id)
    assert (run.status, run.ingest_status, run.total) == (
        RunStatus.STOPPED,
        IngestStatus.DONE,
        2 * CHUNK,
    )
    await house.check_counts(run_id)
    assert await house.batches() == []
    assert await house.loose_lists() == []


async def test_a_stop_in_the_middle_of_an_addition_takes_what_is_missing_off_the_total() -> None:
    house, job_id, run_id, first = await _added()
    house.trace.before("metadata.commit", 1, lambda: _stop(house, job_id))

    await house.ingest.run(run_id, first)

    run = await house.run(run_id)
    assert run.total == 1 + CHUNK
    await house.check_counts(run_id)


async def test_what_a_stopped_addition_misses_is_taken_off_once_by_two_ingesters() -> None:
    house, job_id, run_id, first = await _added()
    await _stop(house, job_id)

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(house.ingest.run(run_id, first))

    assert (await house.run(run_id)).total == 1
    await house.check_counts(run_id)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("call", ["metadata.get(Run)", "metadata.page(Batch)", "metadata.commit"])
async def test_what_is_missing_is_taken_off_once_whenever_the_other_comes_first(
    call: str, nth: int
) -> None:
    house, job_id, run_id, first = await _added()
    await _stop(house, job_id)
    house.trace.before(call, nth, lambda: house.ingest.run(run_id, first))

    await house.ingest.run(run_id, first)
    await house.ingest.run(run_id, first)

    assert (await house.run(run_id)).total == 1


async def test_an_ingester_that_lags_behind_a_stop_does_not_cut_off_rows_of_the_other() -> None:
    house, job_id, run_id = await _staged()

    async def overtake_and_stop() -> None:
        house.trace.die_at("tasks.add", 3)
        with pytest.raises(Crash):
            await house.ingest.run(run_id, 0)
        await _stop(house, job_id)

    # The first ingester has found the batch when the second writes two chunks and the run ends.
    house.trace.before("blobs.read", 1, overtake_and_stop)
    await house.ingest.run(run_id, 0)
    await house.ingest.run(run_id, 0)

    assert (await house.run(run_id)).total == 2 * CHUNK
    await house.check_counts(run_id)


async def test_a_full_disk_stops_an_ingest_and_a_later_try_finishes_it() -> None:
    house, _, run_id = await _staged()
    with away(house.trace, "tasks.add", StorageFull("no room")), pytest.raises(StorageFull):
        await house.ingest.run(run_id, 0)

    await house.ingest.run(run_id, 0)

    await _check_whole(house, run_id)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("error", [Crash(), Unavailable("away")], ids=repr)
async def test_a_fault_at_any_call_leaves_what_a_second_run_makes_whole(
    moment: Moment, error: Exception
) -> None:
    for number in count():
        house, _, run_id = await _staged()
        house.trace.forget()
        house.trace.break_at(number, moment, error)
        try:
            await house.ingest.run(run_id, 0)
        except type(error):
            pass
        reached = len(house.trace.calls) > number
        house.trace.forget()
        await house.ingest.run(run_id, 0)
        await _check_whole(house, run_id)
        if not reached:
            assert number > 15
            return


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_crash_at_any_call_is_made_up_for_by_the_message_alone(moment: Moment) -> None:
    for number in count():
        house, _, run_id = await _staged()
        house.trace.forget()
        house.trace.break_at(number, moment, Crash())
        try:
            await house.handle_messages()
        except* Crash:
            pass
        reached = len(house.trace.calls) > number
        house.trace.forget()
        house.clock.advance(A_LONG_TIME)
        await house.handle_messages()
        await _check_whole(house, run_id)
        if not reached:
            return


def _page(_task: Task) -> CallResult:
    return Fetched(content=b"page", format="html")


async def _staged(**given: str) -> tuple[House, JobId, RunId]:
    """A job whose list is staged and whose rows are not written yet."""
    house = a_house()
    job_id, run_id = await house.submit(COUNT, **given)
    assert await house.rows(run_id) == []
    return house, job_id, run_id


async def _added() -> tuple[House, JobId, RunId, int]:
    """An open job with one row, and an addition that is promised and not written."""
    house = a_house()
    job_id, run_id = await house.submit(1, status="open")
    with away(house.trace, "tasks.add", Unavailable("tasks away")):
        await house.add_tasks.add(a_call(9, first=1), job_id, ids_as_reply)
    [batch] = await house.batches()
    assert (batch.first, (await house.run(run_id)).total) == (1, 10)
    return house, job_id, run_id, batch.first


async def _check_whole(house: House, run_id: RunId) -> None:
    """Exactly the rows of the list, none twice, and nothing left of the way there."""
    assert [row.index for row in await house.rows(run_id)] == list(range(COUNT))
    run = await house.run(run_id)
    assert (run.total, run.ingest_status) == (COUNT, IngestStatus.DONE)
    assert await house.batches() == []
    await house.check_counts(run_id)


async def _stop(house: House, job_id: JobId) -> None:
    await house.lifecycle.stop(CALLER, job_id)


async def test_a_list_that_cannot_be_finished_leaves_its_run_stopped_with_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized(monkeypatch, chunk_rows=4)
    house = a_house()
    _, run_id = await house.submit(20)
    house.trace.die_at("tasks.add", 3)
    with pytest.raises(Crash):
        await house.ingest.run(run_id, 0)
    [batch] = await house.batches()
    await house.blobs.delete([batch.blob or ""])

    await house.handle_messages()

    run = await house.run(run_id)
    assert (run.status, run.ingest_status) == (RunStatus.STOPPED, IngestStatus.DONE)
    assert run.total == len(await house.rows(run_id)) == 8
    assert await house.batches() == []
    [dead] = await house.control_queue.dead_letters(limit=9)
    assert dead.kind == "ingest"
    await house.sweep_twice()
    assert await house.handle_messages() == 0


async def test_giving_up_a_list_that_is_in_changes_nothing() -> None:
    house = a_house()
    _, run_id = await house.submit(20)
    await house.handle_messages()
    before = await house.run(run_id)

    await house.ingest.abandon(RunId("01ARZ3NDEKTSV4RRFFQ69G5FAV"), 0)

    assert await house.run(run_id) == before


async def test_a_run_whose_account_fails_still_gets_all_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its caller did nothing wrong, and will run it again."""
    sized(monkeypatch, chunk_rows=4)
    house = a_house()
    job_id, run_id = await house.submit(20)

    async def fail() -> None:
        failed = run_rules.fail(
            await house.run(run_id), AccountReason.INSUFFICIENT_CREDITS, "none", house.clock.now()
        )
        await house.metadata.commit(failed)

    house.trace.after("work.enqueue", 2, fail)
    await house.handle_messages()

    run = await house.run(run_id)
    assert (run.status, run.total, run.ingest_status) == (RunStatus.FAILED, 20, IngestStatus.DONE)
    assert len(await house.rows(run_id)) == 20
    assert (await house.rerun(job_id))[1] == 20


@pytest.mark.parametrize("copied", [False, True])
async def test_rows_ahead_of_the_watermark_count_when_the_run_ends_there(
    copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sized(monkeypatch, chunk_rows=4)
    house = a_house()
    job_id, run_id = await house.submit(20)
    if copied:
        await house.handle_messages()
        await house.drain(run_id, lambda _: A_PAGE)
        run_id, *_ = await house.rerun(job_id, "successful")
    house.trace.die_at("metadata.commit", 2)  # the watermark of the second chunk
    with pytest.raises(Crash):
        await house.ingest.run(run_id, 0)
    assert len(await house.rows(run_id)) == 8
    await house.lifecycle.stop(CALLER, job_id)

    await house.ingest.run(run_id, 0)

    run, rows = await house.run(run_id), await house.rows(run_id)
    assert (run.total, run.ingest_status) == (len(rows), IngestStatus.DONE)
    assert len(rows) == (20 if copied else 8)
    assert await house.batches() == []
