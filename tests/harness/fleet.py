"""Many processes that serve one run over one message queue, in time that passes as fast as it can.

Each has a dispatcher and a `QueuedWork` of its own; rows, queue, permits and the gateway they share. All
calls of engines take some milliseconds, so that the processes get in each other's way.
"""

import asyncio
import inspect
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.adapters.memory.queues import CALM, Habits, MemoryQueues
from conveyor.adapters.queued.grouping import GroupedQueues
from conveyor.adapters.queued.work import QueuedWork
from conveyor.domain.breaker import HealthSignal
from conveyor.domain.failure import AccountReason, FailureReason
from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.domain.job import JobStatus
from conveyor.domain.run import Run
from conveyor.domain.task import AccountBlocked, AttemptFailed, NewRow, Task, Throttled
from conveyor.errors import Unavailable
from conveyor.ports.coordination import PermitRequest
from conveyor.ports.queues import MOST_RECEIVES, Queues, TaskMessage
from conveyor.ports.work import Work
from conveyor.steps.complete import Complete
from conveyor.steps.dispatch.config import DispatchConfig, config_over_queues
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.settle import Settle
from conveyor.steps.shared.attempt import Assignment, CallResult, Fetched
from conveyor.steps.shared.notifier import Notifier, Topic
from conveyor.testing.clock import FakeIds
from conveyor.testing.factories import (
    CALLER,
    JOB,
    RUN,
    a_job,
    a_run,
    a_task_spec,
    add_rows,
    new_tasks,
)
from conveyor.testing.memory.bodies import MemoryBodies
from conveyor.testing.memory.claims import MemoryClaims
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.tasks import MemoryTasks
from tests.harness.time_lapse import LapseClock

P = TypeVar("P")

LEASE = timedelta(seconds=60)
LONG_ENOUGH = timedelta(minutes=15)
OUT_OF_REACH = AttemptFailed(
    "{}", FailureReason.OTHER, retryable=True, signal=HealthSignal.UNREACHABLE
)
FAILED = AttemptFailed("{}", FailureReason.OTHER, retryable=True)
FASTEST_CALL, SLOWEST_CALL = 0.004, 0.02  # of an engine, in seconds


class CountedQueues(MemoryQueues):
    """What is asked of the queue, and what it gives."""

    def __init__(
        self,
        clock: LapseClock,
        *,
        visibility: timedelta,
        habits: Habits,
        most_receives: int,
        seed: int,
    ) -> None:
        super().__init__(
            clock,
            visibility=visibility,
            random=_dice(seed),
            habits=habits,
            most_receives=most_receives,
        )
        self.asked = 0
        self.empty = 0
        self.received: Counter[TaskId] = Counter()
        self.requests: Counter[str] = Counter()  # as SQS bills them: ten messages in each

    async def receive(self, run_id: RunId, limit: int) -> Sequence[TaskMessage] | None:
        messages = await super().receive(run_id, limit)
        self.asked += 1
        self.requests["receive"] += 1
        self.empty += not messages
        self.received.update(message.task_id for message in messages or ())
        return messages

    async def send(
        self, run_id: RunId, entries: Sequence[tuple[TaskId, timedelta]], *, stamp: str = ""
    ) -> None:
        self.requests["send"] += math.ceil(len(entries) / 10)
        await super().send(run_id, entries, stamp=stamp)

    async def ack(self, run_id: RunId, receipts: Sequence[str]) -> None:
        self.requests["ack"] += math.ceil(len(receipts) / 10)
        await super().ack(run_id, receipts)

    async def postpone(self, run_id: RunId, delays: Mapping[str, timedelta]) -> None:
        self.requests["postpone"] += math.ceil(len(delays) / 10)
        await super().postpone(run_id, delays)


class CountedPermits(MemoryCoordination):
    """How often permits are asked for."""

    asked = 0

    async def reserve(self, wants: Mapping[str, PermitRequest]) -> Mapping[str, Sequence[str]]:
        self.asked += 1
        return await super().reserve(wants)


