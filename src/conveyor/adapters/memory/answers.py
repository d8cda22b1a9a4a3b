"""Answers to repeated calls in memory."""

from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import CallerId
from conveyor.ports.clock import Clock


class MemoryAnswers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._idempotency: dict[tuple[CallerId, str], IdempotencyRecord] = {}

    async def replay(self, caller: CallerId, key: str) -> IdempotencyRecord | None:
        return self.standing(caller, key)

    async def clear_expired(self, *, limit: int) -> int:
        now = self._clock.now()
        expired = [key for key, record in self._idempotency.items() if record.expires_at <= now]
        for key in expired[:limit]:
            del self._idempotency[key]
        return len(expired[:limit])

    def standing(self, caller: CallerId, key: str) -> IdempotencyRecord | None:
        record = self._idempotency.get((caller, key))
        return record if record and record.expires_at > self._clock.now() else None

    def keep(self, record: IdempotencyRecord) -> None:
        self._idempotency[record.caller, record.key] = record
