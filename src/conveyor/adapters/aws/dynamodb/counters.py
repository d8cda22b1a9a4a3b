"""Counts and failure groups of runs.

Settles at the same time must not write the same item: their transactions would conflict. So a run has
many counter items, and its counts are their sum. A process lends each transaction a slot, an item that
only this process writes and only one transaction at a time. It therefore knows what the item holds, and
writes it as a whole, on condition that the item has the number of writes that it expects. A slot whose
last write may or may not have taken effect is not lent again, and neither is one that was removed with
its run: the next transaction begins a new one.

The failure groups of a slot are in the counter while they fit into `PAGE_BYTES`, and then in further
items of at most that size, so that a failure bills one or two small items however many groups there are.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

import msgspec

from conveyor.adapters.aws.dynamodb.layout import ItemKey
from conveyor.adapters.aws.dynamodb.table import IS_NEW, Condition, DynamoTable
from conveyor.adapters.aws.dynamodb.task_keys import END, job_partition
from conveyor.adapters.aws.dynamodb.together import together
from conveyor.adapters.aws.item_size import Item, item_size
from conveyor.domain.counts import ZERO, Counts, total
from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import FailureGroup, FailureKey, listed, with_failure
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.job import RunPlace

MOST_SLOTS = 8  # of a run that one process writes at the same time; further settles wait
MOST_RUNS = 10_000  # whose slots a process remembers
PAGE_BYTES = 1_000

Failure = tuple[FailureKey, TaskId]
StoredGroup = tuple[str, FailureReason, str, int, TaskId]


class StoredCounter(msgspec.Struct, frozen=True, omit_defaults=True):
    counts: Counts = ZERO
    groups: Sequence[StoredGroup] = ()


COUNTER = msgspec.json.Decoder(StoredCounter)
NUMBER, TOKEN, CONTENT = "n", "w", "f"  # of writes, of the last write, and what it holds


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterPage:
    """An item of a slot."""

    key: ItemKey
    number: int = 0  # of its writes
    counts: Counts = ZERO
    groups: tuple[FailureGroup, ...] = ()

    def item(self, token: str) -> Item:
        groups = [msgspec.structs.astuple(group) for group in self.groups]
        content = msgspec.json.encode(StoredCounter(self.counts, groups))
        return {
            **self.key.fields,
            NUMBER: {"N": str(self.number)},
            TOKEN: {"S": token},
            CONTENT: {"S": content.decode()},
        }

    @property
    def follows(self) -> Condition:
        """That the stored item is the one before this."""
        if self.number == 1:
            return IS_NEW
        return Condition("#n = :n", {"#n": NUMBER}, {":n": {"N": str(self.number - 1)}})

    def has_room(self) -> bool:
        return item_size(self.item("0" * 36)) <= PAGE_BYTES


@dataclass(slots=True)
class CounterSlot:
    """The items of a slot as they are stored: the counter, then the pages of more groups."""

    pages: list[CounterPage]
    is_known: bool = True
    groups: dict[FailureKey, FailureGroup] = field(default_factory=dict)
    page_of: dict[FailureKey, int] = field(default_factory=dict)

    @property
    def key(self) -> ItemKey:
        return self.pages[0].key

    def added(self, counts: Counts, failures: Iterable[Failure]) -> "SlotChange":
        """What a transaction writes that counts these. The slot itself does not change yet."""
        change = SlotChange(self, {0: replace(self.pages[0], counts=self.pages[0].counts + counts)})
        for key, example in failures:
            change.add_failure(key, example)
        return change


class SlotChange:
    """Items of a slot that a transaction writes."""

    def __init__(self, slot: CounterSlot, pages: dict[int, CounterPage]) -> None:
        self._slot, self._pages = slot, pages
        self._groups = dict(slot.groups)
        self._page_of = dict(slot.page_of)

    def add_failure(self, key: FailureKey, example: TaskId) -> None:
        group = with_failure(self._groups, key, example)
        self._groups[group.key] = group
        number = self._page_of.get(group.key)
        if number is None:
            number = self._page_of[group.key] = self._page_for(group)
        page = self._page(number)
        others = tuple(one for one in page.groups if one.key != group.key)
        self._pages[number] = replace(page, groups=(*others, group))

    def actions(self, table: DynamoTable, token: str) -> list[dict[str, object]]:
        pages = [replace(page, number=page.number + 1) for page in self._pages.values()]
        return [table.putting(page.item(token), page.follows) for page in pages]

    def took_effect(self) -> None:
        slot = self._slot
        for number, page in sorted(self._pages.items()):
            written = replace(page, number=page.number + 1)
            if number == len(slot.pages):
                slot.pages.append(written)
            else:
                slot.pages[number] = written
        slot.groups, slot.page_of = self._groups, self._page_of

    def _page(self, number: int) -> CounterPage:
        if number in self._pages:
            return self._pages[number]
        if number < len(self._slot.pages):
            return self._slot.pages[number]
        pk, sk = self._slot.key
        return CounterPage(key=ItemKey(pk, f"G{sk[1:]}.{number}"))

    def _page_for(self, group: FailureGroup) -> int:
        """The last page, if the group fits into it, else a new one."""
        last = max(len(self._slot.pages) - 1, *self._pages)
        page = self._page(last)
        fits = replace(page, groups=(*page.groups, group)).has_room()
        return last if fits or not (page.groups or last == 0) else last + 1


class RunSlots:
    def __init__(self) -> None:
        self.places = asyncio.Semaphore(MOST_SLOTS)
        self.free: list[CounterSlot] = []


class RunCounters:
    """`incarnation` names this process as no other, also none before it."""

    def __init__(self, table: DynamoTable, *, incarnation: str) -> None:
        self._table, self._incarnation = table, incarnation
        self._runs: dict[RunId, RunSlots] = {}
        self._numbers = count()

    @asynccontextmanager
    async def lent(self, place: RunPlace, run_id: RunId) -> AsyncIterator[CounterSlot]:
        """A slot that nobody else uses meanwhile. It is not lent again unless `is_known`."""
        slots = self._runs.get(run_id) or self._begin(run_id)
        async with slots.places:
            slot = slots.free.pop() if slots.free else self._new_slot(place, run_id)
            yield slot
            if slot.is_known:
                slots.free.append(slot)

    async def counts(self, place: RunPlace, run_id: RunId) -> Counts:
        counters = await self._read(place, f"C#{run_id}#")
        return total(counter.counts for counter in counters)

    async def failure_groups(self, place: RunPlace, run_id: RunId) -> list[FailureGroup]:
        parts = await together(
            [partial(self._read, place, f"{kind}#{run_id}#") for kind in ("C", "G")]
        )
        return listed(
            FailureGroup(host=host, reason=reason, code=code, count=times, example=example)
            for counters in parts
            for counter in counters
            for host, reason, code, times, example in counter.groups
        )

    async def keys(self, place: RunPlace, run_id: RunId) -> list[ItemKey]:
        """The keys of all counters of a run."""
        found: list[ItemKey] = []
        for kind in ("C", "G"):
            async for page in self._table.query(
                job_partition(place),
                first=f"{kind}#{run_id}#",
                last=f"{kind}#{run_id}#{END}",
                consistent=True,
            ):
                found += [ItemKey(item["pk"]["S"], item["sk"]["S"]) for item in page["Items"]]
        return found

    async def _read(self, place: RunPlace, prefix: str) -> list[StoredCounter]:
        return [
            COUNTER.decode(item[CONTENT]["S"])
            async for page in self._table.query(
                job_partition(place), first=prefix, last=f"{prefix}{END}", consistent=True
            )
            for item in page["Items"]
        ]

    def _begin(self, run_id: RunId) -> RunSlots:
        self._runs[run_id] = slots = RunSlots()
        if len(self._runs) > MOST_RUNS:
            del self._runs[next(iter(self._runs))]
        return slots

    def _new_slot(self, place: RunPlace, run_id: RunId) -> CounterSlot:
        name = f"C#{run_id}#{self._incarnation}.{next(self._numbers)}"
        return CounterSlot([CounterPage(key=ItemKey(job_partition(place), name))])
