"""The mock gateway over real sockets: what each kind of target answers, and what it counts."""

import asyncio
import gzip
import re
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest
import pytest_asyncio
import uvloop
from aiohttp import ClientPayloadError, ClientResponse, ClientSession, ServerDisconnectedError

from conveyor.mock_gateway.responses import ERRORS
from conveyor.mock_gateway.server import MockGateway, hashed_key, serve
from tests.harness.gateways import echo, exchange, until, wire_call


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[MockGateway]:
    async with MockGateway() as gateway:
        yield gateway


@pytest_asyncio.fixture
async def client(gateway: MockGateway) -> AsyncIterator[ClientSession]:
    async with ClientSession(base_url=gateway.url) as session:
        yield session


async def test_a_page_tells_what_was_received_but_never_the_key(client: ClientSession) -> None:
    target = "https://ok.example/a?b=c&d=</script>"
    async with client.post(
        "",
        params={"apikey": "secret-key", "url": target, "js_render": "true"},
        data=b"a=1",
        headers={"Content-Type": "text/x-own"},
    ) as answer:
        page = await answer.read()
    assert b"secret-key" not in page
    assert echo(page) == {
        "method": "POST",
        "url": target,
        "params": {"js_render": "true"},
        "headers": {},
        "content_type": "text/x-own",
        "request_id": None,
        "body": "a=1",
    }


async def test_custom_headers_are_told_when_they_are_asked_for(client: ClientSession) -> None:
    params = {"custom_headers": "true"}
    async with ask(client, "https://ok.example/", params, {"X-Colour": "blue"}) as answer:
        headers = echo(await answer.read())["headers"]
    assert isinstance(headers, dict)
    assert headers["X-Colour"] == "blue"
    assert "Host" not in headers


@pytest.mark.parametrize(("query", "size"), [("", 2048), ("?size=20480", 20480), ("?size=x", 2048)])
async def test_a_page_has_the_size_asked_for(client: ClientSession, query: str, size: int) -> None:
    async with ask(client, f"https://ok.example/{query}") as answer:
        assert answer.content_length == size
        assert len(await answer.read()) == size


async def test_a_page_is_never_smaller_than_what_it_has_to_tell(client: ClientSession) -> None:
    async with ask(client, "https://ok.example/?size=1") as answer:
        assert echo(await answer.read())["url"] == "https://ok.example/?size=1"


async def test_any_host_it_does_not_know_is_a_page_that_is_there(client: ClientSession) -> None:
    async with ask(client, "https://www.zenrows.com/") as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"autoparse": "true"}, "application/json"),
        ({"css_extractor": '{"a":"h1"}'}, "application/json"),
        ({"response_type": "markdown"}, "text/markdown"),
        ({"response_type": "pdf"}, "application/pdf"),
        ({}, "text/html"),
    ],
)
async def test_the_parameters_decide_the_type(
    client: ClientSession, params: dict[str, str], kind: str
) -> None:
    async with ask(client, "https://ok.example/", params) as answer:
        assert answer.content_type == kind


async def test_a_json_page_is_json_of_the_size_asked_for(client: ClientSession) -> None:
    async with ask(client, "https://ok.example/?size=5000", {"extract": "auto"}) as answer:
        body = await answer.read()
    assert len(body) == 5000
    assert msgspec.json.decode(body)["params"] == {"extract": "auto"}


@pytest.mark.parametrize(
    ("params", "credit", "cost"),
    [
        ({}, "1", "0.0001"),
        ({"js_render": "true"}, "5", "0.0005"),
        ({"premium_proxy": "true"}, "10", "0.0010"),
        ({"js_render": "true", "premium_proxy": "true"}, "25", "0.0025"),
    ],
)
async def test_success_costs_by_its_parameters(
    client: ClientSession, params: dict[str, str], credit: str, cost: str
) -> None:
    async with ask(client, "https://ok.example/", params) as answer:
        assert answer.headers["X-Request-Credits"] == credit
        assert answer.headers["X-Request-Cost"] == cost


async def test_answers_tell_about_the_account_and_the_request(client: ClientSession) -> None:
    async with ask(client, "https://ok.example/ü") as answer:
        headers = answer.headers
    assert headers["Concurrency-Limit"] == "1000"
    assert headers["Concurrency-Remaining"] == "999"
    assert headers["X-Request-Id"] == "mock-1"
    assert headers["Zr-Final-Url"] == "https://ok.example/%C3%BC"


@pytest.mark.parametrize("label", sorted(ERRORS))
async def test_faults_are_problems_at_no_cost(client: ClientSession, label: str) -> None:
    fault = ERRORS[label]
    async with ask(client, f"https://{label}.example/") as answer:
        problem = await answer.json(content_type="application/problem+json")
        assert answer.status == problem["status"] == fault.status
        assert answer.headers["X-Request-Credits"] == "0"
        assert float(answer.headers["X-Request-Cost"]) == 0
    assert problem["code"] == fault.code
    assert problem["type"].endswith("docs.zenrows.com/api-error-codes#" + fault.code)


