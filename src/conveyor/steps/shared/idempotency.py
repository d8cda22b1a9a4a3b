"""Idempotency: the same key and request get the first answer again, to the byte.

Not a station of its own: the steps that take repeatable calls share it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from conveyor.domain.idempotency import IDEMPOTENCY_LIFE, IdempotencyRecord
from conveyor.domain.ids import CallerId, KeyId
from conveyor.errors import CallerFault, IdempotencyKeyConflict
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may be repeated: who, with which key, and what."""

    caller: CallerId
    api_key: str  # the gateway's
    raw: bytes
    fingerprint: bytes
    extensions: Mapping[str, object] = {}
    idempotency_key: str | None = None
    key_id: KeyId | None = None  # of the caller's key, where keys can be revoked


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    ignored: tuple[str, ...] = ()  # fields of the call that are not known here; not replayed


@dataclass(slots=True, kw_only=True)
class Idempotency:
    """Answers given again. `under_way` knows the calls this process is working on; across
    processes the transaction that claims the key decides.
    """

    metadata: Metadata
    clock: Clock
    under_way: set[tuple[CallerId, str]] = field(default_factory=set)

    async def find(self, call: Call) -> Answer | None:
        """The first answer to a repeated call; a conflict when it is not a repetition."""
        if call.idempotency_key is None:
            return None
        record = await self.metadata.get(IdempotencyRecord, (call.caller, call.idempotency_key))
        if record is None:
            return None
        if record.fingerprint != call.fingerprint:
            raise IdempotencyKeyConflict("This Idempotency-Key was used with another request")
        return Answer(record.status, record.body)

    @contextmanager
    def claiming(self, call: Call) -> Iterator[None]:
        """Hold the key while the first call with it is under way."""
        if call.idempotency_key is None:
            yield
            return
        key = (call.caller, call.idempotency_key)
        if key in self.under_way:
            raise IdempotencyKeyConflict("The first call with this Idempotency-Key is under way")
        self.under_way.add(key)
        try:
            yield
        finally:
            self.under_way.discard(key)

    def claim(self, call: Call, answer: Answer) -> list[IdempotencyRecord]:
        """What to commit beside the call's effect."""
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
        """The answer of a process that was first; without one, the refusal stands.

        What the first call did may be the very reason why this one is refused.
        """
        known = await self.find(call)
        if known is None:
            raise refusal
        return known

    async def won_by_another(self, call: Call) -> Answer:
        """The answer of whoever claimed the key while this call was at work."""
        known = await self.find(call)
        if known is None:
            raise IdempotencyKeyConflict("The first call with this Idempotency-Key is under way")
        return known
