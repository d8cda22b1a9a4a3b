"""The ids of a call to the gateway: ours is sent where no target can see it, theirs is kept."""

from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio

from conveyor.adapters.http.zenrows import ZenrowsGateway
from conveyor.domain.params import canonical
from conveyor.mock_gateway.server import MockGateway
from conveyor.ports.gateway import GatewayRefusal, Page, PageRequest
from tests.harness.gateways import KEY, Spools, answering, asked, content, echo, opened

CALL = "00000007-447211db4d2c3d63b14dce68.3"


@pytest_asyncio.fixture
async def mock() -> AsyncIterator[MockGateway]:
    async with MockGateway() as mock:
        yield mock


async def seen(gateway: ZenrowsGateway, request: PageRequest) -> dict[str, object]:
    page = await gateway.fetch(request, Spools())
    assert isinstance(page, Page)
    assert isinstance(page.content, bytes)
    return echo(page.content)


def request(
    url: str = "https://ok.example/", *, params: dict[str, str] | None = None, **more: str
) -> PageRequest:
    return msgspec.structs.replace(asked(url, params), call_id=CALL, **more)


class TestOurs:
    @pytest.mark.parametrize("method", ["GET", "POST"])
    async def test_it_is_sent_to_the_gateway_alone(self, mock: MockGateway, method: str) -> None:
        async with opened(mock.url) as gateway:
            told = await seen(gateway, request(method=method, body="{}"))
        assert told["request_id"] == CALL
        assert told["headers"] == {}

    async def test_it_is_not_sent_when_headers_travel_on_to_the_target(
        self, mock: MockGateway
    ) -> None:
        params = canonical({"custom_headers": {"X-Colour": "blue"}})
        async with opened(mock.url) as gateway:
            told = await seen(gateway, request(params=params))
        assert told["request_id"] is None
        assert told["headers"] == {"X-Colour": "blue"}

    async def test_a_callers_own_header_of_that_name_reaches_the_target(
        self, mock: MockGateway
    ) -> None:
        params = canonical({"custom_headers": {"X-Request-ID": "mine"}})
        async with opened(mock.url) as gateway:
            told = await seen(gateway, request(params=params))
        assert told["headers"] == {"X-Request-ID": "mine"}

    async def test_a_gateway_whose_address_asks_for_headers_gets_none(
        self, mock: MockGateway
    ) -> None:
        async with opened(mock.url + "?custom_headers=true") as gateway:
            told = await seen(gateway, request())
        assert told["request_id"] is None
        assert told["headers"] == {}

    async def test_a_request_without_one_sends_none(self, mock: MockGateway) -> None:
        async with opened(mock.url) as gateway:
            assert (await seen(gateway, asked("https://ok.example/")))["request_id"] is None


class TestTheirs:
    async def test_it_comes_with_a_page(self, mock: MockGateway) -> None:
        async with opened(mock.url) as gateway:
            assert (await content(gateway, "https://ok.example/")).gateway_request_id == "mock-1"
            big = await content(gateway, "https://big.example/")
            assert big.gateway_request_id == "mock-2"
            taken = {"original_status": "true"}
            other = await content(gateway, "https://status.example/?code=404", taken)
            assert other.gateway_request_id == "mock-3"

    @pytest.mark.parametrize(
        "target", ["permanent", "status", "cut", "truncated", "leaky", "banned", "bomb"]
    )
    async def test_it_is_kept_in_the_problem_of_whatever_was_answered(
        self, mock: MockGateway, target: str
    ) -> None:
        async with opened(mock.url, largest_body=1_000_000) as gateway:
            assert await named(gateway, f"https://{target}.example/") == "mock-1"

    @pytest.mark.parametrize("target", ["dropped", "rubbish"])
    async def test_without_an_answer_there_is_none(self, mock: MockGateway, target: str) -> None:
        async with opened(mock.url) as gateway:
            assert await named(gateway, f"https://{target}.example/") is None

    @pytest.mark.parametrize(
        ("told", "kept"),
        [
            (b"", None),
            (b"a b", None),
            (b"x" * 128, "x" * 128),
            (b"x" * 129, None),
            ("ä".encode(), None),
            (b"7f3e+/=:_-.", "7f3e+/=:_-."),
            (b"id-" + KEY.encode() + b"-id", "id-***-id"),
        ],
    )
    async def test_only_what_is_fit_to_be_kept_is_and_never_the_key(
        self, told: bytes, kept: str | None
    ) -> None:
        answer = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nX-Request-Id: " + told + b"\r\n\r\n"
        async with answering(answer) as url, opened(url) as gateway:
            assert await named(gateway, "https://ok.example/") == kept


async def named(gateway: ZenrowsGateway, url: str) -> object:
    """The gateway's id of a refused call, in the problem as in the value."""
    refusal = await gateway.fetch(asked(url), Spools())
    assert isinstance(refusal, GatewayRefusal), refusal
    told = msgspec.json.decode(refusal.problem, type=dict[str, object])
    assert told.get("gateway_request_id") == refusal.gateway_request_id
    return refusal.gateway_request_id
