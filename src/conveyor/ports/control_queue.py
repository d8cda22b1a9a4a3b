"""The control queue: background work, done at least once.

Messages that cannot be handled become dead letters, which an operator redrives or drops.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from conveyor.domain.control_queue import ControlMessage, MessageGroup


class ReceivedMessage(ControlMessage, frozen=True, kw_only=True):
    """A message under a lease; `receipt` names this delivery."""

    id: str
    deliveries: int
    receipt: str


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    payload: Mapping[str, str]
    reason: str
    dead_lettered_at: datetime


class DeadLetters(Protocol):
    """The part of a control queue that operators use. No dead letter leaves by itself.

    Every method raises `Unavailable`.
    """

    async def dead_letters(self, *, limit: int, after: str = "") -> Sequence[DeadLetter]:
        """Dead letters in order of id, beginning above `after`."""
        ...

    async def find_dead_letter(self, message_id: str) -> DeadLetter | None: ...

    async def redrive(self, message_id: str) -> bool:
        """Put a dead letter back on the queue, due at once; return whether it existed.

        It gets a new id, so no earlier delivery can settle it. If a message of the same kind and
        subject is live, that message does the work and the dead letter is removed.
        """
        ...

    async def drop(self, message_id: str) -> bool:
        """Remove a dead letter for good; return whether it existed."""
        ...


class ControlQueue(DeadLetters, Protocol):
    """At-least-once delivery. No step may assume that a send is atomic with another write.

    A message is live from `send` until `ack` or `dead_letter`: it waits to be received, or it is
    held under a lease. `extend`, `ack`, `retry_later`, `resend` and `dead_letter` raise `Stale`
    when the message has been received again since this delivery. Every method raises
    `Unavailable`.
    """

    async def send(self, message: ControlMessage) -> bool:
        """Send a message unless one of its kind and subject is live; return whether it was sent."""
        ...

    async def is_live(self, kind: str, subject: str) -> bool:
        """Whether a message of this kind and subject waits or is held."""
        ...

    async def receive(
        self,
        limit: int,
        *,
        lease: timedelta,
        kinds: Collection[str] | None = None,
        excluded: Collection[MessageGroup] = (),
        served: Sequence[MessageGroup] = (),
    ) -> Sequence[ReceivedMessage]:
        """Receive due messages of the given kinds (default: any) outside the excluded groups.

        Groups that are not in `served` come first, then the others in the order of `served`;
        within a group, the message that has been due longest. Fewer than `limit` may come back.
        """
        ...

    async def extend(self, message: ReceivedMessage, *, lease: timedelta) -> None: ...

    async def ack(self, message: ReceivedMessage) -> None: ...

    async def retry_later(self, message: ReceivedMessage, *, delay: timedelta) -> None: ...

    async def resend(self, message: ReceivedMessage, payload: Mapping[str, str]) -> None:
        """Put a message back as if it had just been sent: due at once, with no deliveries.

        For work done in parts, each of which makes progress. The message gets a new id.
        """
        ...

    async def dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        """Take a message off the queue and keep it, with the reason, as a dead letter."""
        ...
