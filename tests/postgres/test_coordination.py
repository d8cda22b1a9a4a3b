"""Coordination on PostgreSQL: calls that fail, servers that crash, and poolers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest

from conveyor.adapters.postgres import coordination
from conveyor.adapters.postgres import database as database_module
from conveyor.adapters.postgres.address import PostgresAddress
from conveyor.adapters.postgres.coordination import (
    CLEAN_EVERY,
    POLL_APART,
    RESYNC_EVERY,
    PostgresCoordination,
)
from conveyor.adapters.postgres.database import Pool, open_database
from conveyor.adapters.postgres.permits import LOCK, _lock_key
from conveyor.adapters.postgres.schema import migrate_at
from conveyor.domain.concurrency import take_one
from conveyor.errors import Unavailable
from conveyor.ports.coordination import Notification, PermitRequest
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import a_member
from tests.harness.postgres import Proxy, TestDatabases, a_postgres, connected

LEASE = timedelta(seconds=60)
NAME = "job:one"
ALL = {NAME: PermitRequest(3, 3)}
# Not pg_stat_activity, of which a transaction sees one moment.
WAITING = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'advisory')"
TABLES = ("permit", "bucket", "cached_value", "notification", "member")


@asynccontextmanager
async def _opened(address: PostgresAddress, clock: FakeClock) -> AsyncIterator[Any]:
    """Coordination as two processes have it."""
    async with open_database(address) as one, open_database(address) as other:
        yield [
            PostgresCoordination(
                database, monotonic=clock, incarnation=name, lease=LEASE, clock=clock
            )
            for name, database in (("one", one), ("other", other))
        ]


@pytest.mark.parametrize("life", [timedelta(), LEASE])
async def test_members_do_not_wait_for_a_silent_server(
    postgres_18: TestDatabases, monkeypatch: pytest.MonkeyPatch, life: timedelta
) -> None:
    """A process that stops leaves the list last, and must still stop in time."""
    for limit in "DEADLINE", "ANNOUNCED_WITHIN":
        monkeypatch.setattr(coordination, limit, timedelta(seconds=0.1))
    monkeypatch.setattr(database_module, "RELEASED_WITHIN", 0.1)
    address = await postgres_18.empty()
    async with Proxy(address.port).running() as proxy:
        proxy.fall_silent()
        async with (
            _opened(replace(address, port=proxy.port), FakeClock()) as (one, _),
            asyncio.timeout(database_module.ACQUIRED_WITHIN * 0.9),
        ):
            with pytest.raises(Unavailable, match="coordination did not answer in time"):
                await one.announce(a_member(), life=life)
            with pytest.raises(Unavailable, match="coordination did not answer in time"):
                await one.members()


async def test_a_canceled_reservation_keeps_no_permits(postgres_18: TestDatabases) -> None:
    address = await postgres_18.empty()
    async with _opened(address, FakeClock()) as (one, other), connected(address) as beside:
        async with beside.transaction():
            await beside.execute(LOCK, [_lock_key(NAME)])
            reserving = asyncio.ensure_future(one.reserve(ALL))
            while not await beside.fetchval(WAITING):
                pass  # each look is a round trip: nothing tells when a session begins to wait
            reserving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reserving

        assert len((await other.reserve(ALL))[NAME]) == 3


async def test_permits_whose_release_failed_are_released_with_the_next_call(
    postgres_18: TestDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _opened(await postgres_18.empty(), FakeClock()) as (one, other):
        granted = await one.reserve(ALL)
        with monkeypatch.context() as patched:
            patched.setattr(one._database, "fetch", _unavailable)
            with pytest.raises(Unavailable):
                await one.release(granted)
        assert await other.held(NAME) == 3

        await one.reserve({"job:other": PermitRequest(1, 1)})

        assert await other.held(NAME) == 0


async def test_renewals_do_not_wait_for_a_reservation_without_a_connection(
    postgres_18: TestDatabases,
) -> None:
    address = await postgres_18.empty()
    async with _opened(address, FakeClock()) as (one, _), connected(address) as beside:
        granted = await one.reserve(ALL)
        await beside.execute("SELECT pg_advisory_lock(7)")
        lock = "SELECT pg_advisory_lock(7), pg_advisory_unlock(7)"
        work = [
            asyncio.ensure_future(one._database.fetch(lock, pool=Pool.WORK))
            for _ in range(address.connections)
        ]
        reserving = asyncio.ensure_future(one.reserve({"job:other": PermitRequest(1, 1)}))
        await asyncio.sleep(0)  # it has begun

        await one.renew(granted)

        assert not reserving.done()
        await beside.execute("SELECT pg_advisory_unlock(7)")
        await asyncio.gather(*work)
        assert len((await reserving)["job:other"]) == 1


@pytest.mark.long
async def test_a_process_that_stands_still_does_not_keep_a_name_from_others(
    postgres_18: TestDatabases,
) -> None:
    address = await postgres_18.empty()
    async with _opened(address, FakeClock()) as (one, _), connected(address) as beside:
        await beside.execute("BEGIN")
        await beside.execute(LOCK, [_lock_key(NAME)])

        assert len((await one.reserve(ALL))[NAME]) == 3


@pytest.mark.parametrize("back", [timedelta(seconds=0.5), timedelta(hours=1)])
async def test_calls_that_start_in_another_order_are_those_of_the_domain(
    postgres_18: TestDatabases, back: timedelta
) -> None:
    clock, bucket = FakeClock(), None
    async with _opened(await postgres_18.empty(), clock) as (one, _):
        for by in (timedelta(), timedelta(seconds=0.5), -back, timedelta(seconds=0.5) + back):
            clock.set_wall(by)
            moment = clock.now().timestamp()
            bucket, expected = take_one(bucket, moment, rate=2, burst=5)
            assert await one.take("bucket", rate=2, burst=5) == expected


async def test_rows_that_have_expired_are_removed(postgres_18: TestDatabases) -> None:
    address, clock = await postgres_18.empty(), FakeClock()
    async with _opened(address, clock) as (one, _), connected(address) as beside:
        await one.reserve(ALL)
        await one.take("bucket", rate=1, burst=5)
        await one.remember({"name": b"value"}, life=timedelta(seconds=1))
        await one.notify("runs", ["name"])
        await one.announce(a_member(id="gone"), life=timedelta(seconds=1))
        clock.advance(LEASE + 2 * CLEAN_EVERY)

        await one.announce(a_member(id="here"), life=LEASE)

        counts = {table: await beside.fetchval(f"SELECT count(*) FROM {table}") for table in TABLES}
        assert counts == dict.fromkeys(TABLES, 0) | {"member": 1}


async def test_a_member_is_announced_though_expired_rows_cannot_be_removed(
    postgres_18: TestDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "DEADLINE", timedelta(seconds=0.1))
    address = await postgres_18.empty()
    async with _opened(address, FakeClock()) as (one, _), connected(address) as beside:
        async with beside.transaction(), asyncio.timeout(database_module.ANSWERED_WITHIN / 2):
            await beside.execute("LOCK TABLE permit")
            await one.announce(a_member(), life=LEASE)
        assert await one.members() == [a_member()]


async def test_notifications_arrive_by_polls_where_a_pooler_hides_the_session(
    postgres_18: TestDatabases,
) -> None:
    address = replace(await postgres_18.empty(), pooled=True)
    async with (
        _opened(address, FakeClock()) as (one, other),
        aclosing(one.notifications(["runs"])) as notifications,
        asyncio.timeout(60),
    ):
        assert await anext(notifications) == Notification("runs", None)
        await other.notify("runs", ["name"])
        assert await anext(notifications) == Notification("runs", frozenset({"name"}))


async def test_many_notifications_arrive_by_name_and_seldom_make_all_be_read_again(
    postgres_18: TestDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "MOST_NOTIFICATIONS", 3)
    clock = FakeClock()
    async with (
        _opened(await postgres_18.empty(), clock) as (one, other),
        aclosing(one.notifications(["runs"])) as notifications,
        asyncio.timeout(60),
    ):
        assert await anext(notifications) == Notification("runs", None)
        for number in range(8):
            clock.advance(timedelta(milliseconds=10))
            await other.notify("runs", [f"{number}"])
        newest = frozenset({"5", "6", "7"})
        assert await anext(notifications) == Notification("runs", newest)
        await other.notify("runs", ["late"])
        assert await anext(notifications) == Notification("runs", frozenset({"late"}))

        clock.advance(RESYNC_EVERY)
        assert await anext(notifications) == Notification("runs", None), "some were missed"
        clock.advance(timedelta(seconds=1))
        await other.notify("runs", ["next"])
        assert await anext(notifications) == Notification("runs", frozenset({"next"}))


async def test_a_subscriber_that_is_told_of_each_notification_polls_four_times_a_second(
    postgres_18: TestDatabases,
) -> None:
    async with (
        _opened(await postgres_18.empty(), FakeClock()) as (one, other),
        aclosing(one.notifications(["runs"])) as notifications,
        asyncio.timeout(60),
    ):
        assert await anext(notifications) == Notification("runs", None)
        began = monotonic()
        for number in range(5):
            await other.notify("runs", [f"{number}"])
            assert await anext(notifications) == Notification("runs", frozenset({f"{number}"}))
        assert monotonic() - began >= 5 * POLL_APART.total_seconds()


@pytest.mark.long
async def test_after_a_crash_of_the_server_permits_are_taken_again() -> None:
    with a_postgres(18) as server:
        address = server.address("postgres")
        await migrate_at(address)
        async with (
            _opened(address, FakeClock()) as (one, other),
            aclosing(one.notifications(["runs"])) as notifications,
        ):
            assert await anext(notifications) == Notification("runs", None)
            granted = await one.reserve(ALL)
            server.kill()
            with pytest.raises(Unavailable):
                async with asyncio.timeout(60):
                    await anext(notifications)
            server.start()
            assert await other.held(NAME) == 0

            await one.renew(granted)

            assert not (await other.reserve(ALL)).get(NAME)


async def _unavailable(*_: object, **__: object) -> None:
    raise Unavailable("away")
