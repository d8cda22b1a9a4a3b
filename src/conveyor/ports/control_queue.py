"""The control queue: messages for background work, each handled at least once.

Messages that cannot be handled become dead letters, which an operator redrives or drops.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from conveyor.domain.control_queue import ControlMessage, MessageGroup


class ReceivedMessage(ControlMessage, frozen=True, kw_only=True):
    """A message under a lease. `receipt` names this delivery; only the latest one is valid."""

    id: str
    deliveries: int  # how often it was received, this time included
    receipt: str


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was given up, and why."""

    id: str
    kind: str
    payload: Mapping[str, str]
    reason: str
    dead_lettered_at: datetime


class DeadLetters(Protocol):
    """The part of a control queue that operators use.

    Dead letters do not expire. Every method raises `Unavailable`.
    """

    async def dead_letters(self, *, limit: int, after: str = "") -> Sequence[DeadLetter]:
        """List at most `limit` dead letters in order of id, beginning above `after`."""
        ...

    async def find_dead_letter(self, message_id: str) -> DeadLetter | None:
        """Read one dead letter; None when it does not exist."""
        ...

    async def redrive(self, message_id: str) -> bool:
        """Put a dead letter back on the queue, due at once, and return whether it existed.

        The message gets a new id, so that no receipt of an earlier delivery is valid for it. If a
        message of the same kind and subject is live, that message does the work, and the dead
        letter is only removed.
        """
        ...

    async def drop(self, message_id: str) -> bool:
        """Remove a dead letter, and return whether it existed."""
        ...


class ControlQueue(DeadLetters, Protocol):
    """A queue with at-least-once delivery.

    A message is live from `send` until `ack` or `dead_letter`: it waits to be received, or it is
    held under a lease. A message whose lease has ended is due again.

    No step may assume that a send is atomic with another write: the sweeper sends messages that a
    crash left out. Each call is atomic by itself. `extend`, `ack`, `retry_later`, `resend` and
    `dead_letter` may raise `Stale`, and then change nothing, when the message was received again
    since this delivery. A queue that cannot tell does as it is asked: work that is done by messages
    must be safe to repeat, and to be done twice at the same time. Every method raises `Unavailable`.
    """

    async def send(self, message: ControlMessage) -> bool:
        """Send a message, due at once, unless one of its kind and subject is live.

        Return whether it was sent. Concurrent sends of one subject send one message.
        """
        ...

    async def is_live(self, kind: str, subject: str) -> bool:
        """Return whether a message of this kind and subject waits or is held."""
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
        """Receive at most `limit` due messages, each under a lease from now on.

        Only messages of the given `kinds` (None: of any kind) outside the `excluded` groups are
        received. Groups that are not in `served` come first, then the others in the order of
        `served`; within a group, the message that has been due longest comes first. An engine may
        return fewer messages than are due.

        A message of a version above `MESSAGE_VERSION` is not received, and its deliveries are not
        counted: it waits for a process of a newer release.
        """
        ...

    async def extend(self, message: ReceivedMessage, *, lease: timedelta) -> None:
        """Hold a message for `lease` from now on. Its receipt stays valid."""
        ...

    async def ack(self, message: ReceivedMessage) -> None:
        """Remove a message that was handled."""
        ...

    async def retry_later(self, message: ReceivedMessage, *, delay: timedelta) -> None:
        """End the lease of a message, and make it due after `delay`."""
        ...

    async def resend(
        self, message: ReceivedMessage, payload: Mapping[str, str], *, deliveries: int = 0
    ) -> None:
        """Replace a message by one with a new payload and a new id, due at once.

        Work that is done in parts ends each part with this call, so that the deliveries of one part
        do not count against the next. `deliveries` is how many the new message starts with.
        """
        ...

    async def dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        """Take a message off the queue, and keep it as a dead letter with the reason.

        The payload that is kept is that of the given message, not that of the one that was received.
        """
        ...
