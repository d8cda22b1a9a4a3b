"""Rows of a run in the order of their indexes, read from one partition or merged from many.

A run over N shards is read by one query a shard. The rows with the next `want` indexes are in the
same range of sort keys in every shard, so the union of the ranges is that range, whatever the hash
does: no row is read that is not returned. Where indexes are missing, and at the end of the run, the
range has fewer rows, and the rest is merged from queries without an upper end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from conveyor.adapters.aws.dynamodb.layout import GSI1, INDEX_KEYS, SK
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.adapters.aws.dynamodb.task_keys import (
    END,
    failed_partition,
    row_sort,
    shard_partitions,
)
from conveyor.adapters.aws.dynamodb.together import together
from conveyor.adapters.aws.item_size import Item
from conveyor.domain.ids import RunId
from conveyor.domain.job import RunPlace

MARGIN = 2  # rows more than a fair share that are read from each shard where indexes are missing


@dataclass(slots=True)
class ShardCursor:
    """A partition that is read from its beginning to its end."""

    partition: str
    first: str  # the lowest sort key that was not read
    last: str
    start: Item | None = None
    is_over: bool = False
    read: list[Item] = field(default_factory=list)  # and not returned yet


class TaskRange:
    """Rows above an index. `only_failed` reads the entries of the index `gsi1`, which may lag."""

    def __init__(
        self,
        table: DynamoTable,
        place: RunPlace,
        run_id: RunId,
        *,
        after: int = -1,
        only_failed: bool = False,
        consistent: bool = True,
        **more: Any,
    ) -> None:
        self._table, self._run_id = table, run_id
        self._next = after + 1
        self._consistent, self._more = consistent, more
        self._index = GSI1 if only_failed else None
        self._sort = INDEX_KEYS[GSI1][1] if only_failed else SK
        self._is_sparse = self._has_gaps = only_failed
        partitions = shard_partitions(place)
        if only_failed:
            partitions = [failed_partition(run_id, shard) for shard in range(len(partitions))]
        first, last = self._sort_key(self._next), self._sort_key(None)
        self._shards = [ShardCursor(partition, first, last) for partition in partitions]
        self.rows_read = 0

    @property
    def is_over(self) -> bool:
        return all(shard.is_over and not shard.read for shard in self._shards)

    async def next(self, want: int) -> Sequence[Item]:
        """The next `want` items, fewer only at the end."""
        if len(self._shards) == 1:
            return await self._next_of_one(self._shards[0], want)
        found: list[Item] = []
        if not self._has_gaps:
            found = await self._window(want)
        while len(found) < want and not self.is_over:
            self._has_gaps = True
            found += await self._merged(want - len(found))
        return found

    async def _next_of_one(self, shard: ShardCursor, want: int) -> Sequence[Item]:
        found: list[Item] = []
        while len(found) < want and not shard.is_over:
            await self._advance(shard, want - len(found))
            found += shard.read
            shard.read = []
        return found

    async def _window(self, want: int) -> list[Item]:
        """All rows of the next `want` indexes."""
        below = self._next + want
        first, last = self._sort_key(self._next), self._sort_key(below - 1) + END
        windows = [ShardCursor(shard.partition, first, last) for shard in self._shards]
        await together([partial(self._exhaust, window) for window in windows])
        self._next = below
        for shard in self._shards:
            shard.first = self._sort_key(below)
        return self._in_order(item for window in windows for item in window.read)

    async def _merged(self, want: int) -> list[Item]:
        """Up to `want` of the next rows, each shard read by about as much as it may hold of them."""
        share = -(-want // len(self._shards)) + MARGIN
        short = [shard for shard in self._shards if not shard.is_over and len(shard.read) < share]
        await together([partial(self._advance, shard, share - len(shard.read)) for shard in short])
        # Beyond the last row that was read of a shard there may be others of it.
        ends = [
            shard.read[-1][self._sort]["S"] if shard.read else ""
            for shard in self._shards
            if not shard.is_over
        ]
        known = self._in_order(item for shard in self._shards for item in shard.read)
        if ends:
            known = [item for item in known if item[self._sort]["S"] <= min(ends)]
        given = known[:want]
        taken = {item[self._sort]["S"] for item in given}
        for shard in self._shards:
            shard.read = [item for item in shard.read if item[self._sort]["S"] not in taken]
        return given

    async def _exhaust(self, shard: ShardCursor) -> None:
        while not shard.is_over:
            await self._advance(shard, None)

    async def _advance(self, shard: ShardCursor, limit: int | None) -> None:
        """Read further in a shard: one request, up to `limit` rows or 1 MB."""
        answer = await self._table.query_page(
            shard.partition,
            first=shard.first,
            last=shard.last,
            index=self._index,
            consistent=self._consistent,
            page=limit,
            start=shard.start,
            **self._more,
        )
        shard.read += answer["Items"]
        self.rows_read += answer.get("ScannedCount", len(answer["Items"]))
        shard.start = answer.get("LastEvaluatedKey")
        shard.is_over = shard.start is None

    def _in_order(self, items: Any) -> list[Item]:
        return sorted(items, key=lambda item: str(item[self._sort]["S"]))

    def _sort_key(self, index: int | None) -> str:
        """The lowest sort key of an index; None: a key above all."""
        if self._is_sparse:
            return END if index is None else f"{index:08x}"
        return f"T#{self._run_id}#{END}" if index is None else row_sort(self._run_id, index)
