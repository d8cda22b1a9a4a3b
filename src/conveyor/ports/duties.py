"""The control queue: background duties, done at least once, buried when they cannot be."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import msgspec


class Duty(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of background work under a lease; `receipt` names this delivery."""

    id: str
    kind: str
    about: Mapping[str, str]
    deliveries: int
    receipt: str


class Duties(Protocol):
    """At least once, in no order. Steps never assume that sending is atomic with anything.

    `extend`, `ack`, `retry_later` and `bury` raise `Stale` when the delivery's lease has passed
    to another. All raise `Unavailable`.
    """

    async def send(self, kind: str, about: Mapping[str, str]) -> None: ...

    async def receive(
        self, limit: int, *, lease: timedelta, kinds: Collection[str] | None = None
    ) -> Sequence[Duty]:
        """Duties that are due, of some kinds or of any."""
        ...

    async def extend(self, duty: Duty, *, lease: timedelta) -> None: ...

    async def ack(self, duty: Duty) -> None: ...

    async def retry_later(self, duty: Duty, *, delay: timedelta) -> None: ...

    async def bury(self, duty: Duty, reason: str) -> None:
        """Put the duty aside for a person to see, with why: from now on it is in `Graves`."""
        ...
