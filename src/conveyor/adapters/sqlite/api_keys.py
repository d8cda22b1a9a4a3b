"""Keys that this service gave out, in SQLite."""

from collections.abc import Sequence

import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.domain.api_key import ApiKey
from conveyor.domain.ids import KeyId

API_KEY = msgspec.json.Decoder(ApiKey)
FIND = "SELECT doc FROM api_key WHERE id = ?"
PAGE = "SELECT doc FROM api_key WHERE id > ? ORDER BY id LIMIT ?"


class SqliteApiKeys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, key_id: KeyId) -> ApiKey | None:
        found = self._database.peek(lambda one: one.execute(FIND, (key_id,)).fetchone())
        return API_KEY.decode(found[0]) if found else None

    async def page(self, *, limit: int, after: str = "") -> Sequence[ApiKey]:
        return await self._database.read(
            lambda one: [API_KEY.decode(doc) for (doc,) in one.execute(PAGE, (after, limit))]
        )
