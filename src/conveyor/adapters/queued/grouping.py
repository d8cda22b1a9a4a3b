"""Queues that charge for each call: messages share calls, as far as no task waits for it.

| call | messages of a run share it | at most |
|---|---|---|
| receive | what a run takes beyond the tasks that can start now is kept for its next receives | as many as it started lately within `AHEAD` of the visibility timeout |
| ack | acknowledged messages wait for nine others | for `WAIT` of the visibility timeout |
| postpone | the same | also for half of their delay, from which the wait is taken off |
| postpone for `SOON` or less, then receive | neither call is made: a retry is kept until it is due, and the next receive of its run takes it | until `LATE` after it is due, and for `GIVE_BACK` of the visibility timeout since its receive |

A message that waits is hidden meanwhile. If the process dies, its visibility ends, and the next
delivery finds its row: final, waiting for a retry, or due.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.ids import RunId, TaskId
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.queues import Queues, TaskMessage

MOST_ENTRIES = 10
AHEAD = 1 / 12
WAIT = 1 / 12
SOON = 3.0  # seconds: shorter than any wait of a message whose receive started no task
LATE = 1.0  # seconds
# Of the visibility timeout, since the receive of a message: when it is left to other processes unless
# its task has started. The rest is long enough to renew it, at three quarters of a lease.
GIVE_BACK = 1 / 4
TICK = 0.25  # seconds between looks for what has waited long enough
FLUSH = 3.0  # seconds
RATE_WINDOW = 1.0  # seconds over which messages are counted for a rate

Received = tuple[float, TaskMessage]  # when, what


@dataclass(slots=True)
class RunGroups:
    """The messages of one run that wait for a call, and how fast the run takes new ones."""

    since: float
    kept: deque[Received] = field(default_factory=deque)
    acks: dict[str, float] = field(default_factory=dict)  # receipt -> when it must be acknowledged
    hidings: dict[str, tuple[float, float]] = field(default_factory=dict)  # receipt -> until, by
    started: dict[str, Received] = field(default_factory=dict)  # by receipt
    retries: dict[str, tuple[float, Received]] = field(default_factory=dict)  # receipt -> due
    taken: int = 0  # messages since `since`
    rate: float = 0.0  # messages a second

    def count(self, messages: int, now: float) -> None:
        self.taken += messages
        if (passed := now - self.since) >= RATE_WINDOW:
            self.rate, self.taken, self.since = self.taken / passed, 0, now

    def take(self, limit: int, now: float) -> list[Received]:
        """Retries that are due, then messages that were kept."""
        due = [receipt for receipt, (at, _) in self.retries.items() if at <= now][:limit]
        taken = [self.retries.pop(receipt)[1] for receipt in due]
        return taken + [self.kept.popleft() for _ in range(min(limit - len(taken), len(self.kept)))]

    def start(self, taken: Iterable[Received]) -> None:
        self.started |= {message.receipt: (at, message) for at, message in taken}

    def forget_started(self, before: float) -> None:
        while self.started and self.started[first := next(iter(self.started))][0] < before:
            del self.started[first]

    @property
    def is_empty(self) -> bool:
        return not (self.kept or self.acks or self.hidings or self.retries)


class GroupedQueues:
    """The same queues, asked less often."""

    def __init__(self, queues: Queues, clock: Clock, *, visibility: timedelta) -> None:
        self._queues, self._clock = queues, clock
        self._ahead, self._wait, self._give_back = (
            visibility.total_seconds() * share for share in (AHEAD, WAIT, GIVE_BACK)
        )
        self._runs: dict[RunId, RunGroups] = {}
        self._watch: asyncio.Task[None] | None = None

    async def open(self, run_id: RunId) -> None:
        await self._queues.open(run_id)

    async def close(self, run_id: RunId) -> None:
        self._runs.pop(run_id, None)  # the queue goes with its messages
        await self._queues.close(run_id)

    async def opened(self, *, limit: int, after: str = "") -> Sequence[RunId]:
        return await self._queues.opened(limit=limit, after=after)

    async def send(
        self, run_id: RunId, entries: Sequence[tuple[TaskId, timedelta]], *, stamp: str = ""
    ) -> None:
        await self._queues.send(run_id, entries, stamp=stamp)

    async def receive(self, run_id: RunId, limit: int) -> Sequence[TaskMessage] | None:
        groups = self._groups(run_id)
        taken = groups.take(limit, self._clock.monotonic())
        if missing := limit - len(taken):
            surplus = int(groups.rate * self._ahead)
            try:
                found = await self._queues.receive(run_id, min(missing + surplus, MOST_ENTRIES))
            except Unavailable:
                if not taken:
                    raise
                found = []
            if found is None and not taken:
                self._runs.pop(run_id, None)
                return None
            groups = self._groups(run_id)  # again: the watch may have removed them meanwhile
            now = self._clock.monotonic()
            received = [(now, message) for message in found or ()]
            taken += received[:missing]
            groups.kept.extend(received[missing:])
        groups.start(taken)
        groups.count(len(taken), self._clock.monotonic())
        self._watch_groups()
        return [message for _, message in taken]

    async def ack(self, run_id: RunId, receipts: Sequence[str]) -> None:
        groups = self._groups(run_id)
        by = self._clock.monotonic() + self._wait
        for receipt in receipts:
            groups.hidings.pop(receipt, None)
            groups.started.pop(receipt, None)
            groups.acks.setdefault(receipt, by)
        await self._send_acks(run_id, groups, whole_calls(len(groups.acks)))
        self._watch_groups()

    async def postpone(self, run_id: RunId, delays: Mapping[str, timedelta]) -> None:
        groups, now = self._groups(run_id), self._clock.monotonic()
        for receipt, delay in delays.items():
            until = now + delay.total_seconds()
            received = groups.started.pop(receipt, None)
            is_soon = 0 < until - now <= SOON
            if received and is_soon and until + LATE + TICK <= received[0] + self._give_back:
                groups.retries[receipt] = until, received
            else:
                groups.hidings[receipt] = until, min((now + until) / 2, now + self._wait)
        await self._send_hidings(run_id, groups, now)
        self._watch_groups()

    async def flush(self) -> None:
        """Make all calls that messages wait for, and give back those that are kept.

        What cannot be done within some seconds is left to the end of the messages' visibility.
        """
        if self._watch:
            self._watch.cancel()
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(FLUSH):
                for run_id, groups in list(self._runs.items()):
                    await self._send_acks(run_id, groups, len(groups.acks))
                    now, waiting = self._clock.monotonic(), groups.retries | groups.hidings
                    groups.hidings = {receipt: (one[0], now) for receipt, one in waiting.items()}
                    groups.retries.clear()
                    await self._return_kept(run_id, groups, older_than=0.0)

    def _groups(self, run_id: RunId) -> RunGroups:
        if run_id not in self._runs:
            self._runs[run_id] = RunGroups(self._clock.monotonic())
        return self._runs[run_id]

    # Calls. What is sent is removed before the call: if it fails, the next delivery repeats it.

    async def _send_acks(self, run_id: RunId, groups: RunGroups, count: int) -> None:
        receipts = list(groups.acks)[:count]
        for receipt in receipts:
            del groups.acks[receipt]
        if receipts:
            await self._queues.ack(run_id, receipts)

    async def _send_hidings(self, run_id: RunId, groups: RunGroups, now: float) -> None:
        """Send whole calls, and if a message cannot wait, all."""
        is_due = any(by <= now for _, by in groups.hidings.values())
        count = len(groups.hidings) if is_due else whole_calls(len(groups.hidings))
        sent = {receipt: groups.hidings.pop(receipt) for receipt in list(groups.hidings)[:count]}
        if sent:
            await self._queues.postpone(
                run_id,
                {
                    receipt: timedelta(seconds=max(until - now, 0.0))
                    for receipt, (until, _) in sent.items()
                },
            )

    async def _return_kept(self, run_id: RunId, groups: RunGroups, *, older_than: float) -> None:
        now = self._clock.monotonic()
        while groups.kept and groups.kept[0][0] <= now - older_than:
            _, message = groups.kept.popleft()
            groups.hidings[message.receipt] = now, now
        for receipt, (due, _) in list(groups.retries.items()):
            if due <= now - LATE:
                del groups.retries[receipt]
                groups.hidings[receipt] = now, now
        groups.forget_started(now - self._give_back)
        await self._send_hidings(run_id, groups, now)

    # The watch: it runs while there are runs with messages, or were until a moment ago.

    def _watch_groups(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._keep_watch(), name="queue groups")

    async def _keep_watch(self) -> None:
        while self._runs:
            await asyncio.sleep(TICK)
            now = self._clock.monotonic()
            for run_id, groups in list(self._runs.items()):
                with suppress(Unavailable):
                    if any(by <= now for by in groups.acks.values()):
                        await self._send_acks(run_id, groups, len(groups.acks))
                    await self._return_kept(run_id, groups, older_than=self._give_back)
                is_known = self._runs.get(run_id) is groups
                if is_known and groups.is_empty and now - groups.since >= self._give_back:
                    del self._runs[run_id]


def whole_calls(messages: int) -> int:
    """How many of the messages fill whole calls."""
    return messages // MOST_ENTRIES * MOST_ENTRIES
