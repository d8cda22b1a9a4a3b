"""Background duties in SQLite."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

import apsw
import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import Row, stamp
from conveyor.domain.message import Line, Message
from conveyor.errors import Stale
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.duties import Duty

ABOUT = msgspec.json.Decoder(dict[str, str])

SEND = """
INSERT INTO duty (id, kind, subject, caller, about, due_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, subject) WHERE due_at IS NOT NULL DO NOTHING RETURNING 1
"""
IS_LIVE = "SELECT 1 FROM duty WHERE kind = ? AND subject = ? AND due_at IS NOT NULL"
ANY_DUE = "SELECT 1 FROM duty WHERE due_at <= ? LIMIT 1"
LINES = """
SELECT kind, caller, min(due_at) FROM duty INDEXED BY duty_line
 WHERE due_at <= ? GROUP BY kind, caller
"""
RECEIVE = """
UPDATE duty SET due_at = ?2, deliveries = deliveries + 1, held = 1
 WHERE id IN (SELECT id FROM duty INDEXED BY duty_line
               WHERE kind = ?4 AND caller = ?5 AND due_at <= ?1 ORDER BY due_at LIMIT ?3)
RETURNING id, kind, subject, caller, about, deliveries
"""
HELD = "WHERE id = ? AND deliveries = ? AND due_at IS NOT NULL RETURNING 1"


class SqliteDuties:
    """A delivery is known by its number: once a duty is received again, older ones are stale."""

    def __init__(self, database: Database, clock: Clock, ids: Ids) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids

    async def send(self, message: Message) -> bool:
        about = msgspec.json.encode(message.about).decode()
        row = (
            *(self._ids.new(), message.kind, message.subject, message.caller),
            *(about, stamp(self._clock.now())),
        )
        return await self._database.write(
            lambda connection: connection.execute(SEND, row).fetchone() is not None
        )

    async def is_live(self, kind: str, subject: str) -> bool:
        return self._database.peek(
            lambda connection: connection.execute(IS_LIVE, (kind, subject)).fetchone() is not None
        )

    async def receive(
        self,
        limit: int,
        *,
        lease: timedelta,
        kinds: Collection[str] | None = None,
        barred: Collection[Line] = (),
        served: Sequence[Line] = (),
    ) -> Sequence[Duty]:
        now = self._clock.now()
        if not self._database.peek(lambda connection: _any_due(connection, stamp(now))):
            return []
        due: Sequence[Row] = await self._database.read(
            lambda connection: connection.execute(LINES, (stamp(now),)).fetchall()
        )
        turns = {line: turn for turn, line in enumerate(served)}
        waiting = [
            (turns.get((kind, caller), -1), due_at, kind, caller)
            for kind, caller, due_at in due
            if (kinds is None or kind in kinds) and (kind, caller) not in barred
        ]
        if not waiting:
            return []
        *_, kind, caller = min(waiting)
        wanted = (stamp(now), stamp(now + lease), limit, kind, caller)
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

    async def resend(self, duty: Duty, about: Mapping[str, str]) -> None:
        # Deliveries are numbered from one again: under a new id no older one is good again.
        statement = (
            f"UPDATE duty SET id = ?, about = ?, due_at = ?, deliveries = 0, held = 0 {HELD}"
        )
        text, now = msgspec.json.encode(about).decode(), stamp(self._clock.now())
        await self._held(duty, statement, self._ids.new(), text, now)

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


def _any_due(connection: apsw.Connection, now: int) -> bool:
    """A look before the write: an idle control loop should cost no transaction."""
    return connection.execute(ANY_DUE, (now,)).fetchone() is not None


def _duty(row: Row) -> Duty:
    duty_id, kind, subject, caller, about, deliveries = row
    return Duty(
        id=duty_id,
        kind=kind,
        subject=subject,
        caller=caller,
        about=ABOUT.decode(about),
        deliveries=deliveries,
        receipt=str(deliveries),
    )
