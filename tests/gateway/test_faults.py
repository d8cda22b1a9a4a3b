"""The gateway at its worst: memory stays bounded, each call ends by its deadline, and nothing that
was cut short is taken for a page.
"""

import asyncio
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from urllib.parse import quote

import msgspec
import pytest
from msgspec.structs import replace

from conveyor.ports.gateway import GatewayRefusal, Page
from conveyor.testing.local.ports import free_port
from tests.gateway.stage import (
    CHUNKED,
    OK,
    UNTIL_CLOSE,
    Line,
    Opened,
    buffered,
    going_on,
    has_arrived,
    is_paused,
    playing,
    saying,
    saying_last,
    sized,
)
from tests.harness.gateways import (
    KEY,
    MIB,
    UNREACHABLE,
    MemorySpool,
    Spools,
    asked,
    bounded_memory,
    content,
    fetched,
    refused,
    until,
)

pytestmark = pytest.mark.usefixtures("transport")

SOON = timedelta(milliseconds=150)
PIECE = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


class TestHanging:
    @pytest.mark.parametrize(
        "said",
        [b"", b"HTTP/1.1 200 OK\r\nX-A: b\r\n", sized(9), sized(9) + b"some", CHUNKED + b"5"],
    )
    async def test_a_hanging_gateway_is_left_at_the_deadline(
        self, opened: Opened, said: bytes
    ) -> None:
        async with playing(saying(said)) as stage, opened(stage.url, deadline=SOON) as gateway:
            with ends_soon():
                refused(await fetched(gateway, stage.url), "gateway_timeout", 504)
            await until(lambda: stage.over == 1)

    @pytest.mark.parametrize("said", [sized(9), sized(9) + b"some", CHUNKED, UNTIL_CLOSE + b"x"])
    async def test_an_answer_that_stops_midway_is_left_after_a_silence(
        self, opened: Opened, said: bytes
    ) -> None:
        async with playing(saying(said)) as stage, opened(stage.url, silence=SOON) as gateway:
            with ends_soon():
                told = refused(await fetched(gateway, stage.url), "gateway_timeout", 504)
            assert "midway" in str(told["detail"])
            await until(lambda: stage.over == 1)

    @pytest.mark.parametrize("head", [b"", sized(100_000), CHUNKED + b"ffffff\r\n"])
    async def test_a_byte_at_a_time_is_left_at_the_deadline(
        self, opened: Opened, head: bytes
    ) -> None:
        async def drip(line: Line) -> None:
            await line.request()
            await line.say(head or b"H")
            for byte in (b"TTP/1.1 200 OK\r\nX-A: " if not head else b"") + b"x" * 10_000:
                await line.say(bytes((byte,)))
                await asyncio.sleep(0.01)

        # A busy machine may well pause for a part of a second.
        settings = {"deadline": timedelta(seconds=1), "silence": timedelta(milliseconds=700)}
        async with playing(drip) as stage, opened(stage.url, **settings) as gateway:
            with ends_soon():
                told = refused(await fetched(gateway, stage.url), "gateway_timeout", 504)
            assert "within 1 seconds" in str(told["detail"])
            await until(lambda: stage.over == 1)

    async def test_a_slow_handshake_is_left_at_the_deadline(self, opened: Opened) -> None:
        async with playing(Line.gone) as stage:
            safe = stage.url.replace("http:", "https:")
            # Reading the trusted certificates may take a part of a second.
            async with opened(safe, deadline=timedelta(seconds=1)) as gateway:
                with ends_soon():
                    refused(await fetched(gateway, safe), "gateway_timeout", 504)
                await until(lambda: (stage.opened, stage.over) == (1, 1))


