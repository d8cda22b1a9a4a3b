"""The control queue and its dead letters in PostgreSQL, in one table.

`due_at` is when a message may be received: the end of its lease while a worker holds it, NULL once
it is a dead letter.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from conveyor.adapters.postgres.database import PostgresDatabase, same_key
from conveyor.domain.control_queue import MESSAGE_VERSION, ControlMessage, MessageGroup
from conveyor.errors import Stale
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.control_queue import DeadLetter, ReceivedMessage

PAYLOAD = msgspec.json.Decoder(dict[str, str])
NOW = "coalesce($1::timestamptz, statement_timestamp())"  # $1 is null unless a test sets the time

SEND = f"""
INSERT INTO control_message (id, kind, subject, caller, payload, v, due_at)
VALUES ($2, $3, $4, $5, $6, $7, {NOW})
ON CONFLICT (kind, subject) WHERE due_at IS NOT NULL DO NOTHING RETURNING 1
"""
IS_LIVE = "SELECT 1 FROM control_message WHERE kind = $1 AND subject = $2 AND due_at IS NOT NULL"
# A look-up finds the next kind and caller in the index, so a receive does not read all live messages.
GROUPS = f"""
WITH RECURSIVE live AS (
    (SELECT kind, caller, due_at FROM control_message
      WHERE due_at IS NOT NULL AND v <= {MESSAGE_VERSION} ORDER BY kind, caller, due_at LIMIT 1)
    UNION ALL
    SELECT next.* FROM live CROSS JOIN LATERAL (
        SELECT kind, caller, due_at FROM control_message AS it
         WHERE due_at IS NOT NULL AND v <= {MESSAGE_VERSION}
           AND (it.kind, it.caller) > (live.kind, live.caller)
         ORDER BY kind, caller, due_at LIMIT 1) AS next)
SELECT kind, caller, due_at FROM live WHERE due_at <= {NOW}
"""
RECEIVE = f"""
WITH due AS MATERIALIZED (
    SELECT id FROM control_message
     WHERE kind = $4 AND caller = $5 AND due_at <= {NOW} AND v <= {MESSAGE_VERSION}
     ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED)
UPDATE control_message AS it SET due_at = {NOW} + $2, deliveries = deliveries + 1
  FROM due WHERE {same_key("it", "due", ("id",))}
RETURNING it.id, kind, subject, caller, payload, v, deliveries
"""
# Not `due_at IS NOT NULL`: for that the planner may read all of a partial index.
HELD = "WHERE id = $2 AND deliveries = $3 AND dead_lettered_at IS NULL RETURNING 1"
EXTEND = f"UPDATE control_message SET due_at = {NOW} + $4 {HELD}"
ACK = f"DELETE FROM control_message {HELD.replace('$2', '$1').replace('$3', '$2')}"
RESEND = f"""
UPDATE control_message SET id = $4, payload = $5, due_at = {NOW}, deliveries = $6 {HELD}
"""
DEAD_LETTER = f"""
UPDATE control_message SET due_at = NULL, payload = $4, reason = $5, dead_lettered_at = {NOW} {HELD}
"""

DEAD_COLUMNS = "id, kind, payload, reason, dead_lettered_at"
LIST_DEAD = f"""
SELECT {DEAD_COLUMNS} FROM control_message
 WHERE dead_lettered_at IS NOT NULL AND id > $1 ORDER BY id LIMIT $2
"""
FIND_DEAD = f"""
SELECT {DEAD_COLUMNS} FROM control_message WHERE dead_lettered_at IS NOT NULL AND id = $1
"""
# If a message of the same kind and subject is live, that message does the work, and the dead letter
# is only removed.
REDRIVE = f"""
WITH dead AS (
    DELETE FROM control_message WHERE id = $2 AND dead_lettered_at IS NOT NULL
    RETURNING kind, subject, caller, payload, v),
again AS (
    INSERT INTO control_message (id, kind, subject, caller, payload, v, due_at)
    SELECT $3::text, kind, subject, caller, payload, v, {NOW} FROM dead
    ON CONFLICT (kind, subject) WHERE due_at IS NOT NULL DO NOTHING)
