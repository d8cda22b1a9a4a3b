"""Scheduled jobs in SQLite."""

from collections.abc import Sequence

import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import stamp, within
from conveyor.domain.job import Job
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import JOBS_BYTES

JOB = msgspec.json.Decoder(Job)
DUE = """
SELECT doc FROM job INDEXED BY job_by_fire WHERE fires_at <= ? ORDER BY fires_at, id LIMIT ?
"""


class SqliteTimetable:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def due(self, *, limit: int) -> Sequence[Job]:
        wanted = (stamp(self._clock.now()), limit)
        return await self._database.read(
            lambda connection: [
                JOB.decode(doc) for (doc,) in within(connection.execute(DUE, wanted), JOBS_BYTES)
            ]
        )
