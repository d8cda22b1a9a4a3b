"""What every coordination engine must do: permits, tokens and cached values."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import pytest

from conveyor.domain.concurrency import Allowance
from conveyor.domain.ids import JobId
from conveyor.ports.coordination import Coordination
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import JOB

SECOND = timedelta(seconds=1)
OTHER_JOB = JobId("another")


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitsUnderTest:
    """A coordination engine with its clock and the length of its leases."""

    coordination: Coordination
    clock: FakeClock
    lease: timedelta


class CoordinationContract:
    """An engine passes by providing a `permits` fixture."""

    async def test_permits_are_given_up_to_what_is_wanted(self, permits: PermitsUnderTest) -> None:
        given = await permits.coordination.reserve(JOB, want=3, cap=10)

        assert len(set(given)) == 3
        assert await permits.coordination.held(JOB) == 3

    async def test_permits_are_given_up_to_the_cap(self, permits: PermitsUnderTest) -> None:
        await permits.coordination.reserve(JOB, want=3, cap=5)

        assert len(await permits.coordination.reserve(JOB, want=3, cap=5)) == 2
        assert list(await permits.coordination.reserve(JOB, want=3, cap=5)) == []

    async def test_a_lowered_cap_gives_nothing_until_enough_are_back(
        self, permits: PermitsUnderTest
    ) -> None:
        given = await permits.coordination.reserve(JOB, want=5, cap=5)
        assert list(await permits.coordination.reserve(JOB, want=1, cap=2)) == []

        await permits.coordination.release(JOB, given[:4])

        assert len(await permits.coordination.reserve(JOB, want=5, cap=2)) == 1

    async def test_jobs_do_not_share_permits(self, permits: PermitsUnderTest) -> None:
        await permits.coordination.reserve(JOB, want=5, cap=5)

        assert len(await permits.coordination.reserve(OTHER_JOB, want=5, cap=5)) == 5

    async def test_no_permit_is_given_twice(self, permits: PermitsUnderTest) -> None:
        first = await permits.coordination.reserve(JOB, want=2, cap=9)
        await permits.coordination.release(JOB, first)
        second = await permits.coordination.reserve(JOB, want=2, cap=9)
        third = await permits.coordination.reserve(OTHER_JOB, want=2, cap=9)

        assert len({*first, *second, *third}) == 6

    async def test_released_permits_make_room(self, permits: PermitsUnderTest) -> None:
        given = await permits.coordination.reserve(JOB, want=2, cap=2)
        await permits.coordination.release(JOB, given[:1])

        assert await permits.coordination.held(JOB) == 1
        assert len(await permits.coordination.reserve(JOB, want=2, cap=2)) == 1

    async def test_releasing_again_makes_no_more_room(self, permits: PermitsUnderTest) -> None:
        first, second = await permits.coordination.reserve(JOB, want=2, cap=2)
        await permits.coordination.release(JOB, [first])
        await permits.coordination.release(JOB, [first, "unknown"])
        await permits.coordination.release(OTHER_JOB, [second])

        assert await permits.coordination.held(JOB) == 1

    async def test_permits_nobody_renews_age_out(self, permits: PermitsUnderTest) -> None:
        await permits.coordination.reserve(JOB, want=2, cap=2)

        permits.clock.advance(permits.lease - SECOND)
        assert await permits.coordination.held(JOB) == 2

        permits.clock.advance(2 * SECOND)
        assert await permits.coordination.held(JOB) == 0
        assert len(await permits.coordination.reserve(JOB, want=2, cap=2)) == 2

    async def test_renewed_permits_last_a_lease_from_then_on(
        self, permits: PermitsUnderTest
    ) -> None:
        kept, _ = await permits.coordination.reserve(JOB, want=2, cap=2)
        permits.clock.advance(permits.lease - SECOND)
        await permits.coordination.renew({JOB: [kept]})

        permits.clock.advance(2 * SECOND)
        assert await permits.coordination.held(JOB) == 1

        permits.clock.advance(permits.lease)
        assert await permits.coordination.held(JOB) == 0

    async def test_a_permit_renewed_after_an_older_one_lapses_after_it(
        self, permits: PermitsUnderTest
    ) -> None:
        [first] = await permits.coordination.reserve(JOB, want=1, cap=9)
        permits.clock.advance(SECOND)
        await permits.coordination.reserve(JOB, want=1, cap=9)
        permits.clock.advance(SECOND)
        await permits.coordination.renew({JOB: [first]})

        permits.clock.advance(permits.lease - SECOND + SECOND / 2)

        assert await permits.coordination.held(JOB) == 1

    async def test_lapsed_permits_are_taken_anew_even_over_the_cap(
        self, permits: PermitsUnderTest
    ) -> None:
        lapsed = await permits.coordination.reserve(JOB, want=2, cap=2)
        permits.clock.advance(permits.lease + SECOND)
        await permits.coordination.reserve(JOB, want=2, cap=2)

        await permits.coordination.renew({JOB: lapsed})

        assert await permits.coordination.held(JOB) == 4
        assert list(await permits.coordination.reserve(JOB, want=1, cap=4)) == []

    async def test_permits_of_many_jobs_are_renewed_in_one_call(
        self, permits: PermitsUnderTest
    ) -> None:
        mine = await permits.coordination.reserve(JOB, want=1, cap=1)
        other = await permits.coordination.reserve(OTHER_JOB, want=2, cap=2)
        permits.clock.advance(permits.lease - SECOND)

        await permits.coordination.renew({JOB: mine, OTHER_JOB: other})

        permits.clock.advance(permits.lease - SECOND)
        assert await permits.coordination.held(JOB) == 1
        assert await permits.coordination.held(OTHER_JOB) == 2

    async def test_a_job_without_permits_holds_none(self, permits: PermitsUnderTest) -> None:
        await permits.coordination.renew({JOB: []})
        assert await permits.coordination.held(JOB) == 0

    # Tokens.

    async def test_a_burst_is_granted_and_no_more(self, permits: PermitsUnderTest) -> None:
        given = [await _take(permits) for _ in range(6)]

        assert [one.granted for one in given] == [True] * 5 + [False]
        assert [one.left for one in given] == [4, 3, 2, 1, 0, 0]
        assert given[-1].next_in == pytest.approx(0.5)
        assert given[-1].full_in == pytest.approx(2.5)

    async def test_tokens_come_back_at_the_rate_up_to_the_burst(
        self, permits: PermitsUnderTest
    ) -> None:
        for _ in range(6):
            await _take(permits)
        permits.clock.advance(SECOND)
        assert [(await _take(permits)).granted for _ in range(3)] == [True, True, False]
        permits.clock.advance(1_000 * SECOND)
        assert [(await _take(permits)).granted for _ in range(6)] == [True] * 5 + [False]

    async def test_what_was_refused_costs_nothing(self, permits: PermitsUnderTest) -> None:
        for _ in range(5):
            await _take(permits)
        for _ in range(5):
            permits.clock.advance(SECOND / 10)
            last = await _take(permits)
        assert last.granted

    async def test_buckets_have_nothing_to_do_with_each_other(
        self, permits: PermitsUnderTest
    ) -> None:
        for _ in range(6):
            await _take(permits)
        assert (await permits.coordination.take("other", rate=2.0, burst=5)).left == 4

    async def test_of_many_at_once_no_more_are_granted_than_there_are(
        self, permits: PermitsUnderTest
    ) -> None:
        given = await asyncio.gather(*(_take(permits) for _ in range(50)))
        assert sum(one.granted for one in given) == 5

    # Cached values.

    async def test_a_note_lasts_its_life(self, permits: PermitsUnderTest) -> None:
        assert await permits.coordination.recall("note") is None
        await permits.coordination.remember("note", b"first", life=SECOND)
        await permits.coordination.remember("other", b"another", life=10 * SECOND)
        assert await permits.coordination.recall("note") == b"first"

        permits.clock.advance(SECOND - SECOND / 100)
        assert await permits.coordination.recall("note") == b"first"
        permits.clock.advance(SECOND / 50)
        assert await permits.coordination.recall("note") is None
        assert await permits.coordination.recall("other") == b"another"

    async def test_a_later_note_takes_the_place_of_an_earlier(
        self, permits: PermitsUnderTest
    ) -> None:
        await permits.coordination.remember("note", b"first", life=10 * SECOND)
        await permits.coordination.remember("note", b"", life=SECOND)
        assert await permits.coordination.recall("note") == b""
        permits.clock.advance(2 * SECOND)
        assert await permits.coordination.recall("note") is None


async def _take(permits: PermitsUnderTest) -> Allowance:
    return await permits.coordination.take("bucket", rate=2.0, burst=5)
