"""The parts of the client that need no service: lists in chunks, events, refusals, patience."""

import json
from collections.abc import AsyncIterator, Iterator

import pytest

from conveyor.client import (
    ApiError,
    AsyncConveyor,
    AuthenticationError,
    BadRequestError,
    ClientError,
    ConflictError,
    NewTask,
    NotFoundError,
    NotSupportedError,
    Patience,
    RateLimitError,
    ServerError,
)
from conveyor.client.chunks import Chunk, chunked, key_of
from conveyor.client.errors import refusal
from conveyor.client.events import Event, EventReader
from conveyor.client.transport import path_of


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


def _fed(*lines: bytes) -> list[Event]:
    reader = EventReader()
    return [event for line in lines if (event := reader.feed(line))]


def test_events_are_read_from_lines_whatever_their_endings() -> None:
    for end in (b"\n", b"\r\n"):
        lines = [b": hello", b"", b"id: 7", b"event: progress", b'data: {"a":', b"data:1}", b""]
        assert _fed(*(line + end for line in lines)) == [Event("7", b'{"a":\n1}')]


def test_an_event_that_is_cut_is_none_and_an_id_lasts() -> None:
    assert _fed(b"id: 1\n", b"data: {}\n") == []
    assert _fed(b"id: 1\n", b"data: a\n", b"\n", b"data: b\n", b"\n") == [
        Event("1", b"a"),
        Event("1", b"b"),
    ]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequestError), (401, AuthenticationError), (404, NotFoundError), (405, NotSupportedError),
        (409, ConflictError), (413, BadRequestError), (429, RateLimitError), (500, ServerError),
        (501, NotSupportedError), (503, ServerError), (302, ApiError), (418, ApiError),
    ],
)  # fmt: skip
def test_a_refusal_is_an_error_of_its_kind(status: int, kind: type[ApiError]) -> None:
    fault = {"index": 3, "reason": "malformed_url", "value": "x"}
    problem = {"code": "a_code", "detail": "So it is", "status": 7, "invalid_tasks": [fault]}
    error = refusal(status, json.dumps(problem).encode(), {"Retry-After": "9", "X-Request-ID": "q"})
    assert type(error) is kind
    assert isinstance(error, ClientError)
    assert (error.status, error.code, error.detail) == (status, "a_code", "So it is")
    assert [(one.index, one.reason) for one in error.invalid_tasks] == [(3, "malformed_url")]
    assert (error.retry_after, error.request_id) == (9, "q")
    assert str(error) == f"So it is ({status} a_code)"


@pytest.mark.parametrize("after", [None, "", "soon", "-1", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_an_answer_of_something_else_is_a_refusal_too(after: str | None) -> None:
    error = refusal(502, b"<html>\xff", {} if after is None else {"Retry-After": after})
    assert isinstance(error, ServerError)
    assert error.retry_after is None
    assert "base URL" in error.detail


def test_rests_grow_to_a_bound_and_follow_what_the_service_asks() -> None:
    patience = Patience(first=1, longest=8, longest_asked=60)
    for attempt, most in enumerate((1, 2, 4, 8, 8, 8), 1):
        assert most / 2 <= patience.rest(attempt) <= most
    assert patience.rest(1, 5) == 5
    assert patience.rest(1, 0) == 0
    assert patience.rest(1, 10_000) == 60


def test_ids_cannot_reach_beyond_their_place_in_the_path() -> None:
    assert path_of("jobs", "../x?a b", query={"limit": 1, "cursor": None}) == (
        "/jobs/..%2Fx%3Fa%20b?limit=1"
    )


@pytest.mark.parametrize("url", ["", "ftp://a/v1", "127.0.0.1:8080/v1", "http://"])
def test_a_base_url_is_checked(url: str) -> None:
    with pytest.raises(ValueError, match="base URL"):
        AsyncConveyor(url, "key")


def test_a_key_that_cannot_be_sent_is_not_repeated_in_the_complaint() -> None:
    with pytest.raises(ValueError, match="printable") as complaint:
        AsyncConveyor("http://a/v1", "secret\n")
    assert "secret" not in str(complaint.value)


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="context"):
        await AsyncConveyor().job("x")
