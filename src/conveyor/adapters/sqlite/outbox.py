"""What is owed to the outside, in SQLite."""

from collections.abc import Sequence

import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import stamp
from conveyor.domain.ids import EventId, JobId
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.ports.clock import Clock

EVENT = msgspec.json.Decoder(OutboxEvent)
FIND = "SELECT doc FROM event WHERE id = ?"
DUE = """
SELECT doc FROM event INDEXED BY event_due WHERE channel = ? AND due_at <= ?
 ORDER BY due_at, id LIMIT ?
"""
OF_JOB = "SELECT doc FROM event WHERE job_id = ? AND id < ? ORDER BY id DESC LIMIT ?"
PAGE = "SELECT doc FROM event WHERE id > ? ORDER BY id LIMIT ?"
PAST_EVERY_ID = "~"


class SqliteOutbox:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def find(self, event_id: EventId) -> OutboxEvent | None:
        found = self._database.peek(lambda one: one.execute(FIND, (event_id,)).fetchone())
        return EVENT.decode(found[0]) if found else None

    async def due(self, channel: Channel, *, limit: int) -> Sequence[OutboxEvent]:
        return await self._rows(DUE, (channel, stamp(self._clock.now()), limit))

    async def of_job(
        self, job_id: JobId, *, limit: int, before: str | None = None
    ) -> Sequence[OutboxEvent]:
        return await self._rows(OF_JOB, (job_id, before or PAST_EVERY_ID, limit))

    async def page(self, *, limit: int, after: str = "") -> Sequence[OutboxEvent]:
        return await self._rows(PAGE, (after, limit))

    async def _rows(self, query: str, wanted: tuple[str | int, ...]) -> Sequence[OutboxEvent]:
        return await self._database.read(
            lambda connection: [EVENT.decode(doc) for (doc,) in connection.execute(query, wanted)]
        )
