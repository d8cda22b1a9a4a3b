"""Deliveries over real connections, to receivers that do their worst."""

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from email.utils import format_datetime
from ipaddress import ip_address
from pathlib import Path

import pytest

from conveyor.adapters.http import webhooks
from conveyor.adapters.http.client import resolver
from conveyor.adapters.http.client.resolver import Resolve
from conveyor.adapters.http.webhooks import LARGEST_ANSWER, HttpWebhooks
from conveyor.domain.outbox import DeliveryResult
from conveyor.domain.public_address import Reach
from conveyor.domain.webhook import WebhookRules
from conveyor.errors import (
    CallbackUrlMustBeHttps,
    CallbackUrlUnresolvable,
    InvalidArgument,
    Overloaded,
)
from conveyor.testing.clock import NOON
from tests.certificates import Authority
from tests.gateway.site import HERE, Names
from tests.gateway.stage import CHUNKED, UNTIL_CLOSE, Line, Play, Stage, playing
from tests.harness.gateways import THIS_MACHINE
from tests.harness.webhooks import GONE

HOST = "hooks.example"
HEADERS = {"X-ZenRows-Event-Id": "01JZ", "X-Signature": "t=1,v1=2,kid=3"}
BODY = b'{"event_id":"01JZ"}'
TAKEN = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
LONG = timedelta(seconds=20)
SHORT = timedelta(milliseconds=500)
LATE = timedelta(seconds=5)


@dataclass
class Receiver:
    """A receiver on this machine, and who may deliver to it."""

    stage: Stage
    webhooks: HttpWebhooks
    port: int

    async def post(self, path: str = "/in?a=b", host: str = HOST) -> DeliveryResult:
        url = f"https://{host}:{self.port}{path}"
        return await self.webhooks.post(url, HEADERS, BODY)


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.trusted))
    return authority


@asynccontextmanager
async def receiving(
    play: Play,
    safety: ssl.SSLContext,
    *,
    timeout: timedelta = LONG,  # noqa: ASYNC109 - of each delivery
    reach: Reach = THIS_MACHINE,
    resolve: Resolve | None = None,
) -> AsyncIterator[Receiver]:
    async with playing(play, safety) as stage:
        port = int(stage.url.split(":")[2].split("/")[0])
        opened = HttpWebhooks(
            WebhookRules(ports=(port,)), timeout=timeout, reach=reach, resolve=resolve or Names()
        )
        async with opened as sender:
            yield Receiver(stage, sender, port)


def answering(said: bytes) -> Play:
    async def play(line: Line) -> None:
        await line.request()
        await line.reader.readexactly(len(BODY))
        await line.say(said)
        await line.gone()

    return play


