"""Permits on PostgreSQL. Each name has a row for each process that holds permits of it.

A row says how many permits its process holds, and when they expire. Only that process writes it,
always as a whole, with a number that grows: a write that arrives late changes nothing. The ids of
the permits are known to the process alone. So many permits cost what one costs.

A reservation locks its names, adds up the live permits of the other rows, and writes its own row.
Renewals and releases need no lock: a release makes the sum smaller, and a renewal may take permits
beyond the cap.

| invariant | kept by |
|---|---|
| a row has no fewer permits than its process believes to hold | memory changes after a reservation, before a release |
| a row that may have more is written again by the next call | `_may_differ` |
| calls of one process follow each other | `_lock` |
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import count
from zlib import crc32

from conveyor.adapters.postgres.database import Connection, Pool, PostgresDatabase, transaction
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import PermitRequest

DEADLINE = timedelta(seconds=10)  # of a call: a process that stops waits for it
STEP = 0.25  # seconds between expiries: a row has few different ones
LOCKS = 0x7065726D  # the class of the advisory locks of names
NOW = "coalesce($1::timestamptz, statement_timestamp())"  # $1 is null unless a test sets the time

# A process that stands still meanwhile must not keep the others from the name, and one that waits for
# the name must not keep its own renewals waiting.
LOCK = f"""
SELECT set_config('idle_in_transaction_session_timeout', '2s', true),
       set_config('lock_timeout', '3s', true),
       pg_advisory_xact_lock({LOCKS}, key) FROM unnest($1::integer[]) AS key
"""
LIVE = f"""
SELECT name, sum(held.count)::integer
  FROM permit, unnest(seconds, counts) AS held (life, count)
 WHERE name = ANY($2::text[]) AND holder <> $3
   AND written_at + make_interval(secs => held.life) > {NOW}
 GROUP BY name
"""
WRITE = f"""
INSERT INTO permit AS old (name, holder, write_no, written_at, seconds, counts, until)
SELECT name, $2, $3, {NOW}, seconds::double precision[], counts::integer[],
       {NOW} + make_interval(secs => life)
  FROM unnest($4::text[], $5::text[], $6::text[], $7::double precision[])
    AS given (name, seconds, counts, life)
ON CONFLICT (name, holder) DO UPDATE
   SET write_no = excluded.write_no, written_at = excluded.written_at,
       seconds = excluded.seconds, counts = excluded.counts, until = excluded.until
 WHERE old.write_no < excluded.write_no
