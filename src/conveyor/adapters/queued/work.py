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

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from conveyor.domain import concurrency
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import (
    FINAL,
    Settlement,
    Task,
    TaskStatus,
    as_redelivered,
    size_of,
)
from conveyor.errors import Unavailable
from conveyor.ports.claims import Claims
from conveyor.ports.clock import Clock
from conveyor.ports.queues import TASK_MESSAGE_VERSION, Queues, TaskMessage
from conveyor.ports.work import CLAIM_BYTES, Held, PartlyRenewed, Released

log = structlog.get_logger()

MOST_RECEIVED = 10
MOST_REMEMBERED = 10_000  # runs, and tasks that failed for their lost workers
MOST_AT_ONCE = 8  # runs whose queues are called at the same time
# The longest that SQS hides a received message.
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
    """The queues must hide a received message for at least the length of a lease (`visibility`).

    A worker that dies leaves a row whose lease lapses first, so the next delivery of its message
    finds the task due. `holder` is the name under which `claims` claims.
    """

    def __init__(
        self,
        claims: Claims,
        queues: Queues,
        *,
        clock: Clock,
        lease: timedelta,
        visibility: timedelta | None = None,
        holder: str = "",
    ) -> None:
        self._claims = claims
        self._queues = queues
        self._clock = clock
        self._visibility = max(lease, visibility or lease)
        self._holder = holder
        self._receipts: dict[Held, Receipt] = {}  # of claims that are held
        self._settling: set[Held] = set()
        self._final = FinalReceipts(clock, good_for=self._visibility)
        self._opened: dict[RunId, str] = {}  # queues that this process opened, with their stamps
        # An ingest that does not know of the end may still enqueue rows. That must not create the queue
        # again. Another process may create it, but no process claims tasks of an ended run.
        self._closed: dict[RunId, None] = {}
        self._failed: dict[Held, None] = {}  # by claims of this process, for their lost workers

    async def close(self, run_id: RunId) -> None:
        _remember(self._closed, run_id, None)
        self._opened.pop(run_id, None)
        await self._queues.close(run_id)

    async def enqueue(self, run_id: RunId, task_ids: Sequence[TaskId]) -> None:
        if run_id in self._closed or not task_ids:
            return
        if run_id not in self._opened:
            await self._queues.open(run_id)
            _remember(self._opened, run_id, await self._claims.stamp(run_id))
        await self._send(run_id, [(task_id, timedelta()) for task_id in task_ids])

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        taken: list[Task] = []
        errors = await _side_by_side(
            [partial(self._fill, taken, run_id, want) for run_id, want in wants.items()]
        )
        # Tasks that are claimed already must be returned, or they stay idle for a whole lease.
        if errors and not taken:
            raise errors[0]
        return taken

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        failed: PartlyRenewed | None = None
        try:
            fallen = await self._claims.renew(held)
        except PartlyRenewed as error:
            failed, fallen = error, list(error.fallen)
        unknown = frozenset(failed.unknown if failed else ())
        for claim in fallen:
            # A claim that is being settled cannot be renewed either, but `settle` needs its receipt.
            if claim not in self._settling:
                self._receipts.pop(claim, None)
        known = _grouped(
            (one.run_id, one) for one in held if one in self._receipts and one not in unknown
        )
        _raise_bugs(await _side_by_side([partial(self._hide, *group) for group in known.items()]))
        if failed:
            raise failed
        return fallen

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        claims = [_held(ending) for ending in settlements]
        self._settling.update(claims)
        try:
            settled = await self._claims.settle(settlements)
            pairs = zip(settlements, settled, strict=True)
            effective = _grouped((ending.run_id, ending) for ending, took in pairs if took)
            _raise_bugs(
                await _side_by_side([partial(self._follow, *group) for group in effective.items()])
            )
        finally:
            self._settling.difference_update(claims)
        for claim in claims:
            self._receipts.pop(claim, None)
        return settled

    async def ack(self, final: Sequence[Held]) -> None:
        receipts = self._final.of(final)

        async def ack(run_id: RunId, claims: Sequence[Held]) -> None:
            await self._queues.ack(run_id, [receipts[claim] for claim in claims])
            self._final.forget(claims)

        groups = _grouped((claim.run_id, claim) for claim in receipts)
        for error in await _side_by_side([partial(ack, *group) for group in groups.items()]):
            raise error

    async def release_lapsed(
        self, run_id: RunId, *, overdue: timedelta, limit: int
    ) -> Sequence[Released]:
        """Released tasks get new messages: whether their old ones still exist is unknown."""
        released = await self._claims.release_lapsed(run_id, overdue=overdue, limit=limit)
        if released:
            with suppress(Unavailable):
                await self._send(run_id, [(claim.task_id, timedelta()) for claim in released])
        return released

    async def _send(self, run_id: RunId, entries: Sequence[tuple[TaskId, timedelta]]) -> None:
        await self._queues.send(run_id, entries, stamp=self._opened.get(run_id, ""))

    async def _hide(self, run_id: RunId, claims: Sequence[Held]) -> None:
        await self._postpone(
            run_id, {self._receipts[claim].text: self._visibility for claim in claims}
        )

    async def _fill(self, taken: list[Task], run_id: RunId, want: int) -> None:
        for start in range(0, want, MOST_RECEIVED):
            if sum(map(size_of, taken)) >= CLAIM_BYTES:
                return
            messages = await self._queues.receive(run_id, min(want - start, MOST_RECEIVED))
            if messages is None:
                self._opened.pop(run_id, None)  # the next enqueue creates it again
            if not messages:
                return
            taken.extend(await self._take(run_id, messages))

    async def _take(self, run_id: RunId, received: Sequence[TaskMessage]) -> list[Task]:
        newer = [message for message in received if message.v > TASK_MESSAGE_VERSION]
        messages = {
            message.task_id: message for message in received if message.v <= TASK_MESSAGE_VERSION
        }
        await self._bounce(run_id, newer)
        if not messages:
            return []
        stamp = next(iter(messages.values())).stamp
        try:
            found = await self._claims.take(run_id, list(messages), stamp=stamp)
        except Unavailable:
            # If they stayed visible, the next receiver would fail in the same way.
            await self._bounce(run_id, messages.values())
            raise
        taken = [task for task in found if self._is_new(task)]
        others = [task for task in found if not self._is_new(task)]
        # A final task that this call failed must differ from one whose message was delivered again.
        mine = {task.id for task in taken if self._is_first_seen(task)}
        for task in taken:
            self._keep_receipt(task, messages[task.id])
        gone = messages.keys() - {task.id for task in found}
        with suppress(Unavailable):
            await self._put_aside(run_id, others, messages)
            await self._ack(run_id, [messages[task_id].receipt for task_id in gone])
        return [task if task.id in mine else as_redelivered(task) for task in taken]

    def _is_first_seen(self, task: Task) -> bool:
        """Whether this process claimed or failed a task, and has not returned it yet."""
        is_first = task.holder == self._holder and _held_by(task) not in self._failed
        if is_first and task.is_final:
            _remember(self._failed, _held_by(task), None)
        return is_first

    def _is_new(self, task: Task) -> bool:
        """Whether a task must be returned: it was claimed just now, or it is final.

        A claim that this process does not know was made by a call whose answer was lost. The worker
        that settled a final task may have died before its completion check.
        """
        if task.is_final:
            return True
        is_mine = task.status is TaskStatus.PROCESSING and task.holder == self._holder
        claim = _held_by(task)
        return is_mine and claim not in self._receipts and claim not in self._settling

    def _keep_receipt(self, task: Task, message: TaskMessage) -> None:
        claim = _held_by(task)
        if not task.is_final:
            self._receipts[claim] = _receipt_of(task, message)
            return
        # A settle of this claim may be under way, and must not replace the receipt by an older one.
        self._receipts.pop(claim, None)
        self._final.keep(claim, message.receipt)

    async def _put_aside(
        self, run_id: RunId, unfinished: Sequence[Task], messages: Mapping[TaskId, TaskMessage]
    ) -> None:
        """Hide the messages of unfinished tasks until they are due."""
        for task in unfinished:
            self._replace_receipt(task, messages[task.id])
        await self._postpone(
            run_id,
            {
                messages[task.id].receipt: self._until_due(task, messages[task.id])
                for task in unfinished
            },
        )

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
        """Hide messages whose tasks could not be read."""
        await self._postpone(
            run_id,
            {
                message.receipt: concurrency.hidden_for(message.task_id, message.receives)
                for message in messages
            },
        )

    async def _follow(self, run_id: RunId, endings: Sequence[Settlement]) -> None:
        """Update the messages of settled tasks to match their rows."""
        for ending in endings:
            if ending.decision.status in FINAL and (receipt := self._receipt(ending)):
                self._final.keep(_held(ending), receipt.text)
        waiting = [ending for ending in endings if ending.decision.status not in FINAL]
        await self._postpone(
            run_id,
            {
                receipt.text: _hiding(ending, receipt)
                for ending in waiting
                if (receipt := self._receipt(ending))
            },
        )

    def _receipt(self, ending: Settlement) -> Receipt | None:
        return self._receipts.get(_held(ending))

    async def _ack(self, run_id: RunId, receipts: Sequence[str]) -> None:
        if receipts:
            await self._queues.ack(run_id, receipts)

    async def _postpone(self, run_id: RunId, delays: Mapping[str, timedelta]) -> None:
        if delays:
            with suppress(Unavailable):
                await self._queues.postpone(
                    run_id,
                    {receipt: min(delay, LONGEST_HIDING) for receipt, delay in delays.items()},
                )


async def _side_by_side(calls: Sequence[Callable[[], Awaitable[None]]]) -> list[Exception]:
    """Make calls for several runs, some of them at a time; return the errors.

    An error of one run, of whatever kind, does not cancel the calls of the others half-way.
    """
    places, errors = asyncio.Semaphore(MOST_AT_ONCE), list[Exception]()

    async def make(call: Callable[[], Awaitable[None]]) -> None:
        async with places:
            try:
                await call()
            except Unavailable as error:
                errors.append(error)
            except Exception as error:
                log.exception("work.failed")
                errors.append(error)

    if len(calls) == 1:  # the usual case needs no task
        await make(calls[0])
    elif calls:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(make(call))
    return errors


def _raise_bugs(errors: Iterable[Exception]) -> None:
    for error in errors:
        if not isinstance(error, Unavailable):
            raise error


_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def _remember(known: dict[_Key, _Item], key: _Key, what: _Item) -> None:
    known[key] = what
    if len(known) > MOST_REMEMBERED:
        del known[next(iter(known))]


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
