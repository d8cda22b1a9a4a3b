"""Coordination on DynamoDB, for services without Redis. `docs/storage/dynamodb.md` has the items.

Times are those of the processes' clocks, which must agree to a few seconds. Items that have expired
are ignored when they are read; DynamoDB removes them some days later, by their `ttl`.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import msgspec

from conveyor.adapters.aws.attribute_values import decode_item, encode_item
from conveyor.adapters.aws.dynamodb.batches import MOST_KEYS, MOST_WRITES
from conveyor.adapters.aws.dynamodb.layout import PK, SK, TTL, ItemKey, moment
from conveyor.adapters.aws.dynamodb.permits import DynamoDbPermits
from conveyor.adapters.aws.dynamodb.table import IS_NEW, Condition, DynamoTable
from conveyor.adapters.aws.faults import ConditionFailed
from conveyor.domain.concurrency import Allowance, Bucket, take_one
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Member, Notification

DEADLINE = timedelta(seconds=2)  # of calls that requests or a stop wait for, and can do without
POLL_EVERY = timedelta(seconds=1)  # for notifications
# A notification is found if it was written within this time of its own timestamp, by the clock of
# the reader: clocks differ, and a write takes a while.
LATE = timedelta(seconds=10)
MOST_NOTES = 500  # of one poll, the newest; with more, some may be missed
RESYNC_EVERY = LATE  # at most, while notifications are missed: it makes subscribers read everything
NOTES_KEPT = timedelta(hours=1)
TRIES = 20  # of a token that others take at the same time
MOST_BUCKETS = 10_000  # that a process knows
LONGEST = 1e9  # seconds that a bucket takes to fill
ONLY = "-"  # the sort key of an item that is alone in its partition
NOTES, MEMBERS = "Notes", "Members"  # partitions
MEMBER = msgspec.json.Decoder(Member)


@dataclass(slots=True)
class _KnownBucket:
    """A bucket as this process saw it last."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    token: str = ""  # of the write that it is from; empty if nothing is known
    bucket: Bucket | None = None