@dataclass(slots=True, kw_only=True)
class GatewayStandIn:
    """Pages that take a while; with more calls at once than its account allows it refuses."""

    dice: Random
    fastest: float = 0.5
    slowest: float = 1.5
    limit: int = 1_000_000
    advertises: bool = False  # its limit, with each page
    fails_first: bool = False  # the first attempt of each task fails
    attempted: set[tuple[RunId, TaskId]] = field(default_factory=set)
    is_down: bool = False
    is_unpaid: bool = False
    calls: int = 0
    by_host: Counter[str] = field(default_factory=Counter)  # under way
    most_of_host: Counter[str] = field(default_factory=Counter)
    under_way: int = 0
    most: int = 0
    refused: int = 0

    async def attempt(self, task: Task, _assignment: Assignment) -> CallResult:
        host = task.spec.host
        self.by_host[host] += 1
        self.most_of_host[host] = max(self.most_of_host[host], self.by_host[host])
        is_first = (task.run_id, task.id) not in self.attempted
        self.attempted.add((task.run_id, task.id))
        try:
            answer = await self._answer()
            return FAILED if is_first and self.fails_first else answer
        finally:
            self.by_host[host] -= 1

    async def _answer(self) -> CallResult:
        self.calls += 1
        if self.is_down:
            await asyncio.sleep(0.05)
            return OUT_OF_REACH
        if self.is_unpaid:
            await asyncio.sleep(0.05)
            return AccountBlocked(AccountReason.INSUFFICIENT_CREDITS, "Pay first.")
        if self.under_way >= self.limit:
            self.refused += 1
            await asyncio.sleep(0.05)
            return Throttled(timedelta(seconds=1 + self.dice.random()))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(self.dice.uniform(self.fastest, self.slowest))
        finally:
            self.under_way -= 1
        limit = self.limit if self.advertises else None
        return Fetched(content=b"page", format="html", limit=limit)


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Processes, and what they share."""

    cap: int = 5
    processes: int = 50
    places: int = 50  # for tasks in each process
    config: Callable[[int], DispatchConfig] = config_over_queues
    lease: timedelta = LEASE
    visibility: timedelta = LEASE
    habits: Habits = CALM
    most_receives: int = MOST_RECEIVES
    seed: int = 1
    shares_limits: bool = False
    per_host: int | None = None
    hosts: int = 1
    is_closed: bool = True  # the run; an open one waits for more tasks for ever
    own_keys: bool = False  # each job has a gateway key of its own
    rows_away: bool = False
    groups: bool = False  # messages share calls, as over SQS
    elsewhere: Queues | None = None  # queues to use instead of those in memory
    clock: LapseClock = field(default_factory=LapseClock)
    dice: Random = field(init=False)
    gateway: GatewayStandIn = field(init=False)
    runs: list[RunId] = field(default_factory=list)
    queues: CountedQueues = field(init=False)
    rows: Rows = field(init=False)
    metadata: MemoryMetadata = field(init=False)
    coordination: CountedPermits = field(init=False)
    encryption: AesKeyRing = field(default_factory=lambda: AesKeyRing(bytes(32)))

    def __post_init__(self) -> None:
        self.dice = _dice(self.seed)
        self.gateway = GatewayStandIn(dice=self.dice)
        self.queues = CountedQueues(
            self.clock,
            visibility=self.visibility,
            habits=self.habits,
            most_receives=self.most_receives,
            seed=self.seed,
        )
        self.rows = Rows(self.clock, self.lease)
        self.metadata = MemoryMetadata(self.clock)
        self.coordination = CountedPermits(self.clock)

    async def submit(self, count: int, jobs: int = 1) -> None:
        """Jobs with a run of so many tasks, all hinted at."""
        for number in range(jobs):
            await self._submit(count, JobId(f"{JOB[:-3]}{number + 400}") if number else JOB)

    async def _submit(self, count: int, job_id: JobId) -> None:
        run_id = RunId(f"{RUN[:-3]}{job_id[-3:]}") if job_id != JOB else RUN
        self.runs.append(run_id)
        job = a_job(
            id=job_id,
            status=JobStatus.CLOSED if self.is_closed else JobStatus.OPEN,
            max_inflight=self.cap,
            max_per_host=self.per_host,
            encrypted_gateway_key=self.encryption.encrypt(
                job_id if self.own_keys else "key", context=f"{CALLER}|{job_id}"
            ),
        )
        run = a_run(
            id=run_id,
            job_id=job_id,
            total=count,
            next_index=count,
            last_batch_received=self.is_closed,
        )
        tasks = [
            replace(
                task,
                spec=a_task_spec(url=f"https://host-{task.index % self.hosts}.com/{task.index}"),
            )
            for task in new_tasks(run_id, count)
        ]
        await add_rows(MemoryTasks(self.rows), run_id, tasks)
        queues = self.elsewhere or self.queues
        await queues.open(run_id)
        await queues.send(run_id, [(task.id, timedelta()) for task in tasks])
        await self.metadata.commit(job, run)

    async def add(self, tasks: Sequence[NewRow]) -> None:
        """More tasks for the first run."""
        await add_rows(MemoryTasks(self.rows), RUN, tasks)
        await self.queues.send(RUN, [(task.id, timedelta()) for task in tasks])

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[list[Dispatcher]]:
        """All processes, told to stop and waited for at the end."""
        dispatchers = [self._dispatcher(number) for number in range(self.processes)]
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for dispatcher in dispatchers:
                group.create_task(dispatcher.run(stopping))
            try:
                yield dispatchers
            finally:
                stopping.set()

    async def drained(self, within: timedelta = LONG_ENOUGH) -> float:
        """Wait until the runs are complete, and say when that was."""
        async with asyncio.timeout(within.total_seconds()):
            for run_id in self.runs:
                while (run := await self.metadata.get(Run, run_id)) and run.is_live:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        return self.clock.monotonic()

    def done(self) -> int:
        return sum(self.rows.counts(run_id).successful for run_id in self.runs)

    def receives_a_message(self) -> float:
        return self.queues.received.total() / sum(len(self.rows.of_run(one)) for one in self.runs)

    def _dispatcher(self, number: int) -> Dispatcher:
        dice = _dice(self.seed * 1_000 + number)
        queues = self.elsewhere or _far_away(self.queues, dice)
        if self.groups:
            queues = GroupedQueues(queues, self.clock, visibility=self.visibility)
        holder = str(number)
        claims = _far_away(_Claims(self, holder), dice)
        work: Work = QueuedWork(
            claims,
            queues,
            clock=self.clock,
            lease=self.lease,
            visibility=self.visibility,
            holder=holder,
        )
        tasks = MemoryTasks(self.rows)
        complete = Complete(
            metadata=self.metadata,
            tasks=tasks,
            work=work,
            clock=self.clock,
            ids=FakeIds(),
            notifier=Notifier(),
        )
        settle = Settle(
            metadata=self.metadata,
            tasks=tasks,
            work=work,
            bodies=MemoryBodies(),
            clock=self.clock,
            ids=complete.ids,
            check_completion=complete.check_completion,
            notifier=complete.notifier,
        )
        dispatcher = Dispatcher(
            metadata=self.metadata,
            work=work,
            coordination=_far_away(self.coordination, dice),
            encryption=self.encryption,
            clock=self.clock,
            attempt=self.gateway.attempt,
            settle=settle.settle,
            settle_final=settle.settle_final,
            config=self.config(self.places),
            rng=dice,
            shared_as=f"process-{number}" if self.shares_limits else "",
        )
        complete.notifier.on(Topic.RUNS, dispatcher.discovery.notified)
        return dispatcher


class _Claims(MemoryClaims):
    """Claims of an engine that may be away."""

    def __init__(self, fleet: Fleet, holder: str) -> None:
        super().__init__(fleet.rows, holder)
        self._fleet = fleet

    async def take(
        self, run_id: RunId, task_ids: Sequence[TaskId], *, stamp: str = ""
    ) -> Sequence[Task]:
        if self._fleet.rows_away:
            raise Unavailable("rows: away")
        return await super().take(run_id, task_ids, stamp=stamp)


class _FarAway:
    """An engine on another machine: the call takes a while to get there, and the answer back."""

    def __init__(self, port: object, dice: Random) -> None:
        self._port, self._dice = port, dice

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._port, name)
        if inspect.isasyncgenfunction(target):
            return target
        assert inspect.iscoroutinefunction(target)

        async def call(*given: Any, **named: Any) -> Any:
            await self._travel()
            answer = await target(*given, **named)
            await self._travel()
            return answer

        return call

    async def _travel(self) -> None:
        await asyncio.sleep(self._dice.uniform(FASTEST_CALL, SLOWEST_CALL) / 2)


def _far_away(port: P, dice: Random) -> P:
    return cast("P", _FarAway(port, dice))


def _dice(seed: int) -> Random:
    return Random(seed)