class TestFloods:
    @pytest.mark.parametrize(
        ("head", "piece"), [(CHUNKED, PIECE), (UNTIL_CLOSE, PIECE), (sized(10**10), PIECE)]
    )
    async def test_a_body_without_end_is_cut_at_the_cap(
        self, opened: Opened, head: bytes, piece: bytes
    ) -> None:
        spools = Spools()
        async with (
            playing(going_on(head, piece)) as stage,
            opened(stage.url, largest_body=8 * MIB) as gateway,
        ):
            with bounded_memory(4 * MIB):
                refused(await fetched(gateway, stage.url, spools), "body_too_large", 413)
            await until(lambda: stage.over == 1)
        assert all(spool.discarded for spool in spools.given)

    async def test_a_bomb_is_cut_at_the_cap(self, opened: Opened) -> None:
        head = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
        press = zlib.compressobj(wbits=31)
        packed = press.compress(bytes(64 * MIB)) + press.flush(zlib.Z_FULL_FLUSH)
        more = press.compress(bytes(64 * MIB)) + press.flush(zlib.Z_FULL_FLUSH)
        beginning, piece = (b"%x\r\n%b\r\n" % (len(part), part) for part in (packed, more))
        async with (
            playing(going_on(head + beginning, piece)) as stage,
            opened(stage.url, largest_body=8 * MIB) as gateway,
        ):
            with bounded_memory(4 * MIB):
                refused(await fetched(gateway, stage.url), "body_too_large", 413)
            await until(lambda: stage.over == 1)

    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 200 OK\r\nX-Long: %b\r\n\r\n" % (b"x" * MIB),
            b"HTTP/1.1 200 OK\r\n%b: a\r\n\r\n" % (b"x" * MIB),
            b"HTTP/1.1 200 OK\r\nX-Long: %b\r\nContent-Length: 0\r\n\r\n" % (b"x" * 65_536),
            b"HTTP/1.1 200 OK\r\n%bContent-Length: 0\r\n\r\n" % (b"X: a\r\n" * 1024),
        ],
    )
    async def test_a_head_beyond_reason_is_no_http(self, opened: Opened, answer: bytes) -> None:
        async with playing(saying(answer)) as stage, opened(stage.url) as gateway:
            with bounded_memory(4 * MIB):
                told = refused(await fetched(gateway, stage.url), UNREACHABLE, 502)
            assert "not HTTP" in str(told["detail"])
            await until(lambda: stage.over == 1)

    @pytest.mark.parametrize(
        ("beginning", "piece", "code"),
        [
            (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x" * 65_536, UNREACHABLE),
            (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n" * 100, UNREACHABLE),
            (b"HTTP/1.1 200 ", b"O" * 65_536, UNREACHABLE),
            (b"", b"HTTP/1.1 103 Soon\r\n\r\n" * 100, UNREACHABLE),
            (b"", b"HTTP/1.1 103 Soon\n\n" * 100, UNREACHABLE),
            (CHUNKED + b"0\r\n", b"X-A: b\r\n" * 100, "gateway_garbled"),
            (CHUNKED + b"0\r\nX-Long: ", b"x" * 65_536, "gateway_garbled"),
            (CHUNKED + b"5;", b"x" * 65_536, "gateway_garbled"),
        ],
    )
    async def test_what_never_comes_to_a_body_is_left(
        self, opened: Opened, beginning: bytes, piece: bytes, code: str
    ) -> None:
        async with playing(going_on(beginning, piece)) as stage, opened(stage.url) as gateway:
            with bounded_memory(4 * MIB):
                refused(await fetched(gateway, stage.url), code, 502)
            await until(lambda: stage.over == 1)

    async def test_no_more_is_taken_in_than_the_spool_takes(self, opened: Opened) -> None:
        class GatedSpool(MemorySpool):
            async def write(self, chunk: bytes) -> None:
                await gate.wait()
                await super().write(chunk)

        body, gate, spool = b"x" * (20 * MIB), asyncio.Event(), GatedSpool()
        async with (
            playing(saying(sized(len(body)) + body)) as stage,
            opened(stage.url) as gateway,
            asyncio.TaskGroup() as group,
        ):
            call = group.create_task(gateway.fetch(asked(stage.url), lambda: spool))
            await until(lambda: is_paused(gateway))
            assert buffered(gateway) <= MIB
            gate.set()
        assert isinstance(call.result(), Page)
        assert spool.length == len(body)


class TestCuts:
    @pytest.mark.parametrize(
        ("said", "code"),
        [
            (b"", UNREACHABLE),
            (b"HTTP/1.1 200 OK\r\nContent-", UNREACHABLE),
            (sized(10) + b"too short", "gateway_garbled"),
            (sized(10).replace(b":", b" :") + b"too short", "gateway_garbled"),
            (sized(600_000) + b"x" * 500_000, "gateway_garbled"),
            (CHUNKED + b"5\r\nshort\r\n", "gateway_garbled"),
            (CHUNKED + b"5\r\nshort\r\n0\r\n", "gateway_garbled"),
            (CHUNKED.replace(b"chunked", b"gzip, chunked") + b"0\r\n\r\n", "gateway_garbled"),
            (CHUNKED.replace(b"chunked", b"chunked, gzip") + b"0\r\n\r\n", "gateway_garbled"),
            (b"HTTP/1.1 101 Go\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n", UNREACHABLE),
            (sized(3).replace(b"200", b"099") + b"no " + OK, UNREACHABLE),
        ],
    )
    @pytest.mark.parametrize("is_half", [False, True])
    async def test_a_body_cut_short_is_no_page(
        self, opened: Opened, said: bytes, code: str, is_half: bool
    ) -> None:
        async def play(line: Line) -> None:
            await line.request()
            await line.say(said)
            if is_half:
                line.writer.write_eof()
                await line.gone()

        spools = Spools()
        async with playing(play) as stage, opened(stage.url) as gateway:
            refused(await fetched(gateway, stage.url, spools), code, 502)
            await until(lambda: stage.over == 1)
        assert all(spool.discarded for spool in spools.given)

    @pytest.mark.parametrize(
        ("said", "code"),
        [
            (b"", UNREACHABLE),
            (sized(9) + b"some", "gateway_garbled"),
            (CHUNKED + b"5\r\nshort\r\n", "gateway_garbled"),
            (UNTIL_CLOSE + b"some", "gateway_garbled"),
        ],
    )
    async def test_a_reset_in_the_middle_is_no_page(
        self, opened: Opened, said: bytes, code: str
    ) -> None:
        async def play(line: Line) -> None:
            await line.request()
            await line.say(said)
            # A reset overtakes what was sent before it.
            await until(lambda: not said or has_arrived(gateway))
            line.reset()

        async with playing(play) as stage, opened(stage.url) as gateway:
            refused(await fetched(gateway, stage.url), code, 502)

    async def test_a_body_may_end_with_its_connection(self, opened: Opened) -> None:
        async with (
            playing(saying_last(UNTIL_CLOSE + b"a page")) as stage,
            opened(stage.url) as gateway,
        ):
            assert (await content(gateway, stage.url)).content == b"a page"

    @pytest.mark.parametrize("between", [b"", b"HTTP/1.1 100 Go on\r\n\r\n"])
    async def test_announcements_are_skipped(self, opened: Opened, between: bytes) -> None:
        soon = b"HTTP/1.1 103 Soon\r\nX-Request-Cost: 9\r\nContent-Length: 9\r\n\r\n"
        async with playing(saying(soon, between + OK)) as stage, opened(stage.url) as gateway:
            page = await content(gateway, stage.url)
            assert (page.content, page.spend.nanos) == (b"ok", 0)

    async def test_trailers_change_nothing(self, opened: Opened) -> None:
        said = CHUNKED + b"2\r\nok\r\n0\r\nX-Request-Cost: 1\r\nContent-Encoding: gzip\r\n\r\n"
        async with playing(saying(said)) as stage, opened(stage.url) as gateway:
            page = await content(gateway, stage.url)
            assert (page.content, page.spend.nanos) == (b"ok", 0)

    async def test_odd_bytes_in_headers_of_targets_are_let_through(self, opened: Opened) -> None:
        async with (
            playing(saying(sized(2, b"Zr-A: a\x01\xff\x7f") + b"ok")) as stage,
            opened(stage.url) as gateway,
        ):
            assert (await content(gateway, stage.url)).content == b"ok"

    @pytest.mark.parametrize(
        "said",
        [
            sized(2, b"X-A: b").replace(b"\r\n", b"\n") + b"ok",
            sized(2).replace(b"200 OK\r\n", b"200 OK\n") + b"ok",
            sized(2, b"X-A: b").replace(b"2\r\n", b"2\n") + b"ok",
            sized(2).replace(b"\r\n\r\n", b"\r\n\n") + b"ok",
            b"HTTP/1.1 103 Soon\n\n" + OK,
            CHUNKED + b"2\r\nok\n0\r\n\r\n",
            CHUNKED + b"2 \r\nok\r\n0\r\n\r\n",
            CHUNKED + b"2\r\nok\r\n0\r\nX-A: b\n\r\n",
        ],
    )
    async def test_a_line_may_end_without_a_carriage_return(
        self, opened: Opened, said: bytes
    ) -> None:
        async with playing(saying(said)) as stage, opened(stage.url) as gateway:
            assert (await content(gateway, stage.url)).content == b"ok"

    @pytest.mark.parametrize(
        ("said", "code"),
        [
            (sized(2, b"X-A: b").replace(b"2\r\n", b"2\r") + b"ok", UNREACHABLE),
            (CHUNKED + b"2\nok\r\n0\r\n\r\n", "gateway_garbled"),
            (CHUNKED + b"2\r\nok0\r\n\r\n", "gateway_garbled"),
        ],
    )
    async def test_any_other_line_end_is_no_http(
        self, opened: Opened, said: bytes, code: str
    ) -> None:
        async with playing(saying(said)) as stage, opened(stage.url) as gateway:
            refused(await fetched(gateway, stage.url), code, 502)


class TestWaits:
    @pytest.mark.parametrize(
        ("said", "wait"),
        [
            (b"-1", timedelta(0)),
            (b"1000000000", timedelta(hours=1)),
            (b"Mon, 16 Nov 2026 05:00:30 GMT", timedelta(seconds=30)),
            (b"Mon, 16 Nov 2026 04:00:00 GMT", timedelta(0)),
            (b"Mon, 16 Nov 3026 05:00:00 GMT", timedelta(hours=1)),
            (b"nan", None),
            (b"\xff", None),
        ],
    )
    async def test_a_wait_is_bounded(
        self, opened: Opened, said: bytes, wait: timedelta | None
    ) -> None:
        answer = sized(0, b"Date: Mon, 16 Nov 2026 05:00:00 GMT", b"Retry-After: " + said)
        async with (
            playing(saying(answer.replace(b"200 OK", b"429 No"))) as stage,
            opened(stage.url) as gateway,
        ):
            refusal = await fetched(gateway, stage.url)
        assert isinstance(refusal, GatewayRefusal)
        assert refusal.retry_after == wait


class TestKey:
    @pytest.mark.parametrize("status", [b"200 OK", b"422 No", b"500 No"])
    @pytest.mark.parametrize(
        "body",
        [
            f"<p>no page for {KEY} or {quote(KEY, '')}</p>".encode(),
            msgspec.json.encode({"code": "RESP001", "detail": KEY, KEY: [{"url": quote(KEY, "")}]}),
            msgspec.json.encode({"code": "RESP001", "detail": KEY}).replace(b"/", b"\\/"),
        ],
        ids=["text", "problem", "escaped"],
    )
    async def test_a_key_that_comes_back_is_redacted(
        self, opened: Opened, status: bytes, body: bytes
    ) -> None:
        names = (b"X-Request-Id", b"Retry-After", b"Concurrency-Limit", b"X-Request-Cost")
        echo = b"".join(b"%b: %b\r\n" % (name, KEY.encode()) for name in names)
        head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n" % (status, len(body), echo)
        async with playing(saying(head + body)) as stage, opened(stage.url) as gateway:
            answer = await fetched(gateway, stage.url)
        if isinstance(answer, Page):
            assert answer.content == body  # the caller's own page is stored as it came
            answer = replace(answer, content=b"")
        for spelling in (KEY, quote(KEY, ""), KEY.replace("/", "\\/")):
            assert spelling not in str(answer)


class TestAbsence:
    async def test_a_refused_connection_is_unreachable(self, opened: Opened) -> None:
        url = f"http://127.0.0.1:{free_port()}/v1/"
        async with opened(url) as gateway:
            told = refused(await fetched(gateway, url), UNREACHABLE, 502)
        assert "Connection refused" in str(told["detail"])
        assert "127.0.0.1" not in str(told)

    async def test_a_host_without_an_address_is_unreachable(self, opened: Opened) -> None:
        url = "http://gateway.invalid/v1/"
        async with opened(url) as gateway:
            told = refused(await fetched(gateway, url), UNREACHABLE, 502)
        assert "no address" in str(told["detail"])
        assert "invalid" not in str(told)


@contextmanager
def ends_soon() -> Iterator[None]:
    """Fails when what is inside takes much longer than the deadlines here."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    yield
    assert loop.time() - began < 5
