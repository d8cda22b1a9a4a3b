"""Lists of tasks cut into calls, bounded in tasks and in bytes."""

import json
from collections.abc import AsyncIterator, Iterator

import pytest

from conveyor.client import NewTask
from conveyor.client.chunks import Chunk, chunked, key_of


async def _chunks(count: int, **bounds: int) -> list[Chunk]:
    urls = (f"https://a.example/{number}" for number in range(count))
    return [chunk async for chunk in chunked(urls, **bounds)]


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, [0]), (1, [1]), (3, [3]), (4, [3, 1]), (6, [3, 3]), (7, [3, 3, 1])]
)
async def test_a_list_is_cut_into_calls_and_the_last_is_known_as_such(
    count: int, sizes: list[int]
) -> None:
    chunks = await _chunks(count, most=3)
    assert [len(chunk.tasks) for chunk in chunks] == sizes
    assert [chunk.first for chunk in chunks] == [3 * number for number in range(len(sizes))]
    assert [chunk.is_last for chunk in chunks] == [False] * (len(sizes) - 1) + [True]


async def test_a_call_is_bounded_in_bytes_too() -> None:
    chunks = await _chunks(10, most_bytes=100)
    assert [len(chunk.tasks) for chunk in chunks] == [3, 3, 3, 1]


async def test_a_list_is_read_no_further_than_one_task_beyond_a_call() -> None:
    taken = 0

    def urls() -> Iterator[str]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield f"https://a.example/{number}"

    chunks = chunked(urls(), most=10)
    await anext(chunks)
    assert taken == 11


async def test_tasks_may_be_texts_mappings_or_values_and_come_asynchronously() -> None:
    async def tasks() -> AsyncIterator[str | dict[str, object] | NewTask]:
        yield "https://a.example"
        yield {"url": "https://b.example", "method": "POST", "body": {"a": 1}}
        yield NewTask(url="https://c.example", external_id="3")

    [chunk] = [chunk async for chunk in chunked(tasks())]
    assert json.loads(chunk.body(name="n", retries=None)) == {
        "tasks": [
            {"url": "https://a.example"},
            {"url": "https://b.example", "method": "POST", "body": {"a": 1}},
            {"url": "https://c.example", "external_id": "3"},
        ],
        "name": "n",
    }
    assert json.loads(chunk.body()).keys() == {"tasks"}


async def test_a_single_text_is_no_list() -> None:
    with pytest.raises(TypeError, match="list"):
        await anext(chunked("https://a.example"))


def test_each_call_of_a_submission_has_a_key_of_its_own_that_fits() -> None:
    for key in ("k", "k" * 128):
        keys = {key_of(key, part) for part in ("open", 0, 1, 999_999)}
        assert len(keys) == 4
        assert all(len(one) <= 128 for one in keys)
        assert keys == {key_of(key, part) for part in ("open", 0, 1, 999_999)}
