"""Coordination on PostgreSQL, so that one database is enough. `docs/storage/postgres.md` has more.

Notifications are rows, which subscribers poll. Where the server can tell a session that there are new
ones (LISTEN), the poll is made at once, but not sooner than `POLL_APART` after the last; else every
second.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec

from conveyor.adapters.postgres.database import PostgresDatabase
from conveyor.adapters.postgres.permits import NOW, PostgresPermits
from conveyor.domain.concurrency import Allowance, allowance
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Member, Notification

DEADLINE = timedelta(seconds=2)  # of calls that requests wait for, and can do without
ANNOUNCED_WITHIN = timedelta(seconds=5)  # after which the next announcement is due
POLL_EVERY = timedelta(seconds=1)  # for notifications
POLL_APART = timedelta(seconds=0.25)  # at least: many notifications share a poll
# A notification is found if its transaction ended within this time of its own timestamp.
LATE = timedelta(seconds=10)
MOST_NOTIFICATIONS = 500  # of one poll, the newest; with more, some may be missed
RESYNC_EVERY = LATE  # at most, while notifications are missed: it makes subscribers read everything
CLEAN_EVERY = timedelta(minutes=1)
CHANNEL = "conveyor_notifications"
MEMBER = msgspec.json.Decoder(Member)

EPOCH = f"extract(epoch FROM {NOW})::double precision"
# `take_one` of the domain. Statements lock the row in another order than they start in, so the moment
# of one may be before that of the row.
TAKE = f"""
INSERT INTO bucket AS old (name, tokens, at, granted, full_at)
VALUES ($2, $4::double precision - 1, {EPOCH}, true, {EPOCH} + 1 / $3::double precision)
ON CONFLICT (name) DO UPDATE SET (tokens, at, granted, full_at) = (
    SELECT left_over, moment, filled >= 1, moment + ($4 - left_over) / $3
      FROM (SELECT CASE WHEN old.at - excluded.at < $4 / $3 THEN greatest(old.at, excluded.at)
                        ELSE excluded.at END AS moment,
                   least(old.tokens + greatest(excluded.at - old.at, 0) * $3, $4) AS filled) AS now,
           LATERAL (SELECT CASE WHEN filled >= 1 THEN filled - 1 ELSE filled END AS left_over) AS it)
