"""Claims of tasks on DynamoDB.

A pending task that is due is claimed by a conditional update, many of them in one request, without
reading them before: each answers with the row as it is now, claimed or not. All else takes the row
that was read, lets the domain compute the next state, and writes it on condition that the row is
still the same. Claim number and holder tell that, so nothing else needs to be compared.

Every claim carries a token. When an answer was lost and the call is repeated, the row that is in its
way is its own if it has the token.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from conveyor.adapters.aws.dynamodb.batches import StatementResult
from conveyor.adapters.aws.dynamodb.claim_requests import (
    CLAIM,
    PROCESSING,
    RENEW,
    RETRY,
    RETRY_FIELDS,
    batches,
    has_token,
    is_held,
    newest,
    number,
    texts,
)
from conveyor.adapters.aws.dynamodb.layout import ItemKey
from conveyor.adapters.aws.dynamodb.table import Condition, DynamoTable
from conveyor.adapters.aws.dynamodb.task_items import (
    CLAIM_NO,
    DUE,
    HOLDER,
    STATUS,
    NewParts,
    PackedRow,
    TaskRow,
    packed,
    row_of,
    stamp,
    with_line,
)
from conveyor.adapters.aws.dynamodb.task_keys import (
    END,
    RunDirectory,
    place_in,
    row_key,
    row_sort,
    shard_partitions,
    stamp_of,
)
from conveyor.adapters.aws.dynamodb.task_parts import TaskPartStore
from conveyor.adapters.aws.dynamodb.task_writes import CountedWrite, TaskWriter, WriteResult
from conveyor.adapters.aws.dynamodb.together import together
from conveyor.adapters.aws.faults import CONDITION, ConditionFailed
from conveyor.adapters.aws.item_size import Item
from conveyor.domain import task as task_rules
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.ids import RunId, TaskId, task_index
from conveyor.domain.job import ROW_VERSION, RunPlace
from conveyor.domain.task import (
    Settlement,
    Task,
    as_claimed,
    as_listed,
    counted,
    counter_of,
    failure_of,
    is_due,
    lost_line,
)
from conveyor.errors import Stale, Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.work import CLAIM_BYTES, Held, PartlyRenewed, Released

MOST_HELD = 20_000  # rows of claims that a process remembers


class DynamoClaims:
    def __init__(
        self,
        table: DynamoTable,
        clock: Clock,
        *,
        lease: timedelta,
        holder: str,
        directory: RunDirectory,
        writer: TaskWriter,
    ) -> None:
        self._table, self._clock = table, clock
        self._lease, self._holder = lease, holder
        self._directory, self._writer = directory, writer
        self._parts = TaskPartStore(table)
        # As claimed. While a claim lasts, nobody changes its row but for the end of its lease.
        self._held: dict[Held, TaskRow] = {}

    async def stamp(self, run_id: RunId) -> str:
        place = await self._directory.find(run_id)
        return stamp_of(place) if place else ""

    async def take(
        self, run_id: RunId, task_ids: Sequence[TaskId], *, stamp: str = ""
    ) -> Sequence[Task]:
        place = place_in(stamp) or await self._directory.find(run_id)
        named = [name for name in dict.fromkeys(task_ids) if task_index(name) is not None]
        if place is None or not named:
            return []
        keys = [row_key(place, run_id, name) for name in named]
        if place.v > ROW_VERSION:
            found = await self._table.get_many(keys)
            return await self._as_seen([row_of(item, place) for item in found.values()])
        now, token = self._clock.now(), self._writer.token()
        claims = [partial(self._claim, batch, now, token) for batch in batches(keys)]
        results = [result for batch in await together(claims) for result in batch]
        rows = [row_of(item, place) for item in await self._items(keys, results)]
        errors = {
            key: one.error
            for key, one in zip(keys, results, strict=True)
            if one.error not in {"", CONDITION}
        }
        seen = await self._take_others(place, rows, now, token, errors)
        if errors and not any(row.token == token for row in seen):
            raise Unavailable(f"dynamodb: no task could be claimed: {next(iter(errors.values()))}")
        return await self._as_seen(seen)

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        claims = newest(held)
        keys = await together([partial(self._key, claim) for claim in claims])
        known = [(claim, key) for claim, key in zip(claims, keys, strict=True) if key]
        due = number(stamp(self._clock.now() + self._lease))
        statement = RENEW.format(table=self._table.name)
        statements = [
            {
                "Statement": statement,
                "Parameters": [due, *texts(*key), *self._fence(claim.claim_no), due],
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
            for claim, key in known
        ]
        results = await self._table.batches.execute_each(statements)
        standing, errors = set[Held](), dict[Held, str]()
        for (claim, _), result in zip(known, results, strict=True):
            # A later renewal may have come first.
            if not result.error or is_held(result.item, *self._fence(claim.claim_no)):
                standing.add(claim)
            elif result.error != CONDITION:
                errors[claim] = result.error
        fallen = [claim for claim in held if claim not in standing and claim not in errors]
        for claim in fallen:
            self._held.pop(claim, None)
        if errors:
            why = f"dynamodb: {len(errors)} claims were not renewed: {next(iter(errors.values()))}"
            raise PartlyRenewed(why, fallen=fallen, unknown=errors.keys())
        return fallen

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        endings: dict[Held, Settlement] = {}
        for ending in settlements:
            task_rules.check_ends(ending.decision)
            endings.setdefault(_claim_of(ending), ending)
        rows, now = await self._rows(newest(endings)), self._clock.now()
        ends = {
            claim: end
            for claim, row in rows.items()
            if (end := self._ended(row, endings[claim], now))
        }
        await self._writer.prepare(list(ends.values()))
        runs: defaultdict[RunId, list[Held]] = defaultdict(list)
        for claim in ends:
            runs[claim.run_id].append(claim)
        written = await together(
            [partial(self._write_ends, claims, endings, ends) for claims in runs.values()]
        )
        results = {claim: result for of_run in written for claim, result in of_run.items()}
        settled = {claim for claim, result in results.items() if result.done}
        lost = [claim for claim in ends if claim not in results or results[claim].is_unwritten]
        await self._writer.forget([ends[claim] for claim in lost])
        for claim in endings:
            self._held.pop(claim, None)
        # If a claim is named twice, the first ended it.
        claims = map(_claim_of, settlements)
        return [claim in settled and endings.pop(claim, None) is not None for claim in claims]

    async def release_lapsed(
        self, run_id: RunId, *, overdue: timedelta, limit: int
    ) -> Sequence[Released]:
        place = await self._directory.find(run_id)
        if place is None:
            return []
        now, released = self._clock.now(), list[Released]()
        for row in await self._lapsed(place, run_id, now - overdue, limit):
            freed = self._lost(row, task_rules.release(row.task, now), now)
            try:
                result = await self._replace(place, row, freed)
            except Unavailable:
                if not released:
                    raise
                break  # the caller must send messages for those that are released
            if result.done:
                failed = freed.row.task.is_final
                released.append(Released(run_id, row.task.id, row.task.claim_no, failed))
        return released

    # Taking.

    async def _claim(
        self, keys: Sequence[ItemKey], now: datetime, token: str
    ) -> Sequence[StatementResult]:
        moment, due = number(stamp(now)), number(stamp(now + self._lease))
        statement = CLAIM.format(table=self._table.name)
        claim = [*texts(self._holder, token), due, moment, moment]
        statements = [
            {
                "Statement": statement,
                "Parameters": [*claim, *texts(*key), moment],
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
            for key in keys
        ]
        try:
            return await self._table.batches.execute(statements, repeatable=True)
        except Unavailable as error:
            return [StatementResult(error=str(error))] * len(keys)

    async def _items(
        self, keys: Sequence[ItemKey], results: Sequence[StatementResult]
    ) -> list[Item]:
        """The rows as they are now. Those that do not exist are left out.

        A row whose statement had another error than its condition is read: it may be claimed or not.
        """
        unseen = [key for key, one in zip(keys, results, strict=True) if one.item is None]
        read = await self._table.get_many(unseen) if unseen else {}
        return [*(one.item for one in results if one.item is not None), *read.values()]

    async def _take_others(
        self,
        place: RunPlace,
        rows: Sequence[TaskRow],
        now: datetime,
        token: str,
        errors: dict[ItemKey, str],
    ) -> list[TaskRow]:
        """Claim those that the first request could not: lapsed ones, and those with large specs.

        Rows with `errors` are left as they are, and so are all after the first error here: those
        that are claimed must not wait for them.
        """
        room = CLAIM_BYTES - sum(_called_size(row) for row in rows if row.token == token)
        found: list[TaskRow] = []
        for row in rows:
            if not is_due(row.task, now) or room <= 0 or errors:
                found.append(row)
                continue
            try:
                seen = await self._take_over(place, row, now, token)
            except Unavailable as error:
                errors[row.key], seen = str(error), row
            if seen:
                room -= _called_size(seen) if seen.token == token else 0
                found.append(seen)
        return found

    async def _take_over(
        self, place: RunPlace, row: TaskRow, now: datetime, token: str
    ) -> TaskRow | None:
        task = task_rules.claim(row.task, now, self._lease, holder=self._holder)
        if row.task.status is PROCESSING:
            taken = self._lost(row, task, now, token)
        else:
            taken = packed(replace(row, task=task, token=token), self._new_parts(row))
        result = await self._replace(place, row, taken)
        if result.done:
            return taken.row
        return row_of(result.stored, place) if result.stored else None

    async def _as_seen(self, rows: Sequence[TaskRow]) -> list[Task]:
        """The tasks of rows. One whose spec was removed is about to be, and does not exist."""
        mine = [row for row in rows if self._is_mine(row.task)]
        others = [row for row in rows if not self._is_mine(row.task)]
        for row in mine:
            self._remember(row)
        return [
            *(as_claimed(row.task) for row in await self._parts.called(mine)),
            *(
                as_listed(row.task)
                for row in await self._parts.listed(others, without_removed=True)
            ),
        ]

    def _is_mine(self, task: Task) -> bool:
        return task.status is PROCESSING and task.holder == self._holder

    def _remember(self, row: TaskRow) -> None:
        self._held[Held(row.task.run_id, row.task.id, row.task.claim_no)] = row
        if len(self._held) > MOST_HELD:
            del self._held[next(iter(self._held))]

    # Ending.

    async def _rows(self, claims: Sequence[Held]) -> dict[Held, TaskRow]:
        """The rows of claims of different tasks, remembered or read."""
        rows = {claim: self._held[claim] for claim in claims if claim in self._held}
        unknown: dict[Held, tuple[RunPlace, ItemKey]] = {}
        for claim in claims:
            place = None if claim in rows else await self._directory.find(claim.run_id)
            if place:
                unknown[claim] = place, row_key(place, claim.run_id, claim.task_id)
        found = await self._table.get_many([key for _, key in unknown.values()])
        for claim, (place, key) in unknown.items():
            if item := found.get(key):
                rows[claim] = row_of(item, place)
        return rows

    def _ended(self, row: TaskRow, ending: Settlement, now: datetime) -> PackedRow | None:
        """The row after its claim ended; None if the claim no longer holds it."""
        decision = ending.decision
        try:
            task = task_rules.settle(row.task, ending.claim_no, decision, now, holder=self._holder)
        except Stale:
            return None
        new = self._new_parts(row)
        ended = replace(row, task=task, token=self._writer.token())
        if line := task_rules.line(row.task, decision, now):
            ended = with_line(ended, line, new)
        return packed(ended, new)

    async def _write_ends(
        self,
        claims: Sequence[Held],
        endings: Mapping[Held, Settlement],
        ends: Mapping[Held, PackedRow],
    ) -> dict[Held, WriteResult]:
        """Write the ends of claims of one run."""
        place = await self._directory.find(claims[0].run_id)
        if place is None:
            return {}
        free = [claim for claim in claims if counted(endings[claim].decision) == ZERO]
        paid = [claim for claim in claims if claim not in set(free)]
        written = await self._write_retries([(claim, ends[claim]) for claim in free])
        writes = [
            CountedWrite(
                packed=ends[claim],
                condition=self._held_condition(claim.claim_no),
                counts=counted(endings[claim].decision),
                failure=endings[claim].decision.failure,
            )
            for claim in paid
        ]
        results = await self._writer.write_counted(place, claims[0].run_id, writes)
        return written | dict(zip(paid, results, strict=True))

    async def _write_retries(
        self, ends: Sequence[tuple[Held, PackedRow]]
    ) -> dict[Held, WriteResult]:
        """Write tasks that are pending again, and count for nothing."""
        statement = RETRY.format(table=self._table.name)
        results = await self._execute(
            [
                {
                    "Statement": statement,
                    "Parameters": [
                        *(end.item[name] for name in RETRY_FIELDS),
                        *texts(*end.row.key),
                        *self._fence(claim.claim_no),
                    ],
                    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                }
                for claim, end in ends
            ]
        )
        return {
            # The client may have repeated the request: an earlier attempt may have written the row.
            claim: WriteResult(
                not result.error or has_token(result.item, end.row.token),
                result.item,
                follows_unknown=True,
            )
            for (claim, end), result in zip(ends, results, strict=True)
        }

    async def _execute(self, statements: Sequence[Mapping[str, Any]]) -> list[StatementResult]:
        """Execute updates that may be repeated; `Unavailable` if one was not carried out."""
        execute = partial(self._table.batches.execute, repeatable=True)
        groups = await together([partial(execute, batch) for batch in batches(statements)])
        results = [result for group in groups for result in group]
        for result in results:
            if result.error not in {"", CONDITION}:
                raise Unavailable(f"dynamodb: a task could not be written: {result.error}")
        return results

    # Rows that lost their worker.

    async def _lapsed(
        self, place: RunPlace, run_id: RunId, then: datetime, limit: int
    ) -> list[TaskRow]:
        """Rows whose lease had ended then. All rows of the run are read until there are enough."""
        where = Condition(
            f"{STATUS} = :r AND {DUE} <= :d",
            values={":r": {"S": PROCESSING}, ":d": number(stamp(then))},
        )
        found: list[TaskRow] = []
        for partition in shard_partitions(place):
            async for page in self._table.query(
                partition,
                first=row_sort(run_id, 0),
                last=f"T#{run_id}#{END}",
                consistent=True,
                where=where,
            ):
                found += [row_of(item, place) for item in page["Items"]]
                if len(found) >= limit:
                    return found[:limit]
        return found

    def _lost(self, row: TaskRow, task: Task, now: datetime, token: str = "") -> PackedRow:
        """The row with its new state, and a line in its history for the worker that it lost."""
        new = self._new_parts(row)
        lost = replace(row, task=task, token=token or self._writer.token())
        return packed(with_line(lost, lost_line(row.task, now), new), new)

    async def _replace(self, place: RunPlace, row: TaskRow, by: PackedRow) -> WriteResult:
        """Write a row if the stored one is still the one that was read, and count a failure."""
        await self._writer.prepare([by])
        result = await self._replace_row(place, row, by)
        if result.is_unwritten:
            await self._writer.forget([by])
        return result

    async def _replace_row(self, place: RunPlace, row: TaskRow, by: PackedRow) -> WriteResult:
        condition = Condition(
            f"{CLAIM_NO} = :c AND {STATUS} = :s AND {DUE} = :d",
            values={
                ":c": number(row.task.claim_no),
                ":s": {"S": row.task.status},
                ":d": number(stamp(row.task.due_at)) if row.task.due_at else {"NULL": True},
            },
        )
        if by.row.task.is_final:
            whole = await self._parts.called([row])
            if not whole:  # the run is being removed
                return WriteResult(done=False)
            failed = msgspec.structs.replace(by.row.task, spec=whole[0].task.spec)
            write = CountedWrite(
                packed=by,
                condition=condition,
                counts=Counts(**{counter_of(failed): 1}),
                failure=failure_of(failed),
            )
            [result] = await self._writer.write_counted(place, row.task.run_id, [write])
            return result
        try:
            await self._table.put(by.item, condition)
        except ConditionFailed as failed_condition:
            stored = failed_condition.item
            is_mine = has_token(stored, by.row.token)
            return WriteResult(is_mine, stored, failed_condition.follows_unknown)
        return WriteResult(done=True)

    # Keys and conditions.

    async def _key(self, claim: Held) -> ItemKey | None:
        if claim in self._held:
            return self._held[claim].key
        place = await self._directory.find(claim.run_id)
        return row_key(place, claim.run_id, claim.task_id) if place else None

    def _fence(self, claim_no: int) -> list[dict[str, str]]:
        return [number(claim_no), {"S": self._holder}]

    def _held_condition(self, claim_no: int) -> Condition:
        claim, holder = self._fence(claim_no)
        return Condition(
            f"{CLAIM_NO} = :c AND {HOLDER} = :h AND {STATUS} = :s",
            values={":c": claim, ":h": holder, ":s": {"S": PROCESSING}},
        )

    def _new_parts(self, row: TaskRow) -> NewParts:
        return NewParts(f"{row.task.claim_no:x}.{self._writer.token(32)}")


def _claim_of(ending: Settlement) -> Held:
    return Held(ending.run_id, ending.task_id, ending.claim_no)


def _called_size(row: TaskRow) -> int:
    spec = row.task.spec
    hot = sum(len(text.encode()) for text in (spec.url, spec.params, spec.body) if text)
    return hot + (row.called.size if row.called else 0)
