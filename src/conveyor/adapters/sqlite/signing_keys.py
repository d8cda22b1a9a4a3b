"""Callers' signing keys in SQLite."""

from collections.abc import Sequence

import msgspec

from conveyor.adapters.sqlite.database import Database
from conveyor.domain.ids import CallerId
from conveyor.domain.signing import SigningKeys

SLOTS = msgspec.json.Decoder(SigningKeys)
FIND = "SELECT doc FROM signing_keys WHERE id = ?"
PAGE = "SELECT doc FROM signing_keys WHERE id > ? ORDER BY id LIMIT ?"


class SqliteSigningKeys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, caller: CallerId) -> SigningKeys | None:
        found = self._database.peek(lambda one: one.execute(FIND, (caller,)).fetchone())
        return SLOTS.decode(found[0]) if found else None

    async def page(self, *, limit: int, after: str = "") -> Sequence[SigningKeys]:
        return await self._database.read(
            lambda one: [SLOTS.decode(doc) for (doc,) in one.execute(PAGE, (after, limit))]
        )
