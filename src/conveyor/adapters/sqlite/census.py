"""What a caller has under way, in SQLite."""

from collections.abc import Sequence

import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.domain.ids import CallerId
from conveyor.domain.run import Run

RUN = msgspec.json.Decoder(Run)
# Over all live runs, which are few: an index by caller would cost every run two writes.
LIVE_RUNS = """
SELECT doc FROM run INDEXED BY run_live WHERE live = 1 AND doc ->> 'caller' = ? ORDER BY id
"""
SCHEDULED_JOBS = """
SELECT count(*) FROM job INDEXED BY job_by_caller
 WHERE caller = ? AND type = 'scheduled' AND status <> 'deleted'
"""
OPEN_SLOTS = """
SELECT count(*) FROM file_input INDEXED BY file_input_unused
 WHERE doc ->> 'caller' = ? AND json_array_length(doc, '$.jobs') = 0
"""
OPEN_EXPORTS = """
SELECT count(*) FROM export INDEXED BY export_open
 WHERE doc ->> 'caller' = ? AND doc ->> 'status' IN ('pending', 'running')
"""


class SqliteCensus:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def live_runs(self, caller: CallerId) -> Sequence[Run]:
        return await self._database.read(
            lambda connection: [
                RUN.decode(doc) for (doc,) in connection.execute(LIVE_RUNS, (caller,))
            ]
        )

    async def scheduled_jobs(self, caller: CallerId) -> int:
        return await self._count(SCHEDULED_JOBS, caller)

    async def open_slots(self, caller: CallerId) -> int:
        return await self._count(OPEN_SLOTS, caller)

    async def open_exports(self, caller: CallerId) -> int:
        return await self._count(OPEN_EXPORTS, caller)

    async def _count(self, query: str, caller: CallerId) -> int:
        return await self._database.read(
            lambda connection: int(connection.execute(query, (caller,)).get)
        )
