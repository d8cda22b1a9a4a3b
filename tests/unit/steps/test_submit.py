"""A submission is stored whole or not at all, whatever fails on the way."""

import asyncio
from dataclasses import replace as with_
from itertools import count

import pytest
from msgspec.structs import replace

from conveyor.domain.job import JobStatus, RunPlace
from conveyor.domain.json_bodies import SLICE_BYTES
from conveyor.domain.run import IngestStatus, RunStatus
from conveyor.domain.submission import Limits
from conveyor.errors import (
    IdempotencyKeyConflict,
    InvalidArgument,
    KeyTaken,
    StorageFull,
    Unavailable,
)
from conveyor.steps.shared.attempt import Fetched
from conveyor.steps.shared.idempotency import Answer, Idempotency
from conveyor.steps.submit import SubmitJob
from conveyor.testing.factories import an_idempotency_record
from tests.harness.memory_service import (
    CALLER,
    KEY,
    STRANGER,
    House,
    a_call,
    a_house,
    away,
    ids_as_answer,
    ids_in,
)
from tests.harness.trace import Crash, Moment

SMALL, LARGE = 3, 20
SIZES = pytest.mark.parametrize("count_", [SMALL, LARGE], ids=["small", "large"])


async def test_a_small_submission_is_answered_201_with_its_rows_in_place() -> None:
    house = a_house()

    answer = await house.submit_job.submit(a_call(SMALL), ids_as_answer)

    job_id, run_id = ids_in(answer)
    assert answer.status == 201
    assert len(await house.rows(run_id)) == SMALL
    run = await house.run(run_id)
    assert (run.total, run.last_batch_received, run.ingest_status) == (SMALL, True, None)
    assert (await house.job(job_id)).status is JobStatus.CLOSED
    assert house.woken == [run_id]


async def test_a_large_submission_is_answered_202_with_its_list_staged() -> None:
    house = a_house()

    answer = await house.submit_job.submit(a_call(LARGE), ids_as_answer)

    _, run_id = ids_in(answer)
    assert answer.status == 202
    assert await house.rows(run_id) == []
    run = await house.run(run_id)
    assert (run.total, run.last_batch_received, run.ingest_status) == (
        LARGE,
        False,
        IngestStatus.PENDING,
    )
    assert await house.handle_messages() == 1
    assert len(await house.rows(run_id)) == LARGE


@pytest.mark.parametrize(
    ("count_", "asked", "status"),
    [
        (9, {}, 201),
        (10, {}, 202),
        (11, {}, 202),
        (1, {"async": True}, 202),
        (10, {"async": False}, 202),
        (0, {"status": "open"}, 201),
        (0, {"status": "open", "async": True}, 202),
    ],
)
async def test_who_is_answered_at_once_and_who_later(
    count_: int, asked: dict[str, object], status: int
) -> None:
    house = a_house(limits=Limits(sync_tasks=10))

    answer = await house.submit_job.submit(a_call(count_, **asked), ids_as_answer)  # type: ignore[arg-type]

    assert answer.status == status


async def test_an_empty_open_list_that_comes_later_does_not_hang() -> None:
    house = a_house()
    job_id, run_id = await house.submit(0, status="open", **{"async": True})

    await house.handle_messages()
    assert (await house.run(run_id)).ingest_status is IngestStatus.DONE
    await house.lifecycle.close(CALLER, job_id)

    assert (await house.run(run_id)).status is RunStatus.COMPLETED


async def test_a_body_of_several_slices_is_read_whole() -> None:
    house = a_house(limits=Limits())
    many = a_call(2_500)
    assert len(many.raw) > 2 * SLICE_BYTES

    answer = await house.submit_job.submit(many, ids_as_answer)

    assert len(await house.rows(ids_in(answer)[1])) == 2_500


@SIZES
async def test_a_job_and_the_rows_of_its_runs_keep_the_shards_they_were_submitted_with(
    count_: int,
) -> None:
    house = a_house()
    sharded = with_(house.submit_job, task_shard_count=8, sharded_from=1)

    job_id, run_id = ids_in(await sharded.submit(a_call(count_), ids_as_answer))
    await house.handle_messages()
    await house.drain(run_id, lambda _: Fetched(content=b"page", format="html"))
    again, _, _ = await house.rerun(job_id)
    await house.handle_messages()

    assert (await house.job(job_id)).task_shard_count == 8
    for laid_out in (run_id, again):
        await house.tasks.lay_out(laid_out, RunPlace(job_id, 8))
        with pytest.raises(ValueError, match="another place"):
            await house.tasks.lay_out(laid_out, RunPlace(job_id, 1))


async def test_rows_come_before_the_job() -> None:
    house = a_house()

    await house.submit(SMALL)

    calls = ["tasks.lay_out", "tasks.add", "work.enqueue", "metadata.commit"]
    assert house.trace.calls == calls


