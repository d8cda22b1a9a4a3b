"""The ZenRows adapter against the mock gateway, over real HTTP: requests, pages and caps."""

import asyncio
import gzip
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import pytest_asyncio

from conveyor.adapters.http.zenrows import ZenrowsGateway
from conveyor.domain.counts import Spend
from conveyor.domain.page_facts import NO_FACTS, PageFacts
from conveyor.domain.params import canonical
from conveyor.mock_gateway.server import MockGateway, hashed_key
from conveyor.ports.gateway import Gateway, Page, PageRequest
from tests.harness.gateways import (
    KEY,
    MIB,
    Spools,
    answering,
    bounded_memory,
    content,
    echo,
    fetched,
    opened,
    refused,
    until,
)


@pytest_asyncio.fixture
async def mock() -> AsyncIterator[MockGateway]:
    async with MockGateway() as mock:
        yield mock
        assert mock.in_flight == 0, "a call was left hanging"


@pytest_asyncio.fixture
async def gateway(mock: MockGateway) -> AsyncIterator[ZenrowsGateway]:
    async with opened(mock.url) as gateway:
        yield gateway


@pytest.fixture
def spools() -> Spools:
    return Spools()


class TestAsking:
    async def test_the_target_the_key_and_the_parameters_are_sent(
        self, gateway: Gateway, mock: MockGateway
    ) -> None:
        target = "https://ok.example/ä path/?q=a b&c=%20+#top"
        params = {"css_extractor": '{"a": "h1 & +"}', "js_render": "true", "wait": "10"}
        assert await echoed(gateway, url=target, params=params) == {
            "method": "GET",
            "url": target,
            "params": params,
            "headers": {},
            "content_type": None,
            "request_id": None,
            "body": "",
        }
        assert set(mock.keys) == {hashed_key(KEY)}

    async def test_a_gateway_address_with_a_query_of_its_own_is_kept(
        self, mock: MockGateway
    ) -> None:
        async with opened(mock.url + "?wait=7") as gateway:
            assert (await echoed(gateway))["params"] == {"wait": "7"}

    async def test_stored_custom_headers_travel_as_headers(self, gateway: Gateway) -> None:
        params = canonical({"custom_headers": {"X-Colour": "blue", "Cookie": "a=1; b=ü"}})
        seen = await echoed(gateway, params=params)
        assert seen["params"] == {"custom_headers": "true"}
        assert seen["headers"] == {"X-Colour": "blue", "Cookie": "a=1; b=ü"}

    async def test_headers_of_the_request_win_over_stored_ones(self, gateway: Gateway) -> None:
        params = canonical({"custom_headers": {"X-A": "stored", "X-B": "stored"}})
        seen = await echoed(gateway, params=params, headers={"x-a": "given"})
        assert seen["headers"] == {"x-a": "given", "X-B": "stored"}

    async def test_headers_of_the_connection_are_not_the_callers_to_set(
        self, gateway: Gateway
    ) -> None:
        owned = ["Host", "content-length", "Connection", "Transfer-Encoding", "TE", "Expect"]
        headers = dict.fromkeys([*owned, "Accept-Encoding", "Upgrade"], "7")
        seen = await echoed(gateway, headers={**headers, "X-Mine": "1"})
        assert seen["headers"] == {"X-Mine": "1"}

    async def test_no_header_is_asked_for_when_none_is_left(self, gateway: Gateway) -> None:
        assert (await echoed(gateway, headers={"Host": "elsewhere"}))["params"] == {}

    @pytest.mark.parametrize(
        ("body", "sent", "kind"),
        [
            ('{"a": [1, "ü"]}', '{"a": [1, "ü"]}', "application/json"),
            ("[1,2]", "[1,2]", "application/json"),
            ("17.5", "17.5", "application/json"),
            ("true", "true", "application/json"),
            ('"a=1&b=\\u00fc"', "a=1&b=ü", "application/x-www-form-urlencoded"),
            (' "a=1"', "a=1", "application/x-www-form-urlencoded"),
            (None, "", None),
        ],
    )
    async def test_a_body_is_posted_as_what_it_is(
        self, gateway: Gateway, body: str | None, sent: str, kind: str | None
    ) -> None:
        seen = await echoed(gateway, method="POST", body=body)
        assert (seen["method"], seen["body"], seen["content_type"]) == ("POST", sent, kind)

    async def test_the_callers_content_type_wins(self, gateway: Gateway) -> None:
        params = canonical({"custom_headers": {"content-type": "text/x-own"}})
        seen = await echoed(gateway, method="POST", body='{"a":1}', params=params)
        assert (seen["body"], seen["content_type"]) == ('{"a":1}', "text/x-own")

    async def test_only_encodings_that_can_be_unpacked_are_asked_for(self) -> None:
        async with hearing() as (url, heard), opened(url) as gateway:
            await fetched(gateway, "https://ok.example/")
        assert b"\r\nAccept-Encoding: gzip, deflate\r\n" in heard[0]

    async def test_a_name_and_password_in_the_gateways_address_travel_as_a_header(self) -> None:
        async with hearing() as (url, heard), opened(url.replace("//", "//me:p%40ss@")) as gateway:
            await fetched(gateway, "https://ok.example/")
        assert b"\r\nAuthorization: Basic %b\r\n" % b64encode(b"me:p@ss") in heard[0]
        assert b"me:p" not in heard[0]

    @pytest.mark.parametrize("name", ["Authorization", "authorization"])
    async def test_the_callers_authorization_wins(self, mock: MockGateway, name: str) -> None:
        async with opened(mock.url.replace("//", "//me:pass@")) as gateway:
            seen = await echoed(gateway, headers={name: "Bearer mine"})
        assert seen["headers"] == {name: "Bearer mine"}

    async def test_connections_are_kept_and_used_again(
        self, gateway: Gateway, mock: MockGateway
    ) -> None:
        for label in ("ok", "permanent", "gzip", "ok"):
            await fetched(gateway, f"https://{label}.example/")
        assert mock.connections == 1

    async def test_no_more_connections_are_made_than_allowed(self, mock: MockGateway) -> None:
        async with opened(mock.url) as gateway, asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(fetched(gateway, f"https://slow.example/{number}?ms=100"))
        assert mock.calls == 30
        assert mock.most_in_flight == 10


