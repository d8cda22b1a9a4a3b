"""Slots for lists in SQLite."""

from collections.abc import Sequence

import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.domain.file_input import FileInput
from conveyor.domain.ids import InputId

FILE_INPUT = msgspec.json.Decoder(FileInput)
FIND = "SELECT doc FROM file_input WHERE id = ?"
PAGE = "SELECT doc FROM file_input WHERE id > ? ORDER BY id LIMIT ?"


class SqliteInputs:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, name: InputId) -> FileInput | None:
        row = self._database.peek(lambda connection: connection.execute(FIND, (name,)).fetchone())
        return FILE_INPUT.decode(row[0]) if row else None

    async def page(self, *, limit: int, after: str = "") -> Sequence[FileInput]:
        return await self._database.read(
            lambda connection: [
                FILE_INPUT.decode(doc) for (doc,) in connection.execute(PAGE, (after, limit))
            ]
        )
