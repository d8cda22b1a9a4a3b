"""What every coordination engine must do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta

import pytest

from conveyor.domain.concurrency import Allowance, take_one
from conveyor.ports.coordination import Coordination, Notification, PermitRequest
from conveyor.testing.factories import a_member

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
SOON = 60.0  # seconds within which a notification arrives, also on a busy machine
ONE, OTHER = "job:one", "job:other"
# A token takes 100 s, so that a slow machine does not add one between two calls.
RATE, BURST = 0.01, 5
TOKEN = timedelta(seconds=100)
# Times between calls, in tokens. They are quarters: what a slow machine adds makes no whole token.
PAUSES = (0, 0, 0.25, 0, 0.5, 0, 0, 0, 0.25, 0, 1, 0, 2.75, 0, 0, 0.5, 0.5, 0, 9, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationUnderTest:
    """An engine as two processes see it, and how time passes for it.

    An engine that is not `precise` has a clock of its own: time passes during the calls as well.
    """

    coordination: Coordination
    another: Coordination  # of another process, or the same object if the engine has only one
    lease: timedelta
    pass_time: Callable[[timedelta], Awaitable[None]]
    precise: bool

    @property
    def moment(self) -> timedelta:
        """A time that is longer than the calls of a test take, if they take any."""
        return SECOND if self.precise else 20 * SECOND

    async def reserve(self, name: str, *, want: int, cap: int) -> Sequence[str]:
        return await reserve(self.coordination, name, want=want, cap=cap)


async def reserve(coordination: Coordination, name: str, *, want: int, cap: int) -> Sequence[str]:
    """Reserve permits of a single name."""
    return (await coordination.reserve({name: PermitRequest(want, cap)})).get(name, ())


class CoordinationContract:
    """An engine passes by giving an `under_test` fixture."""

    # Permits.

    async def test_permits_are_granted_up_to_what_is_wanted(
        self, under_test: CoordinationUnderTest
    ) -> None:
        granted = await under_test.reserve(ONE, want=3, cap=10)

        assert len(set(granted)) == 3
        assert await under_test.coordination.held(ONE) == 3
        assert await under_test.another.held(ONE) == 3

    async def test_permits_are_granted_up_to_the_cap(
        self, under_test: CoordinationUnderTest
    ) -> None:
        await under_test.reserve(ONE, want=3, cap=5)

        assert len(await reserve(under_test.another, ONE, want=3, cap=5)) == 2
        assert list(await under_test.reserve(ONE, want=3, cap=5)) == []

    async def test_thousands_of_permits_of_a_name_fit_in_one_call(
        self, under_test: CoordinationUnderTest
    ) -> None:
        granted = await under_test.reserve(ONE, want=9_000, cap=8_500)
        assert len(set(granted)) == 8_500
        await under_test.coordination.renew({ONE: granted})
        assert await under_test.coordination.held(ONE) == 8_500
        await under_test.coordination.release({ONE: granted})
        assert await under_test.coordination.held(ONE) == 0

    async def test_concurrent_calls_of_processes_stay_below_the_cap(
        self, under_test: CoordinationUnderTest
    ) -> None:
        both = (under_test.coordination, under_test.another)
        granted = await asyncio.gather(
            *(reserve(both[number % 2], ONE, want=3, cap=50) for number in range(40))
        )
        ids = [permit for some in granted for permit in some]
        assert len(ids) == len(set(ids)) == 50

    async def test_a_lowered_cap_grants_nothing_until_enough_are_released(
        self, under_test: CoordinationUnderTest
    ) -> None:
        granted = await under_test.reserve(ONE, want=5, cap=5)
        assert list(await under_test.reserve(ONE, want=1, cap=2)) == []

        await under_test.coordination.release({ONE: granted[:4]})

        assert len(await under_test.reserve(ONE, want=5, cap=2)) == 1

    async def test_permits_of_many_names_are_reserved_renewed_and_released_in_one_call(
        self, under_test: CoordinationUnderTest
    ) -> None:
        coordination = under_test.coordination
        wants = {f"job:{number}": PermitRequest(number, 4) for number in range(8)}
        expected = {name: min(request) for name, request in wants.items()}

        granted = await coordination.reserve(wants)
        assert {name: len(granted.get(name, ())) for name in wants} == expected

        await under_test.pass_time(under_test.lease - under_test.moment)
        await coordination.renew(granted)
        await under_test.pass_time(under_test.lease - under_test.moment)
        assert {name: await coordination.held(name) for name in wants} == expected

        await coordination.release({name: ids[:1] for name, ids in granted.items()})
        left = {name: max(count - 1, 0) for name, count in expected.items()}
        assert {name: await coordination.held(name) for name in wants} == left

    async def test_calls_about_nothing_do_nothing(self, under_test: CoordinationUnderTest) -> None:
        coordination = under_test.coordination
        assert not await coordination.reserve({})
        await coordination.renew({})
        await coordination.renew({ONE: []})
        await coordination.release({})
        await coordination.release({ONE: []})
        assert not await coordination.recall([])
        await coordination.remember({}, life=SECOND)
        assert list(await under_test.reserve(ONE, want=0, cap=9)) == []
        assert await coordination.held(ONE) == 0

    async def test_names_do_not_share_permits(self, under_test: CoordinationUnderTest) -> None:
        await under_test.reserve(ONE, want=5, cap=5)

        assert len(await under_test.reserve(OTHER, want=5, cap=5)) == 5

    async def test_a_name_may_hold_any_character(self, under_test: CoordinationUnderTest) -> None:
        names = ("host:job/exämple.com:80", "{a}b", "{a}c", "}{", " ", "", "*")
        granted = await under_test.coordination.reserve(
            {name: PermitRequest(1, 1) for name in names}
        )
        assert {name: len(ids) for name, ids in granted.items()} == dict.fromkeys(names, 1)

    async def test_no_permit_is_granted_twice(self, under_test: CoordinationUnderTest) -> None:
        first = await under_test.reserve(ONE, want=2, cap=9)
        await under_test.coordination.release({ONE: first})
        second = await under_test.reserve(ONE, want=2, cap=9)
        third = await under_test.reserve(OTHER, want=2, cap=9)
        fourth = await reserve(under_test.another, ONE, want=2, cap=9)

        assert len({*first, *second, *third, *fourth}) == 8

    async def test_released_permits_make_room(self, under_test: CoordinationUnderTest) -> None:
        granted = await under_test.reserve(ONE, want=2, cap=2)
        await under_test.coordination.release({ONE: granted[:1]})

        assert await under_test.coordination.held(ONE) == 1
        assert len(await under_test.reserve(ONE, want=2, cap=2)) == 1

    async def test_releasing_again_makes_no_more_room(
        self, under_test: CoordinationUnderTest
    ) -> None:
        first, second = await under_test.reserve(ONE, want=2, cap=2)
        await under_test.coordination.release({ONE: [first]})
        await under_test.coordination.release({ONE: [first, "unknown"], OTHER: [second]})

        assert await under_test.coordination.held(ONE) == 1

    async def test_permits_that_are_not_renewed_expire(
        self, under_test: CoordinationUnderTest
    ) -> None:
        await under_test.reserve(ONE, want=2, cap=2)

        await under_test.pass_time(under_test.lease - under_test.moment)
        assert await under_test.coordination.held(ONE) == 2

        await under_test.pass_time(2 * under_test.moment)
        assert await under_test.coordination.held(ONE) == 0
        assert len(await under_test.reserve(ONE, want=2, cap=2)) == 2

    async def test_renewed_permits_last_a_lease_from_then_on(
        self, under_test: CoordinationUnderTest
    ) -> None:
        kept, _ = await under_test.reserve(ONE, want=2, cap=2)
        await under_test.pass_time(under_test.lease - under_test.moment)
        await under_test.coordination.renew({ONE: [kept]})

        await under_test.pass_time(2 * under_test.moment)
        assert await under_test.coordination.held(ONE) == 1

        await under_test.pass_time(under_test.lease)
        assert await under_test.coordination.held(ONE) == 0

    async def test_a_permit_renewed_after_an_older_one_expires_after_it(
        self, under_test: CoordinationUnderTest
    ) -> None:
        moment = under_test.moment
        [first] = await under_test.reserve(ONE, want=1, cap=9)
        await under_test.pass_time(moment)
        await under_test.reserve(ONE, want=1, cap=9)
        await under_test.pass_time(moment)
        await under_test.coordination.renew({ONE: [first]})

        await under_test.pass_time(under_test.lease - moment + moment / 2)

        assert await under_test.coordination.held(ONE) == 1

    async def test_expired_permits_are_renewed_even_over_the_cap(
        self, under_test: CoordinationUnderTest
    ) -> None:
        expired = await under_test.reserve(ONE, want=2, cap=2)
        await under_test.pass_time(under_test.lease + under_test.moment)
        await reserve(under_test.another, ONE, want=2, cap=2)

        await under_test.coordination.renew({ONE: expired})

        assert await under_test.coordination.held(ONE) == 4
        assert list(await under_test.reserve(ONE, want=1, cap=4)) == []

    # Rate limits.

    async def test_a_burst_is_granted_and_no_more(self, under_test: CoordinationUnderTest) -> None:
        taken = [await _take(under_test) for _ in range(6)]

        assert [one.granted for one in taken] == [True] * 5 + [False]
        assert [one.left for one in taken] == [4, 3, 2, 1, 0, 0]

    async def test_buckets_are_those_of_the_domain(self, under_test: CoordinationUnderTest) -> None:
        """Every call is answered as `take_one` answers it."""
        now, bucket = 0.0, None
        for tokens in PAUSES:
            pause = tokens * TOKEN
            await under_test.pass_time(pause)
            now += pause.total_seconds()
            bucket, expected = take_one(bucket, now, rate=RATE, burst=BURST)
            allowance = await _take(under_test)
            assert (allowance.granted, allowance.left) == (expected.granted, expected.left)
            late = under_test.moment.total_seconds()
            assert allowance.next_in == pytest.approx(expected.next_in, abs=late)
            assert allowance.full_in == pytest.approx(expected.full_in, abs=late)
            if under_test.precise:
                assert allowance == expected

    async def test_tokens_return_at_the_rate_up_to_the_burst(
        self, under_test: CoordinationUnderTest
    ) -> None:
        for _ in range(6):
            await _take(under_test)
        await under_test.pass_time(2 * TOKEN)
        assert [(await _take(under_test)).granted for _ in range(3)] == [True, True, False]
        await under_test.pass_time(1_000 * TOKEN)
        assert [(await _take(under_test)).granted for _ in range(6)] == [True] * 5 + [False]

    async def test_a_refused_call_costs_nothing(self, under_test: CoordinationUnderTest) -> None:
        for _ in range(5):
            await _take(under_test)
        for _ in range(4):
            await under_test.pass_time(TOKEN / 4)
            last = await _take(under_test)
        assert last.granted

    async def test_buckets_are_separate(self, under_test: CoordinationUnderTest) -> None:
        for _ in range(6):
            await _take(under_test)
        assert (await under_test.coordination.take("other", rate=RATE, burst=BURST)).left == 4

    async def test_concurrent_calls_are_granted_no_more_than_the_burst(
        self, under_test: CoordinationUnderTest
    ) -> None:
        taken = await asyncio.gather(*(_take(under_test) for _ in range(50)))
        assert sum(one.granted for one in taken) == 5

    # The cache.

    async def test_cached_values_last_for_their_life(
        self, under_test: CoordinationUnderTest
    ) -> None:
        coordination = under_test.coordination
        assert not await coordination.recall(["one", "other"])
        await coordination.remember({"one": b"first"}, life=HOUR)
        await coordination.remember({"other": b"second"}, life=2 * HOUR)
        both = {"one": b"first", "other": b"second"}
        assert await under_test.another.recall(["one", "other", "third"]) == both

        await under_test.pass_time(HOUR - under_test.moment)
        assert await coordination.recall(["one", "other"]) == both
        await under_test.pass_time(2 * under_test.moment)
        assert await coordination.recall(["one", "other"]) == {"other": b"second"}

    async def test_a_later_value_replaces_an_earlier_one(
        self, under_test: CoordinationUnderTest
    ) -> None:
        coordination = under_test.coordination
        await coordination.remember({"one": b"first", "other": b"\x00\xff"}, life=3 * HOUR)
        await coordination.remember({"one": b""}, life=HOUR)
        assert await coordination.recall(["one", "other"]) == {"one": b"", "other": b"\x00\xff"}
        await under_test.pass_time(2 * HOUR)
        assert await coordination.recall(["one", "other"]) == {"other": b"\x00\xff"}

    # Notifications.

    async def test_a_subscription_begins_with_each_topic_as_missed(
        self, under_test: CoordinationUnderTest
    ) -> None:
        async with aclosing(
            under_test.coordination.notifications(["runs", "outbox"])
        ) as notifications:
            first = [await _next(notifications) for _ in range(2)]
            assert {one.topic: one.names for one in first} == {"runs": None, "outbox": None}

    async def test_every_subscriber_of_a_topic_is_notified(
        self, under_test: CoordinationUnderTest
    ) -> None:
        async with (
            aclosing(under_test.coordination.notifications(["runs"])) as here,
            aclosing(under_test.another.notifications(["runs", "outbox"])) as there,
        ):
            for notifications, topics in ((here, 1), (there, 2)):
                for _ in range(topics):
                    assert (await _next(notifications)).names is None
            await under_test.coordination.notify("elsewhere", ["x"])
            await under_test.coordination.notify("runs", ["one", "other"])
            expected = Notification("runs", frozenset({"one", "other"}))
            assert await _next(here) == expected
            assert await _next(there) == expected
            await under_test.another.notify("outbox")
            assert await _next(there) == Notification("outbox", frozenset())

    async def test_many_notifications_reach_a_subscriber_that_does_not_read_meanwhile(
        self, under_test: CoordinationUnderTest
    ) -> None:
        names = {f"{number:026}" for number in range(300)}
        async with aclosing(under_test.another.notifications(["runs"])) as notifications:
            assert (await _next(notifications)).names is None
            for name in names:
                await under_test.coordination.notify("runs", [name])
            await under_test.coordination.notify("runs", sorted(names))
            seen: set[str] = set()
            while seen != names:
                notification = await _next(notifications)
                assert notification.names is not None
                seen |= notification.names

    async def test_a_subscription_that_is_closed_leaves_the_others(
        self, under_test: CoordinationUnderTest
    ) -> None:
        async with aclosing(under_test.another.notifications(["runs"])) as stays:
            assert (await _next(stays)).names is None
            async with aclosing(under_test.coordination.notifications(["runs"])) as leaves:
                assert (await _next(leaves)).names is None
            await under_test.coordination.notify("runs", ["one"])
            assert await _next(stays) == Notification("runs", frozenset({"one"}))

    # Members.

    async def test_members_are_listed_until_their_announcement_ends(
        self, under_test: CoordinationUnderTest
    ) -> None:
        coordination, moment = under_test.coordination, under_test.moment
        assert list(await coordination.members()) == []
        later = a_member(id="01J0", role="api")
        await coordination.announce(later, life=3 * HOUR)
        await under_test.another.announce(a_member(), life=HOUR)
        assert list(await coordination.members()) == [a_member(), later]

        await under_test.pass_time(HOUR - moment)
        assert list(await coordination.members()) == [a_member(), later]
        await under_test.pass_time(2 * moment)
        assert list(await coordination.members()) == [later]

    async def test_a_repeated_announcement_replaces_the_earlier_one(
        self, under_test: CoordinationUnderTest
    ) -> None:
        coordination = under_test.coordination
        await coordination.announce(a_member(), life=HOUR)
        await under_test.pass_time(HOUR - under_test.moment)
        renewed = a_member(keys=("4f3a", "99ab"))
        await coordination.announce(renewed, life=HOUR)
        await under_test.pass_time(HOUR - under_test.moment)
        assert list(await under_test.another.members()) == [renewed]

    async def test_a_member_that_leaves_is_no_longer_listed(
        self, under_test: CoordinationUnderTest
    ) -> None:
        coordination = under_test.coordination
        stays = a_member(id="01HZ0")  # its id begins like the other's
        await coordination.announce(a_member(), life=HOUR)
        await coordination.announce(stays, life=HOUR)
        await coordination.announce(a_member(), life=timedelta())
        await coordination.announce(a_member(), life=timedelta())
        assert list(await coordination.members()) == [stays]


async def _take(under_test: CoordinationUnderTest) -> Allowance:
    return await under_test.coordination.take("bucket", rate=RATE, burst=BURST)


async def _next(notifications: AsyncIterator[Notification]) -> Notification:
    async with asyncio.timeout(SOON):
        return await anext(notifications)
