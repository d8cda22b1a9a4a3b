"""Buried duties in SQLite."""

from collections.abc import Sequence

import apsw

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.duties import ABOUT
from conveyor.adapters.sqlite.rows import Row, moment, stamp
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.graves import BuriedDuty

COLUMNS = "id, kind, about, reason, buried_at"
BURIED = f"""
SELECT {COLUMNS} FROM duty WHERE buried_at IS NOT NULL AND id > ? ORDER BY id LIMIT ?
"""
FIND = f"SELECT {COLUMNS} FROM duty WHERE buried_at IS NOT NULL AND id = ?"
REVIVE = """
UPDATE OR IGNORE duty SET id = ?2, due_at = ?3, deliveries = 0, reason = NULL, buried_at = NULL
 WHERE id = ?1 AND buried_at IS NOT NULL RETURNING 1
"""
DROP = "DELETE FROM duty WHERE id = ? AND buried_at IS NOT NULL RETURNING 1"


class SqliteGraves:
    def __init__(self, database: Database, clock: Clock, ids: Ids) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids

    async def buried(self, *, limit: int, after: str = "") -> Sequence[BuriedDuty]:
        return await self._database.read(
            lambda connection: [_buried(row) for row in connection.execute(BURIED, (after, limit))]
        )

    async def find(self, duty_id: str) -> BuriedDuty | None:
        row = self._database.peek(
            lambda connection: connection.execute(FIND, (duty_id,)).fetchone()
        )
        return _buried(row) if row else None

    async def revive(self, duty_id: str) -> bool:
        # The old id's deliveries are numbered too: under a new one none of them is good again.
        revived = await self._change(REVIVE, duty_id, self._ids.new(), stamp(self._clock.now()))
        # It was not if a live message does the same work by now: then it has served its time.
        return revived or await self.drop(duty_id)

    async def drop(self, duty_id: str) -> bool:
        return await self._change(DROP, duty_id)

    async def _change(self, statement: str, *values: str | int) -> bool:
        def operation(connection: apsw.Connection) -> bool:
            return connection.execute(statement, values).fetchone() is not None

        return await self._database.write(operation)


def _buried(row: Row) -> BuriedDuty:
    duty_id, kind, about, reason, buried_at = row
    return BuriedDuty(
        id=duty_id,
        kind=kind,
        about=ABOUT.decode(about),
        reason=reason,
        buried_at=moment(buried_at),
    )
