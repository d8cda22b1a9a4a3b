"""Listings: entries of one or more partitions, merged in order, with the records they lead to."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from math import inf
from typing import Any, NamedTuple

from conveyor.adapters.aws.dynamodb.layout import INDEX_KEYS, SK, ItemKey
from conveyor.adapters.aws.dynamodb.records import CONTENT, RecordKind
from conveyor.adapters.aws.dynamodb.table import DynamoTable, key_of_item
from conveyor.adapters.aws.item_size import Item
from conveyor.ports.metadata import AnyRow

# Of the records of a page, less than the port allows: some steps commit a whole page, and a
# transaction has its keys and attributes as well.
PAGE_BYTES = 3_900_000
FIRST_READ = 25  # records of unknown size that are read at a time: up to 10 MB
MOST_READ = 100
SPARE = 8  # entries beside its share that are asked of each partition
ENTRIES = 500  # that are asked for if it is not known how many are needed


class IndexEntry(NamedTuple):
    """What leads to a record. If it has the content of the record, it is the record."""

    sort: str
    key: ItemKey
    item: Item


def entries(
    table: DynamoTable,
    partitions: Sequence[str],
    *,
    index: str | None = None,
    first: str | None = None,
    last: str | None = None,
    without: str | None = None,
    forward: bool = True,
    consistent: bool = False,
    want: int | None = None,
    at: Callable[[Item], ItemKey] = key_of_item,
) -> AsyncIterator[IndexEntry]:
    """The entries of partitions, from the sort key `first` to `last`, merged in order.

    `without` is a sort key to leave out, `at` tells the key of the record of an entry.
    """
    sort_key = INDEX_KEYS[index][1] if index else SK

    async def of(partition: str) -> AsyncIterator[list[IndexEntry]]:
        async for answer in table.query(
            partition,
            first=first,
            last=last,
            index=index,
            forward=forward,
            consistent=consistent,
            page=want // len(partitions) + SPARE if want else ENTRIES,
        ):
            yield [
                IndexEntry(item[sort_key]["S"], at(item), item)
                for item in answer["Items"]
                if item[sort_key]["S"] != without
            ]

    return merged([of(partition) for partition in partitions], forward=forward)


async def merged(
    streams: Sequence[AsyncIterator[list[IndexEntry]]], *, forward: bool
) -> AsyncIterator[IndexEntry]:
    """The entries of all streams, each of which is in order. The first pages are read at once."""
    pending = [(stream, deque[IndexEntry]()) for stream in streams]
    await asyncio.gather(*[_refill(stream, waiting) for stream, waiting in pending])
    choose: Callable[..., Any] = min if forward else max
    while pending := [one for one in pending if one[1]]:
        stream, waiting = choose(pending, key=lambda one: one[1][0].sort)
        yield waiting.popleft()
        if not waiting:
            await _refill(stream, waiting)


async def _refill(stream: AsyncIterator[list[IndexEntry]], waiting: deque[IndexEntry]) -> None:
    async for page in stream:
        waiting += page
        if waiting:
            return


async def _once(listed: AsyncIterator[IndexEntry]) -> AsyncIterator[IndexEntry]:
    """The first entry of each record."""
    seen = set[ItemKey]()
    async for entry in listed:
        if entry.key not in seen:
            seen.add(entry.key)
            yield entry


async def records(
    table: DynamoTable,
    kind: RecordKind[AnyRow],
    listed: AsyncIterator[IndexEntry],
    *,
    limit: float = inf,
    most_bytes: float = PAGE_BYTES,
    wanted: Callable[[AnyRow], bool] = lambda _: True,
    consistent: bool = False,
) -> list[AnyRow]:
    """The records of entries, as many as a page may have; those that are not wanted are left out.

    An index may have an entry at its old and at its new place for a moment; the record is listed once.
    """
    found, used = list[AnyRow](), 0
    block, size = list[IndexEntry](), int(min(limit, FIRST_READ))

    async def read() -> bool:
        """Read the block; whether the page is full."""
        nonlocal used
        missing = [entry.key for entry in block if CONTENT not in entry.item]
        items = await table.get_many(missing, consistent=consistent)
        for entry in block:
            item = entry.item if CONTENT in entry.item else items.get(entry.key)
            if item is None:
                continue
            row = kind.of_item(item)
            if not wanted(row):
                continue
            used += len(item[CONTENT]["S"].encode())
            if found and used > most_bytes:
                return True
            found.append(row)
        block.clear()
        return len(found) >= limit

    async for entry in _once(listed):
        block.append(entry)
        if len(block) == size:
            if await read():
                return found
            mean = used / len(found) if found else PAGE_BYTES / FIRST_READ
            fitting = max((most_bytes - used) / max(mean, 1), 1)
            size = int(min(limit - len(found), fitting, MOST_READ))
    if block:
        await read()
    return found