class TestPages:
    async def test_a_page_is_its_bytes_and_its_cost(self, gateway: Gateway) -> None:
        page = await content(gateway, "https://ok.example/?size=5000")
        assert isinstance(page.content, bytes)
        assert len(page.content) == 5000
        assert page.spend == Spend(1, 100_000)

    async def test_a_page_says_where_redirects_led(self, gateway: Gateway) -> None:
        page = await content(gateway, "https://ok.example/?final=https://b.example/c")
        assert page.facts == PageFacts(final_url="https://b.example/c")
        assert (await content(gateway, "https://ok.example/")).facts == NO_FACTS

    @pytest.mark.parametrize("code", [200, 203, 404, 503])
    async def test_the_status_of_the_target_is_known_if_the_gateway_was_asked_for_it(
        self, gateway: Gateway, code: int
    ) -> None:
        target = f"https://status.example/?code={code}"
        page = await content(gateway, target, {"original_status": "true"})
        assert page.facts == PageFacts(http_status=code)

    async def test_rendering_costs_what_the_answer_says(self, gateway: Gateway) -> None:
        page = await content(gateway, "https://ok.example/", {"js_render": "true"})
        assert page.spend == Spend(5, 500_000)

    async def test_a_compressed_page_is_unpacked(self, gateway: Gateway) -> None:
        page = await content(gateway, "https://gzip.example/?size=5000")
        assert isinstance(page.content, bytes)
        assert len(page.content) == 5000

    @pytest.mark.parametrize(
        ("encoding", "body"),
        [
            (b"gzip", gzip.compress(b"a page", mtime=0)),
            (
                b"X-GZIP",
                gzip.compress(b"a ", mtime=0) + gzip.compress(b"page", mtime=0) + b"\0garbage",
            ),
            (b"deflate", zlib.compress(b"a page")),
            (b"deflate", zlib.compress(b"a page")[2:-4]),
            (b"identity", b"a page"),
            (b"", b"a page"),
        ],
    )
    async def test_a_page_is_unpacked_from_what_it_is_encoded_in(
        self, encoding: bytes, body: bytes
    ) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n"
        answer = head % (encoding, len(body)) + body
        async with answering(answer) as url, opened(url) as gateway:
            page = await content(gateway, "https://ok.example/")
        assert page.content == b"a page"

    async def test_an_empty_page_is_empty_whatever_it_is_encoded_in(self) -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n"
        async with answering(answer) as url, opened(url) as gateway:
            assert (await content(gateway, "https://ok.example/")).content == b""

    @pytest.mark.parametrize("label", ["ok", "big", "gzip"])
    async def test_a_page_of_256_kib_stays_in_memory_and_one_byte_more_does_not(
        self, gateway: Gateway, spools: Spools, label: str
    ) -> None:
        small = await fetched(gateway, f"https://{label}.example/?size=262144", spools)
        assert isinstance(small, Page)
        assert isinstance(small.content, bytes)
        large = await fetched(gateway, f"https://{label}.example/?size=262145", spools)
        assert isinstance(large, Page)
        assert [large.content] == spools.given
        assert spools.given[0].length == 262_145
        assert not spools.given[0].discarded

    @pytest.mark.parametrize("label", ["ok", "big", "gzip"])
    async def test_memory_does_not_grow_with_the_page(
        self, gateway: Gateway, spools: Spools, label: str
    ) -> None:
        with bounded_memory(4 * MIB):
            page = await fetched(gateway, f"https://{label}.example/?size=40000000", spools)
        assert isinstance(page, Page)
        assert spools.given[0].length == 40_000_000

    async def test_a_dripping_page_arrives_whole(self, gateway: Gateway) -> None:
        page = await content(gateway, "https://drip.example/?ms=1&size=1")
        assert isinstance(page.content, bytes)
        assert page.content.endswith(b"</html>\n")


