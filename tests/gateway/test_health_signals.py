"""What each ending of a real call tells about the gateway: the circuit breaker relies on it."""

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest

from conveyor.adapters.http.direct import DirectGateway
from conveyor.domain.breaker import HealthSignal
from conveyor.mock_gateway.server import MockGateway
from conveyor.ports.gateway import Page, PageRequest
from conveyor.testing.local.ports import free_port
from tests.gateway.site import Names, fetched, said, site, visiting
from tests.gateway.stage import OK, Line, Play, going_on, playing, saying, saying_last, sized
from tests.harness import gateways
from tests.harness.gateways import KEY, MIB, Spools, opened, opened_directly

pytestmark = pytest.mark.usefixtures("transport")

SHORT = timedelta(milliseconds=300)
NO_HTTP = b"\x16\x03 this is no HTTP at all \x00\xff\r\n\r\n"
ORIGINAL = {"original_status": "true"}


async def reset(line: Line) -> None:
    await line.request()
    line.reset()


async def reset_at_once(line: Line) -> None:
    line.reset()


@contextlib.contextmanager
def full_server() -> Iterator[int]:
    """A port that takes no more connections: attempts are neither accepted nor refused."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


class TestZenrows:
    @pytest.mark.parametrize(
        ("target", "params", "signal"),
        [
            ("ok.example/", {}, HealthSignal.ALIVE),
            ("status.example/?code=404", ORIGINAL, HealthSignal.ALIVE),
            ("status.example/?code=503", ORIGINAL, HealthSignal.NONE),
            ("status.example/?code=404", {}, HealthSignal.ALIVE),
            ("status.example/?code=500", {}, HealthSignal.UNEXPLAINED),
            ("status.example/?code=503", {}, HealthSignal.UNEXPLAINED),
            ("permanent.example/", {}, HealthSignal.ALIVE),
            ("blocked.example/", {}, HealthSignal.ALIVE),
            ("busy.example/", {}, HealthSignal.ALIVE),
            ("nocredits.example/", {}, HealthSignal.ALIVE),
            ("badkey.example/", {}, HealthSignal.ALIVE),
            ("flaky.example/", {}, HealthSignal.ALIVE),
            ("big.example/?size=3000000", {}, HealthSignal.ALIVE),  # larger than what is taken
            ("unparsed.example/", {}, HealthSignal.BROKEN),
            ("timedout.example/", {}, HealthSignal.BROKEN),
            ("unparsed.example/", ORIGINAL, HealthSignal.BROKEN),
            ("dropped.example/", {}, HealthSignal.BROKEN),
            ("rubbish.example/", {}, HealthSignal.BROKEN),
            ("cut.example/", {}, HealthSignal.BROKEN),
            ("truncated.example/", {}, HealthSignal.BROKEN),
            ("encoded.example/", {}, HealthSignal.BROKEN),
        ],
    )
    async def test_an_answer_of_the_gateway(
        self, target: str, params: dict[str, str], signal: HealthSignal
    ) -> None:
        async with MockGateway() as mock, opened(mock.url, largest_body=MIB) as gateway:
            answer = await gateways.fetched(gateway, f"https://{target}", params=params)
        assert answer.signal is signal, answer

    @pytest.mark.parametrize(
        ("target", "limit"), [("hang.example/", "deadline"), ("stuck.example/", "silence")]
    )
    async def test_an_answer_that_does_not_come_or_stops(self, target: str, limit: str) -> None:
        async with MockGateway() as mock, opened(mock.url, **{limit: SHORT}) as gateway:
            answer = await gateways.fetched(gateway, f"https://{target}")
        assert answer.signal is HealthSignal.BROKEN

    async def test_a_reset(self) -> None:
        async with playing(reset) as stage, opened(stage.url) as gateway:
            answer = await gateways.fetched(gateway, "https://ok.example/")
        assert answer.signal is HealthSignal.BROKEN

    async def test_a_request_that_cannot_be_sent(self) -> None:
        request = PageRequest(
            url="https://ok.example/", gateway_key=KEY, headers={"X-A": "1\r\nX-B: 2"}
        )
        async with MockGateway() as mock, opened(mock.url) as gateway:
            assert (await gateway.fetch(request, Spools())).signal is HealthSignal.NONE

    async def test_no_room_for_the_page_is_not_the_gateways_fault(self) -> None:
        async with MockGateway() as mock, opened(mock.url) as gateway:
            answer = await gateways.fetched(
                gateway, "https://big.example/", Spools(fails_after=MIB)
            )
        assert answer.signal is HealthSignal.ALIVE

    async def test_no_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "conveyor.adapters.http.client.transport.LAST_ADDRESS", SHORT.total_seconds()
        )
        with full_server() as full:
            for server in (f"127.0.0.1:{free_port()}", "gateway.invalid", f"127.0.0.1:{full}"):
                async with opened(f"http://{server}/v1/") as gateway:
                    answer = await gateways.fetched(gateway, "https://ok.example/")
                assert answer.signal is HealthSignal.UNREACHABLE, server

    async def test_a_check_of_a_gateway_that_works(self) -> None:
        async with MockGateway() as mock, opened(mock.url) as gateway:
            assert await gateway.check_health()

    @pytest.mark.parametrize(
        "play",
        [reset, reset_at_once, saying_last(NO_HTTP), saying(said("503 Service Unavailable"))],
    )
    async def test_a_check_of_a_gateway_that_does_not(self, play: Play) -> None:
        async with playing(play) as stage, opened(stage.url) as gateway:
            assert not await gateway.check_health()

    async def test_a_check_of_a_gateway_that_is_closed(self) -> None:
        async with opened(f"http://127.0.0.1:{free_port()}/v1/") as gateway:
            assert not await gateway.check_health()

    async def test_a_check_of_a_gateway_that_was_closed_and_is_back(self) -> None:
        async with MockGateway() as mock:
            port = int(mock.url.rsplit(":", 1)[1].split("/")[0])
        async with opened(f"http://127.0.0.1:{port}/v1/") as gateway:
            assert not await gateway.check_health()
            async with MockGateway(port=port):
                assert await gateway.check_health()


class TestDirect:
    @pytest.mark.parametrize(
        ("play", "signal"),
        [
            (saying(OK), HealthSignal.ALIVE),
            (saying(said("404 Not Found")), HealthSignal.ALIVE),
            (saying(said("500 Oops")), HealthSignal.ALIVE),
            (saying(said("429 Busy", "Retry-After: 9")), HealthSignal.ALIVE),
            (reset, HealthSignal.ALIVE),  # somebody was there to do it
            (reset_at_once, HealthSignal.ALIVE),
            (saying_last(NO_HTTP), HealthSignal.ALIVE),
            (saying_last(sized(9) + b"some"), HealthSignal.ALIVE),
            (saying(sized(9) + b"some"), HealthSignal.ALIVE),  # and then nothing
            (
                going_on(sized(9 * MIB), b"x" * 65_536),
                HealthSignal.ALIVE,
            ),  # larger than what is taken
        ],
    )
    async def test_an_answer_of_a_site(self, play: Play, signal: HealthSignal) -> None:
        async with (
            playing(play) as stage,
            opened_directly(stage.url, silence=SHORT, largest_body=MIB) as gateway,
        ):
            assert (await gateways.fetched(gateway, stage.url)).signal is signal

    async def test_a_site_that_does_not_answer_within_the_deadline(self) -> None:
        async with (
            playing(saying(b"")) as stage,
            opened_directly(stage.url, deadline=SHORT) as gateway,
        ):
            assert (await gateways.fetched(gateway, stage.url)).signal is HealthSignal.NONE

    async def test_no_connection_to_a_site(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "conveyor.adapters.http.client.transport.LAST_ADDRESS", SHORT.total_seconds()
        )
        with full_server() as full:
            for port in (free_port(), full):
                url = f"http://127.0.0.1:{port}/"
                async with opened_directly(url) as gateway:
                    answer = await gateways.fetched(gateway, url)
                assert answer.signal is HealthSignal.UNCONNECTED

    async def test_a_host_without_an_address(self) -> None:
        async with site() as here, visiting(here, resolve=Names(gone_example=[[]])) as gateway:
            answer = await fetched(gateway, here.url(host="gone.example"))
        assert answer.signal is HealthSignal.UNCONNECTED

    async def test_an_address_that_is_not_allowed(self) -> None:
        names = Names(inner_example=[["10.0.0.1"]])
        async with site() as here, visiting(here, resolve=names) as gateway:
            answer = await fetched(gateway, here.url(host="inner.example"))
        assert answer.signal is HealthSignal.NONE

    async def test_a_check_needs_a_site_that_answered_before(self) -> None:
        async with site() as here, visiting(here) as gateway:
            assert not await gateway.check_health()
            assert isinstance(await fetched(gateway, here.url()), Page)
            assert await gateway.check_health()

    async def test_a_check_when_that_site_is_closed(self) -> None:
        async with _gateway_whose_site_is_gone() as (gateway, _):
            assert not await gateway.check_health()

    async def test_a_check_when_that_site_resets_what_it_accepts(self) -> None:
        """A connection is all that is asked for: it shows that the network here works."""
        plays = iter((saying(OK),))

        async def play(line: Line) -> None:
            await next(plays, reset_at_once)(line)

        async with playing(play) as stage, opened_directly(stage.url) as gateway:
            assert isinstance(await gateways.fetched(gateway, stage.url), Page)
            assert await gateway.check_health()

    async def test_a_check_when_one_of_several_sites_is_left(self) -> None:
        async with _gateway_whose_site_is_gone() as (gateway, port), site() as other:
            gateway._ports |= {other.port}
            assert isinstance(await fetched(gateway, other.url()), Page)
            answer = await fetched(gateway, f"http://a.example:{port}/")
            assert answer.signal is HealthSignal.UNCONNECTED
            assert await gateway.check_health()


@contextlib.asynccontextmanager
async def _gateway_whose_site_is_gone() -> AsyncIterator[tuple[DirectGateway, int]]:
    """A gateway whose only site answered once, and is closed now."""
    async with contextlib.AsyncExitStack() as stack:
        async with site() as here:
            gateway = await stack.enter_async_context(visiting(here))
            assert isinstance(await fetched(gateway, here.url()), Page)
        yield gateway, here.port
