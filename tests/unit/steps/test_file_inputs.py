"""Slots for lists: filled once, whole or not at all; named by jobs while they last."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest

from conveyor.domain.file_input import FILE_INPUT_LIFE, MOST_JOBS, UPLOAD_LIFE, FileInput
from conveyor.domain.ids import InputId, JobId
from conveyor.domain.job import Job
from conveyor.errors import (
    FileInputAlreadyUploaded,
    FileInputNotFound,
    FileInputNotUploaded,
    FileInputUnsupported,
    InvalidArgument,
    TooLarge,
    Unavailable,
)
from conveyor.ports.blobs import as_stream
from conveyor.steps.sweep.checks import YOUNG
from tests.harness.file_inputs import a_file_input_id, a_list_call, packed, sent, submit_list, urls
from tests.harness.memory_service import (
    CALLER,
    LIMITS,
    STRANGER,
    House,
    a_call,
    a_house,
    away,
    ids_as_answer,
    ids_in,
)
from tests.harness.signing_storage import SigningBlobs
from tests.harness.trace import Moment

SECOND = timedelta(seconds=1)


DECLARED = b'{"type": "txt", "size": 60}'


async def _fill(
    house: House, file_input_id: InputId, content: bytes = b"https://a.example/\n"
) -> None:
    await house.file_inputs.upload(file_input_id, as_stream([content]), [], length=len(content))


async def test_a_list_lies_in_storage_as_it_was_sent() -> None:
    house = a_house()
    file_input_id = await sent(house, packed(urls(3)), encodings=["gzip"])
    file_input = await house.metadata.get(FileInput, file_input_id)
    assert file_input is not None
    assert file_input.blob is not None
    assert b"".join([chunk async for chunk in house.blobs.read(file_input.blob)]) == packed(urls(3))
    assert (file_input.length, file_input.encodings) == (len(packed(urls(3))), ("gzip",))


async def test_a_second_list_is_refused_and_the_first_stays() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(3))
    with pytest.raises(FileInputAlreadyUploaded):
        await _fill(house, file_input_id)
    assert len(await house.lists()) == 1
    _, run_id = ids_in(await submit_list(house, file_input_id))
    assert len(await house.rows(run_id)) == 3


async def test_of_two_lists_at_the_same_time_one_stays_and_nothing_of_the_other() -> None:
    house = a_house()
    file_input_id = await a_file_input_id(house)
    house.trace.after("blobs.put", 1, lambda: _fill(house, file_input_id, urls(2)))

    with pytest.raises(FileInputAlreadyUploaded):
        await _fill(house, file_input_id, urls(7))

    assert len(await house.lists()) == 1
    _, run_id = ids_in(await submit_list(house, file_input_id))
    assert len(await house.rows(run_id)) == 2


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(4))
async def test_when_an_engine_is_away_a_list_is_on_record_and_there_or_neither(
    number: int, moment: Moment
) -> None:
    house = a_house()
    file_input_id = await a_file_input_id(house)
    house.trace.break_at(number, moment, Unavailable("away"))
    with pytest.raises(Unavailable):
        await _fill(house, file_input_id, urls(2))
    file_input = await house.metadata.get(FileInput, file_input_id)
    assert file_input is not None
    assert await house.lists() == [file_input.blob] * (file_input.blob is not None)


async def test_one_that_is_too_large_is_refused_before_it_is_read() -> None:
    house = a_house()
    file_input_id = await a_file_input_id(house)
    with pytest.raises(TooLarge):
        await house.file_inputs.upload(
            file_input_id, _must_not_be_read(), [], length=LIMITS.list_bytes + 1
        )


async def test_one_that_grows_too_large_on_its_way_leaves_nothing() -> None:
    house = a_house()
    file_input_id = await a_file_input_id(house)
    parts = [b"x" * LIMITS.list_bytes, b"x"]
    with pytest.raises(TooLarge):
        await house.file_inputs.upload(file_input_id, as_stream(parts), [], length=None)
    assert await house.lists() == []
    await _fill(house, file_input_id)


@pytest.mark.parametrize("announced", [0, 1, 99])
async def test_one_that_is_not_as_long_as_announced_leaves_nothing(announced: int) -> None:
    house = a_house()
    file_input_id = await a_file_input_id(house)
    with pytest.raises(InvalidArgument):
        await house.file_inputs.upload(
            file_input_id, as_stream([b"https://a"]), [], length=announced
        )
    assert await house.lists() == []
    await _fill(house, file_input_id)


async def test_a_packing_that_is_not_known_is_refused_at_once() -> None:
    house = a_house()
    file_input_id = await a_file_input_id(house)
    with pytest.raises(InvalidArgument, match="br"):
        await house.file_inputs.upload(file_input_id, _must_not_be_read(), ["br"], length=9)


async def test_a_slot_lasts_for_a_day() -> None:
    house = a_house()
    empty, full = await a_file_input_id(house), await sent(house, urls(1))
    house.clock.advance(FILE_INPUT_LIFE - SECOND)
    await submit_list(house, full)
    await _fill(house, empty)
    house.clock.advance(SECOND)
    for file_input_id in (empty, full):
        with pytest.raises(FileInputNotFound):
            await submit_list(house, file_input_id)
    late = await a_file_input_id(house)
    house.clock.advance(FILE_INPUT_LIFE)
    with pytest.raises(FileInputNotFound):
        await _fill(house, late)


async def test_a_slot_of_another_caller_is_not_there() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(1))
    with pytest.raises(FileInputNotFound):
        await house.submit_job.submit(a_list_call(file_input_id, caller=STRANGER), ids_as_answer)


async def test_a_slot_without_its_list_makes_no_job() -> None:
    house = a_house()
    file_input_id = await a_file_input_id(house)
    with pytest.raises(FileInputNotUploaded):
        await submit_list(house, file_input_id)
    assert await house.metadata.page(Job, limit=9) == []


async def test_a_list_that_is_not_as_it_was_sent_makes_no_job() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(3))
    file_input = await house.metadata.get(FileInput, file_input_id)
    assert file_input
    assert file_input.blob
    await house.blobs.put(file_input.blob, as_stream([b"short"]))
    with pytest.raises(FileInputNotUploaded):
        await submit_list(house, file_input_id)


async def test_an_open_job_takes_no_list() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(1))
    with pytest.raises(FileInputUnsupported):
        await submit_list(house, file_input_id, status="open")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tasks": [{"url": "https://a.example/"}]}, "tasks"),
        ({"on_invalid": "never"}, "on_invalid"),
        ({"file_input_id": 7}, "file_input_id"),
    ],
)
async def test_fields_that_do_not_go_with_a_list_are_named(
    given: dict[str, object], field: str
) -> None:
    house = a_house()
    file_input_id = await sent(house, urls(1))
    with pytest.raises(InvalidArgument, match=field):
        await submit_list(house, file_input_id, **given)


async def test_on_invalid_goes_with_a_list_only() -> None:
    with pytest.raises(InvalidArgument, match="on_invalid"):
        await a_house().submit_job.submit(a_call(on_invalid="skip"), ids_as_answer)


async def test_a_list_can_be_read_by_several_jobs_even_at_the_same_time() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(LIMITS.sync_tasks * 2))
    async with asyncio.TaskGroup() as group:
        answers = [group.create_task(submit_list(house, file_input_id)) for _ in range(3)]
    await house.handle_messages()
    runs = [ids_in(answer.result())[1] for answer in answers]
    assert [len(await house.rows(run)) for run in runs] == [LIMITS.sync_tasks * 2] * 3
    file_input = await house.metadata.get(FileInput, file_input_id)
    assert file_input
    assert set(file_input.jobs) == {ids_in(answer.result())[0] for answer in answers}


async def test_a_list_is_for_so_many_jobs_and_no_more() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(20))
    file_input = await house.metadata.get(FileInput, file_input_id)
    assert file_input
    jobs = tuple(JobId(str(n)) for n in range(MOST_JOBS))
    await house.metadata.commit(msgspec.structs.replace(file_input, jobs=jobs))
    with pytest.raises(InvalidArgument, match="1000 jobs") as refused:
        await submit_list(house, file_input_id)
    assert refused.value.extras == {"field": "file_input_id"}


async def test_a_slot_that_cannot_be_stored_is_not_given_out() -> None:
    house = a_house()
    with away(house.trace, "metadata.commit", Unavailable("away")), pytest.raises(Unavailable):
        await a_file_input_id(house)


async def _must_not_be_read() -> AsyncIterator[bytes]:
    for part in (b"",):
        assert not "it was read"
        yield part


# Files that callers upload to the storage directly.


async def test_a_file_that_was_uploaded_to_the_storage_makes_a_job() -> None:
    house = a_house(blobs=SigningBlobs())
    file_input = await _direct(house, urls(3))
    _, run_id = ids_in(await submit_list(house, file_input.id))
    assert len(await house.rows(run_id)) == 3


async def test_a_job_that_reads_such_a_file_later_has_it_on_record() -> None:
    house = a_house(blobs=SigningBlobs())
    file_input = await _direct(house, packed(urls(3)))

    job_id, run_id = ids_in(await submit_list(house, file_input.id, on_invalid="skip"))
    await house.handle_messages()

    assert len(await house.rows(run_id)) == 3
    found = await house.metadata.get(FileInput, file_input.id)
    assert found
    assert (found.blob, found.jobs) == (file_input.target, (job_id,))
    assert found.length == len(packed(urls(3)))


async def test_a_file_that_has_not_arrived_makes_no_job() -> None:
    house = a_house(blobs=SigningBlobs())
    file_input, upload = await house.file_inputs.create(
        CALLER, b'{"type": "csv", "csv": {"fields": {"url": 0}}}'
    )
    assert upload
    assert upload.headers == {"Content-Type": "text/csv"}
    with pytest.raises(FileInputNotUploaded):
        await submit_list(house, file_input.id)


async def test_a_file_that_is_too_large_is_refused_when_a_job_names_it() -> None:
    limits = msgspec.structs.replace(LIMITS, list_bytes=50)
    house = a_house(limits=limits, blobs=SigningBlobs())
    file_input = await _direct(house, urls(3))
    with pytest.raises(TooLarge, match="at most 50 bytes"):
        await submit_list(house, file_input.id)
    assert not await house.metadata.page(Job, limit=9)


async def test_a_declared_size_is_signed_and_one_that_is_too_large_refused_at_once() -> None:
    limits = msgspec.structs.replace(LIMITS, list_bytes=60)
    house = a_house(limits=limits, blobs=SigningBlobs())
    _, upload = await house.file_inputs.create(CALLER, DECLARED)
    assert upload
    assert upload.url.endswith("?length=60")
    with pytest.raises(TooLarge):
        await house.file_inputs.create(CALLER, b'{"type": "txt", "size": 61}')


async def test_a_file_of_another_size_than_declared_makes_no_job() -> None:
    house = a_house(blobs=SigningBlobs())
    file_input = await _direct(house, urls(1), DECLARED)
    with pytest.raises(FileInputNotUploaded, match="must have the 60 bytes"):
        await submit_list(house, file_input.id)


@pytest.mark.parametrize("announced", [None, 21])
async def test_an_upload_of_another_size_than_declared_leaves_nothing(
    announced: int | None,
) -> None:
    house = a_house()
    file_input, upload = await house.file_inputs.create(CALLER, DECLARED)
    assert upload is None
    with pytest.raises(InvalidArgument, match="must have the 60 bytes"):
        await house.file_inputs.upload(file_input.id, as_stream([urls(1)]), [], length=announced)
    assert not await house.lists()


async def test_the_service_takes_the_file_if_the_storage_cannot_sign_for_long_enough() -> None:
    house = a_house(blobs=SigningBlobs(UPLOAD_LIFE - SECOND))
    file_input, upload = await house.file_inputs.create(CALLER, b'{"type": "txt"}')
    assert upload is None
    await _fill(house, file_input.id)
    _, run_id = ids_in(await submit_list(house, file_input.id))
    assert len(await house.rows(run_id)) == 1


async def test_a_file_that_no_job_used_goes_from_the_storage_after_a_day() -> None:
    house = a_house(blobs=SigningBlobs())
    await _direct(house, urls(3))

    house.clock.advance(FILE_INPUT_LIFE + YOUNG)
    await house.sweep.step()

    assert not await house.lists()
    assert not await house.metadata.page(FileInput, limit=9)


async def _direct(house: House, content: bytes, raw: bytes = b'{"type": "txt"}') -> FileInput:
    """A file input whose file its caller has uploaded to the storage."""
    file_input, upload = await house.file_inputs.create(CALLER, raw)
    assert upload
    assert file_input.target
    assert file_input.target in upload.url
    await house.blobs.put(file_input.target, as_stream([content]))
    return file_input
