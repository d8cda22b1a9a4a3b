"""Ports that repeat a call which was not answered, as steps and adapters do: for contracts over faults."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar, cast

import msgspec

from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.errors import KeyTaken, Stale, Unavailable
from conveyor.ports.metadata import Change, Metadata, Removed, key_of
from conveyor.testing.shared.faults import (
    CallThrottled,
    FaultInjector,
    FaultyPort,
    StoreFaults,
)

P = TypeVar("P")

# Calls that a step repeats only if they had no effect, and why.
GIVES_ANEW = "a repeat gives what is left: what the lost answer named comes back with its lease"
TELLS_LESS = "a repeat is safe, and tells what it did itself, not what the first try did"
FENCED = "a repeat is refused: the first try has ended the delivery"
ANSWERED: dict[str, str] = {
    "work.claim": GIVES_ANEW,
    "queues.receive": GIVES_ANEW,
    "control_queue.receive": GIVES_ANEW,
    "tasks.add": TELLS_LESS,
    "tasks.discard": TELLS_LESS,
    "work.settle": TELLS_LESS,
    "work.release_lapsed": TELLS_LESS,
    "claims.settle": TELLS_LESS,
    "claims.release_lapsed": TELLS_LESS,
    "metadata.clear_expired": TELLS_LESS,
    "control_queue.send": TELLS_LESS,
    "control_queue.redrive": TELLS_LESS,
    "control_queue.drop": TELLS_LESS,
    "control_queue.ack": FENCED,
    "control_queue.resend": FENCED,
    "control_queue.retry_later": FENCED,
    "control_queue.dead_letter": FENCED,
}


def repeating(port: P, name: str, random: Random, faults: StoreFaults) -> P:
    """A port with faults whose calls are repeated until they are answered."""
    return cast("P", _Repeating(port, name, random, faults))


class _Repeating:
    def __init__(self, port: object, name: str, random: Random, faults: StoreFaults) -> None:
        self._port, self._name = port, name
        self._faulty = FaultyPort(port, FaultInjector(random, faults))
        answered = msgspec.structs.replace(faults, lost=0.0)
        self._answered = FaultyPort(port, FaultInjector(random, answered))

    def __getattr__(self, method: str) -> Any:
        call = f"{self._name}.{method}"
        target = getattr(self._answered if call in ANSWERED else self._faulty, method)
        if call == "metadata.commit":
            return self._commit(target)

        async def repeated(*given: Any, **named: Any) -> Any:
            while True:
                try:
                    return await target(*given, **named)
                except Unavailable:
                    continue

        return repeated

    def _commit(self, target: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """A commit that may have happened is looked for, as an adapter must."""
        metadata = cast("Metadata", self._port)

        async def commit(*changes: Change) -> None:
            is_unsure = False
            while True:
                try:
                    return await target(*changes)
                except CallThrottled:
                    continue
                except Unavailable:
                    is_unsure = True
                except (Stale, KeyTaken):
                    if is_unsure and all([await _is_stored(metadata, one) for one in changes]):
                        return None
                    raise

        return commit


async def _is_stored(metadata: Metadata, change: Change) -> bool:
    if isinstance(change, Removed):
        return await metadata.get(type(change.row), key_of(change.row)) is None
    stored = await metadata.get(type(change), key_of(change))
    if isinstance(change, IdempotencyRecord):
        return stored == change
    return stored == msgspec.structs.replace(change, version=change.version + 1)
