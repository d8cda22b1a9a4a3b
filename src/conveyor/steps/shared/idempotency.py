"""Idempotency: a repeated call with the same key and request gets the first response, byte by byte."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from conveyor.domain.idempotency import IDEMPOTENCY_LIFE, IdempotencyRecord
from conveyor.domain.ids import ApiKeyId, CallerId
from conveyor.errors import CallerFault, IdempotencyKeyConflict
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata

UNDER_WAY = "The first call with this Idempotency-Key is under way: repeat this one later"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may be repeated."""

    caller: CallerId
    gateway_key: str
    raw: bytes
    fingerprint: bytes
    extensions: Mapping[str, object] = {}
    idempotency_key: str | None = None
    api_key_id: ApiKeyId | None = None  # with `auth = keys`


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    ignored: tuple[str, ...] = ()  # unknown fields of the call; not stored


@dataclass(slots=True, kw_only=True)
class Idempotency:
    """Finds and claims idempotency records.

    `under_way` holds the calls of this process; between processes the commit that claims the key
    decides.
    """

    metadata: Metadata
    clock: Clock
    under_way: set[tuple[CallerId, str]] = field(default_factory=set)

    async def find(self, call: Call) -> Answer | None:
        """Return the first response to a repeated call; a conflict when the requests differ."""
        if call.idempotency_key is None:
            return None
        record = await self.metadata.get(IdempotencyRecord, (call.caller, call.idempotency_key))
        if record is None:
            return None
        if record.fingerprint != call.fingerprint:
            raise IdempotencyKeyConflict(
                "This Idempotency-Key was used with another request: use a new key"
            )
        return Answer(record.status, record.body)

    @contextmanager
    def claiming(self, call: Call) -> Iterator[None]:
        """Hold the key while the first call with it is under way."""
        if call.idempotency_key is None:
            yield
            return
        key = (call.caller, call.idempotency_key)
        if key in self.under_way:
            raise IdempotencyKeyConflict(UNDER_WAY)
        self.under_way.add(key)
        try:
            yield
        finally:
            self.under_way.discard(key)

    def claim(self, call: Call, answer: Answer) -> list[IdempotencyRecord]:
        """Return what to commit together with the effect of the call."""
        if call.idempotency_key is None:
            return []
        return [
            IdempotencyRecord(
                caller=call.caller,
                key=call.idempotency_key,
                fingerprint=call.fingerprint,
                status=answer.status,
                body=answer.body,
                expires_at=self.clock.now() + IDEMPOTENCY_LIFE,
            )
        ]

    async def unless_answered(self, call: Call, refusal: CallerFault) -> Answer:
        """Return the response of an earlier call with the key, or raise the refusal.

        The effect of the earlier call may be the reason for the refusal.
        """
        known = await self.find(call)
        if known is None:
            raise refusal
        return known

    async def won_by_another(self, call: Call) -> Answer:
        """Return the response of the call that claimed the key during this one."""
        known = await self.find(call)
        if known is None:
            raise IdempotencyKeyConflict(UNDER_WAY)
        return known
