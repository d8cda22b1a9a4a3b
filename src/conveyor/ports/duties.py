"""The control queue: background duties, done at least once, buried when they cannot be."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from conveyor.domain.message import Line, Message


class Duty(Message, frozen=True, kw_only=True):
    """A message under a lease; `receipt` names this delivery."""

    id: str
    deliveries: int
    receipt: str


class Duties(Protocol):
    """At least once. Steps never assume that sending is atomic with anything.

    A message is live from `send` until `ack` or `bury`: it waits to be received, or is held.
    `extend`, `ack`, `retry_later`, `resend` and `bury` raise `Stale` when the delivery's lease has
    passed to another. All raise `Unavailable`.
    """

    async def send(self, message: Message) -> bool:
        """Send a message, unless one of its kind and subject is live; say whether it was sent."""
        ...

    async def is_live(self, kind: str, subject: str) -> bool:
        """Whether such a message waits or is held."""
        ...

    async def receive(
        self,
        limit: int,
        *,
        lease: timedelta,
        kinds: Collection[str] | None = None,
        barred: Collection[Line] = (),
        served: Sequence[Line] = (),
    ) -> Sequence[Duty]:
        """Messages that are due, of some kinds or of any, of lines that are not barred.

        Lines that are not in `served` come first, then those that come first in it; within a line
        what has been due longest. Fewer than `limit` may come back.
        """
        ...

    async def extend(self, duty: Duty, *, lease: timedelta) -> None: ...

    async def ack(self, duty: Duty) -> None: ...

    async def retry_later(self, duty: Duty, *, delay: timedelta) -> None: ...

    async def resend(self, duty: Duty, about: Mapping[str, str]) -> None:
        """Put a message back as if it had just been sent: due at once, no delivery counted.

        For work that is done in parts, each of which makes progress. The message gets a new id.
        """
        ...

    async def bury(self, duty: Duty, reason: str) -> None:
        """Put the duty aside for a person to see, with why: from now on it is in `Graves`."""
        ...
