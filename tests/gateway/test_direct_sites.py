"""What the direct gateway says to sites, where it follows them, and what it makes of their answers."""

import asyncio
from datetime import timedelta

import pytest

from conveyor.adapters.http.direct import MOST_REDIRECTS
from conveyor.adapters.http.direct_wire import LONGEST_LANDING
from conveyor.domain.page_facts import PageFacts
from conveyor.ports.gateway import GatewayRefusal, Page
from tests.gateway.site import Heard, fetched, page, said, site, to, visiting
from tests.gateway.stage import Line, inside, kept_by_server, playing
from tests.harness.gateways import KEY, opened_directly, refused, until

pytestmark = pytest.mark.usefixtures("transport")


class TestAsking:
    async def test_a_page_is_asked_for_plainly(self) -> None:
        async with site() as here, visiting(here, agent="MyBot/2.0 (+https://me.example)") as one:
            assert await page(one, here.url("/a%20b?c=%C3%BC#top"), call_id="secret") == b"ok"
        [heard] = here.heard
        assert (heard.method, heard.path, heard.body) == ("GET", "/a%20b?c=%C3%BC", b"")
        assert heard.headers == {
            "host": f"a.example:{here.port}",
            "accept-encoding": "gzip, deflate",
            "user-agent": "MyBot/2.0 (+https://me.example)",
            "accept": "*/*",
        }

    async def test_the_callers_headers_are_sent_and_his_key_is_not(self) -> None:
        headers = {"User-Agent": "Other", "Accept": "a/b", "X-A": "b", "Host": "c", "TE": "x"}
        async with site() as here, visiting(here) as gateway:
            await page(gateway, here.url(), headers=headers)
        [heard] = here.heard
        assert heard.headers == {
            "host": f"a.example:{here.port}",
            "accept-encoding": "gzip, deflate",
            "user-agent": "Other",
            "accept": "a/b",
            "x-a": "b",
        }
        assert KEY not in str(heard)

    @pytest.mark.parametrize(
        ("body", "sent", "kind"),
        [
            ('{"a":1}', b'{"a":1}', "application/json"),
            ('"a=1&b=2"', b"a=1&b=2", "application/x-www-form-urlencoded"),
            (None, b"", None),
        ],
    )
    async def test_a_body_is_posted(self, body: str | None, sent: bytes, kind: str | None) -> None:
        async with site() as here, visiting(here) as gateway:
            await page(gateway, here.url(), method="POST", body=body)
        [heard] = here.heard
        assert (heard.method, heard.body, heard.headers.get("content-type")) == ("POST", sent, kind)

    async def test_a_name_and_password_in_the_address_are_sent_as_such(self) -> None:
        async with site() as here, visiting(here) as gateway:
            await page(gateway, here.url(host="me:p%40ss@a.example"))
            await page(
                gateway, here.url(host="me:p%40ss@a.example"), headers={"Authorization": "mine"}
            )
        first, second = here.heard
        assert first.headers["authorization"] == "Basic bWU6cEBzcw=="
        assert second.headers["authorization"] == "mine"

    @pytest.mark.parametrize(
        "params",
        [{"js_render": "true"}, {"wait": "100"}, {"proxy_country": "us"}, {"mode": "auto"}],
    )
    async def test_what_it_cannot_do_is_refused_by_name(self, params: dict[str, str]) -> None:
        async with site() as here, visiting(here) as gateway:
            answer = await fetched(gateway, here.url(), params=params)
        told = refused(answer, "unsupported_parameter", 400)
        assert str(told["detail"]).startswith(f"{next(iter(params))}: ")
        assert here.heard == []

    async def test_what_is_left_off_is_no_wish(self) -> None:
        params = {"js_render": "false", "wait": "0", "css_extractor": "", "custom_headers": "{}"}
        async with site() as here, visiting(here) as gateway:
            assert await page(gateway, here.url(), params=params) == b"ok"

    @pytest.mark.parametrize("odd", [{"X\r\nY": "a"}, {"X": "a\r\nY: b"}, {"X": "\ud800"}])
    async def test_what_cannot_be_sent_is_refused(self, odd: dict[str, str]) -> None:
        async with site() as here, visiting(here) as gateway:
            answer = await fetched(gateway, here.url(), headers=odd)
        refused(answer, "request_unsendable", 400)
        assert here.heard == []