SELECT 1 FROM dead
"""
DROP = "DELETE FROM control_message WHERE id = $1 AND dead_lettered_at IS NOT NULL RETURNING 1"


class PostgresControlQueue:
    """The number of deliveries is the receipt: each delivery makes the receipts before it stale."""

    def __init__(self, database: PostgresDatabase, ids: Ids, clock: Clock | None = None) -> None:
        """With a clock, messages are due by it; by default by that of the server."""
        self._database = database
        self._ids = ids
        self._clock = clock

    async def send(self, message: ControlMessage) -> bool:
        payload = msgspec.json.encode(message.payload).decode()
        key = (self._ids.new(), message.kind, message.subject, message.caller)
        return await self._change(SEND, self._now(), *key, payload, message.v)

    async def is_live(self, kind: str, subject: str) -> bool:
        return await self._change(IS_LIVE, kind, subject)

    async def receive(
        self,
        limit: int,
        *,
        lease: timedelta,
        kinds: Collection[str] | None = None,
        excluded: Collection[MessageGroup] = (),
        served: Sequence[MessageGroup] = (),
    ) -> Sequence[ReceivedMessage]:
        now = self._now()
        due = await self._database.fetch(GROUPS, now)
        turns = {group: turn for turn, group in enumerate(served)}
        candidates = [
            (turns.get((kind, caller), -1), due_at, kind, caller)
            for kind, caller, due_at in due
            if (kinds is None or kind in kinds) and (kind, caller) not in excluded
        ]
        if not candidates:
            return []
        *_, kind, caller = min(candidates)
        received = await self._database.fetch(RECEIVE, now, lease, limit, kind, caller)
        return [_received(row) for row in received]

    async def extend(self, message: ReceivedMessage, *, lease: timedelta) -> None:
        await self._settle(message, EXTEND, lease)

    async def ack(self, message: ReceivedMessage) -> None:
        if not await self._change(ACK, message.id, int(message.receipt)):
            raise _stale(message)

    async def retry_later(self, message: ReceivedMessage, *, delay: timedelta) -> None:
        await self._settle(message, EXTEND, delay)

    async def resend(
        self, message: ReceivedMessage, payload: Mapping[str, str], *, deliveries: int = 0
    ) -> None:
        # The count of deliveries starts again, so the id must change: under the old one a receipt
        # of an earlier delivery would become valid again.
        text = msgspec.json.encode(payload).decode()
        await self._settle(message, RESEND, self._ids.new(), text, deliveries)

    async def dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        payload = msgspec.json.encode(message.payload).decode()
        await self._settle(message, DEAD_LETTER, payload, reason)

    async def dead_letters(self, *, limit: int, after: str = "") -> Sequence[DeadLetter]:
        return [_dead(row) for row in await self._database.fetch(LIST_DEAD, after, limit)]

    async def find_dead_letter(self, message_id: str) -> DeadLetter | None:
        row = await self._database.first(FIND_DEAD, message_id)
        return _dead(row) if row else None

    async def redrive(self, message_id: str) -> bool:
        return await self._change(REDRIVE, self._now(), message_id, self._ids.new())

    async def drop(self, message_id: str) -> bool:
        return await self._change(DROP, message_id)

    async def _settle(self, message: ReceivedMessage, statement: str, *values: Any) -> None:
        key = (message.id, int(message.receipt))
        if not await self._change(statement, self._now(), *key, *values):
            raise _stale(message)

    async def _change(self, statement: str, *values: Any) -> bool:
        return await self._database.first(statement, *values) is not None

    def _now(self) -> datetime | None:
        return self._clock.now() if self._clock else None


def _stale(message: ReceivedMessage) -> Stale:
    return Stale(f"message {message.id}: another worker has received it since")


def _received(row: Any) -> ReceivedMessage:
    given = dict(row) | {"payload": PAYLOAD.decode(row["payload"])}
    return ReceivedMessage(**given, receipt=str(row["deliveries"]))


def _dead(row: Any) -> DeadLetter:
    return DeadLetter(**dict(row) | {"payload": PAYLOAD.decode(row["payload"])})
