"""Counts and failure groups of runs.

Settles at the same time must not write the same item: their transactions would conflict. So a run has
many counters, and its counts are their sum. A process lends each transaction a counter that only this
process writes, and only one transaction at a time. It therefore knows what the counter holds, and
writes it as a whole, on condition that it was written as often as the process knows. A counter whose
last write may or may not have taken effect is not lent again, nor is one that was removed with its run:
the next transaction begins a new one.

The failure groups are in the counter while they fit into `PAGE_BYTES`, and then in further items of at
most that size, so that a failure bills one or two small items however many groups there are.
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

MOST_COUNTERS = 8  # of a run that one process writes at the same time; further settles wait
MOST_RUNS = 500  # whose counters a process remembers, those that were used last
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
    """An item of a counter."""

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
class OwnedCounter:
    """The items of a counter as they are stored: the counter, then the pages of more groups."""

    pages: list[CounterPage]
    is_known: bool = True
    groups: dict[FailureKey, FailureGroup] = field(default_factory=dict)
    page_of: dict[FailureKey, int] = field(default_factory=dict)

    @property
    def key(self) -> ItemKey:
        return self.pages[0].key

    def added(self, counts: Counts, failures: Iterable[Failure]) -> "CounterChange":
        """What a transaction writes that counts these. The counter itself does not change yet."""
        change = CounterChange(
            self, {0: replace(self.pages[0], counts=self.pages[0].counts + counts)}
        )
        for key, example in failures:
            change.add_failure(key, example)
        return change


class CounterChange:
    """Items of a counter that a transaction writes."""

    def __init__(self, counter: OwnedCounter, pages: dict[int, CounterPage]) -> None:
        self._counter, self._pages = counter, pages
        self._groups = dict(counter.groups)
        self._page_of = dict(counter.page_of)

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
        counter = self._counter
        for number, page in sorted(self._pages.items()):
            written = replace(page, number=page.number + 1)
            if number == len(counter.pages):
                counter.pages.append(written)
            else:
                counter.pages[number] = written
        counter.groups, counter.page_of = self._groups, self._page_of

    def _page(self, number: int) -> CounterPage:
        if number in self._pages:
            return self._pages[number]
        if number < len(self._counter.pages):
            return self._counter.pages[number]
        pk, sk = self._counter.key
        return CounterPage(key=ItemKey(pk, f"G{sk[1:]}.{number}"))

    def _page_for(self, group: FailureGroup) -> int:
        """The last page, if the group fits into it, else a new one."""
        last = max(len(self._counter.pages) - 1, *self._pages)
        page = self._page(last)
        fits = replace(page, groups=(*page.groups, group)).has_room()
        return last if fits or not (page.groups or last == 0) else last + 1


class RunPool:
    def __init__(self) -> None:
        self.places = asyncio.Semaphore(MOST_COUNTERS)
        self.free: list[OwnedCounter] = []


class RunCounters:
    """`incarnation` names this process as no other, also none before it."""

    def __init__(self, table: DynamoTable, *, incarnation: str) -> None:
        self._table, self._incarnation = table, incarnation
        self._runs: dict[RunId, RunPool] = {}
        self._numbers = count()

    @asynccontextmanager
    async def lent(self, place: RunPlace, run_id: RunId) -> AsyncIterator[OwnedCounter]:
        """A counter that nobody else uses meanwhile. It is not lent again unless `is_known`."""
        pool = self._pool(run_id)
        async with pool.places:
            counter = pool.free.pop() if pool.free else self._new_counter(place, run_id)
            try:
                yield counter
            finally:
                if counter.is_known:
                    pool.free.append(counter)

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

    def _pool(self, run_id: RunId) -> RunPool:
        # The last one used goes to the end.
        self._runs[run_id] = pool = self._runs.pop(run_id, None) or RunPool()
        if len(self._runs) > MOST_RUNS:
            del self._runs[next(iter(self._runs))]
        return pool

    def _new_counter(self, place: RunPlace, run_id: RunId) -> OwnedCounter:
        name = f"C#{run_id}#{self._incarnation}.{next(self._numbers)}"
        return OwnedCounter([CounterPage(key=ItemKey(job_partition(place), name))])