def status(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {line}", *headers, "Content-Length: 0", "", ""]).encode()


async def test_a_delivery_is_one_request_on_a_connection_of_its_own(authority: Authority) -> None:
    heard: list[bytes] = []

    async def play(line: Line) -> None:
        heard.append(await line.request() + await line.reader.readexactly(len(BODY)))
        await line.say(TAKEN)
        await line.gone()

    async with receiving(play, authority.server(HOST)) as receiver:
        for _ in range(2):
            assert await receiver.post() == DeliveryResult(status_code=200)
        assert receiver.stage.opened == 2

    head, body = heard[0].split(b"\r\n\r\n", 1)
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert first == "POST /in?a=b HTTP/1.1"
    assert body == BODY
    assert headers["Host"] == f"{HOST}:{receiver.port}"
    assert headers["Content-Type"] == "application/json"
    assert headers.items() >= HEADERS.items()
    assert heard[0] == heard[1]


@pytest.mark.parametrize(
    ("said", "reply"),
    [
        (status("204 No Content"), DeliveryResult(status_code=204)),
        (status("299 Whatever"), DeliveryResult(status_code=299)),
        (status("404 Not Found"), DeliveryResult(status_code=404, error="http_4xx:404")),
        (status("410 Gone"), GONE),
        (status("500 Oh"), DeliveryResult(status_code=500, error="http_5xx:500")),
        (
            status("429 Slow down", "Retry-After: 90"),
            DeliveryResult(
                status_code=429, error="http_4xx:429", retry_after=timedelta(seconds=90)
            ),
        ),
        (
            status("503 Later", "Retry-After: 9999999999"),
            DeliveryResult(status_code=503, error="http_5xx:503", retry_after=timedelta(hours=24)),
        ),
        (
            status(
                "503 Later",
                f"Date: {format_datetime(NOON, usegmt=True)}",
                f"Retry-After: {format_datetime(NOON + timedelta(hours=2), usegmt=True)}",
            ),
            DeliveryResult(status_code=503, error="http_5xx:503", retry_after=timedelta(hours=2)),
        ),
        (
            status("503 Later", "Retry-After: soon"),
            DeliveryResult(status_code=503, error="http_5xx:503"),
        ),
    ],
)
async def test_the_status_decides(authority: Authority, said: bytes, reply: DeliveryResult) -> None:
    async with receiving(answering(said), authority.server(HOST)) as receiver:
        assert await receiver.post() == reply


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failure_and_not_followed(authority: Authority, code: int) -> None:
    said = status(f"{code} Elsewhere", f"Location: https://{HOST}/other")
    async with receiving(answering(said), authority.server(HOST)) as receiver:
        assert await receiver.post() == DeliveryResult(status_code=code, error=f"http_3xx:{code}")
        assert receiver.stage.opened == 1


async def test_a_receiver_that_does_not_answer_in_time_is_cut_off(authority: Authority) -> None:
    async def play(line: Line) -> None:
        await line.gone()

    async with receiving(play, authority.server(HOST), timeout=SHORT) as receiver:
        assert await receiver.post() == DeliveryResult(error="timeout")
        await _until_over(receiver)


async def test_headers_that_come_a_byte_at_a_time_are_cut_off(authority: Authority) -> None:
    async def play(line: Line) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000:
            await line.say(bytes([byte]))
            await asyncio.sleep(0.01)

    async with receiving(play, authority.server(HOST), timeout=SHORT) as receiver:
        assert await receiver.post() == DeliveryResult(error="timeout")


@pytest.mark.parametrize(
    "head", [CHUNKED, UNTIL_CLOSE, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"]
)
async def test_a_body_that_drips_holds_nobody_up(
    authority: Authority, head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "CLEARING", 0.2)

    async def play(line: Line) -> None:
        await line.say(head)
        while True:
            await line.say(b"1\r\nx\r\n" if head is CHUNKED else b"")
            await asyncio.sleep(0.01)

    async with receiving(play, authority.server(HOST)) as receiver:
        started = asyncio.get_running_loop().time()
        assert await receiver.post() == DeliveryResult(status_code=200)
        assert asyncio.get_running_loop().time() - started < 5


async def test_of_a_huge_answer_a_little_is_read(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "CLEARING", 15.0)  # so that it is not time that ends it
    sent = 0

    async def play(line: Line) -> None:
        nonlocal sent
        await line.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (10 * 1024**3))
        while True:
            await line.say(b"x" * LARGEST_ANSWER)
            sent += LARGEST_ANSWER

    async with receiving(play, authority.server(HOST)) as receiver:
        async with asyncio.timeout(60):
            assert await receiver.post() == DeliveryResult(status_code=200)
        await _until_over(receiver)
    assert sent < 16 * 1024**2  # what is in the buffers of the network


@pytest.mark.parametrize("said", [b"", b"rubbish\r\n\r\n", b"\x00" * 100, b"HTTP/1.1 abc\r\n\r\n"])
async def test_what_is_no_http_is_told_as_such(authority: Authority, said: bytes) -> None:
    async def play(line: Line) -> None:
        await line.request()
        await line.say(said)

    async with receiving(play, authority.server(HOST)) as receiver:
        reply = await receiver.post()
    assert reply.status_code is None
    assert (reply.error or "").startswith("transport_error:")


async def test_a_body_is_not_unpacked(authority: Authority) -> None:
    said = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nxxxx"
    async with receiving(answering(said), authority.server(HOST)) as receiver:
        assert await receiver.post() == DeliveryResult(status_code=200)


async def test_a_late_answer_counts_though_its_body_never_comes(authority: Authority) -> None:
    async def play(line: Line) -> None:
        await asyncio.sleep(LATE.total_seconds() / 10)
        await line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
        await line.gone()

    async with receiving(play, authority.server(HOST), timeout=LATE) as receiver:
        assert await receiver.post() == DeliveryResult(status_code=200)


async def test_nobody_there(authority: Authority) -> None:
    async with receiving(answering(TAKEN), authority.server(HOST)) as receiver:
        pass
    rules = WebhookRules(ports=(receiver.port,))
    async with HttpWebhooks(rules, timeout=LONG, reach=THIS_MACHINE, resolve=Names()) as left:
        reply = await left.post(f"https://{HOST}:{receiver.port}/", HEADERS, BODY)
    assert reply == DeliveryResult(error="transport_error:Connection refused")


async def test_a_server_of_another_name_is_not_told(authority: Authority) -> None:
    async with receiving(answering(TAKEN), authority.server("other.example")) as receiver:
        assert await receiver.post() == DeliveryResult(
            error="transport_error:no safe connection could be made"
        )


async def test_a_server_that_nobody_vouches_for_is_not_told(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    async with receiving(answering(TAKEN), authority.server(HOST)) as receiver:
        assert await receiver.post() == DeliveryResult(
            error="transport_error:no safe connection could be made"
        )


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
async def test_no_proxy_of_the_environment_is_used(
    authority: Authority, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with receiving(answering(TAKEN), authority.server(HOST)) as receiver:
        assert await receiver.post() == DeliveryResult(status_code=200)


async def test_http_is_spoken_where_it_is_allowed() -> None:
    async with playing(answering(TAKEN)) as stage:
        port = int(stage.url.split(":")[2].split("/")[0])
        rules = WebhookRules(ports=(port,), allow_http=True)
        async with HttpWebhooks(rules, timeout=LONG, reach=THIS_MACHINE, resolve=Names()) as sender:
            url = f"http://{HOST}:{port}/"
            await sender.check_url(url)
            assert await sender.post(url, HEADERS, BODY) == DeliveryResult(status_code=200)


class TestWhereTheyGo:
    @pytest.mark.parametrize(
        "host",
        [
            "127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "[::1]",
            "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "169.254.169.254",
            "0.0.0.0", "10.0.0.1", "100.64.0.1", "localhost", "[fe80::1]", "[fd00::1]",
        ],
    )  # fmt: skip
    async def test_an_address_that_is_not_public_is_not_connected_to(
        self, authority: Authority, host: str
    ) -> None:
        names = Names(localhost=[[HERE]])
        safety = authority.server(HERE, "localhost")
        async with receiving(answering(TAKEN), safety, reach=Reach(), resolve=names) as receiver:
            with pytest.raises(CallbackUrlUnresolvable) as refused:
                await receiver.webhooks.check_url(f"https://{host}:{receiver.port}/")
            _tells_no_address(refused.value.detail)
            reply = await receiver.post(host=host)
            assert receiver.stage.opened == 0
        assert reply.error == "transport_error:the host is not on public addresses alone"
        _tells_no_address(reply.error)

    async def test_every_address_of_a_name_must_be_public(self, authority: Authority) -> None:
        names = Names(hooks_example=[["93.184.216.34", HERE]])
        safety = authority.server(HOST)
        async with receiving(answering(TAKEN), safety, reach=Reach(), resolve=names) as receiver:
            with pytest.raises(CallbackUrlUnresolvable):
                await receiver.webhooks.check_url(f"https://{HOST}:{receiver.port}/")
            assert (await receiver.post()).error
            assert receiver.stage.opened == 0

    async def test_a_name_that_means_another_address_later_leads_nowhere(
        self, authority: Authority
    ) -> None:
        names = Names(hooks_example=[["93.184.216.34"], [HERE]])
        safety = authority.server(HOST)
        async with receiving(answering(TAKEN), safety, reach=Reach(), resolve=names) as receiver:
            await receiver.webhooks.check_url(f"https://{HOST}:{receiver.port}/")
            reply = await receiver.post()
            assert receiver.stage.opened == 0
        assert names.asked == [HOST, HOST]
        assert reply.error == "transport_error:the host is not on public addresses alone"

    async def test_what_was_checked_is_what_is_connected_to(self, authority: Authority) -> None:
        """Nobody asks a third time, between the check and the connection."""
        names = Names(hooks_example=[[HERE], ["192.0.2.1"]])
        async with receiving(answering(TAKEN), authority.server(HOST), resolve=names) as receiver:
            assert await receiver.post() == DeliveryResult(status_code=200)
        assert names.asked == [HOST]

    async def test_a_network_can_be_opened(self, authority: Authority) -> None:
        async with receiving(answering(TAKEN), authority.server(HERE)) as receiver:
            await receiver.webhooks.check_url(f"https://{HERE}:{receiver.port}/")
            assert await receiver.post(host=HERE) == DeliveryResult(status_code=200)

    async def test_a_name_without_an_address_is_refused(self, authority: Authority) -> None:
        names = Names(hooks_example=[[]])
        async with receiving(answering(TAKEN), authority.server(HOST), resolve=names) as receiver:
            with pytest.raises(CallbackUrlUnresolvable):
                await receiver.webhooks.check_url(f"https://{HOST}:{receiver.port}/")
            reply = await receiver.post()
        assert reply.error == "transport_error:its host has no address"

    async def test_a_name_that_takes_over_a_second_to_find_is_refused(
        self, authority: Authority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webhooks, "RESOLVING", 0.05)

        async def never(_: str) -> list[str]:
            await asyncio.Event().wait()
            return []

        safety = authority.server(HOST)
        async with receiving(answering(TAKEN), safety, resolve=never, timeout=SHORT) as receiver:
            with pytest.raises(CallbackUrlUnresolvable, match="within a second"):
                await receiver.webhooks.check_url(f"https://{HOST}:{receiver.port}/")
            assert await receiver.post() == DeliveryResult(error="timeout")

    async def test_a_name_is_not_refused_because_others_take_long_to_find(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webhooks, "RESOLVING", 0.05)
        monkeypatch.setattr(resolver, "MOST_LOOKUPS", 2)
        found = threading.Event()

        def slowly(host: str) -> list[str]:
            if host.startswith("slow"):
                found.wait(30)
            return ["93.184.215.14"]

        monkeypatch.setattr(resolver, "_resolved", slowly)
        async with HttpWebhooks(WebhookRules(), timeout=SHORT) as sender:
            with pytest.raises(CallbackUrlUnresolvable):
                await sender.check_url("https://slow0.example/")
            monkeypatch.setattr(webhooks, "RESOLVING", 10.0)
            await sender.check_url("https://early.example/")
            monkeypatch.setattr(webhooks, "RESOLVING", 0.05)
            with pytest.raises(Overloaded):
                await sender.check_url("https://slow1.example/")
            with pytest.raises(Overloaded):
                await sender.check_url(f"https://{HOST}/")
            found.set()
            monkeypatch.setattr(webhooks, "RESOLVING", 10.0)
            await sender.check_url(f"https://{HOST}/")

    async def test_a_url_that_is_not_allowed_any_more_is_not_told(
        self, authority: Authority
    ) -> None:
        async with receiving(answering(TAKEN), authority.server(HOST)) as receiver:
            for url in (f"http://{HOST}:{receiver.port}/", f"https://{HOST}/", "nonsense"):
                reply = await receiver.webhooks.post(url, HEADERS, BODY)
                assert reply == DeliveryResult(error="transport_error:the URL is not allowed")
            with pytest.raises(CallbackUrlMustBeHttps):
                await receiver.webhooks.check_url(f"http://{HOST}:{receiver.port}/")
            with pytest.raises(InvalidArgument):
                await receiver.webhooks.check_url(f"https://{HOST}/")


async def _until_over(receiver: Receiver) -> None:
    """The receiver has noticed that nobody listens any more."""
    async with asyncio.timeout(60):
        while receiver.stage.over < receiver.stage.opened:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _tells_no_address(text: str) -> None:
    for word in text.replace(":", " ").split():
        with pytest.raises(ValueError, match=r"does not appear"):
            ip_address(word.strip(".`"))
