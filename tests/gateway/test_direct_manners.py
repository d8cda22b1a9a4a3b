"""How the direct gateway behaves towards sites: their robots.txt, their pace, their pleas."""

import asyncio
from collections.abc import Collection, Mapping
from datetime import timedelta

import pytest

from conveyor.adapters.http import robots_txt, spacing
from conveyor.adapters.http.client.transport import Denied
from conveyor.adapters.http.spacing import LONGEST_REST, MOST_HOSTS, PATIENCE, Spacing
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.adapters.system.clock import SystemClock
from conveyor.domain.concurrency import Allowance
from conveyor.errors import Unavailable
from conveyor.ports.gateway import GatewayRefusal, Page
from tests.gateway.site import Answer, Heard, fetched, page, said, site, to, visiting
from tests.harness.gateways import refused

RULES = b"user-agent: *\ndisallow: /private\n\nuser-agent: mybot\ndisallow: /bots"


def with_robots(robots: bytes, other: bytes = said("200 OK", body=b"ok")) -> Answer:
    return lambda heard: robots if heard.path == "/robots.txt" else other


@pytest.mark.usefixtures("transport")
class TestRobots:
    async def test_what_is_disallowed_is_not_fetched(self) -> None:
        rules = said("200 OK", body=RULES)
        async with site(with_robots(rules)) as here, visiting(here, heeds_robots=True) as gateway:
            assert await page(gateway, here.url("/public")) == b"ok"
            told = refused(await fetched(gateway, here.url("/private/a")), "robots_disallowed", 403)
        assert "'conveyor'" in str(told["detail"])
        assert here.asked == ["a.example/robots.txt", "a.example/public"]

    async def test_the_rules_for_our_own_name_count(self) -> None:
        rules, agent = said("200 OK", body=RULES), "MyBot/1.0 (+https://me.example)"
        async with (
            site(with_robots(rules)) as here,
            visiting(here, heeds_robots=True, agent=agent) as gateway,
        ):
            assert await page(gateway, here.url("/private")) == b"ok"
            refused(await fetched(gateway, here.url("/bots")), "robots_disallowed", 403)
        assert here.heard[0].headers["user-agent"] == agent

    async def test_they_are_minded_only_when_that_is_set(self) -> None:
        rules = said("200 OK", body=RULES)
        async with site(with_robots(rules)) as here, visiting(here) as gateway:
            assert await page(gateway, here.url("/private")) == b"ok"
        assert here.asked == ["a.example/private"]

    async def test_many_at_once_ask_once(self) -> None:
        rules = said("200 OK", body=RULES)
        async with (
            site(with_robots(rules)) as here,
            visiting(here, heeds_robots=True) as gateway,
            asyncio.TaskGroup() as group,
        ):
            for number in range(30):
                group.create_task(page(gateway, here.url(f"/{number}")))
        assert here.asked.count("a.example/robots.txt") == 1
        assert len(here.heard) == 31

    async def test_rules_that_are_forgotten_again_and_again_keep_no_page_waiting_for_ever(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(robots_txt, "MOST_SITES", 1)
        monkeypatch.setattr(spacing, "PATIENCE", 0.1)
        rules, delay = said("200 OK", body=RULES), timedelta(milliseconds=200)
        async with (
            site(with_robots(rules)) as here,
            visiting(here, heeds_robots=True, delay=delay) as gateway,
        ):
            for host in ("a", "b", "c"):
                assert await page(gateway, here.url("/", host=f"{host}.example")) == b"ok"

    async def test_each_site_has_its_own_also_when_redirected_to(self) -> None:
        def answer(heard: Heard) -> bytes:
            if heard.path == "/robots.txt":
                return said("200 OK", body=RULES) if heard.host == "b.example" else said("404 No")
            return to(f"http://b.example:{here.port}/private")

        async with site(answer) as here, visiting(here, heeds_robots=True) as gateway:
            refused(await fetched(gateway, here.url()), "robots_disallowed", 403)
        assert here.asked == ["a.example/robots.txt", "a.example/", "b.example/robots.txt"]

    @pytest.mark.parametrize("status", ["404 No", "403 No", "401 No", "410 No", "304 X"])
    async def test_a_site_that_says_there_are_none_allows_everything(self, status: str) -> None:
        async with (
            site(with_robots(said(status))) as here,
            visiting(here, heeds_robots=True) as gateway,
        ):
            assert await page(gateway, here.url("/private")) == b"ok"

    @pytest.mark.parametrize(
        "robots", [said("500 X"), said("503 X"), said("429 X"), b"rubbish", said("200 X")[:-9]]
    )
    async def test_a_site_that_cannot_be_asked_allows_nothing_for_a_while(
        self, robots: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answers = [robots]

        def answer(heard: Heard) -> bytes:
            return with_robots(answers[0])(heard)

        async with (
            site(answer) as here,
            visiting(here, heeds_robots=True, silence=timedelta(seconds=0.1)) as gateway,
        ):
            monkeypatch.setattr(robots_txt, "LONGEST", 0.3)
            for _ in range(2):
                told = await fetched(gateway, here.url())
                refused(told, "robots_unreachable", 503)
                assert isinstance(told, GatewayRefusal)
                assert told.retry_after is not None
                assert timedelta(seconds=50) < told.retry_after <= timedelta(seconds=60)
            assert len(here.heard) == 1
            answers[0] = said("404 No")
            gateway._robots._known._known.clear()  # type: ignore[union-attr]  # as time would
            assert await page(gateway, here.url()) == b"ok"

    async def test_redirects_of_them_are_followed(self) -> None:
        def answer(heard: Heard) -> bytes:
            if heard.path == "/robots.txt" and heard.host == "a.example":
                return to(f"http://b.example:{here.port}/robots.txt", "301 X")
            return said("200 OK", body=RULES)

        async with site(answer) as here, visiting(here, heeds_robots=True) as gateway:
            refused(await fetched(gateway, here.url("/private")), "robots_disallowed", 403)

    async def test_their_size_is_bounded(self) -> None:
        rules = said("200 OK", body=RULES + b"\n#" + b"x" * 2_000_000)
        async with site(with_robots(rules)) as here, visiting(here, heeds_robots=True) as gateway:
            refused(await fetched(gateway, here.url("/private")), "robots_disallowed", 403)
            assert await page(gateway, here.url("/public")) == b"ok"

    async def test_only_so_much_is_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(robots_txt, "ROOM", 5_000)
        monkeypatch.setattr(robots_txt, "MOST_SITES", 20)
        rules = said("200 OK", body=RULES)
        async with site(with_robots(rules)) as here, visiting(here, heeds_robots=True) as gateway:
            for number in range(50):
                await page(gateway, here.url(host=f"h{number}.example"))
            assert gateway._robots is not None
            known = gateway._robots._known
            assert known._weight <= 5_000
            assert 1 <= len(known._known) <= 20


@pytest.mark.usefixtures("transport")
class TestPace:
    async def test_calls_to_a_host_begin_apart_and_other_hosts_are_not_held_up(self) -> None:
        began = asyncio.get_running_loop().time()
        async with (
            site() as here,
            visiting(here, delay=timedelta(milliseconds=200)) as gateway,
            asyncio.TaskGroup() as group,
        ):
            for number in range(5):
                group.create_task(page(gateway, here.url(f"/{number}")))
            for number in range(20):
                group.create_task(page(gateway, here.url(host=f"h{number}.example")))
        own = [one.at for one in here.heard if one.host == "a.example"]
        # 10 ms: the time of a uvloop stands still while callbacks run.
        assert all(at - began >= number * 0.2 - 0.01 for number, at in enumerate(own))
        others = [one.at for one in here.heard if one.host != "a.example"]
        assert max(others) < own[-1]

    async def test_processes_that_share_coordination_keep_the_pace_together(self) -> None:
        began = asyncio.get_running_loop().time()
        settings = {
            "delay": timedelta(milliseconds=100),
            "coordination": MemoryCoordination(SystemClock()),
        }
        async with (
            site() as here,
            visiting(here, **settings) as one,
            visiting(here, **settings) as other,
            asyncio.TaskGroup() as group,
        ):
            for number in range(4):
                group.create_task(page(one, here.url(f"/{number}")))
                group.create_task(page(other, here.url(f"/{number}")))
        at = sorted(heard.at for heard in here.heard)
        assert len(at) == 8
        assert all(each - began >= number * 0.1 - 0.01 for number, each in enumerate(at))

    async def test_without_coordination_each_process_keeps_the_pace_by_itself(self) -> None:
        class Away(MemoryCoordination):
            async def take(self, bucket: str, *, rate: float, burst: int) -> Allowance:
                raise Unavailable("away")

        settings = {"delay": timedelta(milliseconds=1), "coordination": Away(SystemClock())}
        async with site() as here, visiting(here, **settings) as gateway:
            for number in range(3):
                assert await page(gateway, here.url(f"/{number}"))

    async def test_redirects_and_robots_keep_the_pace_as_well(self) -> None:
        def answer(heard: Heard) -> bytes:
            return to("/b") if heard.path == "/a" else said("200 OK")

        began = asyncio.get_running_loop().time()
        settings = {"delay": timedelta(milliseconds=60), "heeds_robots": True}
        async with site(answer) as here, visiting(here, **settings) as gateway:
            await page(gateway, here.url("/a"))
        assert [one.path for one in here.heard] == ["/robots.txt", "/a", "/b"]
        assert all(one.at - began >= number * 0.06 - 0.01 for number, one in enumerate(here.heard))

    async def test_who_would_wait_for_long_is_sent_back_with_times_apart(self) -> None:
        async with site() as here, visiting(here, delay=timedelta(seconds=30)) as gateway:
            answers = [await fetched(gateway, here.url()) for _ in range(4)]
            assert isinstance(answers[0], Page)
            waits = []
            for answer in answers[1:]:
                refused(answer, "host_resting", 429)
                assert isinstance(answer, GatewayRefusal)
                assert answer.retry_after is not None
                waits.append(answer.retry_after.total_seconds())
            assert waits == pytest.approx([30, 60, 90], abs=2)
            assert isinstance(await fetched(gateway, here.url(host="b.example")), Page)

    async def test_a_host_that_asks_for_it_is_left_alone(self) -> None:
        busy = said("429 X", "Retry-After: 40")
        async with site(lambda _: busy) as here, visiting(here) as gateway:
            refused(await fetched(gateway, here.url()), "target_throttled", 429)
            refused(await fetched(gateway, here.url()), "host_resting", 429)
            refused(await fetched(gateway, here.url(host="b.example")), "target_throttled", 429)
        assert here.asked == ["a.example/", "b.example/"]

    async def test_processes_that_share_coordination_leave_a_host_alone_together(self) -> None:
        busy = said("503 X", "Retry-After: 40")
        shared = MemoryCoordination(SystemClock())
        async with (
            site(lambda _: busy) as here,
            visiting(here, coordination=shared) as one,
            visiting(here, coordination=shared) as other,
        ):
            refused(await fetched(one, here.url()), "target_throttled", 503)
            answer = await fetched(other, here.url())
            refused(answer, "host_resting", 429)
            assert isinstance(answer, GatewayRefusal)
            assert answer.retry_after is not None
            assert 30 <= answer.retry_after.total_seconds() <= 40
        assert here.asked == ["a.example/"]

    async def test_without_coordination_each_process_leaves_a_host_alone_by_itself(self) -> None:
        class Away(MemoryCoordination):
            async def recall(self, names: Collection[str]) -> Mapping[str, bytes]:
                raise Unavailable("away")

            async def remember(self, values: Mapping[str, bytes], *, life: timedelta) -> None:
                raise Unavailable("away")

        busy = said("429 X", "Retry-After: 40")
        away = Away(SystemClock())
        async with site(lambda _: busy) as here, visiting(here, coordination=away) as gateway:
            refused(await fetched(gateway, here.url()), "target_throttled", 429)
            refused(await fetched(gateway, here.url()), "host_resting", 429)
        assert here.asked == ["a.example/"]

    async def test_a_redirect_to_a_host_that_is_left_alone_goes_back_too(self) -> None:
        def answer(heard: Heard) -> bytes:
            if heard.host == "b.example":
                return said("429 X", "Retry-After: 200")
            return to(f"http://b.example:{here.port}/")

        async with site(answer) as here, visiting(here) as gateway:
            refused(await fetched(gateway, here.url(host="b.example")), "target_throttled", 429)
            refused(await fetched(gateway, here.url()), "host_resting", 429)
        assert here.asked == ["b.example/", "a.example/"]

    async def test_robots_of_a_host_that_is_left_alone_are_not_taken_for_none(self) -> None:
        def answer(heard: Heard) -> bytes:
            if heard.path == "/robots.txt":
                return said("200 OK", body=RULES)
            return to(f"http://b.example:{here.port}/private")

        async with site(answer) as here, visiting(here, heeds_robots=True) as gateway:
            await gateway._spacing.hold(f"b.example:{here.port}", 200)
            refused(await fetched(gateway, here.url()), "host_resting", 429)
            gateway._spacing._hosts.clear()  # as time would
            refused(await fetched(gateway, here.url()), "robots_disallowed", 403)
        assert "b.example/private" not in here.asked


class Hands:
    """A clock for spacing, turned by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def time(self) -> float:
        return self.now


def spaced(delay: float) -> tuple[Spacing, Hands]:
    one, hands = Spacing(delay), Hands()
    one._loop = hands  # type: ignore[assignment]
    return one, hands


class TestSpacing:
    async def test_those_sent_back_get_through_at_the_pace_of_the_host(self) -> None:
        """A thousand pages at once of a host that takes ten a second."""
        one, hands = spaced(0.1)
        due = [(hands.now, number) for number in range(1_000)]
        done, tries = [], 0
        while due:
            due.sort()
            at, number = due.pop(0)
            hands.now = max(hands.now, at)
            tries += 1
            try:
                one.admit("a")
            except Denied as denied:
                wait = denied.wait or timedelta.max
                due.append((hands.now + wait.total_seconds(), number))
            else:
                host = one._hosts.setdefault("a", spacing.Host())
                start = max(host.next_at, hands.now)
                host.next_at = start + 0.1  # as `turn` would, without the sleep
                done.append(start)
        assert len(done) == 1_000
        assert done[-1] - done[0] < 1.3 * 100
        assert tries < 4_000

    async def test_a_queue_that_went_away_is_forgotten(self) -> None:
        one, hands = spaced(1.0)
        await one.turn("a")
        await one.hold("a", 10)
        for _ in range(500):
            with pytest.raises(Denied):
                one.admit("a")
        hands.now += 10 + spacing.QUIET + 1
        one.admit("a")
        await one.turn("a")
        await one.hold("a", PATIENCE + 1)
        with pytest.raises(Denied) as denied:
            one.admit("a")
        assert denied.value.wait is not None
        assert denied.value.wait < timedelta(seconds=10)

    async def test_nobody_is_sent_away_for_long(self) -> None:
        one, _ = spaced(60.0)
        await one.turn("a")
        for _ in range(100):
            with pytest.raises(Denied) as denied:
                one.admit("a")
            assert denied.value.wait is not None
            assert denied.value.wait <= timedelta(seconds=LONGEST_REST)

    async def test_only_so_many_hosts_are_remembered(self) -> None:
        one, _ = spaced(1.0)
        for number in range(MOST_HOSTS + 500):
            await one.turn(f"h{number}")
        assert len(one._hosts) == MOST_HOSTS
        assert f"h{MOST_HOSTS + 499}" in one._hosts

    async def test_without_a_delay_nothing_is_remembered(self) -> None:
        one, _ = spaced(0.0)
        for number in range(100):
            one.admit(f"h{number}")
            await one.turn(f"h{number}")
        assert not one._hosts
