"""Deaths, doubles and dead letters on the way lose nothing, count nothing twice and say what happened."""

from contextlib import suppress
from datetime import timedelta

import pytest

from conveyor.domain.ids import JobId, RunId
from conveyor.domain.run import RunStatus
from conveyor.errors import NotFound, Unavailable
from conveyor.steps.control import LEASE, MOST_DELIVERIES
from tests.harness.file_inputs import packed, sent, small_chunks, submit_list, submitted_list, urls
from tests.harness.memory_service import CALLER, House, a_call, a_house, away, ids_as_reply, sized
from tests.harness.trace import Crash

ROWS = 100


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)
    sized(monkeypatch, chunk_rows=4)


async def _die_on_the_way(house: House, nth: int) -> None:
    """A delivery whose process dies: its lease runs out."""
    house.trace.die_at("tasks.add", nth)
    with suppress(BaseExceptionGroup):  # the tenth is followed by another message, and no death
        await house.control_worker.step()
    house.trace.forget()
    house.clock.advance(LEASE + timedelta(seconds=1))


async def test_an_ingest_that_comes_further_each_time_is_never_given_up() -> None:
    house = a_house()
    _, run_id = await submitted_list(house, urls(ROWS))
    for _ in range(2 * MOST_DELIVERIES):
        await _die_on_the_way(house, 2)
    await house.handle_messages()
    run = await house.run(run_id)
    assert (run.status, run.total, run.is_cut) == (RunStatus.RUNNING, ROWS, False)
    assert not await house.control_queue.dead_letters(limit=9)


async def test_an_ingest_that_stands_still_is_given_up_and_says_so() -> None:
    house = a_house()
    job_id, run_id = await submitted_list(house, urls(ROWS))
    for _ in range(MOST_DELIVERIES):
        await _die_on_the_way(house, 1)
    await house.handle_messages()
    run = await house.run(run_id)
    assert (run.status, run.total, run.is_cut) == (RunStatus.STOPPED, 0, True)
    assert "run the job again" in (run.ingest_error or "")
    assert len(await house.control_queue.dead_letters(limit=9)) == 1
    again, *_ = await house.rerun(job_id)
    await house.handle_messages()
    assert (await house.run(again)).total == ROWS


async def test_the_reason_is_told_whoever_sees_the_stop_first() -> None:
    house = a_house()
    _, run_id = await submitted_list(house, urls(ROWS))
    house.trace.after("metadata.commit", 1, lambda: house.ingest.run(run_id, 0))
    await house.ingest.abandon(run_id, 0)
    run = await house.run(run_id)
    assert (run.status, run.is_cut) == (RunStatus.STOPPED, True)
    assert "given up" in (run.ingest_error or "")


async def test_a_list_that_is_gone_is_told_to_be_submitted_again() -> None:
    house = a_house()
    job_id, run_id = await submitted_list(house, urls(ROWS))
    source_list = (await house.job(job_id)).source_list
    assert source_list
    await house.blobs.delete([source_list.blob])
    await house.handle_messages()
    run = await house.run(run_id)
    assert run.status is RunStatus.STOPPED
    assert "submit it again" in (run.ingest_error or "")


@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("staged", [True, False], ids=["in a slot", "in the body"])
async def test_rows_that_come_after_the_end_are_counted(nth: int, staged: bool) -> None:
    house = a_house()
    job_id, run_id = await (submitted_list(house, urls(40)) if staged else house.submit(40))

    async def end_it() -> None:
        await house.lifecycle.stop(CALLER, job_id)
        await house.ingest.run(run_id, 0)

    house.trace.before("tasks.add", nth, end_it)
    await house.ingest.run(run_id, 0)
    assert (await house.run(run_id)).total == len(await house.rows(run_id))


async def test_a_copy_that_was_given_up_is_made_anew_from_the_last_whole_run() -> None:
    house = a_house()
    job_id, first = await house.submit(5, status="open")
    await house.add_tasks.add(a_call(20, first=5), job_id, ids_as_reply)
    await house.lifecycle.stop(CALLER, job_id)
    cut = await _given_up_copy(house, job_id)
    assert (await house.run(cut)).total < 25

    again, retried, _ = await house.rerun(job_id)
    await house.handle_messages()

    run = await house.run(again)
    assert (retried, run.total, run.is_cut, run.ingest_error) == (25, 25, False, None)
    assert [row.id for row in await house.rows(again)] == [
        row.id for row in await house.rows(first)
    ]


async def test_what_a_cut_run_lacks_is_told_by_its_partial_reruns_too() -> None:
    house = a_house()
    job_id, run_id = await submitted_list(house, urls(ROWS))
    with away(house.trace, "tasks.add", Unavailable("away")), pytest.raises(Unavailable):
        await house.ingest.run(run_id, 0)
    house.trace.die_at("tasks.add", 3)
    with pytest.raises(Crash):
        await house.ingest.run(run_id, 0)
    await house.ingest.abandon(run_id, 0)
    partial, *_ = await house.rerun(job_id, "pending")
    await house.handle_messages()
    run = await house.run(partial)
    assert run.is_cut
    assert run.ingest_error == (await house.run(run_id)).ingest_error


async def _given_up_copy(house: House, job_id: JobId) -> RunId:
    run_id, *_ = await house.rerun(job_id)
    house.trace.die_at("tasks.add", 3)
    with pytest.raises(Crash):
        await house.ingest.run(run_id, 0)
    await house.ingest.abandon(run_id, 0)
    return run_id


async def test_a_list_of_one_endless_line_is_looked_at_no_further_than_a_small_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized(monkeypatch, small_file_bytes=10_000, probed_file_bytes=10_000)
    house = a_house()
    content = packed(b"https://ok.example/" + b"a" * 3_000_000)
    assert len(content) < 10_000
    answer = await submit_list(house, await sent(house, content))
    assert answer.status == 202  # its only line would have been refused at once otherwise


async def test_while_an_export_is_being_made_there_is_no_second() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1)
    first = await house.exporting.start(CALLER, job_id, run_id)
    assert (await house.exporting.start(CALLER, job_id, run_id)).id == first.id
    await house.handle_messages()
    assert (await house.exporting.start(CALLER, job_id, run_id)).id != first.id
    with pytest.raises(NotFound):
        await house.exporting.start(CALLER, job_id, RunId("another"))