class TestAnswers:
    @pytest.mark.parametrize(
        ("status", "code"),
        [
            (400, "target_missing"),
            (401, "target_refused"),
            (402, "target_refused"),
            (403, "target_refused"),
            (404, "target_missing"),
            (407, "target_refused"),
            (408, "target_timeout"),
            (410, "target_missing"),
            (429, "target_throttled"),
            (451, "target_refused"),
            (500, "target_failed"),
            (503, "target_failed"),
            (504, "target_timeout"),
            (520, "target_failed"),
            (304, "target_missing"),
        ],
    )
    async def test_a_status_that_is_no_page_is_told_apart(self, status: int, code: str) -> None:
        async with site(lambda _: said(f"{status} X")) as here, visiting(here) as gateway:
            answer = await fetched(gateway, here.url())
        told = refused(answer, code, status)
        assert str(told["detail"]).startswith(f"The site answered {status} ")

    @pytest.mark.parametrize("status", [429, 503])
    async def test_a_site_may_say_when_to_come_back(self, status: int) -> None:
        busy = said(f"{status} X", "Retry-After: 7")
        async with site(lambda _: busy) as here, visiting(here) as gateway:
            answer = await fetched(gateway, here.url())
        refused(answer, "target_throttled", status)
        assert isinstance(answer, GatewayRefusal)
        assert answer.retry_after == timedelta(seconds=7)

    @pytest.mark.parametrize(
        "params", [{"original_status": "true"}, {"allowed_status_codes": "404,500"}]
    )
    async def test_a_caller_may_take_other_statuses_for_pages(self, params: dict[str, str]) -> None:
        gone = said("404 No", body=b"gone")
        async with site(lambda _: gone) as here, visiting(here) as gateway:
            assert await page(gateway, here.url(), params=params) == b"gone"

    @pytest.mark.parametrize("status", [203, 404])
    async def test_the_status_of_a_page_and_of_a_refusal_is_that_of_the_site(
        self, status: int
    ) -> None:
        async with site(lambda _: said(f"{status} X")) as here, visiting(here) as gateway:
            answer = await fetched(gateway, here.url("/#top", host="me:secret@a.example"))
        assert answer.facts == PageFacts(http_status=status)

    async def test_a_page_without_content_is_a_page(self) -> None:
        async with (
            site(lambda _: b"HTTP/1.1 204 No\r\n\r\n") as here,
            visiting(here) as gateway,
        ):
            assert await page(gateway, here.url()) == b""

    async def test_the_connection_of_a_refused_page_is_used_again(self) -> None:
        async def play(line: Line) -> None:
            while True:
                await line.request()
                await line.say(b"HTTP/1.1 404 No\r\nContent-Length: 9\r\n\r\n")
                await asyncio.sleep(0.02)  # what follows does not come along with the head
                await line.say(b"some more")

        async with playing(play) as stage, opened_directly(stage.url) as gateway:
            for _ in range(3):
                await fetched(gateway, stage.url)
            assert stage.opened == 1

    async def test_a_refused_page_that_does_not_end_is_left_soon(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("conveyor.adapters.http.direct.CLEARING", 0.05)
        endless = b"HTTP/1.1 404 No\r\nContent-Length: 9\r\n\r\nsome"
        async with site(lambda _: endless) as here, visiting(here) as gateway:
            refused(await fetched(gateway, here.url()), "target_missing", 404)
            await until(lambda: not inside(gateway)._open)


class TestFollowing:
    @pytest.mark.parametrize(
        ("place", "asked"),
        [
            ("/b?c", "a.example/b?c"),
            ("b", "a.example/x/b"),
            ("?c", "a.example/x/y?c"),
            ("../b", "a.example/b"),
            ("//b.example:{port}/b", "b.example/b"),
            ("http://B.EXAMPLE:{port}", "b.example/"),
            ("/ü b", "a.example/%C3%BC%20b"),
            ("/b#top", "a.example/b"),
        ],
    )
    async def test_a_redirect_is_read_as_browsers_do(self, place: str, asked: str) -> None:
        def answer(heard: Heard) -> bytes:
            return to(place.format(port=here.port)) if len(here.heard) == 1 else said("200 OK")

        async with site(answer) as here, visiting(here) as gateway:
            last = await fetched(gateway, here.url("/x/y"))
        assert here.asked == ["a.example/x/y", asked]
        host, slash, rest = asked.partition("/")
        final = f"http://{host}:{here.port}{slash}{rest}"
        assert last.facts == PageFacts(http_status=200, final_url=final)

    @pytest.mark.parametrize(
        ("status", "method"),
        [(301, "GET"), (302, "GET"), (303, "GET"), (307, "POST"), (308, "POST")],
    )
    async def test_what_was_posted_is_posted_again_only_when_told_to(
        self, status: int, method: str
    ) -> None:
        def answer(heard: Heard) -> bytes:
            return to("/b", f"{status} X") if heard.path == "/a" else said("200 OK")

        async with site(answer) as here, visiting(here) as gateway:
            await page(gateway, here.url("/a"), method="POST", body='{"a":1}', headers={"X-A": "b"})
        _, second = here.heard
        assert (second.method, second.body) == (method, b'{"a":1}' if method == "POST" else b"")
        assert ("content-type" in second.headers) is (method == "POST")
        assert second.headers["x-a"] == "b"

    async def test_no_other_site_sees_what_was_meant_for_one(self) -> None:
        secrets = {"Authorization": "s", "Cookie": "s", "X-Api-Key": "s", "Referer": "s"}
        harmless = {"User-Agent": "u", "Accept-Language": "de"}

        def answer(heard: Heard) -> bytes:
            there = f"http://b.example:{here.port}/"
            back = f"http://a.example:{here.port}/back"
            return {
                "a.example/": to("/same"),
                "a.example/same": to(there),
                "b.example/": to(back),
            }.get(f"{heard.host}{heard.path}", said("200 OK"))

        async with site(answer) as here, visiting(here) as gateway:
            await page(gateway, here.url(), headers={**secrets, **harmless})
        own, same, other, back = (dict(one.headers) for one in here.heard)
        for one in (own, same):
            assert all(one[name.lower()] == value for name, value in secrets.items())
        for one in (other, back):
            assert "s" not in one.values()
            assert (one["user-agent"], one["accept-language"]) == ("u", "de")

    async def test_a_password_in_the_address_stays_with_its_site(self) -> None:
        def answer(heard: Heard) -> bytes:
            return (
                to(f"http://b.example:{here.port}/") if heard.host == "a.example" else said("200 X")
            )

        async with site(answer) as here, visiting(here) as gateway:
            await page(gateway, here.url(host="me:secret@a.example"))
        assert "authorization" in here.heard[0].headers
        assert "authorization" not in here.heard[1].headers

    async def test_a_loop_comes_to_an_end(self) -> None:
        async with site(lambda _: to("/")) as here, visiting(here) as gateway:
            refused(await fetched(gateway, here.url()), "too_many_redirects", 502)
        assert len(here.heard) == MOST_REDIRECTS + 1

    async def test_as_many_as_are_allowed_are_followed(self) -> None:
        def answer(heard: Heard) -> bytes:
            return to("/") if len(here.heard) <= MOST_REDIRECTS else said("200 OK", body=b"end")

        async with site(answer) as here, visiting(here) as gateway:
            assert await page(gateway, here.url()) == b"end"

    @pytest.mark.parametrize(
        "lines",
        [
            [],
            ["Location: http://[/"],
            ["Location: http://a b/"],
            [f"Location: /{'a' * LONGEST_LANDING}"],
        ],
    )
    async def test_a_redirect_to_nowhere_is_no_page(self, lines: list[str]) -> None:
        async with site(lambda _: said("302 X", *lines)) as here, visiting(here) as gateway:
            refused(await fetched(gateway, here.url()), "target_missing", 302)


class TestConnections:
    async def test_one_is_kept_for_each_site(self) -> None:
        async with site() as here, visiting(here) as gateway:
            for host in ("a.example", "b.example") * 3:
                await page(gateway, here.url(host=host))
            assert len(inside(gateway)._open) == 2
            assert kept_by_server(gateway) == 2

    async def test_no_two_pages_share_one(self) -> None:
        async with site() as here, visiting(here) as gateway:
            await page(gateway, here.url())
            async with asyncio.TaskGroup() as group:
                for number in range(5):
                    group.create_task(page(gateway, here.url(f"/{number}")))
            assert len(inside(gateway)._open) == 5

    async def test_there_are_never_more_than_allowed_over_all_sites(self) -> None:
        async with site() as here, visiting(here, connections=3) as gateway:
            for number in range(9):
                await page(gateway, here.url(host=f"h{number}.example"))
                assert len(inside(gateway)._resting) <= 3
            async with asyncio.TaskGroup() as group:
                for number in range(30):
                    group.create_task(page(gateway, here.url(host=f"h{number}.example")))
            await until(lambda: len(inside(gateway)._open) <= 3)
            assert inside(gateway)._turns.free == 3
        assert kept_by_server(gateway) == 0

    async def test_one_that_rests_too_long_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("conveyor.adapters.http.client.transport.LONGEST_REST", 0.05)
        async with site() as here, visiting(here) as gateway:
            await page(gateway, here.url())
            await until(lambda: not inside(gateway)._open)
            assert kept_by_server(gateway) == 0
            await page(gateway, here.url())

    async def test_a_large_page_goes_through_a_spool(self) -> None:
        large = said("200 OK", body=b"x" * 600_000)
        async with site(lambda _: large) as here, visiting(here) as gateway:
            answer = await fetched(gateway, here.url())
        assert isinstance(answer, Page)
        assert not isinstance(answer.content, bytes)
        assert answer.content.length == 600_000
