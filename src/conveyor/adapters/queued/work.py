"""Work built from claims and queues, for engines whose rows are not their queue.

The row decides; a message only says that a task may be due. A message is acknowledged when its task is
final and its run was checked for completion, and not before: as long as the queue loses nothing, each
task that is not final has a message somewhere. A failure to update a message after its row was
written is repaired by the next delivery. A message that was received in vain is hidden for longer each
time, because queues count receives and give up on a message that has too many.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from conveyor.adapters.queued.receipts import FinalReceipts, Receipt
from conveyor.domain import concurrency
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import FINAL, Settlement, Task, size_of
from conveyor.errors import Unavailable
from conveyor.ports.claims import Claims
from conveyor.ports.clock import Clock
from conveyor.ports.queues import Queues, TaskMessage
from conveyor.ports.work import CLAIM_BYTES, Held

MOST_RECEIVED = 10
MOST_REMEMBERED = 10_000
# The longest that SQS delays a new message, and hides a received one.
LONGEST_DELAY = timedelta(minutes=15)
LONGEST_HIDING = timedelta(hours=12)


class QueuedWork:
    """The queues must hide a received message for the length of a lease, or for less."""

    def __init__(self, claims: Claims, queues: Queues, *, clock: Clock, lease: timedelta) -> None:
        self._claims = claims
        self._queues = queues
        self._clock = clock
        self._lease = lease
        self._receipts: dict[Held, Receipt] = {}  # of claims that stand
        self._settling: set[Held] = set()
        self._final = FinalReceipts(clock, good_for=lease)
        # An ingester that does not know of the end may still enqueue rows: that must not create the
        # queue again. Another process may do so, but it claims no tasks of an ended run.
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
            # What was claimed so far must reach its worker, or it stays idle for a whole lease.
            if not taken:
                raise
        return taken

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        fallen = await self._claims.renew(held)
        for claim in fallen:
            # A claim that is being settled has fallen too; `settle` still needs its receipt.
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

    async def release_lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Held]:
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
            # Visible at once, they would reach the next receiver and fail in the same way.
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
        """The final ones: the worker that had to ack them may have died before its completion check."""
        final = [task for task in looked if task.is_final]
        for task in final:
            self._keep_receipt(task, messages[task.id])
        return final

    def _keep_receipt(self, task: Task, message: TaskMessage) -> None:
        claim = _held_by(task)
        if not task.is_final:
            self._receipts[claim] = _receipt_of(task, message)
            return
        # A settle of this claim that is under way must not keep the older receipt instead.
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
        """As the row says. A task that is due and was not claimed all the same has bounced."""
        now = self._clock.now()
        if task.due_at and task.due_at > now:
            return task.due_at - now
        return concurrency.hidden_for(task.id, concurrency.futile_receives(task, message.receives))

    async def _bounce(self, run_id: RunId, messages: Iterable[TaskMessage]) -> None:
        """Hide messages whose tasks could not be read."""
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
    """A task that was refused without an attempt waits longer each time, beyond what its row says.

    A task that is due at once was handed back by a worker that had to stop, and is not hidden.
    """
    decision = ending.decision
    if decision.charged or not decision.delay:
        return decision.delay
    return max(decision.delay, concurrency.hidden_for(ending.task_id, receipt.in_vain))


def _held(ending: Settlement) -> Held:
    return Held(ending.run_id, ending.task_id, ending.claim_no)


def _held_by(task: Task) -> Held:
    return Held(task.run_id, task.id, task.claim_no)
