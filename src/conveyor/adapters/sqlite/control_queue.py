"""The control queue and its dead letters in SQLite, in one table.

`due_at` is when a message may be received: the end of its lease while a worker holds it, NULL once
it is a dead letter.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

import apsw
import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import Row, moment, stamp
from conveyor.domain.control_queue import MESSAGE_VERSION, ControlMessage, MessageGroup
from conveyor.errors import Stale
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.control_queue import DeadLetter, ReceivedMessage

PAYLOAD = msgspec.json.Decoder(dict[str, str])

SEND = """
INSERT INTO control_message (id, kind, subject, caller, payload, v, due_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, subject) WHERE due_at IS NOT NULL DO NOTHING RETURNING 1
"""
IS_LIVE = "SELECT 1 FROM control_message WHERE kind = ? AND subject = ? AND due_at IS NOT NULL"
ANY_DUE = "SELECT 1 FROM control_message WHERE due_at <= ? LIMIT 1"
GROUPS = f"""
SELECT kind, caller, min(due_at) FROM control_message INDEXED BY control_message_group
 WHERE due_at <= ? AND v <= {MESSAGE_VERSION} GROUP BY kind, caller
"""
RECEIVE = f"""
UPDATE control_message SET due_at = ?2, deliveries = deliveries + 1, held = 1
 WHERE id IN (SELECT id FROM control_message INDEXED BY control_message_group
               WHERE kind = ?4 AND caller = ?5 AND due_at <= ?1 AND v <= {MESSAGE_VERSION}
               ORDER BY due_at LIMIT ?3)
RETURNING id, kind, subject, caller, payload, v, deliveries
"""
HELD = "WHERE id = ? AND deliveries = ? AND due_at IS NOT NULL RETURNING 1"
EXTEND = f"UPDATE control_message SET due_at = ? {HELD}"
ACK = f"DELETE FROM control_message {HELD}"
RETRY_LATER = f"UPDATE control_message SET due_at = ?, held = 0 {HELD}"
RESEND = f"""
UPDATE control_message SET id = ?, payload = ?, due_at = ?, deliveries = ?, held = 0 {HELD}
"""
DEAD_LETTER = f"""
UPDATE control_message
   SET due_at = NULL, held = 0, payload = ?, reason = ?, dead_lettered_at = ? {HELD}
"""

DEAD_COLUMNS = "id, kind, payload, reason, dead_lettered_at"
LIST_DEAD = f"""
SELECT {DEAD_COLUMNS} FROM control_message
 WHERE dead_lettered_at IS NOT NULL AND id > ? ORDER BY id LIMIT ?
"""
FIND_DEAD = f"""
SELECT {DEAD_COLUMNS} FROM control_message WHERE dead_lettered_at IS NOT NULL AND id = ?
"""
REDRIVE = """
UPDATE OR IGNORE control_message
   SET id = ?2, due_at = ?3, deliveries = 0, reason = NULL, dead_lettered_at = NULL
 WHERE id = ?1 AND dead_lettered_at IS NOT NULL RETURNING 1
