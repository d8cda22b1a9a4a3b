"""What becomes of connections to the gateway: kept, dropped, waited for, made safe."""

import asyncio
import random
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from conveyor.adapters.http.client import transport as seam
from conveyor.adapters.http.client.transport import NoResponse, fixed_headers, http_request
from conveyor.adapters.http.zenrows import ZenrowsGateway
from conveyor.mock_gateway.server import MockGateway
from conveyor.ports.gateway import GatewayRefusal, Page, PageRequest
from conveyor.testing.local.ports import free_port
from tests.gateway.stage import OK, Line, Opened, inside, is_paused, playing, saying, sized
from tests.harness import gateways
from tests.harness.gateways import (
    KEY,
    MIB,
    UNREACHABLE,
    MemorySpool,
    Spools,
    asked,
    content,
    fetched,
    refused,
    until,
)

pytestmark = pytest.mark.usefixtures("transport")

TARGET = "https://ok.example/"
OTHER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother"


class TestKeeping:
    @pytest.mark.parametrize("transport", ["conveyor"], indirect=True)
    async def test_the_latest_used_is_used_next(self, opened: Opened) -> None:
        async with playing(saying(OK)) as stage, opened(stage.url) as gateway:
            await asyncio.gather(*(fetched(gateway, stage.url) for _ in range(3)))
            assert stage.opened == 3
            *others, latest = inside(gateway)._resting
            for _ in range(5):
                await content(gateway, stage.url)
                assert [*inside(gateway)._resting] == [*others, latest]

    @pytest.mark.parametrize("is_reset", [False, True])
    async def test_one_closed_while_it_rests_is_never_used(
        self, opened: Opened, is_reset: bool
    ) -> None:
        async def play(line: Line) -> None:
            await line.request()
            await line.say(OK)
            if is_reset:
                await until(lambda: bool(inside(gateway)._resting))
                line.reset()

        async with playing(play) as stage, opened(stage.url) as gateway:
            for number in range(1, 4):
                await content(gateway, stage.url)
                await until(lambda: not inside(gateway)._open)
                assert stage.opened == number

    async def test_one_that_rests_too_long_is_closed(
        self, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(seam, "LONGEST_REST", 0.05)
        async with playing(saying(OK)) as stage, opened(stage.url) as gateway:
            await asyncio.gather(*(fetched(gateway, stage.url) for _ in range(3)))
            await until(lambda: stage.over == stage.opened)
            assert not inside(gateway)._open
            await content(gateway, stage.url)

    @pytest.mark.parametrize(
        "head",
        [
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
            b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
            OK + OTHER,
            OK + b"garbage",
            OK.replace(b"200 OK", b"204 No") + OTHER,
        ],
    )
    async def test_one_that_ends_or_says_too_much_is_not_kept(
        self, opened: Opened, head: bytes
    ) -> None:
        async with playing(saying(head)) as stage, opened(stage.url) as gateway:
            for number in range(1, 4):
                page = await content(gateway, stage.url)
                assert page.content == (b"" if b"204" in head else b"ok")
                await until(lambda: stage.over == stage.opened)
                assert stage.opened == number

    async def test_what_nobody_asked_is_not_taken_for_the_next_answer(self, opened: Opened) -> None:
        async def play(line: Line) -> None:
            await line.request()
            await line.say(OK)
            await until(lambda: bool(inside(gateway)._resting))
            await line.say(OTHER)
            await line.gone()

        async with playing(play) as stage, opened(stage.url) as gateway:
            for number in range(1, 4):
                assert (await content(gateway, stage.url)).content == b"ok"
                await until(lambda: stage.over == stage.opened)
                assert stage.opened == number

    @pytest.mark.parametrize("event", ["data_received", "eof_received"])
    async def test_one_that_is_about_to_close_is_not_used(self, opened: Opened, event: str) -> None:
        async with playing(saying(OK)) as stage, opened(stage.url) as gateway:
            await content(gateway, stage.url)
            [resting] = inside(gateway)._resting
            # As the loop would, in the very round in which the next call begins.
            getattr(resting, event)(*([OTHER] if event == "data_received" else []))
            assert (await content(gateway, stage.url)).content == b"ok"
            assert stage.opened == 2

    @pytest.mark.parametrize("transport", ["conveyor"], indirect=True)
    async def test_one_that_speaks_first_is_not_asked(self) -> None:
        async def play(line: Line) -> None:
            await line.say(OTHER)
            await line.gone()

        async with playing(play) as stage, gateways.opened(stage.url) as gateway:
            made = await inside(gateway).acquire(gateway._server)
            await until(lambda: made.is_lost)
            made.send(http_request("GET", "/", fixed_headers({}), {}, None))
            with pytest.raises(NoResponse):
                await made.head()
            inside(gateway).release(made)
            await until(lambda: stage.over == 1)

    async def test_a_request_is_sent_once_whatever_becomes_of_it(self, opened: Opened) -> None:
        heard: list[bytes] = []

        async def play(line: Line) -> None:
            while True:
                heard.append(await line.request())
                if len(heard) > 1:
                    return
                await line.say(OK)

        async with playing(play) as stage, opened(stage.url) as gateway:
            await content(gateway, stage.url)
            told = refused(await fetched(gateway, stage.url), UNREACHABLE, 502)
        assert "closed first" in str(told["detail"])
        assert (len(heard), stage.opened) == (2, 1)

    async def test_an_unread_rest_closes_it(self, opened: Opened) -> None:
        said = sized(50 * MIB).replace(b"200 OK", b"500 No") + b"x" * MIB
        async with playing(saying(said)) as stage, opened(stage.url) as gateway:
            answer = await fetched(gateway, stage.url)
            assert isinstance(answer, GatewayRefusal)
            assert answer.status == 500
            await until(lambda: stage.over == 1)

    @pytest.mark.parametrize("closes", [True, False])
    async def test_an_answer_may_come_before_the_request_is_read(
        self, opened: Opened, closes: bool
    ) -> None:
        async def play(line: Line) -> None:
            await line.request()
            await line.say(OK)
            if closes:
                line.writer.write_eof()
            line.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await until(lambda: not inside(gateway)._open)

        body = '"' + "x" * (30 * MIB) + '"'
        async with playing(play) as stage, opened(stage.url) as gateway:
            request = PageRequest(url=stage.url, gateway_key=KEY, method="POST", body=body)
            page = await gateway.fetch(request, Spools())
            assert isinstance(page, Page)
            assert page.content == b"ok"
            await until(lambda: stage.over == 1)
            assert not inside(gateway)._resting


class TestTurns:
    async def test_who_waits_gets_a_turn_in_order(self, opened: Opened, transport: str) -> None:
        async with playing(saying(OK)) as stage, opened(stage.url, connections=1) as gateway:
            done: list[int] = []

            async def one(number: int) -> None:
                await content(gateway, stage.url)
                done.append(number)

            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(one(number))
            # aiohttp may pass the turn on before it has the connection back, and open another.
            assert stage.opened == 1 or transport == "aiohttp"
            assert done == list(range(20))

    async def test_a_cancelled_wait_takes_no_turn(self, opened: Opened) -> None:
        async def play(line: Line) -> None:
            while True:
                await line.request()
                await gate.wait()
                await line.say(OK)

        gate = asyncio.Event()
        async with playing(play) as stage, opened(stage.url, connections=1) as gateway:
            first, second, third = (
                asyncio.ensure_future(fetched(gateway, stage.url)) for _ in range(3)
            )
            await until(lambda: len(inside(gateway)._turns.waiting) == 2)
            second.cancel()
            gate.set()
            assert isinstance(await first, Page)
            assert isinstance(await third, Page)
            assert second.cancelled()
            assert inside(gateway)._turns.free == 1

    @pytest.mark.parametrize("transport", ["conveyor"], indirect=True)
    async def test_a_turn_that_comes_with_the_cancelling_is_passed_on(self) -> None:
        async with (
            playing(saying(OK)) as stage,
            gateways.opened(stage.url, connections=1) as gateway,
        ):
            held = await inside(gateway).acquire(gateway._server)
            second, third = (asyncio.ensure_future(fetched(gateway, stage.url)) for _ in range(2))
            await until(lambda: len(inside(gateway)._turns.waiting) == 2)
            inside(gateway).release(held)
            second.cancel()  # it was given its turn already, and has not run since
            assert isinstance(await third, Page)
            assert second.cancelled() or not second.done()
            assert inside(gateway)._turns.free == 1

    async def test_waiting_for_a_turn_counts_towards_the_deadline(self, opened: Opened) -> None:
        soon = timedelta(milliseconds=150)
        async with (
            playing(saying(b"")) as stage,
            opened(stage.url, connections=1, deadline=soon) as gateway,
        ):
            answers = await asyncio.gather(*(fetched(gateway, stage.url) for _ in range(3)))
            for answer in answers:
                refused(answer, "gateway_timeout", 504)
            await until(lambda: inside(gateway)._turns.free == 1 and stage.over == stage.opened)

    async def test_a_failed_connection_frees_its_turn(self, opened: Opened) -> None:
        url = f"http://127.0.0.1:{free_port()}/"
        async with opened(url, connections=1) as gateway:
            for _ in range(3):
                refused(await fetched(gateway, url), UNREACHABLE, 502)

    async def test_closing_ends_calls_under_way(self, opened: Opened) -> None:
        async with playing(saying(b"")) as stage:
            async with opened(stage.url, connections=1) as gateway:
                calls = [asyncio.ensure_future(fetched(gateway, stage.url)) for _ in range(2)]
                await until(lambda: stage.opened == 1 and len(inside(gateway)._turns.waiting) == 1)
            for call in calls:
                refused(await call, UNREACHABLE, 502)
            await until(lambda: stage.over == 1)
            assert stage.opened == 1

    async def test_closing_ends_a_call_whose_page_is_being_written(self, opened: Opened) -> None:
        class GatedSpool(MemorySpool):
            async def write(self, chunk: bytes) -> None:
                await gate.wait()

        gate, spool = asyncio.Event(), GatedSpool()
        said = sized(20 * MIB) + b"x" * (20 * MIB)
        async with playing(saying(said)) as stage:
            async with opened(stage.url) as gateway:
                call = asyncio.ensure_future(gateway.fetch(asked(stage.url), lambda: spool))
                await until(lambda: is_paused(gateway))
            gate.set()
            refused(await call, "gateway_garbled", 502)
            assert spool.discarded

    async def test_a_connection_made_while_closing_is_not_used(
        self, opened: Opened, safe: "Safe"
    ) -> None:
        def close_midway(*_: object) -> None:
            inside(gateway)._is_closed = True

        context = safe.server("127.0.0.1")
        context.sni_callback = close_midway
        async with playing(saying(OK), context) as stage, opened(stage.url) as gateway:
            refused(await fetched(gateway, stage.url), UNREACHABLE, 502)
            await until(lambda: stage.over == stage.opened)

    async def test_a_storm_of_faults_leaks_nothing(self) -> None:
        chance = random.Random(7)
        labels = ("ok", "gzip", "big", "slow", "drip", "hang", "cut", "dropped", "rubbish")

        async def call(gateway: ZenrowsGateway) -> None:
            target = f"https://{chance.choice(labels)}.example/?ms=3&size=30000"
            async with asyncio.timeout(chance.choice((0.001, 0.003, 0.01, 20))):
                await fetched(gateway, target)

        async with MockGateway() as mock:
            for milliseconds in (1, 2, 3, 5, 10, 30):
                deadline = timedelta(milliseconds=milliseconds)
                async with gateways.opened(mock.url, connections=5, deadline=deadline) as gateway:
                    calls = (call(gateway) for _ in range(60))
                    await asyncio.gather(*calls, return_exceptions=True)
                    assert inside(gateway)._turns.free == 5
                    assert not inside(gateway)._turns.waiting
                    assert len(inside(gateway)._open) <= 5
                assert not inside(gateway)._open
            await until(lambda: (mock.connections, mock.in_flight) == (0, 0))


class TestReaching:
    @pytest.mark.parametrize("transport", ["conveyor"], indirect=True)
    async def test_the_next_address_is_tried(self) -> None:
        async with playing(saying(OK)) as stage, gateways.opened(stage.url) as gateway:
            dead = "127.0.0.3"
            live = [*await inside(gateway)._lookup.addresses("127.0.0.1")]
            addresses = await inside(gateway)._lookup.addresses("127.0.0.1")
            addresses[:] = [dead, *live]
            await content(gateway, TARGET)
            assert addresses == [*live, dead]

    async def test_no_proxy_of_the_environment_is_used(
        self, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
        async with playing(saying(OK)) as stage, opened(stage.url) as gateway:
            await content(gateway, stage.url)

    @pytest.mark.parametrize(
        ("url", "target"),
        [
            ("http://HOST", "/?apikey="),
            ("http://HOST?a=b", "/?a=b&apikey="),
            ("http://HOST/v1#top", "/v1?apikey="),
            ("http://me:pass@HOST/v1/", "/v1/?apikey="),
        ],
    )
    async def test_the_gateways_address_is_put_as_it_should_be(self, url: str, target: str) -> None:
        heard: list[bytes] = []

        async def play(line: Line) -> None:
            heard.append(await line.request())

        async with playing(play) as stage:
            place = stage.url.split("/")[2]
            async with gateways.opened(url.replace("HOST", place)) as gateway:
                await fetched(gateway, TARGET)
        assert heard[0].startswith(b"GET " + target.encode())
        assert b"\r\nHost: %b\r\n" % place.encode() in heard[0]


class TestSafety:
    async def test_a_known_gateway_is_talked_to(self, opened: Opened, safe: "Safe") -> None:
        async with playing(saying(OK), safe.server("localhost")) as stage:
            url = stage.url.replace("127.0.0.1", "localhost")
            async with opened(url) as gateway:
                for _ in range(3):
                    assert (await content(gateway, url)).content == b"ok"
            assert stage.opened == 1
            await until(lambda: stage.over == 1)
        assert safe.asked_for == ["localhost"]

    async def test_one_by_another_name_is_not(self, opened: Opened, safe: "Safe") -> None:
        async with playing(saying(OK), safe.server("elsewhere.example")) as stage:
            url = stage.url.replace("127.0.0.1", "localhost")
            async with opened(url) as gateway:
                told = refused(await fetched(gateway, url), UNREACHABLE, 502)
        assert "no safe connection" in str(told["detail"])

    async def test_one_that_nobody_vouches_for_is_not(
        self, opened: Opened, safe: "Safe", monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("SSL_CERT_FILE")
        async with (
            playing(saying(OK), safe.server("127.0.0.1")) as stage,
            opened(stage.url) as gateway,
        ):
            told = refused(await fetched(gateway, stage.url), UNREACHABLE, 502)
        assert "no safe connection" in str(told["detail"])

    async def test_one_that_does_not_speak_tls_is_not(self, opened: Opened, safe: "Safe") -> None:
        async with playing(lambda line: line.say(OK)) as stage:
            url = stage.url.replace("http:", "https:")
            async with opened(url) as gateway:
                refused(await fetched(gateway, url), UNREACHABLE, 502)
            await until(lambda: stage.over == 1)

    async def test_large_pages_come_through(self, opened: Opened, safe: "Safe") -> None:
        body = b"x" * (5 * MIB)
        async with playing(saying(sized(len(body)) + body), safe.server("127.0.0.1")) as stage:
            async with opened(stage.url) as gateway:
                for _ in range(2):
                    spools = Spools()
                    assert isinstance(await fetched(gateway, stage.url, spools), Page)
                    assert spools.given[0].length == len(body)
            assert stage.opened == 1


class Safe:
    """Makes certificates that this process trusts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.asked_for: list[str | None] = []
        self.trusted = folder / "trusted.pem"

    def server(self, name: str) -> ssl.SSLContext:
        chain = self._folder / "server.pem"
        key, certificate = _self_signed(name)
        chain.write_bytes(key + certificate)
        self.trusted.write_bytes(certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        context.sni_callback = lambda _, asked_for, __: self.asked_for.append(asked_for)
        return context


@pytest.fixture
def safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Safe:
    safe = Safe(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(safe.trusted))
    return safe


def _self_signed(name: str) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    called = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    number = name.replace(".", "").isdigit()
    also = x509.IPAddress(IPv4Address(name)) if number else x509.DNSName(name)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([also]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, certificate.public_bytes(Encoding.PEM)