async def test_a_flaky_page_comes_after_its_failures(client: ClientSession) -> None:
    assert await statuses(client, "https://flaky.example/?fails=2", 4) == [422, 422, 200, 200]
    assert await statuses(client, "https://flaky.example/other", 2) == [422, 200]
    assert await statuses(client, "https://flaky.example/?status=502", 2) == [502, 200]


async def test_a_premium_page_comes_by_a_premium_proxy_alone(client: ClientSession) -> None:
    asked: tuple[dict[str, str], ...]
    asked = ({}, {"js_render": "true"}, {"premium_proxy": "false"}, {"premium_proxy": "true"})
    told = []
    for params in asked:
        async with ask(client, "https://premium.example/a", params) as answer:
            told.append((answer.status, b'"RESP001"' in await answer.read()))
    assert told == [(422, True), (422, True), (422, True), (200, False)]


async def test_a_busy_gateway_says_when_to_come_back(client: ClientSession) -> None:
    async with ask(client, "https://busy.example/?after=7") as answer:
        assert answer.status == 429
        assert answer.headers["Retry-After"] == "7"
    assert await statuses(client, "https://busy.example/?after=7", 1) == [200]


async def test_a_key_past_its_concurrency_is_refused() -> None:
    async with MockGateway(concurrency=1) as gateway, ClientSession(gateway.url) as client:
        hanging = asyncio.ensure_future(reading(client, "https://hang.example/"))
        await until(lambda: gateway.in_flight == 1)
        assert await statuses(client, "https://ok.example/", 1) == [429]
        hanging.cancel()
        await until(lambda: gateway.in_flight == 0)
        assert await statuses(client, "https://ok.example/", 1) == [200]


@pytest.mark.parametrize("query", ["url=https%3A%2F%2Fok.example", "apikey=&url=x"])
async def test_no_key_is_unauthorised(
    client: ClientSession, gateway: MockGateway, query: str
) -> None:
    async with client.get(f"?{query}") as answer:
        assert answer.status == 401
        assert (await answer.json(content_type=None))["code"] == "AUTH001"


async def test_no_target_is_a_bad_request(client: ClientSession) -> None:
    async with client.get("?apikey=k") as answer:
        assert answer.status == 400


async def test_a_big_page_is_streamed_without_holding_it(client: ClientSession) -> None:
    tracemalloc.start()
    async with ask(client, "https://big.example/?size=60000000") as answer:
        assert answer.content_length is None
        size = sum([len(chunk) async for chunk in answer.content.iter_any()])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == 60_000_000
    assert peak < 6_000_000


@pytest.mark.parametrize("size", [3000, 300_000])
async def test_a_compressed_page_unpacks_to_its_size(gateway: MockGateway, size: int) -> None:
    async with (
        ClientSession(gateway.url, auto_decompress=False) as client,
        ask(client, f"https://gzip.example/?size={size}") as answer,
    ):
        assert answer.headers["Content-Encoding"] == "gzip"
        body = await answer.read()
    assert len(body) < size
    assert len(gzip.decompress(body)) == size


async def test_a_slow_page_takes_its_time(client: ClientSession) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await statuses(client, "https://slow.example/?ms=60", 1) == [200]
    assert loop.time() - began >= 0.055


async def test_a_dripping_page_comes_byte_by_byte(client: ClientSession) -> None:
    async with ask(client, "https://drip.example/?ms=1&size=1") as answer:
        first = await answer.content.readany()
        assert len(first) < 50
        rest = await answer.content.read()
    assert len(first + rest) == answer.content_length


async def test_a_dropped_call_gets_no_answer(client: ClientSession) -> None:
    with pytest.raises(ServerDisconnectedError):
        await reading(client, "https://dropped.example/")


@pytest.mark.parametrize("query", ["", "?chunked=1"])
async def test_a_cut_page_ends_too_soon(client: ClientSession, query: str) -> None:
    async with ask(client, f"https://cut.example/{query}") as answer:
        assert answer.status == 200
        with pytest.raises(ClientPayloadError):
            await answer.read()


async def test_a_truncated_page_is_whole_but_for_its_gzip(gateway: MockGateway) -> None:
    async with (
        ClientSession(gateway.url, auto_decompress=False) as client,
        ask(client, "https://truncated.example/") as answer,
    ):
        body = await answer.read()
        assert len(body) == answer.content_length
    with pytest.raises(EOFError):
        gzip.decompress(body)


@pytest.mark.parametrize(("query", "named"), [("", "foo"), ("?as=br", "br")])
async def test_an_encoded_page_is_what_it_says_by_name_only(
    gateway: MockGateway, query: str, named: str
) -> None:
    raw = await exchange(gateway, wire_call(f"https://encoded.example/{query}"), answers=1)
    assert f"Content-Encoding: {named}\r\n".encode() in raw