"""
DROP = "DELETE FROM control_message WHERE id = ? AND dead_lettered_at IS NOT NULL RETURNING 1"


class SqliteControlQueue:
    """The number of deliveries is the receipt: each delivery makes the receipts before it stale."""

    def __init__(self, database: Database, clock: Clock, ids: Ids) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids

    async def send(self, message: ControlMessage) -> bool:
        payload = msgspec.json.encode(message.payload).decode()
        key = (self._ids.new(), message.kind, message.subject, message.caller)
        return await self._change(SEND, *key, payload, message.v, self._now())

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
        excluded: Collection[MessageGroup] = (),
        served: Sequence[MessageGroup] = (),
    ) -> Sequence[ReceivedMessage]:
        now = self._clock.now()
        # A point read first: an idle worker that polls must not cost a transaction.
        if not self._database.peek(lambda connection: _any_due(connection, stamp(now))):
            return []
        due: Sequence[Row] = await self._database.read(
            lambda connection: connection.execute(GROUPS, (stamp(now),)).fetchall()
        )
        turns = {group: turn for turn, group in enumerate(served)}
        candidates = [
            (turns.get((kind, caller), -1), due_at, kind, caller)
            for kind, caller, due_at in due
            if (kinds is None or kind in kinds) and (kind, caller) not in excluded
        ]
        if not candidates:
            return []
        *_, kind, caller = min(candidates)
        values = (stamp(now), stamp(now + lease), limit, kind, caller)
        return await self._database.write(
            lambda connection: [_received(row) for row in connection.execute(RECEIVE, values)]
        )

    async def extend(self, message: ReceivedMessage, *, lease: timedelta) -> None:
        await self._settle(message, EXTEND, stamp(self._clock.now() + lease))

    async def ack(self, message: ReceivedMessage) -> None:
        await self._settle(message, ACK)

    async def retry_later(self, message: ReceivedMessage, *, delay: timedelta) -> None:
        await self._settle(message, RETRY_LATER, stamp(self._clock.now() + delay))

    async def resend(
        self, message: ReceivedMessage, payload: Mapping[str, str], *, deliveries: int = 0
    ) -> None:
        # The count of deliveries starts again, so the id must change: under the old one a receipt
        # of an earlier delivery would become valid again.
        text = msgspec.json.encode(payload).decode()
        await self._settle(message, RESEND, self._ids.new(), text, self._now(), deliveries)

    async def dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        payload = msgspec.json.encode(message.payload).decode()
        await self._settle(message, DEAD_LETTER, payload, reason, self._now())

    async def dead_letters(self, *, limit: int, after: str = "") -> Sequence[DeadLetter]:
        return await self._database.read(
            lambda connection: [_dead(row) for row in connection.execute(LIST_DEAD, (after, limit))]
        )

    async def find_dead_letter(self, message_id: str) -> DeadLetter | None:
        row = self._database.peek(
            lambda connection: connection.execute(FIND_DEAD, (message_id,)).fetchone()
        )
        return _dead(row) if row else None

    async def redrive(self, message_id: str) -> bool:
        if await self._change(REDRIVE, message_id, self._ids.new(), self._now()):
            return True
        # Either it does not exist, or OR IGNORE met a live message of the same kind and subject:
        # that message does the work, so the dead letter can go.
        return await self.drop(message_id)

    async def drop(self, message_id: str) -> bool:
        return await self._change(DROP, message_id)

    async def _settle(self, message: ReceivedMessage, statement: str, *values: str | int) -> None:
        if not await self._change(statement, *values, message.id, int(message.receipt)):
            raise Stale(f"message {message.id}: another worker has received it since")

    async def _change(self, statement: str, *values: str | int) -> bool:
        def operation(connection: apsw.Connection) -> bool:
            return connection.execute(statement, values).fetchone() is not None

        return await self._database.write(operation)

    def _now(self) -> int:
        return stamp(self._clock.now())


def _any_due(connection: apsw.Connection, now: int) -> bool:
    return connection.execute(ANY_DUE, (now,)).fetchone() is not None


def _received(row: Row) -> ReceivedMessage:
    message_id, kind, subject, caller, payload, v, deliveries = row
    return ReceivedMessage(
        id=message_id,
        kind=kind,
        subject=subject,
        caller=caller,
        payload=PAYLOAD.decode(payload),
        v=v,
        deliveries=deliveries,
        receipt=str(deliveries),
    )


def _dead(row: Row) -> DeadLetter:
    message_id, kind, payload, reason, dead_lettered_at = row
    return DeadLetter(
        id=message_id,
        kind=kind,
        payload=PAYLOAD.decode(payload),
        reason=reason,
        dead_lettered_at=moment(dead_lettered_at),
    )