"""

Expiries = dict[str, float]  # of permits by id, in seconds of the monotonic clock


class PostgresPermits:
    def __init__(
        self,
        database: PostgresDatabase,
        *,
        monotonic: Clock,
        incarnation: str,
        lease: timedelta,
        clock: Clock | None = None,
    ) -> None:
        """With a clock, expiries are compared with it; by default with that of the server."""
        self._database, self._clock = database, clock
        self._monotonic = monotonic.monotonic
        self._incarnation = incarnation
        self._lease = lease.total_seconds()
        self._numbers = count(1)  # of permits, writes and notifications
        self._held: dict[str, Expiries] = {}
        self._lock, self._reserving = asyncio.Lock(), asyncio.Lock()
        self._may_differ: set[str] = set()  # names of rows that a failed call may have written

    async def reserve(self, wants: Mapping[str, PermitRequest]) -> Mapping[str, Sequence[str]]:
        asked = {name: request for name, request in wants.items() if request.want > 0}
        if not asked:
            return {}

        async def operation(connection: Connection) -> dict[str, Expiries]:
            async with self._changing(asked) as overdue:
                async with transaction(connection):
                    await connection.execute(LOCK, sorted({_lock_key(name) for name in asked}))
                    rows = await connection.fetch(LIVE, self._now(), [*asked], self._incarnation)
                    granted = self._granted(asked, dict(map(tuple, rows)))
                    changed = {name for name, some in granted.items() if some} | overdue
                    after = {name: self._live(name) | granted.get(name, {}) for name in changed}
                    if after:
                        await connection.execute(WRITE, *self._rows(after))
                for name, some in granted.items():
                    self._held[name] = self._live(name) | some
            return granted

        async with _in_time(), self._reserving:
            # First a connection, then the turn: renewals need the turn, and not this connection. One
            # at a time, because claims and settles need the other connections.
            granted = await self._database.run(operation, pool=Pool.WORK)
        return {name: [*some] for name, some in granted.items()}

    async def renew(self, permits: Mapping[str, Sequence[str]]) -> None:
        named = {name: ids for name, ids in permits.items() if ids}
        for name, ids in named.items():
            self._held[name] = self._live(name) | dict.fromkeys(ids, self._expiry())
        await self._write(named)

    async def release(self, permits: Mapping[str, Sequence[str]]) -> None:
        released = []
        for name, ids in permits.items():
            held = self._held.get(name, {})
            if [permit for permit in ids if held.pop(permit, None) is not None]:
                released.append(name)
        if released or permits.keys() & self._may_differ:
            await self._write(released)

    async def held(self, name: str) -> int:
        row = await self._database.first(LIVE, self._now(), [name], "")
        return row[1] if row else 0

    async def _write(self, names: Collection[str]) -> None:
        if not names and not self._may_differ:
            return
        async with _in_time(), self._changing(names) as overdue:
            rows = {name: self._live(name) for name in {*names, *overdue}}
            await self._database.fetch(WRITE, *self._rows(rows), pool=Pool.RESERVED)

    @asynccontextmanager
    async def _changing(self, names: Collection[str]) -> AsyncIterator[set[str]]:
        """Change rows, one call at a time; yield further names whose rows are to be written.

        If it fails, the next call writes all of them.
        """
        overdue: set[str] = set()
        try:
            async with self._lock:
                overdue, self._may_differ = self._may_differ, set()
                yield overdue
        except BaseException:  # also a canceled call may reach the server
            self._may_differ |= {*names, *overdue}
            raise

    def _granted(
        self, asked: Mapping[str, PermitRequest], elsewhere: Mapping[str, int]
    ) -> dict[str, Expiries]:
        expiry = self._expiry()
        return {
            name: {
                f"{self._incarnation}:{next(self._numbers)}": expiry
                for _ in range(min(want, cap - len(self._live(name)) - elsewhere.get(name, 0)))
            }
            for name, (want, cap) in asked.items()
        }

    def _live(self, name: str) -> Expiries:
        """The permits of a name that this process holds. Nothing is kept of names without any."""
        now, held = self._monotonic(), self._held.pop(name, {})
        if live := {permit: expiry for permit, expiry in held.items() if expiry > now}:
            self._held[name] = live
        return live

    def _expiry(self) -> float:
        """When a permit expires that begins now, rounded up, so that many expire together."""
        return math.ceil((self._monotonic() + self._lease) / STEP) * STEP

    def _rows(self, held: Mapping[str, Expiries]) -> tuple[object, ...]:
        """The values of `WRITE`. Names are in order, because the statement locks rows in it."""
        now, names = self._monotonic(), sorted(held)
        groups = [Counter(held[name].values()) for name in names]
        lives = [[expiry - now for expiry in group] for group in groups]
        return (
            self._now(),
            self._incarnation,
            next(self._numbers),
            names,
            [_array(life) for life in lives],
            [_array(group.values()) for group in groups],
            [max(life, default=0.0) for life in lives],
        )

    def _now(self) -> datetime | None:
        return self._clock.now() if self._clock else None


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(DEADLINE.total_seconds()):
            yield
    except TimeoutError as error:
        raise Unavailable("PostgreSQL: permits were not written in time") from error


def _lock_key(name: str) -> int:
    return crc32(name.encode()) - 2**31


def _array(numbers: Iterable[float]) -> str:
    """An array as the server reads it. The driver has no list of lists of different lengths."""
    return f"{{{','.join(map(str, numbers))}}}"