@pytest.mark.parametrize("query", ["", "?chunked=1"])
async def test_a_stuck_page_is_in_flight_until_the_caller_leaves(
    client: ClientSession, gateway: MockGateway, query: str
) -> None:
    async with ask(client, f"https://stuck.example/{query}") as answer:
        assert await answer.content.readany()
        assert gateway.in_flight == 1
    await until(lambda: gateway.in_flight == 0)


async def test_rubbish_is_no_http(gateway: MockGateway) -> None:
    raw = await exchange(gateway, wire_call("https://rubbish.example/"))
    assert raw
    assert b"HTTP/" not in raw


async def test_a_hanging_call_is_in_flight_until_the_caller_leaves(
    client: ClientSession, gateway: MockGateway
) -> None:
    hanging = asyncio.ensure_future(reading(client, "https://hang.example/"))
    await until(lambda: gateway.in_flight == 1)
    hanging.cancel()
    await until(lambda: gateway.in_flight == 0)


async def test_a_hanging_call_ends_when_the_server_closes() -> None:
    async with MockGateway() as gateway:
        client = ClientSession(gateway.url)
        hanging = asyncio.ensure_future(reading(client, "https://hang.example/"))
        await until(lambda: gateway.in_flight == 1)
    with pytest.raises(OSError, match=r"Disconnected|reset|refused|connect"):
        await asyncio.wait_for(hanging, 60)
    await client.close()
    assert gateway.connections == 0


async def test_pipelined_requests_are_answered_in_order(gateway: MockGateway) -> None:
    targets = ["https://slow.example/?ms=30", "https://ok.example/2", "https://permanent.example/"]
    raw = await exchange(gateway, b"".join(map(wire_call, targets)), answers=3)
    assert re.findall(rb"HTTP/1.1 (\d+)", raw) == [b"200", b"200", b"404"]
    assert re.findall(rb"Zr-Final-Url: (\S+)", raw) == [target.encode() for target in targets]


async def test_a_connection_that_speaks_no_http_is_closed(gateway: MockGateway) -> None:
    assert b" 400 " in await exchange(gateway, b"\x00\x01\x02 nonsense\r\n\r\n")


async def test_a_caller_that_asks_for_it_gets_its_connection_closed(gateway: MockGateway) -> None:
    call = wire_call("https://ok.example/", b"Connection: close\r\n")
    assert (await exchange(gateway, call)).startswith(b"HTTP/1.1 200")


async def test_calls_are_counted_by_url_and_by_hashed_key(
    client: ClientSession, gateway: MockGateway
) -> None:
    await statuses(client, "https://ok.example/1", 2)
    await statuses(client, "https://permanent.example/", 1)
    async with client.get("/_mock/stats") as answer:
        stats = await answer.json()
    assert stats == {**gateway.stats(), "connections": stats["connections"]}
    assert stats["calls"] == gateway.calls == 3
    assert stats["urls"] == {"https://ok.example/1": 2, "https://permanent.example/": 1}
    assert (stats["distinct_urls"], stats["repeated_urls"]) == (2, 1)
    assert stats["keys"] == {hashed_key("k"): 3}
    assert stats["in_flight"] == 0
    assert gateway.urls["https://ok.example/1"] == 2


async def test_calls_at_once_are_counted(client: ClientSession, gateway: MockGateway) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(reading(client, f"https://slow.example/{number}?ms=300"))
    assert gateway.most_in_flight == 5
    assert gateway.in_flight == 0


async def test_a_reset_forgets_what_was_counted(
    client: ClientSession, gateway: MockGateway
) -> None:
    await statuses(client, "https://flaky.example/", 1)
    async with client.post("/_mock/reset") as answer:
        assert answer.status == 200
    assert (gateway.calls, gateway.most_in_flight, dict(gateway.urls)) == (0, 0, {})
    assert await statuses(client, "https://flaky.example/", 2) == [422, 200]


async def test_other_paths_about_itself_are_not_there(client: ClientSession) -> None:
    async with client.get("/_mock/reset") as answer:
        assert answer.status == 404


async def test_it_is_served_until_cancelled() -> None:
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(serve("127.0.0.1", 0, told.set_result))
    async with ClientSession(await told) as client:
        assert await statuses(client, "https://ok.example/", 1) == [200]
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


def test_it_runs_on_uvloop_too() -> None:
    async def scenario() -> list[int]:
        async with MockGateway() as gateway, ClientSession(gateway.url) as client:
            return await statuses(client, "https://flaky.example/", 2)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(scenario()) == [422, 200]


def ask(
    client: ClientSession,
    target: str,
    params: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> AbstractAsyncContextManager[ClientResponse]:
    return client.get("", params={"apikey": "k", "url": target, **(params or {})}, headers=headers)


async def reading(client: ClientSession, target: str) -> ClientResponse:
    async with ask(client, target) as answer:
        await answer.read()
        return answer


async def statuses(client: ClientSession, target: str, times: int) -> list[int]:
    return [(await reading(client, target)).status for _ in range(times)]
