"""Exports in SQLite."""

from collections.abc import Sequence

import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.domain.export import Export
from conveyor.domain.ids import ExportId, RunId

EXPORT = msgspec.json.Decoder(Export)
FIND = "SELECT doc FROM export WHERE id = ?"
OF_RUN = "SELECT doc FROM export WHERE doc ->> 'run_id' = ? ORDER BY id"
PAGE = "SELECT doc FROM export WHERE id > ? ORDER BY id LIMIT ?"


class SqliteExports:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, name: ExportId) -> Export | None:
        row = self._database.peek(lambda connection: connection.execute(FIND, (name,)).fetchone())
        return EXPORT.decode(row[0]) if row else None

    async def of_run(self, run_id: RunId) -> Sequence[Export]:
        return await self._database.read(
            lambda connection: [
                EXPORT.decode(doc) for (doc,) in connection.execute(OF_RUN, (run_id,))
            ]
        )

    async def page(self, *, limit: int, after: str = "") -> Sequence[Export]:
        return await self._database.read(
            lambda connection: [
                EXPORT.decode(doc) for (doc,) in connection.execute(PAGE, (after, limit))
            ]
        )
