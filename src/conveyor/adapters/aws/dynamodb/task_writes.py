"""Writes of task rows that count: rows and a counter of their run in one transaction."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import structlog

from conveyor.adapters.aws.dynamodb.counters import TOKEN as COUNTER_TOKEN
from conveyor.adapters.aws.dynamodb.counters import Failure, OwnedCounter, RunCounters
from conveyor.adapters.aws.dynamodb.table import MOST_ACTIONS, Condition, DynamoTable, key_of_item
from conveyor.adapters.aws.dynamodb.task_items import HOT_BYTES, PackedRow
from conveyor.adapters.aws.dynamodb.task_parts import TaskPartStore
from conveyor.adapters.aws.faults import CONDITION, OutcomeUnknown, TransactionCanceled
from conveyor.adapters.aws.item_size import Item, item_size
from conveyor.domain.counts import ZERO, Counts, total
from conveyor.domain.failure_groups import FailureKey
from conveyor.domain.ids import RunId
from conveyor.domain.job import RunPlace
from conveyor.errors import Unavailable

log = structlog.get_logger()


@dataclass(slots=True)
class RowSizes:
    """Counts the rows that are larger than they should be."""

    large: int = 0

    def check(self, packed: PackedRow) -> None:
        size = item_size(packed.item)
        if size > HOT_BYTES:
            self.large += 1
            task = packed.row.task
            log.warning("dynamodb.large_row", run_id=task.run_id, task_id=task.id, bytes=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedWrite:
    """A row to be written on a condition, and what it counts for."""

    packed: PackedRow
    condition: Condition
    counts: Counts = ZERO
    failure: FailureKey | None = None


@dataclass(frozen=True, slots=True)
class WriteResult:
    done: bool
    stored: Item | None = None  # the row that failed the condition, if there is one
    # Whether an earlier attempt may have taken effect, and another write have followed it.
    follows_unknown: bool = False

    @property
    def is_unwritten(self) -> bool:
        """Whether no stored row can name the parts of this one."""
        return not self.done and (self.stored is None or not self.follows_unknown)


class TaskWriter:
    def __init__(self, table: DynamoTable, counters: RunCounters, *, random: Random) -> None:
        self._table, self._counters = table, counters
        self._parts = TaskPartStore(table)
        self._random = random
        self.sizes = RowSizes()

    def token(self, bits: int = 64) -> str:
        """A text that no other write has."""
        return f"{self._random.getrandbits(bits):0{bits // 4}x}"

    async def prepare(self, rows: Sequence[PackedRow]) -> None:
        """Write the parts of rows, which must come before the rows."""
        for packed in rows:
            self.sizes.check(packed)
        await self._parts.write([item for packed in rows for item in packed.parts])

    async def forget(self, rows: Sequence[PackedRow]) -> None:
        """Remove the parts of rows that were not written."""
        await self._parts.remove([key_of_item(item) for packed in rows for item in packed.parts])

    async def write_counted(
        self, place: RunPlace, run_id: RunId, writes: Sequence[CountedWrite]
    ) -> list[WriteResult]:
        """Write rows of one run with their counts, each in one atomic step.

        Those that fail their condition do not hold back the others.
        """
        return [
            result
            for chunk in _chunks(writes)
            for result in await self._write_chunk(place, run_id, chunk)
        ]

    async def _write_chunk(
        self, place: RunPlace, run_id: RunId, writes: Sequence[CountedWrite]
    ) -> list[WriteResult]:
        results: dict[int, WriteResult] = {}
        while left := [number for number in range(len(writes)) if number not in results]:
            async with self._counters.lent(place, run_id) as counter:
                failed = await self._attempt(counter, [writes[number] for number in left])
            if failed is None:
                results |= dict.fromkeys(left, WriteResult(done=True))
            else:
                results |= {left[place]: result for place, result in failed.items()}
        return [results[number] for number in range(len(writes))]

    async def _attempt(
        self, counter: OwnedCounter, writes: Sequence[CountedWrite]
    ) -> dict[int, WriteResult] | None:
        """Write all, or find out which cannot be written; None if all were."""
        change = counter.added(total(write.counts for write in writes), _failures(writes))
        # A new one for each attempt: under the same token other actions are refused.
        token = self.token(128)
        rows = [self._table.putting(write.packed.item, write.condition) for write in writes]
        counter.is_known = False  # until the outcome is
        try:
            await self._table.transact([*rows, *change.actions(self._table, token)], token)
        except TransactionCanceled as canceled:
            counted = canceled.reasons[len(writes) :]
            # Else it is the repetition of one that took effect, and its own counter is in its way.
            if not any(_has_token(reason.item, token) for reason in counted):
                counter.is_known = all(reason.code != CONDITION for reason in counted)
                return _failed(canceled, len(writes), may_repeat=not counter.is_known)
        except OutcomeUnknown:
            stored = await self._table.get(counter.key)
            if not _has_token(stored, token):
                raise
        except Unavailable:
            counter.is_known = True  # nothing was done
            raise
        change.took_effect()
        counter.is_known = True
        return None


def _failed(
    canceled: TransactionCanceled, rows: int, *, may_repeat: bool
) -> dict[int, WriteResult]:
    """Which rows failed their condition. If none did, the transaction may be repeated, or raises."""
    failed = {
        number: WriteResult(False, reason.item, canceled.follows_unknown)
        for number, reason in enumerate(canceled.reasons[:rows])
        if reason.code == CONDITION
    }
    if not (failed or may_repeat):
        raise Unavailable(str(canceled)) from canceled
    return failed


def _has_token(counter: Mapping[str, Any] | None, token: str) -> bool:
    return counter is not None and counter.get(COUNTER_TOKEN) == {"S": token}


def _failures(writes: Sequence[CountedWrite]) -> list[Failure]:
    return [(write.failure, write.packed.row.task.id) for write in writes if write.failure]


def _chunks(writes: Sequence[CountedWrite]) -> Iterator[list[CountedWrite]]:
    """Each fits into a transaction, with the counter and an item for each of its failure groups."""
    chunk, failures = list[CountedWrite](), set[FailureKey]()
    for write in writes:
        more = {write.failure} - failures if write.failure else set[FailureKey]()
        if len(chunk) + 1 + len(failures) + len(more) + 1 > MOST_ACTIONS:
            yield chunk
            chunk, failures = [], set()
        chunk.append(write)
        if write.failure:
            failures.add(write.failure)
    if chunk:
        yield chunk