RETURNING tokens, granted
"""
RECALL = f"SELECT name, value FROM cached_value WHERE name = ANY($2::text[]) AND until > {NOW}"
REMEMBER = f"""
INSERT INTO cached_value (name, value, until)
SELECT name, value, {NOW} + $2 FROM unnest($3::text[], $4::bytea[]) AS given (name, value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value, until = excluded.until
"""
NOTIFY = f"""
WITH sent AS (INSERT INTO notification (id, topic, names, sent_at) VALUES ($2, $3, $4, {NOW}))
SELECT pg_notify('{CHANNEL}', '')
"""
NOTIFICATIONS = f"""
SELECT id, topic, names, sent_at FROM notification
 WHERE sent_at > {NOW} - $2::interval AND topic = ANY($3::text[])
 ORDER BY sent_at DESC LIMIT $4
"""
ANNOUNCE = f"""
INSERT INTO member (id, doc, until) VALUES ($3, $4, {NOW} + $2)
ON CONFLICT (id) DO UPDATE SET doc = excluded.doc, until = excluded.until
"""
LEAVE = "DELETE FROM member WHERE id = $1"
MEMBERS = f"SELECT doc FROM member WHERE until > {NOW} ORDER BY id"
CLEAN = f"""
WITH permits AS (DELETE FROM permit WHERE until < {NOW} - $2::interval),
     buckets AS (DELETE FROM bucket WHERE full_at < {EPOCH}),
     cache AS (DELETE FROM cached_value WHERE until < {NOW}),
     notifications AS (DELETE FROM notification WHERE sent_at < {NOW} - $2::interval)
DELETE FROM member WHERE until < {NOW}
"""


class PostgresCoordination(PostgresPermits):
    def __init__(
        self,
        database: PostgresDatabase,
        *,
        monotonic: Clock,
        incarnation: str,
        lease: timedelta,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            database, monotonic=monotonic, incarnation=incarnation, lease=lease, clock=clock
        )
        self._clean_at = 0.0

    # Rate limits and the cache.

    async def take(self, bucket: str, *, rate: float, burst: int) -> Allowance:
        async with _in_time():
            [tokens, granted] = await self._database.first(TAKE, self._now(), bucket, rate, burst)
        return allowance(tokens, granted=granted, rate=rate, burst=burst)

    async def recall(self, names: Collection[str]) -> Mapping[str, bytes]:
        if not names:
            return {}
        async with _in_time():
            rows = await self._database.fetch(RECALL, self._now(), list(names))
        return dict(map(tuple, rows))

    async def remember(self, values: Mapping[str, bytes], *, life: timedelta) -> None:
        if not values:
            return
        names = sorted(values)  # the order in which rows are locked
        given = (names, [values[name] for name in names])
        async with _in_time():
            await self._database.fetch(REMEMBER, self._now(), life, *given)

    # Notifications.

    async def notify(self, topic: str, names: Collection[str] = ()) -> None:
        number = f"{self._incarnation}.{next(self._numbers)}"
        async with _in_time():
            await self._database.fetch(NOTIFY, self._now(), number, topic, list(names))

    async def notifications(self, topics: Collection[str]) -> AsyncGenerator[Notification, None]:
        wanted = sorted(set(topics))
        missed = [Notification(topic, None) for topic in wanted]
        async with self._database.listening(CHANNEL) as arrived:
            polled_at = resynced_at = self._monotonic()
            rows, _ = await self._sent(LATE, wanted)
            seen = {row["id"]: row["sent_at"] for row in rows}
            for one in missed:
                yield one
            while True:
                await arrived.wait(POLL_EVERY)
                waited = self._monotonic() - polled_at
                await asyncio.sleep(POLL_APART.total_seconds() - waited)
                now = self._monotonic()
                window, polled_at = LATE + timedelta(seconds=now - polled_at), now
                rows, is_all = await self._sent(window, wanted)
                names: dict[str, set[str]] = {}
                for row in rows:
                    if row["id"] not in seen:
                        names.setdefault(row["topic"], set()).update(row["names"])
                seen = _still_found(seen | {row["id"]: row["sent_at"] for row in rows})
                # What an earlier poll missed is still within the time of this one.
                is_overdue = not is_all and now - resynced_at >= RESYNC_EVERY.total_seconds()
                if is_overdue or window > CLEAN_EVERY:
                    resynced_at = now
                    for one in missed:
                        yield one
                    continue
                for topic, changed in names.items():
                    yield Notification(topic, frozenset(changed))

    async def _sent(self, within: timedelta, topics: Sequence[str]) -> tuple[Sequence[Any], bool]:
        """The newest notifications of that time, and whether they are all of them."""
        rows = await self._database.fetch(
            NOTIFICATIONS, self._now(), within, topics, MOST_NOTIFICATIONS + 1
        )
        return rows[:MOST_NOTIFICATIONS], len(rows) <= MOST_NOTIFICATIONS

    # Members.

    async def announce(self, member: Member, *, life: timedelta) -> None:
        if life <= timedelta():
            async with _in_time():
                await self._database.fetch(LEAVE, member.id)
            return
        document = msgspec.json.encode(member).decode()
        async with _in_time(ANNOUNCED_WITHIN):
            await self._database.fetch(ANNOUNCE, self._now(), life, member.id, document)
        if self._monotonic() >= self._clean_at:
            self._clean_at = self._monotonic() + CLEAN_EVERY.total_seconds()
            with suppress(Unavailable):  # the member is announced; another time will do
                async with _in_time():
                    await self._database.fetch(CLEAN, self._now(), CLEAN_EVERY)

    async def members(self) -> Sequence[Member]:
        async with _in_time(ANNOUNCED_WITHIN):
            rows = await self._database.fetch(MEMBERS, self._now())
        return [MEMBER.decode(row["doc"]) for row in rows]


def _still_found(seen: Mapping[str, datetime]) -> dict[str, datetime]:
    """Those of the seen notifications that the next poll may find again."""
    if not seen:
        return {}
    first = max(seen.values()) - 2 * LATE
    return {number: sent_at for number, sent_at in seen.items() if sent_at > first}


@asynccontextmanager
async def _in_time(limit: timedelta | None = None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout((limit or DEADLINE).total_seconds()):
            yield
    except TimeoutError:
        raise Unavailable("PostgreSQL: coordination did not answer in time") from None
