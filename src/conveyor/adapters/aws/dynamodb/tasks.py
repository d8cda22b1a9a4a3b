"""Task rows on DynamoDB."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import msgspec

from conveyor.adapters.aws.dynamodb.batches import MOST_STATEMENTS
from conveyor.adapters.aws.dynamodb.counters import RunCounters
from conveyor.adapters.aws.dynamodb.late_rows import LateRows
from conveyor.adapters.aws.dynamodb.layout import GSI3, PK, SK, index_shards
from conveyor.adapters.aws.dynamodb.table import IS_NEW, DynamoTable, key_of_item
from conveyor.adapters.aws.dynamodb.task_items import (
    STATUS,
    NewParts,
    PackedRow,
    TaskRow,
    packed,
    row_of,
)
from conveyor.adapters.aws.dynamodb.task_keys import (
    END,
    POSITION,
    ROWS,
    RunDirectory,
    part_sort,
    row_key,
    row_sort,
    shard_of,
    shard_partitions,
)
from conveyor.adapters.aws.dynamodb.task_parts import TaskPartStore
from conveyor.adapters.aws.dynamodb.task_ranges import TaskRange
from conveyor.adapters.aws.dynamodb.task_writes import CountedWrite, TaskWriter
from conveyor.adapters.aws.dynamodb.together import MOST_AT_ONCE, together
from conveyor.adapters.aws.faults import DUPLICATE
from conveyor.adapters.aws.item_size import Item
from conveyor.domain.counts import ZERO, Counts, OpenCounts
from conveyor.domain.failure_groups import FailureGroup
from conveyor.domain.ids import RunId, TaskId, task_index
from conveyor.domain.job import RunPlace
from conveyor.domain.task import (
    Attempt,
    NewRow,
    Task,
    TaskStatus,
    as_listed,
    failure_of,
)
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.tasks import PAGE_BYTES, TaskPage

MOST_READ = 4_000  # rows that a filtered page reads; then it ends with what it has
BATCHES_AT_ONCE = 2  # of inserts of each shard: enough for the 1,000 units a second that it takes
LARGEST_STEP = 1_000  # rows that it reads at a time
FAILED_ONLY = frozenset({TaskStatus.FAILED})
ADDED = "0"  # the name of parts that are written with a new row


class DynamoTasks:
    def __init__(
        self,
        table: DynamoTable,
        clock: Clock,
        *,
        directory: RunDirectory,
        counters: RunCounters,
        writer: TaskWriter,
    ) -> None:
        self._table, self._clock = table, clock
        self._directory, self._counters, self._writer = directory, counters, writer
        self._parts = TaskPartStore(table)
        self._late = LateRows(table, clock, directory)

    async def lay_out(self, run_id: RunId, place: RunPlace) -> None:
        await self._directory.lay_out(run_id, place)

    async def add(self, run_id: RunId, tasks: Sequence[NewRow]) -> int:
        place = await self._directory.find(run_id)
        if place is None:
            raise ValueError(f"run {run_id} is not laid out")
        if not tasks:
            return 0
        rows = [self._new_row(place, run_id, task) for task in tasks]
        failed = {
            row.key: failure_of(row.task) for row in rows if row.task.status is TaskStatus.FAILED
        }
        new = [packed(row, NewParts(ADDED)) for row in rows]
        await self._writer.prepare(new)
        added = await self._insert([one for one in new if one.row.key not in failed])
        results = await self._writer.write_counted(
            place,
            run_id,
            [
                CountedWrite(packed=one, condition=IS_NEW, failure=failed[one.row.key])
                for one in new
                if one.row.key in failed
            ],
        )
        # A purge may have closed the entry of the run before it could see these rows.
        await self._directory.restore(run_id, place)
        return added + sum(result.done for result in results)

    async def get(self, run_id: RunId, task_id: TaskId) -> Task | None:
        if (row := await self._row(run_id, task_id)) is None:
            return None
        [row] = await self._parts.listed([row])
        return as_listed(row.task)

    async def page(
        self,
        run_id: RunId,
        *,
        limit: int,
        after: int = -1,
        statuses: frozenset[TaskStatus] | None = None,
        whole: bool = False,
        lagging: bool = False,
    ) -> TaskPage:
        place = await self._directory.find(run_id)
        if place is None:
            return TaskPage([], None)
        # Copies must be complete, and the index may lag.
        by_index = statuses == FAILED_ONLY and not whole
        rows = TaskRange(
            self._table,
            place,
            run_id,
            after=after,
            only_failed=by_index,
            consistent=not lagging,
        )
        page = _Page(place, limit, after, None if by_index else statuses, whole=whole)
        step = limit
        while not (page.is_full or rows.is_over):
            page.add(await rows.next(step))
            if not page.filters:
                step = limit - len(page.rows)
            elif rows.rows_read < MOST_READ:
                step = min(2 * step, LARGEST_STEP, MOST_READ - rows.rows_read)
            else:
                break
        is_last = rows.is_over and not page.is_full
        is_costly = not (is_last or page.is_full)
        found = page.rows
        if whole:
            tasks = [row.task for row in await self._parts.whole(found)]
        else:
            tasks = [as_listed(row.task) for row in await self._parts.listed(found)]
        return TaskPage(tasks, None if is_last else page.position, is_costly)

    async def history(self, run_id: RunId, task_id: TaskId) -> Sequence[Attempt]:
        row = await self._row(run_id, task_id)
        return await self._parts.history(row) if row else []

    async def histories(
        self, run_id: RunId, *, after: int, up_to: int
    ) -> Mapping[TaskId, Sequence[Attempt]]:
        place = await self._directory.find(run_id)
        if place is None or up_to <= after:
            return {}
        first, last = row_sort(run_id, after + 1), row_sort(run_id, up_to) + END
        items = await self._between(place, first, last)
        rows = sorted((row_of(item, place) for item in items), key=lambda row: row.task.index)
        lines = await together([partial(self._parts.brief_history, row) for row in rows])
        return {row.task.id: its for row, its in zip(rows, lines, strict=True) if its}

    async def counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, Counts]:
        found = await together([partial(self._sum, run_id) for run_id in run_ids])
        return dict(zip(run_ids, found, strict=True))

    async def open_counts(self, run_ids: Sequence[RunId]) -> Mapping[RunId, OpenCounts]:
        """None: no index has the rows that are open, and all rows would have to be read."""
        del run_ids
        return {}

    async def failure_groups(self, run_id: RunId) -> Sequence[FailureGroup]:
        place = await self._directory.find(run_id)
        return await self._counters.failure_groups(place, run_id) if place else []

    async def tally(self, run_id: RunId) -> Mapping[TaskStatus, int]:
        place = await self._directory.find(run_id)
        if place is None:
            return {}
        first, last = row_sort(run_id, 0), f"T#{run_id}#{END}"

        async def of(partition: str) -> Counter[TaskStatus]:
            found = Counter[TaskStatus]()
            async for page in self._table.query(
                partition, first=first, last=last, consistent=True, ProjectionExpression=STATUS
            ):
                found.update(TaskStatus(item[STATUS]["S"]) for item in page["Items"])
            return found

        shards = await together([partial(of, one) for one in shard_partitions(place)])
        return sum(shards, Counter[TaskStatus]())

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[RunId]:
        """From the index, which may lag."""
        late = [run_id for run_id in await self._late.runs() if run_id > after]
        pages = await together(
            [
                partial(self._held, partition, limit, f"{after} " if after else None)
                for partition in index_shards(ROWS)
            ]
        )
        listed = {RunId(item[POSITION]["S"]) for items in pages for item in items}
        return sorted(listed.union(late))[:limit]

    async def discard(self, run_id: RunId, *, limit: int) -> int:
        place = await self._directory.find(run_id)
        if place is None:
            return 0
        items = await TaskRange(self._table, place, run_id).next(limit)
        page = _Page(place, limit, -1, None, whole=True)
        page.add(items)
        if not page.rows:
            if not await self._discard_rest(place, run_id):
                return await self.discard(run_id, limit=limit)
            self._late.removed(run_id)
            return 0
        # The rows come first, so that nobody claims one without its parts. If the process dies in
        # between, the parts are removed when the last row is gone.
        await self._parts.remove([row.key for row in page.rows])
        first, last = (part_sort(row.key.sk) for row in (page.rows[0], page.rows[-1]))
        await self._remove_parts(place, first, last + END)
        return len(page.rows)

    async def _discard_rest(self, place: RunPlace, run_id: RunId) -> bool:
        """Remove what is not a row, and close the entry of the run; whether nothing is left.

        Rows may have been added since they were looked for. Those of before the close are seen here,
        and an `add` that ends after it opens the entry again.
        """
        await self._remove_parts(place, f"P#{run_id}#", f"P#{run_id}#{END}")
        await self._parts.remove(await self._counters.keys(place, run_id))
        await self._directory.close(run_id, place, self._clock.now())
        return not await TaskRange(self._table, place, run_id).next(1)

    async def _remove_parts(self, place: RunPlace, first: str, last: str) -> None:
        items = await self._between(place, first, last, ProjectionExpression=f"{PK}, {SK}")
        await self._parts.remove([key_of_item(item) for item in items])

    async def _between(self, place: RunPlace, first: str, last: str, **more: Any) -> list[Item]:
        """All items in a range of sort keys, of all shards, in no order."""

        async def read(partition: str) -> list[Item]:
            pages = self._table.query(partition, first=first, last=last, consistent=True, **more)
            return [item async for page in pages for item in page["Items"]]

        parts = await together([partial(read, one) for one in shard_partitions(place)])
        return [item for items in parts for item in items]

    async def _held(self, partition: str, limit: int, first: str | None) -> list[Item]:
        found: list[Item] = []
        async for page in self._table.query(partition, index=GSI3, first=first, page=limit):
            found += page["Items"]
            if len(found) >= limit:
                break
        return found

    async def _sum(self, run_id: RunId) -> Counts:
        place = await self._directory.find(run_id)
        return await self._counters.counts(place, run_id) if place else ZERO

    async def _row(self, run_id: RunId, task_id: TaskId) -> TaskRow | None:
        if task_index(task_id) is None or not (place := await self._directory.find(run_id)):
            return None
        item = await self._table.get(row_key(place, run_id, task_id))
        return row_of(item, place) if item else None

    def _new_row(self, place: RunPlace, run_id: RunId, new: NewRow) -> TaskRow:
        now = self._clock.now()
        if new.inherited is None:
            fields: dict[str, Any] = {"created_at": now, "due_at": now}
        else:
            fields = {"due_at": None, **msgspec.structs.asdict(new.inherited)}
        task = Task(
            run_id=run_id, id=new.id, index=new.index, spec=new.spec, updated_at=now, **fields
        )
        return TaskRow(key=row_key(place, run_id, new.id), task=task, shard=shard_of(place, new.id))

    async def _insert(self, rows: Sequence[PackedRow]) -> int:
        """Insert rows, the shards side by side; return how many did not exist."""
        shards: defaultdict[int, list[PackedRow]] = defaultdict(list)
        for row in rows:
            shards[row.row.shard].append(row)
        in_turn = zip_longest(*[_batches(of_shard) for of_shard in shards.values()])
        batches = [batch for turn in in_turn for batch in turn if batch]
        # More at once would be throttled, and those that wait longest between their repeats, as the
        # pauses grow, would get no unit before their deadline.
        most = min(BATCHES_AT_ONCE * len(shards), MOST_AT_ONCE)
        return sum(await together([partial(self._insert_batch, one) for one in batches], most=most))

    async def _insert_batch(self, rows: Sequence[PackedRow]) -> int:
        results = await self._table.batches.execute(
            [_insertion(self._table.name, row.item) for row in rows], repeatable=True
        )
        for result in results:
            if result.error not in {"", DUPLICATE}:
                raise Unavailable(f"dynamodb: a row was not inserted: {result.error}")
        return sum(not result.error for result in results)


class _Page:
    """Rows that fit into a page, and the index of the last one that was looked at."""

    def __init__(
        self,
        place: RunPlace,
        limit: int,
        after: int,
        statuses: frozenset[TaskStatus] | None,
        *,
        whole: bool,
    ) -> None:
        self._place, self._limit, self._statuses, self._whole = place, limit, statuses, whole
        self._room = PAGE_BYTES
        self.position = after
        self.rows: list[TaskRow] = []
        self.is_full = limit <= 0

    @property
    def filters(self) -> bool:
        return self._statuses is not None

    def add(self, items: Sequence[Item]) -> None:
        for item in items:
            if self.is_full:
                return
            row = row_of(item, self._place)
            if self._statuses is not None and row.task.status not in self._statuses:
                self.position = row.task.index
                continue
            self._room -= row.whole_size if self._whole else row.listed_size
            if self.rows and self._room < 0:
                self.is_full = True
                return
            self.rows.append(row)
            self.position = row.task.index
            self.is_full = len(self.rows) == self._limit


def _batches(rows: Sequence[PackedRow]) -> list[Sequence[PackedRow]]:
    return [rows[at : at + MOST_STATEMENTS] for at in range(0, len(rows), MOST_STATEMENTS)]


def _insertion(table: str, item: Item) -> dict[str, Any]:
    fields = ", ".join(f"'{name}': ?" for name in item)
    return {
        "Statement": f'INSERT INTO "{table}" VALUE {{{fields}}}',
        "Parameters": list(item.values()),
    }
