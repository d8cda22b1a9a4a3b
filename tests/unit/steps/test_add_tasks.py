"""More tasks for an open job: promised in one step, written in the next, whoever dies between."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count

import pytest
from msgspec import structs

from conveyor.domain import job as job_rules
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.job import JobStatus
from conveyor.domain.run import RunStatus
from conveyor.domain.task import Task
from conveyor.errors import (
    Conflict,
    ConveyorError,
    IdempotencyKeyConflict,
    InvalidArgument,
    JobNotOpen,
    LastBatchReceived,
    NotFound,
    QuotaExceeded,
    RunNotTerminal,
    StorageFull,
    Unavailable,
)
from conveyor.steps.add_tasks import AddTasks
from conveyor.steps.shared.attempt import CallResult, Fetched
from conveyor.steps.shared.idempotency import Answer, Idempotency
from conveyor.testing.factories import an_idempotency_record
from tests.harness.memory_service import (
    CALLER,
    LIMITS,
    STRANGER,
    House,
    a_call,
    a_house,
    away,
    ids_as_reply,
)
from tests.harness.trace import Crash, Moment


async def test_added_tasks_follow_those_there_are() -> None:
    house, job_id, run_id = await _open_job()

    answer = await house.add_tasks.add(a_call(3, first=2), job_id, ids_as_reply)

    assert answer.status == 200
    assert answer.body.decode().split() == [job_id, run_id, "3"]
    rows = await house.rows(run_id)
    assert [row.index for row in rows] == [0, 1, 2, 3, 4]
    assert [row.spec.url for row in rows] == [f"https://ok.example/{n}" for n in range(5)]
    run = await house.run(run_id)
    assert (run.total, run.next_index, run.last_batch_received) == (5, 5, False)
    assert await house.batches() == []
    assert await house.lists() == []
    await house.check_counts(run_id)


async def test_the_list_comes_before_the_promise_before_the_rows() -> None:
    house, job_id, _ = await _open_job()
    house.trace.forget()

    await house.add_tasks.add(a_call(1), job_id, ids_as_reply)

    assert house.trace.of("blobs.put", "metadata.commit", "tasks.add", "blobs.delete") == [
        "blobs.put",
        "metadata.commit",  # the promise
        "tasks.add",
        "metadata.commit",  # the watermark
        "metadata.commit",  # the batch is done
        "blobs.delete",
    ]


async def test_the_last_batch_closes_the_job() -> None:
    house, job_id, run_id = await _open_job()

    await house.add_tasks.add(a_call(1, first=2, last_batch=True), job_id, ids_as_reply)

    job = await house.job(job_id)
    assert (job.status, job.last_batch) == (JobStatus.CLOSED, True)
    assert (await house.run(run_id)).last_batch_received
    await house.drain(run_id, _page)
    assert (await house.run(run_id)).status is RunStatus.COMPLETED
    with pytest.raises(LastBatchReceived):
        await house.add_tasks.add(a_call(1), job_id, ids_as_reply)


async def _close(house: House, job_id: JobId) -> None:
    await house.lifecycle.close(CALLER, job_id)


async def _stop(house: House, job_id: JobId) -> None:
    await house.lifecycle.stop(CALLER, job_id)


async def _end_with_last_batch(house: House, job_id: JobId) -> None:
    await house.add_tasks.add(a_call(1, last_batch=True), job_id, ids_as_reply)


async def _delete(house: House, job_id: JobId) -> None:
    await house.metadata.commit(job_rules.delete(await house.job(job_id), house.clock.now()))


async def _lose_the_run(house: House, job_id: JobId) -> None:
    job = await house.job(job_id)
    await house.metadata.commit(structs.replace(job, latest_run_id=RunId(house.ids.new())))


Change = Callable[[House, JobId], Awaitable[None]]


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (_close, JobNotOpen),
        (_stop, JobNotOpen),
        (_end_with_last_batch, LastBatchReceived),
        (_delete, NotFound),
        (_lose_the_run, JobNotOpen),
    ],
)
async def test_a_job_that_takes_no_more_says_why(
    change: Change, refusal: type[ConveyorError]
) -> None:
    house, job_id, run_id = await _open_job()
    await change(house, job_id)
    before = await house.run(run_id)

    with pytest.raises(refusal):
        await house.add_tasks.add(a_call(1), job_id, ids_as_reply)

    assert await house.run(run_id) == before
    assert await house.lists() == []


async def test_strangers_and_the_mistaken_find_no_job() -> None:
    house, job_id, _ = await _open_job()
    with pytest.raises(NotFound):
        await house.add_tasks.add(a_call(1, caller=STRANGER), job_id, ids_as_reply)
    with pytest.raises(NotFound):
        await house.add_tasks.add(a_call(1), JobId(house.ids.new()), ids_as_reply)


async def test_nothing_can_be_added_while_the_first_list_is_coming_in() -> None:
    house = a_house()
    job_id, _ = await house.submit(20, status="open")
    with pytest.raises(RunNotTerminal):
        await house.add_tasks.add(a_call(1), job_id, ids_as_reply)

    await house.handle_messages()

    assert (await house.add_tasks.add(a_call(1), job_id, ids_as_reply)).status == 200


async def test_an_open_job_has_a_largest_size() -> None:
    house = a_house(limits=structs.replace(LIMITS, open_job_tasks=4))
    job_id, run_id = await house.submit(2, status="open")
    await house.add_tasks.add(a_call(2), job_id, ids_as_reply)

    with pytest.raises(QuotaExceeded, match="at most 4"):
        await house.add_tasks.add(a_call(1), job_id, ids_as_reply)

    assert (await house.run(run_id)).total == 4
    assert await house.lists() == []


@pytest.mark.parametrize("raw", [b"{", b'{"tasks": []}', b'{"tasks": [{"url": "ftp://a.b/"}]}'])
async def test_what_cannot_be_accepted_leaves_nothing(raw: bytes) -> None:
    house, job_id, _ = await _open_job()
    house.trace.forget()

    with pytest.raises(InvalidArgument):
        await house.add_tasks.add(structs.replace(a_call(), raw=raw), job_id, ids_as_reply)

    assert house.trace.calls == ["metadata.get(Job)", "metadata.get(Run)"]


@pytest.mark.parametrize("change", [_close, _stop, _end_with_last_batch])
async def test_an_addition_that_loses_its_race_against_an_end_is_refused(change: Change) -> None:
    house, job_id, run_id = await _open_job()
    house.trace.before("metadata.commit", 1, lambda: change(house, job_id))

    with pytest.raises(Conflict):
        await house.add_tasks.add(a_call(4, first=2), job_id, ids_as_reply)

    await house.check_counts(run_id)
    assert await house.lists() == []
    assert await house.batches() == []


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("call", ["metadata.get(Job)", "metadata.get(Run)"])
@pytest.mark.parametrize("change", [_close, _stop, _end_with_last_batch])
async def test_an_end_between_two_reads_is_an_end(change: Change, call: str, nth: int) -> None:
    house, job_id, run_id = await _open_job()
    house.trace.after(call, nth, lambda: change(house, job_id))

    with pytest.raises(Conflict):
        await house.add_tasks.add(a_call(4, first=2), job_id, ids_as_reply)

    await house.check_counts(run_id)
    assert await house.lists() == []


async def test_two_additions_at_once_get_indexes_of_their_own() -> None:
    house, job_id, run_id = await _open_job()
    house.trace.before(
        "metadata.commit",
        1,
        lambda: house.add_tasks.add(a_call(3, first=10), job_id, ids_as_reply),
    )

    await house.add_tasks.add(a_call(2, first=20), job_id, ids_as_reply)

    urls = [row.spec.url.rsplit("/", 1)[1] for row in await house.rows(run_id)]
    assert urls == ["0", "1", "10", "11", "12", "20", "21"]
    await house.check_counts(run_id)


@pytest.mark.parametrize(
    "call", ["tasks.add", "metadata.page(Batch)", "work.enqueue", "blobs.delete"]
)
async def test_rows_that_fail_after_the_promise_are_answered_200_and_written_later(
    call: str,
) -> None:
    house, job_id, run_id = await _open_job()
    with away(house.trace, call, Unavailable("away")):
        answer = await house.add_tasks.add(a_call(3, first=2), job_id, ids_as_reply)
    assert answer.status == 200

    await house.sweep_later()
    await house.handle_messages()

    assert len(await house.rows(run_id)) == 5
    await house.check_counts(run_id)
    assert await house.batches() == []


async def test_an_addition_finished_by_another_meanwhile_is_answered_200() -> None:
    house, job_id, run_id = await _open_job()
    house.trace.before("blobs.read", 1, lambda: house.ingest.run(run_id, 2))

    answer = await house.add_tasks.add(a_call(3, first=2), job_id, ids_as_reply)

    assert answer.status == 200
    assert len(await house.rows(run_id)) == 5


@pytest.mark.parametrize(
    ("moment", "error"),
    [
        ("before", Unavailable("away")),
        ("after", Unavailable("away")),
        ("before", StorageFull("no room")),
        ("before", Crash()),
        ("after", Crash()),
    ],
    ids=repr,
)
async def test_a_failure_at_any_call_leaves_all_of_the_addition_or_nothing(
    moment: Moment, error: Exception
) -> None:
    for number in count():
        house, job_id, run_id = await _open_job()
        house.trace.forget()
        house.trace.break_at(number, moment, error)
        answer = await _try_to_add(house, job_id)
        failed = len(house.trace.calls) > number
        house.trace.forget()
        await house.sweep.at_start([])
        await house.handle_messages()
        await house.sweep.at_start([])
        rows = await house.rows(run_id)
        assert len(rows) in ({5} if answer else {2, 5})
        assert [row.index for row in rows] == list(range(len(rows)))
        await house.check_counts(run_id)
        assert await house.lists() == []
        assert await house.batches() == []
        if not failed:
            assert answer is not None
            return


async def test_a_promise_whose_answer_was_lost_is_kept_and_replayed() -> None:
    house, job_id, run_id = await _open_job()
    call = a_call(3, first=2, key="key")
    house.trace.forget()
    _lose_the_answer_of_the_promise(house)
    with pytest.raises(Unavailable):
        await house.add_tasks.add(call, job_id, ids_as_reply)

    answer = await house.add_tasks.add(call, job_id, ids_as_reply)
    await house.sweep_later()
    await house.handle_messages()

    assert answer.status == 200
    assert len(await house.rows(run_id)) == 5
    await house.check_counts(run_id)


async def test_a_repeated_addition_gets_the_first_answer_and_adds_nothing() -> None:
    house, job_id, run_id = await _open_job()
    call = a_call(3, first=2, key="key")

    first = await house.add_tasks.add(call, job_id, ids_as_reply)
    assert await house.add_tasks.add(call, job_id, ids_as_reply) == first

    assert (await house.run(run_id)).total == 5


@pytest.mark.parametrize("tidy", [True, False])
async def test_whoever_loses_a_race_for_a_key_answers_as_the_winner(*, tidy: bool) -> None:
    house, job_id, run_id = await _open_job()
    call = a_call(3, first=2, key="key")
    won: list[Answer] = []

    async def another_process_wins() -> None:
        elsewhere = _another_process(house)
        won.append(await elsewhere.add(call, job_id, ids_as_reply))
        if not tidy:
            house.trace.broken["blobs.delete"] = Unavailable("blobs away")

    house.trace.before("metadata.commit", 1, another_process_wins)
    answer = await house.add_tasks.add(call, job_id, ids_as_reply)
    house.trace.broken.clear()

    assert [answer] == won
    assert (await house.run(run_id)).total == 5
    assert len(await house.lists()) == (0 if tidy else 1)


@pytest.mark.parametrize(
    ("moment", "call_"),
    [
        ("after", "metadata.get(IdempotencyRecord)"),
        ("before", "metadata.commit"),
        ("after", "blobs.put"),
    ],
)
async def test_whoever_finds_the_job_closed_by_the_first_call_answers_as_it_did(
    moment: str, call_: str
) -> None:
    house, job_id, run_id = await _open_job()
    call = a_call(3, first=2, key="key", last_batch=True)
    won: list[Answer] = []

    async def another_process_wins() -> None:
        won.append(await _another_process(house).add(call, job_id, ids_as_reply))

    getattr(house.trace, moment)(call_, 1, another_process_wins)
    answer = await house.add_tasks.add(call, job_id, ids_as_reply)

    assert [answer] == won
    assert (await house.run(run_id)).total == 5
    assert await house.lists() == []


async def test_a_race_lost_to_another_request_is_a_conflict() -> None:
    house, job_id, run_id = await _open_job()
    house.trace.before("metadata.commit", 1, lambda: house.metadata.commit(an_idempotency_record()))

    with pytest.raises(IdempotencyKeyConflict):
        await house.add_tasks.add(a_call(1, key="key"), job_id, ids_as_reply)

    assert (await house.run(run_id)).total == 2
    assert await house.lists() == []


async def _open_job() -> tuple[House, JobId, RunId]:
    """An open job of two tasks."""
    house = a_house()
    return (house, *await house.submit(2, status="open"))


async def _try_to_add(house: House, job_id: JobId) -> Answer | None:
    try:
        return await house.add_tasks.add(a_call(3, first=2), job_id, ids_as_reply)
    except (Unavailable, Crash):
        return None


def _lose_the_answer_of_the_promise(house: House) -> None:
    async def lose() -> None:
        raise Unavailable("no answer")

    house.trace.after("metadata.commit", 1, lose)


def _another_process(house: House) -> AddTasks:
    return replace(
        house.add_tasks, idempotency=Idempotency(metadata=house.metadata, clock=house.clock)
    )


def _page(_task: Task) -> CallResult:
    return Fetched(content=b"page", format="html")
