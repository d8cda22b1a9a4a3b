"""Work built from claims and queues, for engines whose rows are not their queue.

The row decides; a message only says that a task may be due.

| Invariant | Why |
|---|---|
| A message is acknowledged after its task is final and its run was checked for completion | a worker that dies before the check leaves a message, whose next delivery repeats it |
| A task that is not final has a message, as long as the queue loses none | every task is claimed at some time |
| The row is written before its message | a failure in between is repaired by the next delivery |
| A message whose receive started no task is hidden for longer each time | queues count receives, and give up on a message that has too many |
| Only the newest receipt of a message is kept | a queue ignores older ones |
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import msgspec

from conveyor.domain import concurrency
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import FINAL, Settlement, Task, as_redelivered, size_of
from conveyor.errors import Unavailable
from conveyor.ports.claims import Claims
from conveyor.ports.clock import Clock
from conveyor.ports.queues import Queues, TaskMessage
from conveyor.ports.work import CLAIM_BYTES, Held, Released

MOST_RECEIVED = 10
MOST_REMEMBERED = 10_000  # closed runs
# The longest that SQS delays a new message, and hides a received one.
LONGEST_DELAY = timedelta(minutes=15)
LONGEST_HIDING = timedelta(hours=12)


class Receipt(msgspec.Struct, frozen=True):
    """The receipt of a message of a claimed task, and how many receives of it started no task."""

    text: str
    in_vain: int


class FinalReceipts:
    """The receipts of final tasks until their ack.

    Each is kept only as long as it can ack its message, so that a missing ack leaks no memory.
    """

    def __init__(self, clock: Clock, *, good_for: timedelta) -> None:
        self._clock = clock
        self._good_for = good_for.total_seconds()
        # All have the same lifetime and a newer one goes to the end, so expired ones come first.
        self._kept: dict[Held, tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, claim: Held, receipt: str) -> None:
        """Keep the newest receipt of a task: a queue ignores older receipts of the same message."""
        self._forget_old()
        self.forget([claim])
        self._kept[claim] = receipt, self._clock.monotonic() + self._good_for

    def of(self, claims: Iterable[Held]) -> dict[Held, str]:
        """The receipts of those claims that have one."""
        self._forget_old()
        return {claim: self._kept[claim][0] for claim in claims if claim in self._kept}

    def forget(self, claims: Iterable[Held]) -> None:
        for claim in claims:
            self._kept.pop(claim, None)

    def _forget_old(self) -> None:
        now = self._clock.monotonic()
        while self._kept and self._kept[first := next(iter(self._kept))][1] <= now:
            del self._kept[first]


class QueuedWork:
    """The queues must hide a received message for at most the length of a lease.

    No engine of `app/engines.py` uses it yet; it is for engines with message queues.
    """

    def __init__(self, claims: Claims, queues: Queues, *, clock: Clock, lease: timedelta) -> None:
        self._claims = claims
        self._queues = queues
        self._clock = clock
        self._lease = lease
        self._receipts: dict[Held, Receipt] = {}  # of claims that are held
        self._settling: set[Held] = set()
        self._final = FinalReceipts(clock, good_for=lease)
        # An ingest that does not know of the end may still enqueue rows. That must not create the queue
        # again. Another process may create it, but no process claims tasks of an ended run.
        self._closed: dict[RunId, None] = {}

    async def open(self, run_id: RunId) -> None:
        self._closed.pop(run_id, None)
        await self._queues.open(run_id)

    async def close(self, run_id: RunId) -> None:
        self._remember_closed(run_id)
        await self._queues.close(run_id)

    async def enqueue(self, run_id: RunId, task_ids: Sequence[TaskId]) -> None:
        if run_id not in self._closed:
            await self._queues.open(run_id)
            await self._queues.send(run_id, task_ids)

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        taken: list[Task] = []
        try:
            for run_id, want in wants.items():
                await self._fill(taken, run_id, want)
        except Unavailable:
            # Tasks that are claimed already must be returned, or they stay idle for a whole lease.
            if not taken:
                raise
        return taken

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        fallen = await self._claims.renew(held)
        for claim in fallen:
            # A claim that is being settled cannot be renewed either, but `settle` needs its receipt.
            if claim not in self._settling:
                self._receipts.pop(claim, None)
        known = [(one.run_id, self._receipts[one].text) for one in held if one in self._receipts]
        for run_id, receipts in _grouped(known).items():
            await self._postpone(run_id, [(self._lease, receipt) for receipt in receipts])
        return fallen

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        claims = [_held(ending) for ending in settlements]
        self._settling.update(claims)
        try:
            settled = await self._claims.settle(settlements)
            pairs = zip(settlements, settled, strict=True)
            effective = [(ending.run_id, ending) for ending, took in pairs if took]
            for run_id, endings in _grouped(effective).items():
                with suppress(Unavailable):
                    await self._follow(run_id, endings)
        finally:
            self._settling.difference_update(claims)
        for claim in claims:
            self._receipts.pop(claim, None)
        return settled

    async def ack(self, final: Sequence[Held]) -> None:
        receipts = self._final.of(final)
        for run_id, claims in _grouped((claim.run_id, claim) for claim in receipts).items():
            await self._queues.ack(run_id, [receipts[claim] for claim in claims])
            self._final.forget(claims)

    async def release_lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Released]:
        """Released tasks get new messages: whether their old ones still exist is unknown."""
        released = await self._claims.release_lapsed(overdue=overdue, limit=limit)
        pairs = [(claim.run_id, claim.task_id) for claim in released]
        for run_id, task_ids in _grouped(pairs).items():
            with suppress(Unavailable):
                await self._queues.send(run_id, task_ids)
        return released

    def _remember_closed(self, run_id: RunId) -> None:
        self._closed[run_id] = None
        if len(self._closed) > MOST_REMEMBERED:
            del self._closed[next(iter(self._closed))]

    async def _fill(self, taken: list[Task], run_id: RunId, want: int) -> None:
        for start in range(0, want, MOST_RECEIVED):
            if sum(map(size_of, taken)) >= CLAIM_BYTES:
                return
            messages = await self._queues.receive(run_id, min(want - start, MOST_RECEIVED))
            if not messages:
                return
            taken += await self._take(run_id, messages)

    async def _take(self, run_id: RunId, received: Sequence[TaskMessage]) -> list[Task]:
        messages = {message.task_id: message for message in received}
        try:
            taken = list(await self._claims.take(run_id, list(messages)))
        except Unavailable:
            # If they stayed visible, the next receiver would fail in the same way.
            await self._bounce(run_id, messages.values())
            raise
        for task in taken:
            self._keep_receipt(task, messages.pop(task.id))
        if messages:
            with suppress(Unavailable):
                looked = await self._claims.look(run_id, list(messages))
                taken += self._redelivered(looked, messages)
                await self._put_aside(run_id, looked, messages)
        return taken

    def _redelivered(
        self, looked: Sequence[Task], messages: Mapping[TaskId, TaskMessage]
    ) -> list[Task]:
        """The final tasks: the worker that settled them may have died before its completion check."""
        final = [task for task in looked if task.is_final]
        for task in final:
            self._keep_receipt(task, messages[task.id])
        return list(map(as_redelivered, final))

    def _keep_receipt(self, task: Task, message: TaskMessage) -> None:
        claim = _held_by(task)
        if not task.is_final:
            self._receipts[claim] = _receipt_of(task, message)
            return
        # A settle of this claim may be under way, and must not replace the receipt by an older one.
        self._receipts.pop(claim, None)
        self._final.keep(claim, message.receipt)

    async def _put_aside(
        self, run_id: RunId, looked: Sequence[Task], messages: Mapping[TaskId, TaskMessage]
    ) -> None:
        """Hide the messages of unfinished tasks until they are due; ack those without a row."""
        unfinished = [task for task in looked if not task.is_final]
        for task in unfinished:
            self._replace_receipt(task, messages[task.id])
        await self._postpone(
            run_id,
            [
                (self._until_due(task, messages[task.id]), messages[task.id].receipt)
                for task in unfinished
            ],
        )
        gone = messages.keys() - {task.id for task in looked}
        await self._ack(run_id, [messages[task_id].receipt for task_id in gone])

    def _replace_receipt(self, task: Task, newer: TaskMessage) -> None:
        """Only the newest receipt of a message delivered twice can hide or ack it."""
        claim = _held_by(task)
        if claim in self._receipts:
            self._receipts[claim] = _receipt_of(task, newer)

    def _until_due(self, task: Task, message: TaskMessage) -> timedelta:
        """The time until a task is due. One that is due and was not claimed has bounced."""
        now = self._clock.now()
        if task.due_at and task.due_at > now:
            return task.due_at - now
        return concurrency.hidden_for(task.id, concurrency.futile_receives(task, message.receives))

    async def _bounce(self, run_id: RunId, messages: Iterable[TaskMessage]) -> None:
        """Hide the messages of tasks that could not be read."""
        waits = [
            (concurrency.hidden_for(message.task_id, message.receives), message.receipt)
            for message in messages
        ]
        await self._postpone(run_id, waits)

    async def _follow(self, run_id: RunId, endings: Sequence[Settlement]) -> None:
        """Update the messages of settled tasks to match their rows."""
        for ending in endings:
            if ending.decision.status in FINAL and (receipt := self._receipt(ending)):
                self._final.keep(_held(ending), receipt.text)
        waiting = [ending for ending in endings if ending.decision.status not in FINAL]
        await self._postpone(
            run_id,
            [
                (_hiding(ending, receipt), receipt.text)
                for ending in waiting
                if (receipt := self._receipt(ending))
            ],
        )
        await self._send_again(run_id, [each for each in waiting if not self._receipt(each)])

    def _receipt(self, ending: Settlement) -> Receipt | None:
        return self._receipts.get(_held(ending))

    async def _ack(self, run_id: RunId, receipts: Sequence[str]) -> None:
        if receipts:
            await self._queues.ack(run_id, receipts)

    async def _postpone(self, run_id: RunId, waits: Iterable[tuple[timedelta, str]]) -> None:
        for delay, receipts in _grouped(waits).items():
            with suppress(Unavailable):
                await self._queues.postpone(run_id, receipts, delay=min(delay, LONGEST_HIDING))

    async def _send_again(self, run_id: RunId, endings: Sequence[Settlement]) -> None:
        waits = [(ending.decision.delay, ending.task_id) for ending in endings]
        for delay, task_ids in _grouped(waits).items():
            await self._queues.send(run_id, task_ids, delay=min(delay, LONGEST_DELAY))


_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def _grouped(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    groups: defaultdict[_Key, list[_Item]] = defaultdict(list)
    for key, item in pairs:
        groups[key].append(item)
    return groups


def _receipt_of(task: Task, message: TaskMessage) -> Receipt:
    return Receipt(message.receipt, concurrency.futile_receives(task, message.receives))


def _hiding(ending: Settlement, receipt: Receipt) -> timedelta:
    """How long to hide the message of a task that is pending again.

    A task that was refused without an attempt waits longer each time, maybe longer than its row says.
    A task without a delay was handed back by a worker that had to stop, and is not hidden.
    """
    decision = ending.decision
    if decision.charged or not decision.delay:
        return decision.delay
    return max(decision.delay, concurrency.hidden_for(ending.task_id, receipt.in_vain))


def _held(ending: Settlement) -> Held:
    return Held(ending.run_id, ending.task_id, ending.claim_no)


def _held_by(task: Task) -> Held:
    return Held(task.run_id, task.id, task.claim_no)