async def test_the_list_comes_before_the_job_and_the_message_after_it() -> None:
    house = a_house()

    await house.submit(LARGE)

    assert house.trace.calls == ["blobs.put", "metadata.commit", "control_queue.send"]


async def test_what_the_caller_says_of_a_job_is_kept() -> None:
    house = a_house()

    job_id, _ = await house.submit(
        1,
        name="a name",
        external_id="an-id",
        metadata={"a": "b"},
        max_inflight=7,
        retries=2,
        result_ttl_days=30,
        zenrows_params={"response_type": "markdown"},
    )

    job = await house.job(job_id)
    assert (job.name, job.external_id, job.metadata) == ("a name", "an-id", '{"a":"b"}')
    assert (job.max_inflight, job.retries, job.result_ttl_days) == (7, 2, 30)
    assert job.format == "markdown"


async def test_the_callers_key_is_encrypted_for_this_caller_and_job_alone() -> None:
    house = a_house()
    job_id, _ = await house.submit(1)
    other_id, _ = await house.submit(1)
    job = await house.job(job_id)

    assert KEY.encode() not in job.encrypted_gateway_key
    assert (
        await house.encryption.decrypt(job.encrypted_gateway_key, context=f"{CALLER}|{job_id}")
        == KEY
    )
    for context in (f"{CALLER}|{other_id}", f"{STRANGER}|{job_id}", ""):
        with pytest.raises(Unavailable):
            await house.encryption.decrypt(job.encrypted_gateway_key, context=context)


async def test_a_refused_submission_leaves_nothing() -> None:
    house = a_house()
    raw = b'{"tasks": [{"url": "https://ok.example/"}, {"url": "ftp://no.example/"}]}'

    with pytest.raises(InvalidArgument):
        await house.submit_job.submit(replace(a_call(), raw=raw), ids_as_answer)

    assert house.trace.calls == []


@SIZES
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("error", [Unavailable("away"), StorageFull("no room")], ids=repr)
async def test_a_failure_at_any_call_leaves_a_whole_job_or_nothing(
    count_: int, moment: Moment, error: Exception
) -> None:
    for number in count():
        house = a_house()
        house.trace.break_at(number, moment, error)
        answer, why = await _try_to_submit(house, count_)
        failed = len(house.trace.calls) > number
        house.trace.forget()
        await _check_whole_or_nothing(house, count_, answer)
        assert why in {None, error}
        if not failed:
            assert answer is not None
            return


@SIZES
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_crash_at_any_call_leaves_a_whole_job_or_what_the_sweeper_clears(
    count_: int, moment: Moment
) -> None:
    for number in count():
        house = a_house()
        house.trace.break_at(number, moment, Crash())
        answer, _ = await _try_to_submit(house, count_)
        failed = len(house.trace.calls) > number
        house.trace.forget()
        await house.sweep.at_start([])
        await _check_whole_or_nothing(house, count_, answer)
        if not failed:
            return


@SIZES
async def test_what_cannot_be_cleared_now_is_cleared_by_the_sweeper(count_: int) -> None:
    house = a_house()
    engine_is_away = Unavailable("away")
    with (
        away(house.trace, "metadata.commit", engine_is_away),
        away(house.trace, "tasks.discard", engine_is_away),
        away(house.trace, "blobs.delete", engine_is_away),
        pytest.raises(Unavailable),
    ):
        await house.submit(count_)
    assert await house.tasks.runs_held(limit=9) or await house.lists()

    await house.sweep.at_start([])

    assert await house.tasks.runs_held(limit=9) == []
    assert await house.lists() == []


@SIZES
async def test_a_commit_whose_answer_is_lost_leaves_the_job_and_its_rows(count_: int) -> None:
    house = a_house()
    house.trace.break_at(4 if count_ == SMALL else 2, "after", Unavailable("no answer"))

    with pytest.raises(Unavailable):
        await house.submit_job.submit(a_call(count_, key="key"), ids_as_answer)
    assert house.trace.calls[-2:] == ["metadata.commit", "metadata.get(Job)"]

    again = await house.submit_job.submit(a_call(count_, key="key"), ids_as_answer)
    await _check_whole_or_nothing(house, count_, again)


async def test_a_message_that_cannot_be_sent_is_sent_by_the_sweeper() -> None:
    house = a_house()
    with away(house.trace, "control_queue.send", Unavailable("control queue away")):
        answer = await house.submit_job.submit(a_call(LARGE), ids_as_answer)
    assert answer.status == 202

    await house.sweep_later()
    await house.handle_messages()

    assert len(await house.rows(ids_in(answer)[1])) == LARGE
    assert house.swept == {"unfinished_ingest": 1}


async def test_a_repeated_call_gets_the_first_answer_to_the_byte() -> None:
    house = a_house()
    call = a_call(SMALL, key="key")

    first = await house.submit_job.submit(call, ids_as_answer)
    assert await house.submit_job.submit(call, ids_as_answer) == first

    assert len(await house.metadata.jobs(CALLER, limit=9)) == 1


