"""Where the direct gateway connects to, whatever URLs, name servers and sites say."""

import asyncio
from ipaddress import ip_address

import pytest

from conveyor.adapters.http.client import resolver
from conveyor.adapters.http.client.resolver import SystemResolver
from conveyor.adapters.http.direct import DirectGateway
from conveyor.domain.public_address import Reach, networks
from tests.gateway.site import HERE, Names, Site, fetched, page, site, to, visiting
from tests.gateway.stage import OK, inside, kept_by_server
from tests.harness.gateways import THIS_MACHINE, refused

pytestmark = pytest.mark.usefixtures("transport")

NOT_ALLOWED = "target_not_allowed"


async def denied(gateway: DirectGateway, url: str) -> str:
    detail = str(refused(await fetched(gateway, url), NOT_ALLOWED, 403)["detail"])
    assert not any(_is_address(word.strip(".")) for word in detail.split()), "an oracle"
    return detail


def _is_address(word: str) -> bool:
    try:
        ip_address(word)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::7f00:1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "169.254.169.254",
        "0.0.0.0",
        "localhost",
    ],
)
async def test_nothing_that_is_not_public_is_called(host: str) -> None:
    async with site() as here, visiting(here, reach=Reach(), resolve=SystemResolver()) as gateway:
        assert "not public" in await denied(gateway, here.url(host=host))
        assert here.heard == []


@pytest.mark.parametrize(
    "answer", [["10.0.0.1"], ["8.8.8.8", HERE], ["fe80::1%eth0"], ["::ffff:10.0.0.1"], ["fd00::1"]]
)
async def test_every_address_of_a_name_is_checked(answer: list[str]) -> None:
    names = Names(a_example=[answer])
    async with site() as here, visiting(here, reach=Reach(), resolve=names) as gateway:
        assert "not public" in await denied(gateway, here.url())


async def test_a_name_is_looked_up_once_and_what_was_checked_is_called() -> None:
    names = Names(a_example=[[HERE], ["10.0.0.1"]])
    async with site() as here, visiting(here, resolve=names) as gateway:
        assert await page(gateway, here.url()) == b"ok"
        assert names.asked == ["a.example"]
        assert here.asked == ["a.example/"]


async def test_a_name_that_means_something_else_by_now_is_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolver, "TRUSTED_FOR", 0.0)
    names = Names(a_example=[[HERE], ["10.0.0.1"]])
    closing = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with site(lambda _: closing) as here, visiting(here, resolve=names) as gateway:
        assert await page(gateway, here.url()) == b"ok"
        await denied(gateway, here.url())
        assert len(here.heard) == 1


@pytest.mark.parametrize(
    "place",
    [
        "http://10.0.0.1:{port}/",
        "http://169.254.169.254:{port}/latest/meta-data",
        "http://0xA.1:{port}/",
        "//10.0.0.1:{port}/",
        "\\\\10.0.0.1:{port}\\",
        "http://private.example:{port}/",
        "http://[::ffff:10.0.0.1]:{port}/",
    ],
)
async def test_a_redirect_to_what_is_not_public_is_not_followed(place: str) -> None:
    def answer(_: object) -> bytes:
        return to(place.format(port=here.port))

    names = Names(private_example=[["192.168.0.1"]])
    async with site(answer) as here, visiting(here, resolve=names) as gateway:
        assert "not public" in await denied(gateway, here.url())
        assert here.asked == ["a.example/"]


@pytest.mark.parametrize("place", ["ftp://a.example/", "file:///etc/passwd", "gopher://a/_x"])
async def test_a_redirect_leads_to_a_page_or_nowhere(place: str) -> None:
    async with site(lambda _: to(place)) as here, visiting(here) as gateway:
        assert "neither on http nor on https" in await denied(gateway, here.url())


async def test_only_ports_that_are_meant_for_it_are_called() -> None:
    async with site() as here, visiting(here, ports={80, 443}) as gateway:
        assert f"Port {here.port} " in await denied(gateway, here.url())
        assert here.heard == []


async def test_a_redirect_to_another_port_is_not_followed() -> None:
    async with site(lambda _: to("http://a.example:25/")) as here, visiting(here) as gateway:
        assert "Port 25 " in await denied(gateway, here.url())


async def test_robots_are_asked_for_through_the_same_door() -> None:
    def answer(_: object) -> bytes:
        return to(f"http://10.0.0.1:{here.port}/robots.txt")

    async with site(answer) as here, visiting(here, heeds_robots=True) as gateway:
        await denied(gateway, here.url("/page"))
        assert here.asked == ["a.example/robots.txt", "a.example/page"]


async def test_what_is_opened_is_open_and_nothing_else() -> None:
    names = Names(a_example=[[HERE]], b_example=[["127.0.0.2"]])
    only = Reach(networks([HERE]))
    async with site() as here, visiting(here, reach=only, resolve=names) as gateway:
        assert await page(gateway, here.url()) == b"ok"
        await denied(gateway, here.url(host="b.example"))


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with site() as here, visiting(here) as gateway:
        assert await page(gateway, here.url()) == b"ok"


async def test_many_who_need_the_same_address_ask_once_for_it() -> None:
    gate = asyncio.Event()

    class SlowNames(Names):
        async def __call__(self, host: str) -> list[str]:
            self.asked.append(host)
            await gate.wait()
            return [HERE]

    names = SlowNames()
    async with (
        site() as here,
        visiting(here, resolve=names) as gateway,
        asyncio.TaskGroup() as group,
    ):
        calls = [group.create_task(page(gateway, here.url())) for _ in range(9)]
        await asyncio.sleep(0)
        calls[0].cancel()  # whoever looks it up goes away: another takes that up
        gate.set()
    assert [call.result() for call in calls[1:]] == [b"ok"] * 8
    assert len(names.asked) <= 2


async def test_the_next_address_is_tried() -> None:
    names = Names(a_example=[["127.0.0.3", "127.0.0.2", HERE]])
    async with site() as here, visiting(here, resolve=names) as gateway:
        assert await page(gateway, here.url()) == b"ok"


async def test_a_name_without_an_address_is_unreachable() -> None:
    async with site() as here, visiting(here, resolve=Names(a_example=[[]])) as gateway:
        told = refused(await fetched(gateway, here.url()), "gateway_unreachable", 502)
    assert "no address" in str(told["detail"])


@pytest.mark.parametrize("host", ["x" * 64 + ".example", "a..example", "-.example"])
async def test_names_that_cannot_be_looked_up_are_without_an_address(host: str) -> None:
    async with DirectGateway(connections=1, reach=THIS_MACHINE, heeds_robots=False) as gateway:
        refused(await fetched(gateway, f"http://{host}/"), "gateway_unreachable", 502)


async def test_nothing_is_kept_of_sites_that_were_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "MOST_HOSTS", 50)
    async with site() as here, visiting(here, connections=5) as gateway:
        for number in range(200):
            assert await page(gateway, here.url(host=f"h{number}.example")) == b"ok"
        assert _held(gateway, here) <= 5 + 5 + 5 + 50


def _held(gateway: DirectGateway, here: Site) -> int:
    pool = inside(gateway)
    known = pool._lookup._known._known
    assert not gateway._spacing._hosts
    return len(pool._resting) + kept_by_server(gateway) + len(pool._open) + len(known)