class DynamoDbCoordination(DynamoDbPermits):
    def __init__(
        self,
        table: DynamoTable,
        *,
        clock: Clock,
        incarnation: str,
        lease: timedelta,
        poll_every: timedelta = POLL_EVERY,
    ) -> None:
        super().__init__(table, clock=clock, incarnation=incarnation, lease=lease)
        self._poll_every = poll_every.total_seconds()
        self._writes = count(1)
        self._buckets: dict[str, _KnownBucket] = {}

    # Rate limits.

    async def take(self, bucket: str, *, rate: float, burst: int) -> Allowance:
        known = self._buckets.pop(bucket, None) or _KnownBucket()
        self._buckets[bucket] = known  # the one that was used last goes to the end
        if len(self._buckets) > MOST_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        async with known.lock:
            for attempt in range(TRIES):
                now = self._clock.now().timestamp()
                left, allowance = take_one(known.bucket, now, rate=rate, burst=burst)
                if not allowance.granted:  # and others can only have taken more
                    known.bucket = left
                    return allowance
                if await self._replace(bucket, known, left, allowance):
                    return allowance
                if attempt:
                    await self._table.client.pause(0)
        raise Unavailable(f"too many processes take from the bucket {bucket!r} at the same time")

    async def _replace(
        self, name: str, known: _KnownBucket, left: Bucket, allowance: Allowance
    ) -> bool:
        """Store a bucket if it is as it was known; else learn what it is."""
        token = f"{self._incarnation}.{next(self._writes)}"
        full_at = left.at + allowance.full_in  # then it equals a new one
        item = {
            PK: f"Rate#{name}",
            SK: ONLY,
            "v": token,
            "tokens": left.tokens,
            "at": left.at,
            TTL: math.ceil(min(full_at, left.at + LONGEST)),
        }
        condition = IS_NEW
        if known.token:
            values = {":v": {"S": known.token}}
            condition = Condition(f"{IS_NEW.text} OR v = :v", values=values)
        try:
            await self._put(item, condition)
        except ConditionFailed as failed:
            stored = decode_item(failed.item or {})
            if stored["v"] != token:  # else it is the effect of an attempt whose answer was lost
                known.token = stored["v"]
                known.bucket = Bucket(float(stored["tokens"]), float(stored["at"]))
                return False
        known.token, known.bucket = token, left
        return True

    # The cache.

    async def recall(self, names: Collection[str]) -> Mapping[str, bytes]:
        now, found = self._clock.now().timestamp(), dict[str, bytes]()
        for some in _slices(list(dict.fromkeys(names)), MOST_KEYS):
            keys = [ItemKey(f"Cache#{name}", ONLY).fields for name in some]
            items = await self._table.batches.get(
                self._table.name, keys, consistent=True, deadline=DEADLINE
            )
            for stored in map(decode_item, items):
                if stored["until"] > now:
                    found[stored[PK].removeprefix("Cache#")] = stored["value"]
        return found

    async def remember(self, values: Mapping[str, bytes], *, life: timedelta) -> None:
        until = (self._clock.now() + life).timestamp()
        puts = [
            {
                PK: f"Cache#{name}",
                SK: ONLY,
                "value": value,
                "until": until,
                TTL: math.ceil(until),
            }
            for name, value in values.items()
        ]
        for some in _slices(puts, MOST_WRITES):
            writes = [{"PutRequest": {"Item": encode_item(put)}} for put in some]
            await self._table.batches.write(self._table.name, writes, deadline=DEADLINE)

    # Notifications: a log in order of time, which subscribers poll.

    async def notify(self, topic: str, names: Collection[str] = ()) -> None:
        now = self._clock.now()
        note = {
            PK: NOTES,
            SK: f"{moment(now)}#{self._incarnation}.{next(self._writes)}",
            "topic": topic,
            "names": list(names),
            TTL: math.ceil((now + NOTES_KEPT).timestamp()),
        }
        await self._put(note)

    async def notifications(self, topics: Collection[str]) -> AsyncGenerator[Notification, None]:
        wanted = sorted(set(topics))
        polled_at, resynced_at = self._clock.now(), self._clock.monotonic()
        notes, _ = await self._notes(polled_at - LATE)
        seen = {note[SK] for note in notes}
        for topic in wanted:
            yield Notification(topic, None)
        while True:
            await asyncio.sleep(self._poll_every)
            since, polled_at = polled_at - LATE, self._clock.now()
            notes, is_all = await self._notes(since)
            names: dict[str, set[str]] = {}
            for note in notes:
                if note[SK] not in seen and note["topic"] in wanted:
                    names.setdefault(note["topic"], set()).update(note["names"])
            first = moment(since)
            seen = {key for key in seen if key >= first} | {note[SK] for note in notes}
            elapsed = self._clock.monotonic() - resynced_at
            # What an earlier poll missed is still within the time of this one.
            if not is_all and elapsed >= RESYNC_EVERY.total_seconds():
                resynced_at = self._clock.monotonic()
                for topic in wanted:
                    yield Notification(topic, None)
                continue
            for topic, changed in names.items():
                yield Notification(topic, frozenset(changed))

    async def _notes(self, since: datetime) -> tuple[Sequence[Mapping[str, Any]], bool]:
        """The newest notifications since then, and whether they are all of them."""
        page = await self._table.query_page(
            NOTES, first=moment(since), forward=False, page=MOST_NOTES
        )
        return [decode_item(item) for item in page["Items"]], "LastEvaluatedKey" not in page

    # Members.

    async def announce(self, member: Member, *, life: timedelta) -> None:
        if life <= timedelta():
            request = {
                "TableName": self._table.name,
                "Key": ItemKey(MEMBERS, member.id).fields,
            }
            await self._table.calls.call("DeleteItem", request, repeatable=True, deadline=DEADLINE)
            return
        until = (self._clock.now() + life).timestamp()
        item = {
            PK: MEMBERS,
            SK: member.id,
            "member": msgspec.json.encode(member),
            "until": until,
            TTL: math.ceil(until),
        }
        await self._table.put(encode_item(item))

    async def members(self) -> Sequence[Member]:
        now, found = self._clock.now().timestamp(), list[Member]()
        async for page in self._table.query(MEMBERS, consistent=True):
            listed = map(decode_item, page["Items"])
            found += [MEMBER.decode(one["member"]) for one in listed if one["until"] > now]
        return found

    async def _put(self, item: Mapping[str, object], condition: Condition | None = None) -> None:
        """Write an item of which a call can do without, and soon know."""
        request = {"TableName": self._table.name, "Item": encode_item(item)}
        if condition:
            request |= condition.fields
        await self._table.calls.call("PutItem", request, repeatable=True, deadline=DEADLINE)


def _slices(all_of: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [all_of[start : start + size] for start in range(0, len(all_of), size)]
