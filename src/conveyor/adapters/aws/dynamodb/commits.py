"""Commits of metadata: one conditional write, or a transaction.

Every item has the token of the commit that wrote it. By it a commit whose answer was lost is
recognised, so that `Stale` and `KeyTaken` always mean that another writer was first.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import msgspec

from conveyor.adapters.aws.attribute_values import encode_item
from conveyor.adapters.aws.dynamodb.layout import PK, ItemKey
from conveyor.adapters.aws.dynamodb.records import (
    CONTENT,
    EXPIRY,
    TOKEN,
    VERSION,
    Stamps,
    item_of,
    microseconds,
    place,
    pointer_item,
    pointer_of,
)
from conveyor.adapters.aws.dynamodb.table import (
    IS_NEW,
    LARGEST_ITEM,
    LARGEST_TRANSACTION,
    Condition,
    DynamoTable,
)
from conveyor.adapters.aws.faults import (
    CONDITION,
    ConditionFailed,
    OutcomeUnknown,
    TransactionCanceled,
)
from conveyor.adapters.aws.item_size import Item, item_size
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.errors import KeyTaken, Stale, TooLarge
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Change, Record, Removed, check_changes, key_of

WORTH_MEASURING = 90_000  # characters of records, of up to 4 bytes each


class Outcome(Enum):
    DONE = "done"
    LOST = "lost"  # another writer was first, and the change can never take effect
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Write:
    """One change as it is written. Without an item it removes its record."""

    record: Record
    key: ItemKey
    item: Item | None
    condition: Condition | None
    actions: Sequence[Mapping[str, Any]]  # of a transaction; the first is that of the record

    def outcome(self, stored: Item | None, token: str, *, is_alone: bool) -> Outcome:
        """What became of the write if this is stored, and its answer was lost."""
        if stored and stored.get(TOKEN) == {"S": token}:
            return Outcome.DONE
        if not self.item:
            return Outcome.UNKNOWN
        if isinstance(self.record, IdempotencyRecord):
            return self._outcome_of_claim(stored)
        if not stored:
            # Of a change of this row alone it does not matter whether it was made before the row
            # was removed: who reads it again finds nothing that could be changed twice.
            is_gone = self.record.version > 0 and is_alone
            return Outcome.LOST if is_gone else Outcome.UNKNOWN
        # The condition can hold again only if the row is removed. Two versions further on, the
        # next writer may have found this write or that of another.
        newer = int(stored[VERSION]["N"]) - self.record.version
        return Outcome.UNKNOWN if newer == 0 or newer > 1 else Outcome.LOST

    def _outcome_of_claim(self, stored: Item | None) -> Outcome:
        if not stored or not self.condition:
            return Outcome.UNKNOWN
        has_expired = int(stored[EXPIRY]["N"]) <= int(self.condition.values[":now"]["N"])
        return Outcome.UNKNOWN if has_expired else Outcome.LOST

    def refusal(self) -> Stale | KeyTaken:
        record = self.record
        if isinstance(record, IdempotencyRecord):
            return KeyTaken(f"idempotency key {record.key!r} is taken")
        return Stale(
            f"{type(record).__name__} {key_of(record)} has changed since version {record.version}"
        )


class Commits:
    def __init__(self, table: DynamoTable, clock: Clock) -> None:
        self._table, self._clock = table, clock
        self._stamps = Stamps(clock)

    async def commit(self, changes: Sequence[Change]) -> None:
        check_changes(changes)
        if not changes:
            return
        token, now = secrets.token_urlsafe(12), self._stamps.next()
        writes = [self._write(change, token, now) for change in changes]
        _check_sizes(writes)
        [first, *others] = writes
        if others or len(first.actions) > 1:
            await self._transact(writes, token)
        elif first.item:
            await self._put(first, first.item, token)
        elif first.condition:
            # Nothing remains by which a lost answer could be recognised, but its token.
            await self._transact(writes, token)
        else:
            await self._table.delete(first.key)

    async def _put(self, write: Write, item: Item, token: str) -> None:
        try:
            await self._table.put(item, write.condition)
        except ConditionFailed as failure:
            if not failure.follows_unknown:
                raise write.refusal() from None
            self._judge([write], {write.key: failure.item} if failure.item else {}, token, failure)
        except OutcomeUnknown as failure:
            stored = await self._table.get(write.key)
            self._judge([write], {write.key: stored} if stored else {}, token, failure)

    async def _transact(self, writes: Sequence[Write], token: str) -> None:
        actions = [action for write in writes for action in write.actions]
        try:
            await self._table.transact(actions, token)
        except TransactionCanceled as canceled:
            await self._refuse(writes, canceled, token)
        except OutcomeUnknown as failure:
            stored = await self._table.get_many([write.key for write in writes])
            self._judge(writes, stored, token, failure)

    async def _refuse(
        self, writes: Sequence[Write], canceled: TransactionCanceled, token: str
    ) -> None:
        reasons = canceled.reasons
        if any(reason.item and reason.item.get(TOKEN) == {"S": token} for reason in reasons):
            return  # done by an earlier attempt, on a server that does not know the token any more
        if CONDITION not in {reason.code for reason in reasons}:
            raise canceled
        # Not every reason need be given, and a taken key comes first.
        records = [write for write in writes if isinstance(write.record, IdempotencyRecord)]
        stored = await self._table.get_many([write.key for write in records]) if records else {}
        now = microseconds(self._clock.now())
        for write in records:
            if write.key in stored and int(stored[write.key][EXPIRY]["N"]) > now:
                raise write.refusal() from None
        owners = [write for write in writes for _ in write.actions]
        for write, reason in zip(owners, reasons, strict=True):
            if reason.code == CONDITION:
                raise write.refusal() from None

    def _judge(
        self,
        writes: Sequence[Write],
        stored: Mapping[ItemKey, Item],
        token: str,
        failure: Exception,
    ) -> None:
        """Return if the writes took effect; raise what became of them otherwise."""
        is_alone = len(writes) == 1
        outcomes = [
            write.outcome(stored.get(write.key), token, is_alone=is_alone) for write in writes
        ]
        if Outcome.DONE in outcomes:
            return
        keys_first = sorted(
            zip(writes, outcomes, strict=True),
            key=lambda pair: not isinstance(pair[0].record, IdempotencyRecord),
        )
        for write, outcome in keys_first:
            if outcome is Outcome.LOST:
                raise write.refusal() from None
        raise OutcomeUnknown(f"the answer to a commit was lost: {failure}") from failure

    def _write(self, change: Change, token: str, now: datetime) -> Write:
        table = self._table
        if isinstance(change, Removed):
            row, key = change.row, place(change.row)
            condition = _at(row.version) if change.if_unchanged else None
            actions = [table.deleting(key, condition)]
            if pointer := pointer_of(row):
                actions.append(table.deleting(pointer))
            return Write(row, key, None, condition, actions)
        if isinstance(change, IdempotencyRecord):
            item, condition = item_of(change, token, now), _free(self._clock.now())
            return Write(change, place(change), item, condition, [table.putting(item, condition)])
        stored = msgspec.structs.replace(change, version=change.version + 1)
        item = item_of(stored, token, now)
        condition = _at(change.version) if change.version else IS_NEW
        actions = [table.putting(item, condition)]
        if not change.version and (pointer := pointer_of(change)):
            actions.append(table.putting(pointer_item(change, pointer)))
        return Write(change, place(change), item, condition, actions)


def _at(version: int) -> Condition:
    return Condition("#v = :v", {"#v": VERSION}, encode_item({":v": version}))


def _free(now: datetime) -> Condition:
    return Condition(
        f"attribute_not_exists({PK}) OR #x <= :now",
        {"#x": EXPIRY},
        encode_item({":now": microseconds(now)}),
    )


def _check_sizes(writes: Sequence[Write]) -> None:
    items = [(write.record, write.item) for write in writes if write.item]
    if sum(len(item[CONTENT]["S"]) for _, item in items) < WORTH_MEASURING:
        return
    total = 0
    for record, item in items:
        size = item_size(item)
        total += size
        if size > LARGEST_ITEM:
            raise TooLarge(
                f"The record of {type(record).__name__} {key_of(record)} has {size} bytes, and "
                f"DynamoDB stores at most {LARGEST_ITEM}"
            )
    if total > LARGEST_TRANSACTION:
        raise TooLarge(
            f"The records of a commit have {total} bytes, and DynamoDB writes at most "
            f"{LARGEST_TRANSACTION} together"
        )
