"""Answers to repeated calls in SQLite."""

import apsw

from conveyor.adapters.sqlite.database import Database
from conveyor.adapters.sqlite.rows import moment, stamp
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import CallerId
from conveyor.errors import KeyTaken
from conveyor.ports.clock import Clock

CLAIM_KEY = """
INSERT INTO idempotency_record (caller, key, fingerprint, status, body, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (caller, key) DO UPDATE SET
       fingerprint = ?3, status = ?4, body = ?5, expires_at = ?6 WHERE expires_at <= ?7
RETURNING 1
"""
REPLAY = """
SELECT fingerprint, status, body, expires_at FROM idempotency_record
 WHERE caller = ? AND key = ? AND expires_at > ?
"""
EXPIRED = """
SELECT caller, key FROM idempotency_record INDEXED BY idempotency_record_by_expiry WHERE expires_at <= ? LIMIT ?
"""


class SqliteAnswers:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def replay(self, caller: CallerId, key: str) -> IdempotencyRecord | None:
        wanted = (caller, key, stamp(self._clock.now()))
        row = self._database.peek(lambda connection: connection.execute(REPLAY, wanted).fetchone())
        if row is None:
            return None
        fingerprint, status, body, expires_at = row
        return IdempotencyRecord(
            caller=caller,
            key=key,
            fingerprint=fingerprint,
            status=status,
            body=body,
            expires_at=moment(expires_at),
        )

    async def clear_expired(self, *, limit: int) -> int:
        wanted = (stamp(self._clock.now()), limit)
        if not self._database.peek(lambda connection: _expired(connection, wanted)):
            return 0  # the usual case, and no transaction
        return await self._database.write(lambda connection: _clear(connection, wanted))


def claim_key(record: IdempotencyRecord, connection: apsw.Connection, now: int) -> None:
    row = (
        record.caller,
        record.key,
        record.fingerprint,
        record.status,
        record.body,
        stamp(record.expires_at),
        now,
    )
    if connection.execute(CLAIM_KEY, row).fetchone() is None:
        raise KeyTaken(f"idempotency key {record.key!r} is taken")


def _clear(connection: apsw.Connection, wanted: tuple[int, int]) -> int:
    keys = _expired(connection, wanted)
    connection.executemany("DELETE FROM idempotency_record WHERE caller = ? AND key = ?", keys)
    return len(keys)


def _expired(connection: apsw.Connection, wanted: tuple[int, int]) -> list[tuple[str, str]]:
    return [(caller, key) for caller, key in connection.execute(EXPIRED, wanted)]
