"""Background duties in SQLite."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

import apsw
import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import Row, stamp
from conveyor.errors import Stale
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.duties import Duty

ABOUT = msgspec.json.Decoder(dict[str, str])

SEND = "INSERT INTO duty (id, kind, about, due_at) VALUES (?, ?, ?, ?)"
RECEIVE = """
UPDATE duty SET due_at = ?2, deliveries = deliveries + 1, held = 1
 WHERE id IN (SELECT id FROM duty WHERE due_at <= ?1
                 AND (?4 IS NULL OR kind IN (SELECT value FROM json_each(?4)))
               ORDER BY due_at LIMIT ?3)
RETURNING id, kind, about, deliveries
"""
ANY_DUE = """
SELECT 1 FROM duty WHERE due_at <= ?1
   AND (?2 IS NULL OR kind IN (SELECT value FROM json_each(?2))) LIMIT 1
"""
HELD = "WHERE id = ? AND deliveries = ? AND due_at IS NOT NULL RETURNING 1"


class SqliteDuties:
    """A delivery is known by its number: once a duty is received again, older ones are stale."""

    def __init__(self, database: Database, clock: Clock, ids: Ids) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids

    async def send(self, kind: str, about: Mapping[str, str]) -> None:
        row = (self._ids.new(), kind, msgspec.json.encode(about).decode(), stamp(self._clock.now()))
        await self._database.write(lambda connection: _run(connection, SEND, row))

    async def receive(
        self, limit: int, *, lease: timedelta, kinds: Collection[str] | None = None
    ) -> Sequence[Duty]:
        now = self._clock.now()
        named = None if kinds is None else msgspec.json.encode(sorted(kinds)).decode()
        wanted = (stamp(now), stamp(now + lease), limit, named)
        if not self._database.peek(lambda connection: _any_due(connection, wanted[0], named)):
            return []
        return await self._database.write(
            lambda connection: [_duty(row) for row in connection.execute(RECEIVE, wanted)]
        )

    async def extend(self, duty: Duty, *, lease: timedelta) -> None:
        until = stamp(self._clock.now() + lease)
        await self._held(duty, f"UPDATE duty SET due_at = ? {HELD}", until)

    async def ack(self, duty: Duty) -> None:
        await self._held(duty, f"DELETE FROM duty {HELD}")

    async def retry_later(self, duty: Duty, *, delay: timedelta) -> None:
        until = stamp(self._clock.now() + delay)
        await self._held(duty, f"UPDATE duty SET due_at = ?, held = 0 {HELD}", until)

    async def bury(self, duty: Duty, reason: str) -> None:
        now = stamp(self._clock.now())
        statement = f"UPDATE duty SET due_at = NULL, held = 0, reason = ?, buried_at = ? {HELD}"
        await self._held(duty, statement, reason, now)

    async def _held(self, duty: Duty, statement: str, *values: str | int) -> None:
        def operation(connection: apsw.Connection) -> None:
            key = (*values, duty.id, int(duty.receipt))
            if connection.execute(statement, key).fetchone() is None:
                raise Stale(f"duty {duty.id} has passed to another")

        await self._database.write(operation)


def _run(connection: apsw.Connection, statement: str, row: tuple[str | int, ...]) -> None:
    connection.execute(statement, row)


def _any_due(connection: apsw.Connection, now: int, kinds: str | None) -> bool:
    """A look before the write: an idle control loop should cost no transaction."""
    return connection.execute(ANY_DUE, (now, kinds)).fetchone() is not None


def _duty(row: Row) -> Duty:
    duty_id, kind, about, deliveries = row
    return Duty(
        id=duty_id,
        kind=kind,
        about=ABOUT.decode(about),
        deliveries=deliveries,
        receipt=str(deliveries),
    )
