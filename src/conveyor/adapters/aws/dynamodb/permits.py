"""Permits on DynamoDB. The items of `Sem#<name>` are one row for each worker, and a gate.

A row says how many permits its worker holds and until when. Only that worker writes it, always as a
whole, with a number that grows: a write that arrives late changes nothing. The ids of the permits
are known to the worker alone.

The gate holds a token that every reservation replaces. A reservation adds up the live permits of
all rows, and writes its own row and a new token in one transaction, on condition that the token is
still the one it read. Of two reservations at the same time one fails and reads again, so the sum
never exceeds the cap. Renewals and releases write the row alone: a release makes the sum smaller,
and a renewal may take permits beyond the cap.

Expiries are compared by the clocks of the workers, in whole seconds.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

from conveyor.adapters.aws.attribute_values import encode_item
from conveyor.adapters.aws.dynamodb.layout import PK, SK, TTL
from conveyor.adapters.aws.dynamodb.table import IS_NEW, Condition, DynamoTable
from conveyor.adapters.aws.faults import ConditionFailed, TransactionCanceled
from conveyor.adapters.aws.item_size import Item
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import PermitRequest

GATE, WORKER = "G", "W#"  # sort keys
DEADLINE = timedelta(seconds=3)  # of a renewal or release: a process that stops waits for it
TRIES = 8  # of a reservation that others precede; then the name gets no permit
AT_ONCE = 16  # names of a call
TRY_ALL_AFTER = timedelta(seconds=5)  # rows that may be wrong, with calls for other names
KEPT = timedelta(days=1)  # from the last use of an item until DynamoDB may remove it


@dataclass(slots=True)
class _Held:
    """The permits of a name that this worker holds."""

    until: dict[str, int] = field(default_factory=dict)  # expiries by id, in seconds since 1970
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0  # calls that have the lock or wait for it
    # A call failed that may have written the row or not. The next write corrects it.
    may_differ: bool = False


class DynamoDbPermits:
    def __init__(
        self, table: DynamoTable, *, clock: Clock, incarnation: str, lease: timedelta
    ) -> None:
        self._table, self._clock = table, clock
        self._incarnation = incarnation
        self._lease = lease.total_seconds()
        self._numbers = count(1)  # of permits and of writes
        self._held: dict[str, _Held] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        self._try_all_at = 0.0

    async def reserve(self, wants: Mapping[str, PermitRequest]) -> Mapping[str, Sequence[str]]:
        asked = {
            name: [f"{self._incarnation}:{next(self._numbers)}" for _ in range(request.want)]
            for name, request in wants.items()
            if request.want > 0
        }
        granted: dict[str, Sequence[str]] = {}

        async def reserve(name: str) -> None:
            granted[name] = await self._reserve(name, asked[name], wants[name].cap)

        try:
            await self._each(asked, reserve)
        except BaseException:  # the caller learns of no permit, so none may stay
            for name, ids in granted.items():
                if ids and (held := self._held.get(name)):
                    held.may_differ = True
                    _drop(held.until, ids)
            raise
        return granted

    async def renew(self, permits: Mapping[str, Sequence[str]]) -> None:
        async def renew(name: str) -> None:
            async with self._using(name) as held:
                held.until |= dict.fromkeys(permits[name], self._expiry())
                await self._write(name, held)

        await self._each([name for name, ids in permits.items() if ids], renew)

    async def release(self, permits: Mapping[str, Sequence[str]]) -> None:
        async def release(name: str) -> None:
            async with self._using(name) as held:
                if _drop(held.until, permits[name]) or held.may_differ:
                    await self._write(name, held)

        await self._each([name for name, ids in permits.items() if ids], release)

    async def held(self, name: str) -> int:
        _, rows = await self._read(name)
        return sum(map(self._live, rows.values()))

    async def _reserve(self, name: str, ids: Sequence[str], cap: int) -> Sequence[str]:
        async with self._using(name) as held:
            for attempt in range(TRIES):
                gate, rows = await self._read(name)
                rows.pop(self._incarnation, None)  # it may lag behind what is known here
                self._drop_expired(held)
                room = cap - len(held.until) - sum(map(self._live, rows.values()))
                if room <= 0:
                    return ()
                some = ids[:room]
                if await self._raise(name, held, some, gate):
                    return some
                if attempt:
                    await self._table.client.pause(attempt)
        return ()

    async def _raise(self, name: str, held: _Held, ids: Sequence[str], gate: Item | None) -> bool:
        """Add permits to the row, unless another reservation was made since the gate was read."""
        until = held.until | dict.fromkeys(ids, self._expiry())
        row, number = self._row(name, until)
        token = f"{self._incarnation}.{number}"
        new_gate = encode_item({PK: _partition(name), SK: GATE, "v": token, TTL: self._ttl()})
        is_same = Condition("v = :v", values={":v": gate["v"]}) if gate else IS_NEW
        actions = [
            self._table.putting(new_gate, is_same),
            self._table.putting(row, _is_newer(number)),
        ]
        try:
            await self._table.transact(actions, token[-36:])
        except TransactionCanceled:
            return False
        except BaseException:  # also a canceled call may reach DynamoDB
            held.may_differ = True
            raise
        held.until, held.may_differ = until, False
        return True

    async def _write(self, name: str, held: _Held) -> None:
        self._drop_expired(held)
        held.may_differ = True  # until it is known
        row, number = self._row(name, held.until)
        # The condition fails only after a lost answer, by the effect of this very write.
        with suppress(ConditionFailed):
            request = {"TableName": self._table.name, "Item": row, **_is_newer(number).fields}
            await self._table.calls.call("PutItem", request, repeatable=True, deadline=DEADLINE)
        held.may_differ = False

    async def _read(self, name: str) -> tuple[Item | None, dict[str, Item]]:
        """The gate, and the rows by worker."""
        gate, rows = None, dict[str, Item]()
        async for page in self._table.query(_partition(name), consistent=True):
            for item in page["Items"]:
                if item[SK]["S"] == GATE:
                    gate = item
                else:
                    rows[item[SK]["S"].removeprefix(WORKER)] = item
        return gate, rows

    async def _each(self, names: Iterable[str], act: Callable[[str], Awaitable[None]]) -> None:
        """Act for names side by side; raise if one failed, after all have ended."""
        names = list(names)
        overdue = self._overdue(names)

        async def one(name: str, do: Callable[[str], Awaitable[None]]) -> None:
            async with self._places:
                await do(name)

        calls = [one(name, act) for name in names] + [one(name, self._correct) for name in overdue]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        if any(outcome is not None for outcome in outcomes[len(names) :]):
            self._try_all_at = self._clock.monotonic() + TRY_ALL_AFTER.total_seconds()
        for outcome in outcomes[: len(names)]:
            if outcome is not None:
                raise outcome

    def _overdue(self, names: Sequence[str]) -> list[str]:
        """Other names whose rows are to be corrected with this call."""
        if not names or self._clock.monotonic() < self._try_all_at:
            return []
        return [name for name, held in self._held.items() if held.may_differ and name not in names]

    async def _correct(self, name: str) -> None:
        async with self._using(name) as held:
            if held.may_differ:
                await self._write(name, held)

    @asynccontextmanager
    async def _using(self, name: str) -> AsyncIterator[_Held]:
        """One call at a time for each name. Nothing is kept of names that are not used."""
        held = self._held.setdefault(name, _Held())
        held.users += 1
        try:
            async with held.lock:
                yield held
        finally:
            held.users -= 1
            if not (held.users or held.until or held.may_differ):
                del self._held[name]

    def _row(self, name: str, until: Mapping[str, int]) -> tuple[Item, int]:
        """The row as it should be, and its number."""
        number = next(self._numbers)
        item = encode_item(
            {
                PK: _partition(name),
                SK: f"{WORKER}{self._incarnation}",
                "n": number,
                "permits": {str(expiry): held for expiry, held in Counter(until.values()).items()},
                TTL: self._ttl(),
            }
        )
        return item, number

    def _live(self, row: Item) -> int:
        now = self._clock.now().timestamp()
        numbers = row["permits"]["M"].items()
        return sum(int(number["N"]) for expiry, number in numbers if int(expiry) > now)

    def _drop_expired(self, held: _Held) -> None:
        now = self._clock.now().timestamp()
        held.until = {permit: expiry for permit, expiry in held.until.items() if expiry > now}

    def _expiry(self) -> int:
        return math.ceil(self._clock.now().timestamp() + self._lease)

    def _ttl(self) -> int:
        return math.ceil((self._clock.now() + KEPT).timestamp())


def _partition(name: str) -> str:
    return f"Sem#{name}"


def _is_newer(number: int) -> Condition:
    values = {":n": {"N": str(number)}}
    return Condition(f"attribute_not_exists({PK}) OR n < :n", values=values)


def _drop(until: dict[str, int], ids: Iterable[str]) -> int:
    """Drop permits; return how many there were."""
    return sum(until.pop(permit, None) is not None for permit in ids)
