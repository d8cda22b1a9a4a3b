"""Requests within bounds of bytes and of time."""

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable, Coroutine, Iterator
from itertools import repeat
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from starlette.routing import Router
from starlette.types import Message, Receive, Scope
from uvicorn.config import Config
from uvicorn.server import ServerState

from conveyor.api.app import Application, redacted_path
from conveyor.api.intake import HELD_MEMORY, read_body
from conveyor.api.limits import BODY_IDLE, BodyMemory, HeldMemory, TimedBody, check_head
from conveyor.api.protocol import HEAD_TIMEOUT, LARGEST_UNPARSED, LINGER, READ_STALL, bounded
from conveyor.errors import (
    HeadTooLarge,
    InvalidArgument,
    NotFound,
    Overloaded,
    RequestTimeout,
    TooLarge,
    UnsupportedMediaType,
    UriTooLong,
)
from conveyor.telemetry.metrics import Metrics
from conveyor.testing.clock import FakeIds
from tests.harness import time_lapse

KB = 1024


def scope(*, path: str = "/v1/jobs", query: bytes = b"", headers: object = ()) -> Scope:
    return {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "query_string": query, "headers": list(headers),  # type: ignore[call-overload]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("odd", "refusal"),
    [
        (scope(path="/" + "a" * 8_192), UriTooLong),
        (scope(query=b"a" * 8_192), UriTooLong),
        (scope(headers=[(b"a", b"b")] * 101), HeadTooLarge),
        (scope(headers=[(b"a", b"b" * 32 * KB)]), HeadTooLarge),
        (scope(path="/v1/jobs/01J%2Fwebhook"), NotFound),
        (scope(path="/v1/jobs/..%2f.."), NotFound),
    ],
)
def test_a_head_out_of_all_proportion_or_with_an_ambiguous_path_is_refused(
    odd: Scope, refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        check_head(odd)


def test_a_head_of_usual_size_is_taken() -> None:
    check_head(scope(query=b"a" * 7_000, headers=[(b"a" * 30, b"b" * 250)] * 100))


def pieces(*sent: tuple[float, bytes], more: bool = True) -> Receive:
    """A caller that sends each piece so many seconds after the one before, and then nothing."""
    left = iter(sent)

    async def receive() -> Message:
        delay, piece = next(left, (None, b""))
        if delay is None:
            await asyncio.Event().wait()
        await asyncio.sleep(delay or 0.0)
        return {"type": "http.request", "body": piece, "more_body": more}

    return receive


async def _all_of(body: TimedBody) -> None:
    while (await body.receive()).get("more_body"):
        pass


@pytest.mark.parametrize(
    "sent",
    [
        [],
        [(1.0, b"a")],
        [(BODY_IDLE + 1, b"a" * 10 * KB)],
        list(repeat((1.0, b"a"), 10_000)),  # a drip that never ends
        list(repeat((BODY_IDLE - 1, b"a" * 100), 10_000)),
    ],
)
def test_a_body_that_drips_or_stops_is_given_up(sent: list[tuple[float, bytes]]) -> None:
    async def scenario() -> float:
        with pytest.raises(RequestTimeout):
            await _all_of(TimedBody(pieces(*sent)))
        return asyncio.get_running_loop().time()

    assert time_lapse.run(scenario()) < 60


def test_a_slow_body_that_keeps_coming_is_taken() -> None:
    async def scenario() -> None:
        last = [(1.0, b"")]
        body = TimedBody(_ending(pieces(*repeat((10.0, b"a" * 6 * KB), 500), *last)))
        await _all_of(body)

    time_lapse.run(scenario())


def _ending(receive: Receive) -> Receive:
    async def ended() -> Message:
        message = await receive()
        return {**message, "more_body": bool(message["body"])}

    return ended


def test_a_large_body_that_comes_at_once_but_for_its_end_must_not_drip() -> None:
    async def scenario() -> float:
        holding = HeldMemory(BodyMemory(100 * KB * KB))
        await holding.reserve(50 * KB * KB, "ann")
        drip = pieces((1.0, b"a" * 50 * KB * KB), *repeat((1.0, b" "), 10_000))
        with pytest.raises(RequestTimeout):
            await _all_of(TimedBody(drip, holding))
        return asyncio.get_running_loop().time()

    assert time_lapse.run(scenario()) < 2 * BODY_IDLE


async def test_the_bodies_of_one_caller_leave_memory_to_others() -> None:
    room = BodyMemory(400 * KB, wait_at_most=0.0)
    first, second, third = (HeldMemory(room) for _ in range(3))
    for holding in (first, second):
        await holding.reserve(100 * KB, "ann")
    with pytest.raises(Overloaded):
        await HeldMemory(room).reserve(100 * KB, "ann")
    await third.reserve(100 * KB, "bob")
    with pytest.raises(Overloaded):
        await second.reserve(200 * KB, "ann")
    for holding in (first, second, third):
        holding.release()
    await HeldMemory(room).reserve(400 * KB, "ann")  # alone, a body may have all of it


def test_who_waits_for_an_answer_or_for_its_end_is_not_hurried() -> None:
    async def scenario() -> None:
        whole = TimedBody(pieces((0.0, b"a"), (100.0, b""), more=False))
        await whole.receive()
        await whole.receive()
        begun = TimedBody(pieces((100.0, b"")))
        begun.stop_timing()
        await begun.receive()

    time_lapse.run(scenario())


# Room for bodies.


async def test_bodies_take_turns_in_the_order_they_came() -> None:
    room, order = BodyMemory(100), list[int]()

    async def one(number: int, length: int) -> None:
        taken = await room.take(length)
        order.append(number)
        await asyncio.sleep(0)
        room.give_back(taken)

    async with asyncio.TaskGroup() as group:
        for number, length in enumerate([60, 60, 10, 60, 10]):
            group.create_task(one(number, length))
    assert order == [0, 1, 2, 3, 4]
    assert await room.take(100) == 100


async def test_a_body_larger_than_all_the_room_has_it_to_itself() -> None:
    assert await BodyMemory(100).take(1_000) == 100


def test_who_does_not_come_to_its_turn_is_told_so_and_holds_up_nobody() -> None:
    async def scenario() -> None:
        room = BodyMemory(100, wait_at_most=10)
        await room.take(90)
        small = asyncio.create_task(_after(5, room.take(10)))
        with pytest.raises(Overloaded):
            await room.take(20)
        assert asyncio.get_running_loop().time() == pytest.approx(10, abs=0.1)
        assert await small == 10
        room.give_back(100)
        assert await room.take(100) == 100

    time_lapse.run(scenario())


async def _after(seconds: float, then: Coroutine[Any, Any, int]) -> int:
    await asyncio.sleep(seconds)
    return await then


async def test_a_caller_that_leaves_the_line_leaves_its_room_to_the_next() -> None:
    room = BodyMemory(100)
    await room.take(100)
    waiting = asyncio.create_task(room.take(80))
    behind = asyncio.create_task(room.take(50))
    await asyncio.sleep(0)
    waiting.cancel()
    room.give_back(100)  # in the same round: it may have been given the room already
    assert await behind == 50
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await room.take(50) == 50


async def test_when_all_who_hold_room_want_more_the_one_with_least_gives_way() -> None:
    room = BodyMemory(100)
    large, small = await room.take(60), await room.take(40)
    growing = asyncio.create_task(room.take(40, large))
    new = asyncio.create_task(room.take(10))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await room.take(20, small)
    room.give_back(small)
    assert await growing == 40
    room.give_back(100)
    assert await new == 10
    assert await room.take(90) == 90


async def test_who_gives_way_as_room_comes_free_gives_back_no_more_than_it_held() -> None:
    room = BodyMemory(100)
    large, small = await room.take(60), await room.take(40)
    growing = asyncio.create_task(room.take(40, large))
    refused = asyncio.create_task(room.take(20, small))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    growing.cancel()
    room.give_back(large)  # in the same round
    with pytest.raises(Overloaded):
        await refused
    room.give_back(small)
    assert await room.take(100) == 100
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(room.take(1), 0.01)


async def test_a_body_that_grows_beyond_all_the_room_has_it_to_itself() -> None:
    held = HeldMemory(BodyMemory(100 * KB, wait_at_most=0.0))
    for length in (70 * KB, 100 * KB, 200 * KB):
        await held.reserve(length, "ann")
    assert held.held == 100 * KB


@pytest.mark.parametrize("announced", [{}, {"content_length": str(8 * KB * KB)}])
async def test_what_is_announced_takes_no_room_until_it_comes(announced: dict[str, str]) -> None:
    asked = request_of(b"a" * 100 * KB, **announced)
    held: HeldMemory = asked.scope[HELD_MEMORY]
    with pytest.raises(RuntimeError):  # no more comes
        await read_body(asked, 9 * KB * KB)
    assert held.held <= 200 * KB


@pytest.mark.parametrize(("held", "is_hurried"), [(1, False), (1_024, False), (2_048, True)])
def test_who_holds_much_room_must_send_faster(held: int, is_hurried: bool) -> None:
    async def scenario() -> None:
        holding = HeldMemory(BodyMemory(9 * KB * KB))
        await holding.reserve(held * KB, "ann")
        slow = _ending(pieces(*repeat((1.0, b"a" * 32 * KB), 100), (1.0, b"")))
        with pytest.raises(RequestTimeout) if is_hurried else contextlib.nullcontext():
            await _all_of(TimedBody(slow, holding))

    time_lapse.run(scenario())


def request_of(*parts: bytes, **headers: str) -> Request:
    left = iter(parts)

    async def receive() -> Message:
        piece = next(left)
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    asked = scope(headers=named)
    asked[HELD_MEMORY] = HeldMemory(BodyMemory(10 * KB * KB, wait_at_most=0.0))
    return Request(asked, receive)


async def test_a_body_holds_room_for_its_length_until_it_is_let_go() -> None:
    room = BodyMemory(100 * KB, wait_at_most=0.0)
    held = HeldMemory(room)
    await held.reserve(90 * KB, "ann")
    with pytest.raises(Overloaded):
        await HeldMemory(room).reserve(80 * KB, "bob")
    await HeldMemory(room).reserve(60 * KB, "bob")  # what a connection reads anyway is not counted
    held.release()
    held.release()
    await HeldMemory(room).reserve(100 * KB, "ann")


async def test_a_body_without_its_length_takes_room_as_it_grows() -> None:
    room = BodyMemory(300 * KB, wait_at_most=0.0)
    asked = request_of(*repeat(b"a" * 50 * KB, 5), b"")
    asked.scope[HELD_MEMORY] = held = HeldMemory(room)
    assert len(await read_body(asked, 1_000 * KB)) == 250 * KB
    with pytest.raises(Overloaded):
        await HeldMemory(room).reserve(100 * KB, "ann")
    held.release()


async def test_a_body_over_the_most_is_read_no_further() -> None:
    with pytest.raises(TooLarge):
        await read_body(request_of(b"a" * 11, b"never read"), 10)
    with pytest.raises(TooLarge):
        await read_body(request_of(content_length="11"), 10)


JSON = [
    "", "application/json", "Application/JSON; charset=UTF-8", "application/problem+json", "text/plain",
    "application/x-www-form-urlencoded", 'application/json; charset="utf-8"', "*/*",
]  # fmt: skip
OTHERS = [
    "multipart/form-data; boundary=x", "text/xml", "application/xml", "text/csv", "image/png",
    "application/json; charset=utf-16", "json", "application/jsonp", "text/html",
]  # fmt: skip


@pytest.mark.parametrize("kind", JSON)
async def test_what_may_be_json_is_taken(kind: str) -> None:
    assert await read_body(request_of(b"{}", b"", content_type=kind), 10) == b"{}"


@pytest.mark.parametrize("kind", OTHERS)
async def test_what_is_plainly_no_json_is_refused(kind: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        await read_body(request_of(b"{}", b"", content_type=kind), 10)


async def test_what_is_packed_is_refused() -> None:
    with pytest.raises(UnsupportedMediaType):
        await read_body(request_of(b"{}", b"", content_encoding="gzip"), 10)


# Paths in the log.


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/jobs", "/v1/jobs"),
        ("/v1/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV/runs", "/v1/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV/runs"),
        (f"/v1/jobs/x/tasks/{'0' * 8}-{'0' * 24}", f"/v1/jobs/***/tasks/{'0' * 8}-{'0' * 24}"),
        ("/v1/jobs/sk-live-1234/close", "/v1/jobs/***/close"),
        ("/apikey=secret", "/***"),
        ("", ""),
        ("/a" * 1_000, "/***" * 11),
    ],
)
def test_a_path_is_logged_by_its_words_and_ids_alone(path: str, told: str) -> None:
    assert redacted_path(path) == told


