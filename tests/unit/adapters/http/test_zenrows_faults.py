"""The ZenRows adapter when things go wrong: refusals, faults, cancelling, and the key."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from urllib.parse import quote

import msgspec
import pytest
import pytest_asyncio

from conveyor.adapters.http.zenrows import ZenrowsGateway
from conveyor.domain.counts import NOTHING, Spend
from conveyor.domain.page_facts import PageFacts
from conveyor.mock_gateway.server import MockGateway
from conveyor.ports.gateway import Gateway, GatewayRefusal, Page, PageRequest
from tests.harness.gateways import (
    KEY,
    MIB,
    UNREACHABLE,
    MemorySpool,
    Spools,
    answering,
    asked,
    bounded_memory,
    content,
    fetched,
    opened,
    refused,
    until,
)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PAGE_OF_ERRORS = "https://docs.zenrows.com/api-error-codes#X"


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


class TestRefusals:
    @pytest.mark.parametrize(
        ("label", "status", "code"),
        [
            ("flaky", 422, "RESP001"),
            ("permanent", 404, "RESP002"),
            ("blocked", 403, "REQS001"),
            ("busy", 429, "AUTH006"),
            ("nocredits", 402, "AUTH004"),
            ("badkey", 401, "AUTH002"),
            ("capped", 402, "api_key_cap_reached"),
            ("unparsed", 502, "RESP003"),
        ],
    )
    async def test_the_gateways_problem_is_told_whole(
        self, gateway: Gateway, label: str, status: int, code: str
    ) -> None:
        refusal = await fetched(gateway, f"https://{label}.example/")
        told = refused(refusal, code, status)
        assert told["type"] == f"https://docs.zenrows.com/api-error-codes#{code}"
        assert told["instance"] == "/v1"
        assert refusal.spend == NOTHING

    async def test_what_failed_before_can_be_had_on_a_later_try(self, gateway: Gateway) -> None:
        target = "https://flaky.example/?fails=2"
        tries = [await fetched(gateway, target) for _ in range(3)]
        assert [type(one) for one in tries] == [GatewayRefusal, GatewayRefusal, Page]

    @pytest.mark.parametrize(
        ("said", "wait"),
        [
            ("7", timedelta(seconds=7)),
            ("-1", timedelta(0)),
            ("1000000000", timedelta(hours=1)),
            ("soon", None),
        ],
    )
    async def test_a_wait_asked_for_is_told(
        self, gateway: Gateway, said: str, wait: timedelta | None
    ) -> None:
        refusal = await fetched(gateway, f"https://busy.example/?after={said}")
        assert isinstance(refusal, GatewayRefusal)
        assert refusal.retry_after == wait

    @pytest.mark.parametrize("code", [302, 400, 418, 503])
    async def test_an_answer_without_a_problem_gets_one(self, gateway: Gateway, code: int) -> None:
        refusal = await fetched(gateway, f"https://status.example/?code={code}")
        told = refused(refusal, f"http_{code}", code)
        assert str(told["detail"]).endswith(": Mock page")
        assert len(str(told["detail"])) < 300

    async def test_a_redirect_is_not_followed(self, gateway: Gateway, mock: MockGateway) -> None:
        params = {"original_status": "true", "allowed_status_codes": "302"}
        target = "https://status.example/?code=302"
        refused(await fetched(gateway, target, params=params), "http_302", 302)
        assert mock.calls == 1

    @pytest.mark.parametrize(
        "params", [{"original_status": "true"}, {"allowed_status_codes": "403, 404"}]
    )
    async def test_pages_of_a_status_the_caller_takes_are_content(
        self, gateway: Gateway, spools: Spools, params: dict[str, str]
    ) -> None:
        page = await content(gateway, "https://status.example/?code=404", params)
        assert isinstance(page.content, bytes)
        assert len(page.content) == 2048
        target = "https://status.example/?code=404&size=300000"
        assert isinstance(await fetched(gateway, target, spools, params), Page)
        assert spools.given[0].length == 300_000

    @pytest.mark.parametrize(
        "params", [{"original_status": "false"}, {"allowed_status_codes": "403,4040"}]
    )
    async def test_pages_of_another_status_are_not(
        self, gateway: Gateway, params: dict[str, str]
    ) -> None:
        target = "https://status.example/?code=404"
        refused(await fetched(gateway, target, params=params), "http_404", 404)

    async def test_the_gateways_own_problem_is_never_content(self, gateway: Gateway) -> None:
        params = {"original_status": "true"}
        answer = await fetched(gateway, "https://permanent.example/", params=params)
        refused(answer, "RESP002", 404)

    @pytest.mark.parametrize("params", [{}, {"original_status": "true"}])
    @pytest.mark.parametrize(("label", "status"), [("permanent", 404), ("captcha", None)])
    async def test_the_status_of_a_refusal_is_the_targets_only_if_its_code_says_so(
        self, gateway: Gateway, params: dict[str, str], label: str, status: int | None
    ) -> None:
        answer = await fetched(gateway, f"https://{label}.example/", params=params)
        assert answer.facts == PageFacts(http_status=status)

    async def test_only_the_beginning_of_a_long_refusal_is_read(self, gateway: Gateway) -> None:
        with bounded_memory(3 * MIB):
            answer = await fetched(gateway, "https://status.example/?code=500&size=60000000")
        refused(answer, "http_500", 500)


class TestMishaps:
    async def test_no_connection_is_unreachable(self, mock: MockGateway) -> None:
        async with MockGateway() as gone:
            url = gone.url
        async with opened(url) as gateway:
            told = refused(await fetched(gateway, "https://ok.example/"), UNREACHABLE, 502)
        assert "refused" in str(told["detail"])

    async def test_a_host_without_an_address_is_unreachable(self) -> None:
        async with opened("http://gateway.invalid/v1/") as gateway:
            refused(await fetched(gateway, "https://ok.example/"), UNREACHABLE, 502)

    @pytest.mark.parametrize("label", ["dropped", "rubbish"])
    async def test_no_answer_is_unreachable_and_is_asked_for_once(
        self, gateway: Gateway, mock: MockGateway, label: str
    ) -> None:
        await fetched(gateway, "https://ok.example/")
        target = f"https://{label}.example/"
        refused(await fetched(gateway, target), UNREACHABLE, 502)
        assert mock.urls[target] == 1
        refused(await fetched(gateway, target), UNREACHABLE, 502)
        assert mock.urls[target] == 2

    @pytest.mark.parametrize("query", ["", "?chunked=1", "?size=300000", "?size=600000&chunked=1"])
    async def test_an_answer_cut_short_is_garbled(
        self, gateway: Gateway, spools: Spools, query: str
    ) -> None:
        refusal = await fetched(gateway, f"https://cut.example/{query}", spools)
        refused(refusal, "gateway_garbled", 502)
        assert refusal.spend == Spend(1, 100_000)
        assert all(spool.discarded for spool in spools.given)

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (CHUNKED + b"2\r\nok\r\n", "gateway_garbled"),
            (CHUNKED + b"zz\r\n", "gateway_garbled"),
            (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nno gzip", "gateway_garbled"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "gateway_unreachable"),
            (b"HTTP/1.1 200 OK\r\nContent-Le", "gateway_unreachable"),
            (b"HTTP/1.1 abc\r\n\r\n", "gateway_unreachable"),
        ],
    )
    async def test_answers_that_cannot_be_read_are_values_too(
        self, answer: bytes, code: str
    ) -> None:
        async with answering(answer) as url, opened(url) as gateway:
            refused(await fetched(gateway, "https://ok.example/"), code, 502)

    async def test_chunks_that_break_off_midway_are_garbled(self) -> None:
        broken = CHUNKED + b"30000\r\n" + b"x" * 0x30000 + b"\r\nzz\r\n"
        async with answering(broken) as url, opened(url) as gateway:
            refused(await fetched(gateway, "https://ok.example/"), "gateway_garbled", 502)

    @pytest.mark.parametrize(
        "target",
        [
            "truncated.example/",
            "truncated.example/?size=3000000",
            "encoded.example/",
            "encoded.example/?as=gzip",
            "encoded.example/?as=deflate",
            "encoded.example/?as=gzip,gzip",
        ],
    )
    async def test_a_page_that_cannot_be_unpacked_to_its_end_is_garbled(
        self, gateway: Gateway, mock: MockGateway, spools: Spools, target: str
    ) -> None:
        refusal = await fetched(gateway, f"https://{target}", spools)
        refused(refusal, "gateway_garbled", 502)
        assert refusal.spend == Spend(1, 100_000)
        assert all(spool.discarded for spool in spools.given)
        await until(lambda: mock.in_flight == 0)

    @pytest.mark.parametrize("query", ["", "?size=300000", "?chunked=1"])
    async def test_an_answer_that_falls_silent_midway_is_a_timeout(
        self, mock: MockGateway, spools: Spools, query: str
    ) -> None:
        async with opened(mock.url, silence=timedelta(milliseconds=150)) as gateway:
            refusal = await fetched(gateway, f"https://stuck.example/{query}", spools)
            told = refused(refusal, "gateway_timeout", 504)
            assert "0.15 seconds" in str(told["detail"])
            assert refusal.spend == Spend(1, 100_000)
            assert all(spool.discarded for spool in spools.given)
            await until(lambda: mock.in_flight == 0)
            assert isinstance(await fetched(gateway, "https://ok.example/"), Page)

    @pytest.mark.parametrize("target", ["slow.example/?ms=300", "drip.example/?ms=1&size=1"])
    async def test_an_answer_may_take_its_time_to_begin_and_to_go_on(
        self, mock: MockGateway, target: str
    ) -> None:
        async with opened(mock.url, silence=timedelta(milliseconds=150)) as gateway:
            await content(gateway, f"https://{target}")

    @pytest.mark.parametrize(
        "request_",
        [
            PageRequest(url="https://ok.example/", gateway_key=KEY, headers={"X-A": "1\r\nX-B: 2"}),
            PageRequest(url="https://ok.example/\ud800", gateway_key=KEY),
            PageRequest(url="https://ok.example/", gateway_key=KEY, method="G T"),
            PageRequest(url="https://ok.example/", gateway_key=KEY, method="POST", body='"cut'),
            PageRequest(url="https://ok.example/", gateway_key=KEY, method="POST", body="\ud800"),
        ],
    )
    async def test_a_request_that_cannot_be_sent_is_a_value_that_tells_no_secret(
        self, gateway: Gateway, mock: MockGateway, request_: PageRequest
    ) -> None:
        refusal = await gateway.fetch(request_, Spools())
        refused(refusal, "request_unsendable", 400)
        assert isinstance(refusal, GatewayRefusal)
        assert "s3cret" not in refusal.problem
        assert "ok.example" not in refusal.problem
        assert mock.calls == 0
        assert isinstance(await fetched(gateway, "https://ok.example/"), Page)

    async def test_long_headers_of_targets_are_taken(self) -> None:
        answer = b"HTTP/1.1 200 OK\r\nZ-Policy: %b\r\nContent-Length: 2\r\n\r\nok" % (b"x" * 30_000)
        async with answering(answer) as url, opened(url) as gateway:
            page = await content(gateway, "https://ok.example/")
        assert page.content == b"ok"
        assert page.spend == NOTHING

    @pytest.mark.parametrize("target", ["hang.example/", "drip.example/?ms=50", "slow.example/"])
    async def test_an_answer_past_the_deadline_is_a_timeout(
        self, mock: MockGateway, target: str
    ) -> None:
        loop = asyncio.get_running_loop()
        async with opened(mock.url, deadline=timedelta(milliseconds=120)) as gateway:
            began = loop.time()
            refused(await fetched(gateway, f"https://{target}"), "gateway_timeout", 504)
            assert 0.1 < loop.time() - began < 2
            await until(lambda: mock.in_flight == 0)

    async def test_a_timeout_of_the_spool_is_not_the_gateways(self, gateway: Gateway) -> None:
        class LateSpool(MemorySpool):
            async def write(self, chunk: bytes) -> None:
                raise TimeoutError

        with pytest.raises(TimeoutError):
            await gateway.fetch(asked("https://big.example/"), LateSpool)

    async def test_a_page_that_finds_no_room_is_told_with_what_it_cost(
        self, gateway: Gateway, mock: MockGateway
    ) -> None:
        spools = Spools(fails_after=MIB)
        answer = await fetched(gateway, "https://big.example/", spools)
        assert isinstance(answer, GatewayRefusal)
        assert (answer.code, answer.storage_full) == ("storage_full", True)
        assert answer.spend == Spend(credits=1, nanos=100_000)
        assert spools.given[0].discarded
        await until(lambda: mock.in_flight == 0)


class TestCancelling:
    @pytest.mark.parametrize("target", ["hang.example/", "drip.example/", "slow.example/?ms=9000"])
    async def test_a_cancelled_call_frees_its_connection(
        self, gateway: Gateway, mock: MockGateway, target: str
    ) -> None:
        call = asyncio.ensure_future(fetched(gateway, f"https://{target}"))
        await until(lambda: mock.in_flight == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: mock.in_flight == 0)
        assert isinstance(await fetched(gateway, "https://ok.example/"), Page)

    async def test_a_cancelled_call_discards_its_spool(
        self, gateway: Gateway, mock: MockGateway
    ) -> None:
        class StuckSpool(MemorySpool):
            async def write(self, chunk: bytes) -> None:
                stuck.set()
                await asyncio.Event().wait()

        stuck, spool = asyncio.Event(), StuckSpool()
        call = asyncio.ensure_future(gateway.fetch(asked("https://big.example/"), lambda: spool))
        await asyncio.wait_for(stuck.wait(), 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert spool.discarded
        await until(lambda: mock.in_flight == 0)

    async def test_cancelled_calls_leave_room_for_others(self, mock: MockGateway) -> None:
        async with opened(mock.url) as gateway:
            calls = [
                asyncio.ensure_future(fetched(gateway, f"https://hang.example/{number}"))
                for number in range(10)
            ]
            await until(lambda: mock.in_flight == 10)
            for call in calls:
                call.cancel()
            assert isinstance(await fetched(gateway, "https://ok.example/"), Page)


class TestTheKey:
    async def test_a_gateway_that_repeats_the_key_is_not_repeated(self, gateway: Gateway) -> None:
        answer = await fetched(gateway, "https://leaky.example/")
        told = refused(answer, "RESP001", 422)
        assert told["detail"] == "asked with apikey=*** (***)"
        assert answer.facts == PageFacts(final_url="https://leaky.example/?apikey=***")

    @pytest.mark.parametrize("place", ["text", "nested", "code"])
    async def test_the_key_is_in_no_problem_however_it_is_repeated(self, place: str) -> None:
        body = {
            "text": f"an error page for {KEY} ".encode() * 20,
            "nested": msgspec.json.encode({"code": "RESP001", "more": [{KEY: [quote(KEY, "")]}]}),
            "code": msgspec.json.encode({"code": KEY, "type": PAGE_OF_ERRORS}),
        }[place]
        head = b"HTTP/1.1 500 Oops\r\nContent-Length: %d\r\n\r\n" % len(body)
        async with answering(head + body) as url, opened(url) as gateway:
            refusal = await fetched(gateway, "https://ok.example/")
        assert isinstance(refusal, GatewayRefusal)
        assert "***" in refusal.problem
        assert "s3cret" not in refusal.problem + refusal.code

    @pytest.mark.parametrize("label", ["dropped", "rubbish", "cut", "hang", "big", "permanent"])
    async def test_no_fault_tells_the_key(self, mock: MockGateway, label: str) -> None:
        short = timedelta(milliseconds=300)
        async with opened(mock.url, deadline=short, largest_body=MIB) as gateway:
            refusal = await fetched(gateway, f"https://{label}.example/")
            await until(lambda: mock.in_flight == 0)
        assert isinstance(refusal, GatewayRefusal)
        assert "s3cret" not in refusal.problem
        assert "apikey" not in refusal.problem

    async def test_a_problem_nested_beyond_reason_is_still_a_value(self) -> None:
        deep = b'{"code":"RESP001","more":%b1%b}' % (b'{"a":' * 800, b"}" * 800)
        deeper = b"[" * 60_000
        for body, code in ((deep, "RESP001"), (deeper, "http_500")):
            head = b"HTTP/1.1 500 Oops\r\nContent-Length: %d\r\n\r\n" % len(body)
            async with answering(head + body) as url, opened(url) as gateway:
                refused(await fetched(gateway, "https://ok.example/"), code, 500)