async def test_a_key_used_with_another_request_is_a_conflict() -> None:
    house = a_house()
    await house.submit_job.submit(a_call(SMALL, key="key"), ids_as_answer)

    with pytest.raises(IdempotencyKeyConflict):
        await house.submit_job.submit(a_call(SMALL + 1, key="key"), ids_as_answer)


async def test_keys_of_two_callers_have_nothing_to_do_with_each_other() -> None:
    house = a_house()
    mine = await house.submit_job.submit(a_call(SMALL, key="key"), ids_as_answer)
    theirs = await house.submit_job.submit(a_call(SMALL, key="key", caller=STRANGER), ids_as_answer)

    assert mine != theirs


async def test_a_repetition_while_the_first_call_is_under_way_is_a_conflict() -> None:
    house = a_house()
    call = a_call(SMALL, key="key")
    told: list[Exception] = []

    async def repeat() -> None:
        with pytest.raises(IdempotencyKeyConflict) as conflict:
            await house.submit_job.submit(call, ids_as_answer)
        told.append(conflict.value)

    house.trace.before("tasks.add", 1, repeat)
    answer = await house.submit_job.submit(call, ids_as_answer)

    assert len(told) == 1
    assert await house.submit_job.submit(call, ids_as_answer) == answer


async def test_a_key_is_free_again_after_a_call_that_failed() -> None:
    house = a_house()
    call = a_call(SMALL, key="key")
    with (
        away(house.trace, "metadata.commit", Unavailable("away")),
        pytest.raises(Unavailable),
    ):
        await house.submit_job.submit(call, ids_as_answer)

    assert (await house.submit_job.submit(call, ids_as_answer)).status == 201


@SIZES
async def test_whoever_loses_a_race_for_a_key_answers_as_the_winner_and_leaves_nothing(
    count_: int,
) -> None:
    house = a_house()
    call = a_call(count_, key="key")
    won: list[Answer] = []

    async def another_process_wins() -> None:
        elsewhere = _another_process(house)
        won.append(await elsewhere.submit(call, ids_as_answer))

    house.trace.before("metadata.commit", 1, another_process_wins)
    answer = await house.submit_job.submit(call, ids_as_answer)

    assert [answer] == won
    assert len(await house.metadata.jobs(CALLER, limit=9)) == 1
    await house.handle_messages()
    _, run_id = ids_in(answer)
    assert await house.tasks.runs_held(limit=9) == [run_id]
    assert await house.loose_lists() == []


async def test_a_race_lost_to_another_request_is_a_conflict() -> None:
    house = a_house()
    house.trace.before("metadata.commit", 1, lambda: house.metadata.commit(an_idempotency_record()))

    with pytest.raises(IdempotencyKeyConflict):
        await house.submit_job.submit(a_call(SMALL, key="key"), ids_as_answer)

    assert await house.tasks.runs_held(limit=9) == []


async def test_a_claim_that_expires_as_the_race_is_lost_is_a_conflict() -> None:
    house = a_house()
    with (
        away(house.trace, "metadata.commit", KeyTaken("taken a moment ago")),
        pytest.raises(IdempotencyKeyConflict),
    ):
        await house.submit_job.submit(a_call(SMALL, key="key"), ids_as_answer)


async def test_of_many_calls_with_one_key_at_once_one_makes_a_job() -> None:
    house = a_house()
    call = a_call(SMALL, key="key")
    processes = [_another_process(house) for _ in range(5)]

    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(process.submit(call, ids_as_answer)) for process in processes]

    assert len({one.result().body for one in calls}) == 1
    assert len(await house.metadata.jobs(CALLER, limit=9)) == 1
    assert len(await house.tasks.runs_held(limit=9)) == 1


async def _try_to_submit(house: House, count_: int) -> tuple[Answer | None, BaseException | None]:
    try:
        return await house.submit_job.submit(a_call(count_), ids_as_answer), None
    except (Crash, Unavailable) as error:
        return None, error


async def _check_whole_or_nothing(house: House, count_: int, answer: Answer | None) -> None:
    """Either there is no trace of the submission, or a job that comes to its end."""
    jobs = await house.metadata.jobs(CALLER, limit=9)
    if not jobs:
        assert answer is None
        assert await house.tasks.runs_held(limit=9) == []
        assert await house.lists() == []
        return
    [(_, run)] = jobs
    assert run is not None
    await house.sweep_later()
    await house.handle_messages()
    await house.drain(run.id, lambda _: Fetched(content=b"page", format="html"))
    assert len(await house.rows(run.id)) == count_
    assert (await house.run(run.id)).status is RunStatus.COMPLETED
    await house.check_counts(run.id)


def _another_process(house: House) -> SubmitJob:
    """The same engines, with a memory of its own."""
    idempotency = Idempotency(metadata=house.metadata, clock=house.clock)
    return with_(house.submit_job, idempotency=idempotency)
