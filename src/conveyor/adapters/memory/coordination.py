"""Coordination in memory, for services of one process."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from datetime import timedelta
from itertools import count

from conveyor.domain.concurrency import Allowance, Bucket, is_full, take_one
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Member, Notification, PermitRequest

LEASE = timedelta(seconds=30)
MOST_KEPT = 10_000  # buckets, cached values, names that a subscriber has not read; oldest go first


class MemoryCoordination:
    def __init__(self, clock: Clock, *, lease: timedelta = LEASE) -> None:
        self._clock = clock
        self._lease = lease.total_seconds()
        self._numbers = count(1)
        # All leases have the same length and a renewed permit goes to the end, so the permits of a
        # name are in the order in which they lapse: lapsed ones come first.
        self._permits: dict[str, dict[str, float]] = {}
        self._buckets: dict[str, Bucket] = {}
        self._cache: dict[str, tuple[float, bytes]] = {}  # each with its expiry
        self._subscribers: set[_Subscriber] = set()
        self._members: dict[str, tuple[float, Member]] = {}  # each with its expiry

    # Permits.

    async def reserve(self, wants: Mapping[str, PermitRequest]) -> Mapping[str, Sequence[str]]:
        return {name: self._reserve(name, request) for name, request in wants.items()}

    async def renew(self, permits: Mapping[str, Sequence[str]]) -> None:
        for name, ids in permits.items():
            self._drop(name, ids)
            self._hold(name, ids)

    async def release(self, permits: Mapping[str, Sequence[str]]) -> None:
        for name, ids in permits.items():
            self._drop(name, ids)

    async def held(self, name: str) -> int:
        return self._live(name)

    def _reserve(self, name: str, request: PermitRequest) -> Sequence[str]:
        room = min(request.want, request.cap - self._live(name))
        ids = [str(next(self._numbers)) for _ in range(room)]
        self._hold(name, ids)
        return ids

    def _live(self, name: str) -> int:
        held = self._permits.get(name, {})
        now = self._clock.monotonic()
        while held and held[first := next(iter(held))] <= now:
            self._drop(name, [first])
        return len(held)

    def _hold(self, name: str, ids: Sequence[str]) -> None:
        if ids:
            until = self._clock.monotonic() + self._lease
            self._permits.setdefault(name, {}).update(dict.fromkeys(ids, until))

    def _drop(self, name: str, ids: Sequence[str]) -> None:
        held = self._permits.get(name, {})
        for permit in ids:
            held.pop(permit, None)
        if not held:
            self._permits.pop(name, None)

    # Rate limits and the cache.

    async def take(self, bucket: str, *, rate: float, burst: int) -> Allowance:
        now = self._clock.monotonic()
        # The bucket that was used last goes to the end, so idle ones come first.
        left, allowance = take_one(self._buckets.pop(bucket, None), now, rate=rate, burst=burst)
        self._buckets[bucket] = left
        while len(self._buckets) > 1:
            oldest = next(iter(self._buckets))
            is_idle = is_full(self._buckets[oldest], now, rate=rate, burst=burst)
            if not is_idle and len(self._buckets) <= MOST_KEPT:
                break
            del self._buckets[oldest]
        return allowance

    async def recall(self, names: Collection[str]) -> Mapping[str, bytes]:
        now = self._clock.monotonic()
        known = ((name, self._cache.get(name)) for name in names)
        return {name: entry[1] for name, entry in known if entry and entry[0] > now}

    async def remember(self, values: Mapping[str, bytes], *, life: timedelta) -> None:
        now = self._clock.monotonic()
        for name, value in values.items():
            self._cache.pop(name, None)
            self._cache[name] = (now + life.total_seconds(), value)
        while self._cache:
            oldest = next(iter(self._cache))
            if self._cache[oldest][0] > now and len(self._cache) <= MOST_KEPT:
                break
            del self._cache[oldest]

    # Notifications.

    async def notify(self, topic: str, names: Collection[str] = ()) -> None:
        for subscriber in self._subscribers:
            subscriber.add(topic, names)

    async def notifications(self, topics: Collection[str]) -> AsyncGenerator[Notification, None]:
        subscriber = _Subscriber(topics)
        self._subscribers.add(subscriber)
        try:
            while True:
                for notification in await subscriber.unread():
                    yield notification
        finally:
            self._subscribers.discard(subscriber)

    # Members.

    async def announce(self, member: Member, *, life: timedelta) -> None:
        self._members[member.id] = (self._clock.monotonic() + life.total_seconds(), member)
        self._drop_gone()

    async def members(self) -> Sequence[Member]:
        self._drop_gone()
        return [member for _, (_, member) in sorted(self._members.items())]

    def _drop_gone(self) -> None:
        now = self._clock.monotonic()
        self._members = {name: entry for name, entry in self._members.items() if entry[0] > now}


class _Subscriber:
    """The notifications that a subscriber has not read. Names that came several times come once."""

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = frozenset(topics)
        self._arrived = asyncio.Event()
        self._missed = set(self._topics)  # nothing is known from before the subscription
        self._names: dict[str, set[str]] = defaultdict(set)
        if self._topics:
            self._arrived.set()

    def add(self, topic: str, names: Collection[str]) -> None:
        if topic not in self._topics:
            return
        self._names[topic].update(names)
        if len(self._names[topic]) > MOST_KEPT:
            self._missed.add(topic)
        if topic in self._missed:
            self._names.pop(topic)
        self._arrived.set()

    async def unread(self) -> Sequence[Notification]:
        await self._arrived.wait()
        self._arrived.clear()
        missed = [Notification(topic, None) for topic in sorted(self._missed)]
        named = [Notification(topic, frozenset(names)) for topic, names in self._names.items()]
        self._missed.clear()
        self._names.clear()
        return missed + named