class TestCaps:
    @pytest.mark.parametrize("label", ["ok", "big", "gzip", "bomb"])
    async def test_a_page_over_the_cap_is_refused_in_bounded_memory(
        self, mock: MockGateway, spools: Spools, label: str
    ) -> None:
        async with opened(mock.url, largest_body=2 * MIB) as gateway:
            with bounded_memory(5 * MIB):
                refusal = await fetched(gateway, f"https://{label}.example/?size=60000000", spools)
            told = refused(refusal, "body_too_large", 413)
            assert refusal.spend == Spend(1, 100_000)
            assert str(2 * MIB) in str(told["detail"])
            assert all(spool.discarded for spool in spools.given)
            assert bool(spools.given) is (label != "ok"), "a length told beforehand is enough"
            kept = 1 if label == "bomb" else 0  # a bomb has come whole before it is seen through
            await until(lambda: (mock.in_flight, mock.connections) == (0, kept))
            assert isinstance(await fetched(gateway, "https://ok.example/"), Page)

    @pytest.mark.parametrize("label", ["ok", "big", "gzip"])
    async def test_a_page_of_just_the_cap_is_taken(self, mock: MockGateway, label: str) -> None:
        async with opened(mock.url, largest_body=1000) as gateway:
            taken = await fetched(gateway, f"https://{label}.example/?size=1000")
            over = await fetched(gateway, f"https://{label}.example/?size=1001")
        assert isinstance(taken, Page)
        refused(over, "body_too_large", 413)

    async def test_a_page_that_unpacks_to_nothing_is_no_way_round_the_cap(self) -> None:
        body = b"\x1f\x8b\x08\x08\0\0\0\0\0\0" + b"a name without end" * 20_000
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
        async with answering(head + body) as url, opened(url, largest_body=1000) as gateway:
            refused(await fetched(gateway, "https://ok.example/"), "body_too_large", 413)


@asynccontextmanager
async def hearing() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that keeps the heads of requests, and answers nothing."""
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/", heard


async def echoed(
    gateway: Gateway,
    *,
    url: str = "https://ok.example/",
    method: str = "GET",
    params: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    body: str | None = None,
) -> dict[str, object]:
    """What the gateway received."""
    request = PageRequest(
        url=url,
        gateway_key=KEY,
        method=method,
        params=params or {},
        headers=headers or {},
        body=body,
    )
    page = await gateway.fetch(request, Spools())
    assert isinstance(page, Page), page
    assert isinstance(page.content, bytes)
    if params and "css_extractor" in params:
        seen = msgspec.json.decode(page.content, type=dict[str, object])
        return {name: value for name, value in seen.items() if name != "filler"}
    return echo(page.content)
