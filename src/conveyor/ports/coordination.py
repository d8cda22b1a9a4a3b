"""Short-lived state that processes share: permits, rate limits, a cache, notifications, members."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

import msgspec

from conveyor.domain.concurrency import Allowance


class PermitRequest(NamedTuple):
    """How many permits of a name are wanted, and how many of them may be live over all processes."""

    want: int
    cap: int


class Notification(msgspec.Struct, frozen=True):
    """Things of a topic that have changed.

    `names` is None if notifications may have been missed: anything of the topic may have changed.
    """

    topic: str
    names: frozenset[str] | None


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A live process. `id` is its incarnation: a process that starts again has another one."""

    id: str
    role: str
    host: str
    version: str
    started_at: datetime
    keys: tuple[str, ...] = ()  # fingerprints of the encryption keys that it can decrypt with


class Coordination(Protocol):
    """Losing all of this state is safe: permits are reserved again and buckets are full again.

    A permit is a lease, and the number of live leases of a name is its count. So nothing has to be
    counted down for a worker that crashed: its permits expire. The engine is opened with the length
    of a lease.

    A call for many names is atomic for each of them, not for all together: when it raises, it may
    have taken effect for some. Every method raises `Unavailable`. Without permits no new task
    starts, and running tasks continue.
    """

    async def reserve(self, wants: Mapping[str, PermitRequest]) -> Mapping[str, Sequence[str]]:
        """Reserve up to `want` permits of each name and return their ids.

        The ids are unique over all processes. A name that gets no permit may be missing from the
        result. The call adds no permits beyond `cap` live ones, also when several processes reserve
        at the same time. `cap` may be lower than in an earlier call: then no permit is granted
        until enough of them were released. Permits whose answer was lost expire, if the engine does
        not release them earlier.
        """
        ...

    async def renew(self, permits: Mapping[str, Sequence[str]]) -> None:
        """Extend the leases of permits, for a whole lease from now on.

        A permit that has expired is reserved again, even beyond the cap, because its task is still
        running.
        """
        ...

    async def release(self, permits: Mapping[str, Sequence[str]]) -> None:
        """Give permits back. Permits that are not held are ignored, so the call may be repeated."""
        ...

    async def held(self, name: str) -> int:
        """Count the live permits of a name, over all processes."""
        ...

    async def take(self, bucket: str, *, rate: float, burst: int) -> Allowance:
        """Take a token from a bucket that holds `burst` tokens and gains `rate` tokens a second.

        A new bucket is full. A refused call costs nothing. Concurrent calls are never granted more
        tokens than the bucket holds. An engine may forget the buckets that were used longest ago.
        """
        ...

    async def recall(self, names: Collection[str]) -> Mapping[str, bytes]:
        """Read cached values. Names without one, and those the engine dropped, are missing."""
        ...

    async def remember(self, values: Mapping[str, bytes], *, life: timedelta) -> None:
        """Cache values for at most `life`, in place of earlier ones."""
        ...

    async def notify(self, topic: str, names: Collection[str] = ()) -> None:
        """Tell all subscribers of a topic, in every process, what has changed.

        Best effort: a notification may be lost or repeated, so subscribers poll as well.
        """
        ...

    def notifications(self, topics: Collection[str]) -> AsyncGenerator[Notification, None]:
        """Subscribe to topics, and yield their notifications until the generator is closed.

        The first notification of each topic has None as its `names`. From then on notifications
        arrive, in any order. A subscriber that reads too slowly gets one with None in place of
        those that were dropped. When the connection is lost the generator raises `Unavailable`:
        subscribe again.
        """
        ...

    async def announce(self, member: Member, *, life: timedelta) -> None:
        """List a process among the members for `life`, in place of its earlier announcement.

        A process repeats the call well before `life` ends. A `life` of zero removes it.
        """
        ...

    async def members(self) -> Sequence[Member]:
        """List the processes whose announcement is still valid, in order of id."""
        ...
