"""Receipts of messages: of claims that stand, and of final tasks until their ack."""

from collections.abc import Iterable
from datetime import timedelta

import msgspec

from conveyor.ports.clock import Clock
from conveyor.ports.work import Held


class Receipt(msgspec.Struct, frozen=True):
    """What hides or acks a claimed task's message, and how often that was received in vain."""

    text: str
    in_vain: int


class FinalReceipts:
    """Each is kept for as long as it can ack its message, so an ack that never comes leaks nothing."""

    def __init__(self, clock: Clock, *, good_for: timedelta) -> None:
        self._clock = clock
        self._good_for = good_for.total_seconds()
        # All are good for equally long and a newer one goes to the end, so those to forget are
        # always the first ones.
        self._kept: dict[Held, tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, claim: Held, receipt: str) -> None:
        """Keep a task's newest receipt: of a message delivered twice no other can ack it."""
        self._forget_old()
        self.forget([claim])
        self._kept[claim] = receipt, self._clock.monotonic() + self._good_for

    def of(self, claims: Iterable[Held]) -> dict[Held, str]:
        """The receipts of those claims that have one."""
        self._forget_old()
        return {claim: self._kept[claim][0] for claim in claims if claim in self._kept}

    def forget(self, claims: Iterable[Held]) -> None:
        for claim in claims:
            self._kept.pop(claim, None)

    def _forget_old(self) -> None:
        now = self._clock.monotonic()
        while self._kept and self._kept[first := next(iter(self._kept))][1] <= now:
            del self._kept[first]