# Connections.


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self.closed_at: float | None = None
        self.ended = self.aborted = False
        self.taken = 1_000_000_000  # bytes that the other side has read

    def write(self, data: Any) -> None:
        assert not self.ended
        self.written += data

    def write_eof(self) -> None:
        self.ended = True

    def get_write_buffer_size(self) -> int:
        return max(len(self.written) - self.taken, 0)

    def abort(self) -> None:
        self.aborted = True
        self.close()

    def is_closing(self) -> bool:
        return self.closed_at is not None

    def close(self) -> None:
        if self.closed_at is None:
            self.closed_at = asyncio.get_running_loop().time()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    @property
    def problem(self) -> dict[str, Any]:
        head, _, body = self.written.partition(b"\r\n\r\n")
        assert b"content-type: application/problem+json" in head
        assert b"x-request-id: " in head
        assert b"content-length: %d" % len(body) in head
        told: dict[str, Any] = msgspec.json.decode(body)
        assert head.startswith(b"HTTP/1.1 %d " % told["status"])
        return told


async def _told_back(_scope: Scope, receive: Receive, send: Callable[[Message], Any]) -> None:
    """Answer with the body of the request."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"<" + body + b">"})


async def _slow(_scope: Scope, _receive: Receive, send: Callable[[Message], Any]) -> None:
    await asyncio.sleep(3)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    await asyncio.sleep(3)
    await send({"type": "http.response.body", "body": b"done"})


async def _answer(_scope: Scope, receive: Receive, send: Callable[[Message], Any]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


def _config(serve: Any, most: int = 10, stalled: float = READ_STALL) -> Config:
    app = Application(Router(default=serve), Metrics(), FakeIds(), BodyMemory(KB))
    protocol = bounded(app, connections=most, stalled=stalled)
    config = Config(app, http=protocol, ws="none", lifespan="off")
    config.load()
    return config


def connected(most: int = 10, serve: Any = _answer) -> tuple[Any, Wire]:
    config = _config(serve, most)
    loop = asyncio.get_running_loop()
    made = config.http_protocol_class(  # type: ignore[call-arg]
        config=config, server_state=ServerState(), app_state={}, _loop=loop
    )
    wire = Wire()
    made.connection_made(wire)
    return made, wire


ASK = b"GET / HTTP/1.1\r\nHost: a\r\n"


def _at_the_end(scenario: Callable[[], Coroutine[Any, Any, Wire]]) -> tuple[Wire, float]:
    async def run() -> tuple[Wire, float]:
        wire = await scenario()
        await asyncio.sleep(1_000)
        assert wire.closed_at is not None
        return wire, wire.closed_at

    return time_lapse.run(run())


def test_a_connection_that_asks_nothing_is_closed_without_a_word() -> None:
    async def scenario() -> Wire:
        return connected()[1]

    wire, closed_at = _at_the_end(scenario)
    assert wire.written == b""
    assert closed_at == pytest.approx(HEAD_TIMEOUT, abs=0.1)


def _dripping(*data: bytes) -> Iterator[bytes]:
    for one in data:
        for byte in one:
            yield bytes([byte])


@pytest.mark.parametrize("before", [b"", ASK + b"\r\n"])
def test_a_head_that_drips_is_given_up(before: bytes) -> None:
    async def scenario() -> Wire:
        protocol, wire = connected()
        if before:
            protocol.data_received(before)
            await asyncio.sleep(5)
        wire.written = b""
        for byte in _dripping(ASK * 100):
            protocol.data_received(byte)
            await asyncio.sleep(1)
            if wire.written:
                break
        return wire

    wire, closed_at = _at_the_end(scenario)
    assert wire.problem["code"] == "request_timeout"
    assert closed_at < 5 + HEAD_TIMEOUT + LINGER + 2


def test_empty_lines_do_not_keep_a_connection_open() -> None:
    async def scenario() -> Wire:
        protocol, wire = connected()
        protocol.data_received(ASK + b"\r\n")
        await asyncio.sleep(1)
        assert b"done" in wire.written
        for _ in range(300):
            protocol.data_received(b"\r\n")
            await asyncio.sleep(1)
        return wire

    _, closed_at = _at_the_end(scenario)
    assert closed_at < 20


def test_a_head_that_does_not_end_is_cut_off() -> None:
    async def scenario() -> Wire:
        protocol, wire = connected()
        protocol.data_received(ASK + b"A: ")
        for _ in range(LARGEST_UNPARSED // KB + 1):
            protocol.data_received(b"a" * KB)
        return wire

    wire, _ = _at_the_end(scenario)
    assert wire.problem["code"] == "head_too_large"


@pytest.mark.parametrize("size", [100, 300 * KB])
def test_a_body_is_not_taken_for_a_head(size: int) -> None:
    async def scenario() -> None:
        protocol, wire = connected()
        for _ in range(3):
            protocol.data_received(
                b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size
            )
            protocol.data_received(b"a" * size)
            await asyncio.sleep(1)
        assert wire.written.count(b"done") == 3
        assert not wire.is_closing()

    time_lapse.run(scenario())


def test_the_rest_of_a_body_that_was_answered_is_not_waited_for_for_ever() -> None:
    async def scenario() -> Wire:
        protocol, wire = connected()
        protocol.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            await asyncio.sleep(1)
            protocol.data_received(b"a")
        return wire

    wire, closed_at = _at_the_end(scenario)
    assert b"done" in wire.written
    assert closed_at == pytest.approx(LINGER, abs=0.5)


@pytest.mark.parametrize(
    "odd",
    [
        b"nonsense\r\n\r\n",
        b"\x00" * 64,
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nA\x00: b\r\n\r\n",
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    ],
)
def test_bytes_that_are_no_request_get_a_problem(odd: bytes) -> None:
    async def scenario() -> Wire:
        protocol, wire = connected()
        protocol.data_received(odd)
        protocol.data_received(b"and more of it\r\n\r\n")
        return wire

    wire, _ = _at_the_end(scenario)
    assert (wire.problem["status"], wire.problem["code"]) == (400, InvalidArgument.code)


def test_an_answer_under_way_comes_before_the_refusal_of_what_follows() -> None:
    async def scenario() -> Wire:
        protocol, wire = connected()
        protocol.data_received(ASK + b"\r\nnonsense\r\n\r\n")
        return wire

    wire, _ = _at_the_end(scenario)
    assert wire.written.startswith(b"HTTP/1.1 200")
    assert b"done" in wire.written


def test_a_connection_over_the_most_is_told_to_come_later() -> None:
    async def scenario() -> Wire:
        return connected(most=0)[1]

    wire, _ = _at_the_end(scenario)
    assert wire.problem["code"] == Overloaded.code
    assert b"retry-after: 2\r\n" in wire.written


UPGRADES = [
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    b"Upgrade: websocket\r\nConnection: keep-alive, upgrade\r\n",
]
WITHIN = b"GET /inner HTTP/1.1\r\nHost: a\r\n\r\n"  # a body that looks like a request
POSTED = b"POST /outer HTTP/1.1\r\nHost: a\r\n"
SIZED = b"Content-Length: %d\r\n\r\n%s" % (len(WITHIN), WITHIN)
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(WITHIN), WITHIN)


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("rest", [SIZED, CHUNKED])
@pytest.mark.parametrize("step", [1, 50, 10_000])
def test_a_request_that_would_upgrade_is_served_with_its_body(
    upgrade: bytes, rest: bytes, step: int
) -> None:
    async def scenario() -> None:
        protocol, wire = connected(serve=_told_back)
        sent = 2 * (POSTED + upgrade + rest) + ASK + upgrade + b"\r\n" + ASK + b"\r\n"
        for start in range(0, len(sent), step):
            protocol.data_received(sent[start : start + step])
            await asyncio.sleep(0)
        await asyncio.sleep(1)
        assert wire.written.count(b"HTTP/1.1 200") == 4
        assert wire.written.count(b"<" + WITHIN + b">") == 2
        assert wire.written.count(b"<>") == 2
        assert not wire.is_closing()

    time_lapse.run(scenario())


BAD_CHUNK = b"Transfer-Encoding: chunked\r\n\r\nno length\r\n"


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("before", [1, 2])
def test_a_bad_body_does_not_spoil_the_answers_before(after: int, before: int) -> None:
    async def scenario() -> Wire:
        protocol, wire = connected(serve=_slow)
        protocol.data_received(before * (ASK + b"\r\n"))
        await asyncio.sleep(after)
        protocol.data_received(POSTED + BAD_CHUNK)
        protocol.data_received(ASK + b"\r\n")
        return wire

    wire, closed_at = _at_the_end(scenario)
    whole = b"4\r\nhalf\r\n4\r\ndone\r\n0\r\n\r\n"
    assert [one.partition(b"\r\n\r\n")[2] for one in wire.written.split(b"HTTP/1.1 200 OK")] == [
        b"", *[whole] * before
    ]  # fmt: skip
    assert wire.ended
    assert closed_at == pytest.approx(6 * before + LINGER, abs=0.5)


@pytest.mark.parametrize(("after", "answers"), [(1, [b"400"]), (4, [b"200"]), (7, [b"200"])])
def test_a_bad_body_is_answered_once(after: int, answers: list[bytes]) -> None:
    async def scenario() -> Wire:
        protocol, wire = connected(serve=_slow)
        protocol.data_received(POSTED + BAD_CHUNK[:-11])
        await asyncio.sleep(after)
        protocol.data_received(BAD_CHUNK[-11:])
        return wire

    wire, closed_at = _at_the_end(scenario)
    assert re.findall(rb"HTTP/1.1 (\d+)", wire.written) == answers
    assert closed_at == pytest.approx(after + LINGER, abs=0.5)


CUT_SHORT = [
    (b"Content-Length: 10\r\n\r\n1234", "must have the 10 bytes that `Content-Length` says, got 4"),
    (b"Content-Length: 10\r\n\r\n", "must have the 10 bytes that `Content-Length` says, got 0"),
    (b"Transfer-Encoding: chunked\r\n\r\n4\r\n1234\r\n", "must end with a chunk of length 0"),
]


@pytest.mark.parametrize(("body", "told"), CUT_SHORT)
def test_a_body_that_the_client_cuts_short_is_answered(body: bytes, told: str) -> None:
    async def scenario() -> Wire:
        protocol, wire = connected(serve=_told_back)
        protocol.data_received(POSTED + body)
        await asyncio.sleep(1)
        assert protocol.eof_received()  # the connection stays open for the response
        return wire

    wire, closed_at = _at_the_end(scenario)
    assert wire.problem["code"] == "invalid_argument"
    assert told in wire.problem["detail"]
    assert closed_at == pytest.approx(1, abs=0.1)


def test_a_body_that_is_cut_short_does_not_spoil_the_answer_before() -> None:
    async def scenario() -> Wire:
        protocol, wire = connected(serve=_slow)
        protocol.data_received(ASK + b"\r\n" + POSTED + CUT_SHORT[0][0])
        await asyncio.sleep(1)
        assert protocol.eof_received()
        return wire

    wire, _ = _at_the_end(scenario)
    assert re.findall(rb"HTTP/1.1 (\d+)", wire.written) == [b"200"]
    assert b"done" in wire.written


def test_a_client_that_ends_without_a_request_is_not_answered() -> None:
    async def scenario() -> None:
        protocol, wire = connected()
        assert not protocol.eof_received()  # asyncio closes the connection
        assert not wire.written

    time_lapse.run(scenario())


def test_who_leaves_with_requests_in_line_is_not_answered_any_more() -> None:
    async def scenario() -> None:
        protocol, wire = connected(serve=_slow)
        protocol.data_received(3 * (ASK + b"\r\n"))
        await asyncio.sleep(4)
        protocol.connection_lost(None)
        before = wire.written
        await asyncio.sleep(100)
        assert wire.written == before

    time_lapse.run(scenario())


@pytest.mark.parametrize("head", [b"POST / HTTP/1.0\r\n", POSTED + b"Connection: close\r\n"])
@pytest.mark.parametrize(("sent", "lingers"), [(10, True), (1_000, False)])
def test_the_last_answer_is_heard_however_much_is_still_to_come(
    head: bytes, sent: int, lingers: bool
) -> None:
    async def scenario() -> Wire:
        protocol, wire = connected()
        protocol.data_received(head + b"Content-Length: 1000\r\n\r\n" + b"a" * sent)
        await asyncio.sleep(1)
        protocol.data_received(b"a" * (1_000 - sent) + ASK + b"\r\n")
        return wire

    wire, closed_at = _at_the_end(scenario)
    assert wire.written.count(b"done") == 1
    assert b"connection: close\r\n" in wire.written
    assert wire.ended == lingers
    assert closed_at == pytest.approx(LINGER if lingers else 0, abs=0.5)


@pytest.mark.parametrize("kept", [b"", b"Connection: close\r\n"])
def test_who_reads_nothing_is_cut_off(kept: bytes) -> None:
    async def scenario() -> Wire:
        protocol, wire = connected(serve=_slow)
        wire.taken = 10
        protocol.data_received(ASK + kept + b"\r\n")
        return wire

    wire, _ = _at_the_end(scenario)
    assert wire.aborted


def test_who_reads_slowly_or_has_nothing_to_read_is_let_be() -> None:
    async def scenario() -> None:
        protocol, wire = connected(serve=_quiet)
        wire.taken = 0
        protocol.data_received(ASK + b"\r\n")
        await asyncio.sleep(1)
        for _ in range(len(wire.written)):
            await asyncio.sleep(READ_STALL - 10)
            wire.taken += 1
        await asyncio.sleep(10 * READ_STALL)
        assert not wire.is_closing()

    time_lapse.run(scenario())


async def _quiet(_scope: Scope, _receive: Receive, send: Callable[[Message], Any]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"first", "more_body": True})
    await asyncio.sleep(1_000_000)


async def test_a_real_reader_that_stops_is_cut_off() -> None:
    loop, left = asyncio.get_running_loop(), asyncio.Event()

    async def endless(_scope: Scope, _receive: Receive, send: Callable[[Message], Any]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1_000):  # more than any system keeps of what nobody reads
            await send({"type": "http.response.body", "body": b"a" * 64 * KB, "more_body": True})
        left.set()

    config = _config(endless, stalled=0.2)

    def made() -> Any:
        return config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=ServerState(), app_state={}, _loop=loop
        )

    async with await loop.create_server(made, "127.0.0.1", 0) as server:
        with socket.create_connection(server.sockets[0].getsockname()) as reader:
            reader.sendall(ASK + b"\r\n")
            await asyncio.wait_for(left.wait(), 20)
