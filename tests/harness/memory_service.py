"""A whole Conveyor over memory engines, in which any call of any port can be made to fail."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.app.engines import Engines, ports
from conveyor.app.steps import build_steps
from conveyor.domain.batch import Batch
from conveyor.domain.delivery_queue import DeliveryQueue
from conveyor.domain.export import GIB
from conveyor.domain.ids import CallerId, JobId, RunId, ulid
from conveyor.domain.job import Job
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.run import Run
from conveyor.domain.selection import RerunRequest, Selection, parse_statuses
from conveyor.domain.submission import Limits
from conveyor.domain.task import Task, TaskStatus, failure_of
from conveyor.domain.webhook import Webhook
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies, BodyName
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.coordination import Coordination
from conveyor.ports.encryption import KeyRing
from conveyor.ports.gateway import Gateway
from conveyor.ports.metadata import Metadata
from conveyor.ports.step_functions import StepFunctions
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Held, Work
from conveyor.settings import Settings
from conveyor.steps.add_tasks import AddTasks
from conveyor.steps.complete import Complete
from conveyor.steps.control import ControlWorker
from conveyor.steps.delete import Delete
from conveyor.steps.deliver.channels import StepFunctionsChannel, WebhookChannel
from conveyor.steps.deliver.sender import ChannelSender, OutboxSender
from conveyor.steps.export import ExportRuns
from conveyor.steps.file_inputs import FileInputs
from conveyor.steps.ingest import Ingest
from conveyor.steps.lifecycle import Lifecycle
from conveyor.steps.purge import Purge
from conveyor.steps.read import Read
from conveyor.steps.rerun import RerunJob, Rerunning
from conveyor.steps.schedules import FireSchedules, ManageSchedules
from conveyor.steps.settle import Settle
from conveyor.steps.shared.attempt import Assignment, CallResult, Fetched, FinishedAttempt
from conveyor.steps.shared.idempotency import Answer, Call
from conveyor.steps.shared.webhook_sender import WebhookSender
from conveyor.steps.shared.work_limits import DEFAULT_SIZES
from conveyor.steps.submit import SubmitJob
from conveyor.steps.sweep.sweeper import Sweeper
from conveyor.steps.webhooks import ManageWebhooks, RotateSigningKeys
from conveyor.telemetry.metrics import Metrics
from conveyor.testing.clock import FakeClock
from conveyor.testing.memory.blobs import MemoryBlobs
from conveyor.testing.memory.bodies import MemoryBodies
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.step_functions import MemoryStepFunctions
from conveyor.testing.memory.tasks import MemoryTasks
from conveyor.testing.memory.work import MemoryWork
from tests.harness.trace import Crash, Trace, watched
from tests.harness.webhooks import ScriptedWebhooks

CALLER = CallerId("caller")
STRANGER = CallerId("stranger")
LEASE = timedelta(seconds=30)
SHORT = timedelta(milliseconds=5)
RUN_LIFE = timedelta(days=30)
BODY_LIFE = timedelta(days=30)
KEY = "the-caller's-own-key"
LIMITS = Limits(sync_tasks=10, list_bytes=100_000, list_rows=1_000)
A_PAGE = Fetched(content=b"page", format="html")
SOON = 60.0  # seconds that something at work in this process may take on a busy machine
SIZES = DEFAULT_SIZES  # of the steps of every house; `sized` changes them for a test


class ClockIds:
    """ULIDs of the clock's moment, rising, the same in every test run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made = 0

    def new(self) -> str:
        self._made += 1
        return ulid(int(self._clock.now().timestamp() * 1000), self._made)


@dataclass(slots=True, kw_only=True)
class House:
    """Engines in memory and all steps over them. The ports are watched; `Trace` breaks them."""

    clock: FakeClock
    ids: Ids
    trace: Trace
    metadata: Metadata
    states: MemoryStepFunctions  # that wait for a run
    tasks: Tasks
    work: Work
    blobs: Blobs
    control_queue: ControlQueue
    bodies: Bodies
    coordination: Coordination
    encryption: KeyRing
    file_inputs: FileInputs
    submit_job: SubmitJob
    add_tasks: AddTasks
    lifecycle: Lifecycle
    complete: Complete
    ingest: Ingest
    settle: Settle
    control_worker: ControlWorker
    sweep: Sweeper
    read: Read
    rerun_job: RerunJob
    delete: Delete
    purge: Purge
    exporting: ExportRuns
    callbacks: StepFunctionsChannel
    heartbeats: StepFunctionsChannel
    callback_sender: OutboxSender  # for ends of runs and heartbeats
    manage_webhooks: ManageWebhooks
    rotate: RotateSigningKeys
    webhook_sender: ChannelSender[Webhook]
    told: ScriptedWebhooks
    fire: FireSchedules
    rescheduling: ManageSchedules
    fired: Counter[str] = field(default_factory=Counter)
    swept: Counter[str] = field(default_factory=Counter)
    cleared: Counter[str] = field(default_factory=Counter)
    woken: list[RunId] = field(default_factory=list)
    sender_woken: list[datetime] = field(default_factory=list)  # when events were committed

    async def submit(self, count: int = 3, **given: Any) -> tuple[JobId, RunId]:
        """A job of so many tasks, as a caller gets one; its ids."""
        answer = await self.submit_job.submit(a_call(count, **given), ids_as_answer)
        return ids_in(answer)

    async def rerun(
        self,
        job_id: JobId,
        status: str | None = None,
        *,
        key: str | None = None,
        asked: RerunRequest | None = None,
    ) -> tuple[RunId, int, int]:
        """A new run as a caller gets one: its id, how many tasks it does, how many it inherits."""
        asked = asked or RerunRequest(Selection(statuses=parse_statuses(status)))
        call = a_rerun(status, key=key)
        answer = await self.rerun_job.rerun(call, job_id, asked, figures_as_answer)
        run_id, retried, inherited = answer.body.decode().split()
        return RunId(run_id), int(retried), int(inherited)

    async def job(self, job_id: JobId) -> Job:
        job = await self.metadata.get(Job, job_id)
        assert job is not None
        return job

    async def run(self, run_id: RunId) -> Run:
        run = await self.metadata.get(Run, run_id)
        assert run is not None
        return run

    async def rows(self, run_id: RunId) -> list[Task]:
        return list((await self.tasks.page(run_id, limit=10_000)).tasks)

    async def lists(self) -> list[str]:
        return list(await self.blobs.keys("", limit=100))

    async def loose_lists(self) -> list[str]:
        """Lists that no job on record keeps."""
        jobs = [job for job in await self.metadata.page(Job, limit=100) if job.source_list]
        kept = {job.source_list.blob for job in jobs if job.source_list}
        return [key for key in await self.lists() if key not in kept]

    async def batches(self) -> list[Batch]:
        return list(await self.metadata.page(Batch, limit=100))

    async def done(self, run_id: RunId) -> int:
        return (await self.tasks.counts([run_id]))[run_id].done

    async def handle_messages(self) -> int:
        """Handle all control messages that are due."""
        done = 0
        while await self.control_worker.step():
            done += 1
        return done

    async def sweep_twice(self) -> None:
        """Two sweeps with some time between: what is stuck is repaired in the second."""
        await self.sweep.step()
        self.clock.advance(timedelta(minutes=1))
        await self.sweep.step()

    async def sweep_later(self) -> None:
        """As `sweep_twice`, when nothing is young any more."""
        self.clock.advance(timedelta(minutes=15))
        await self.sweep_twice()

    async def drain(self, run_id: RunId, result: Callable[[Task], CallResult]) -> None:
        """Claim and settle every task of a run until none is due."""
        job = await self.job((await self.run(run_id)).job_id)
        while tasks := await self.work.claim({run_id: 100}):
            await self.settle.settle(
                [FinishedAttempt(task, an_assignment(job), result(task)) for task in tasks]
            )

    async def check_counts(self, run_id: RunId) -> None:
        """Rows, total and counts tell one story."""
        tally, run = await self.tasks.tally(run_id), await self.run(run_id)
        assert run.total == sum(tally.values())
        counts = (await self.tasks.counts([run_id]))[run_id]
        assert counts.successful == tally.get(TaskStatus.SUCCESSFUL, 0)
        assert counts.failed == tally.get(TaskStatus.FAILED, 0)
        groups = await self.tasks.failure_groups(run_id)
        rows = await self.rows(run_id)
        assert {group.key: group.count for group in groups} == Counter(
            failure_of(row) for row in rows if row.status is TaskStatus.FAILED
        )

    def connect(self, step_functions: StepFunctions) -> None:
        """Send callbacks and heartbeats there from now on."""
        self.callbacks.step_functions = self.heartbeats.step_functions = step_functions

    async def has_body(self, name: BodyName) -> bool:
        """Whether a claim's body is there; if it is, this removes it."""
        return bool(await self.bodies.discard([name]))


def sized(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Give the steps of houses that are built from now on other sizes."""
    monkeypatch.setattr("tests.harness.memory_service.SIZES", replace(SIZES, **changes))


def a_house(
    *,
    limits: Limits = LIMITS,
    bodies: Bodies | None = None,
    blobs: Blobs | None = None,
    export_bytes: int = GIB,
) -> House:
    """The real composition over memory, with what it does by chance or by time made certain."""
    clock, trace, states, told = FakeClock(), Trace(), MemoryStepFunctions(), ScriptedWebhooks()
    settings = _settings(limits, export_bytes)
    engines = _watched(_memory_engines(clock, states, told, bodies, blobs), trace)
    steps = build_steps(settings, engines, Metrics(), SIZES)
    others = steps.deliver.channels[1:]
    callbacks, heartbeats = (one.channel for one in others)
    assert isinstance(callbacks, StepFunctionsChannel)
    assert isinstance(heartbeats, StepFunctionsChannel)
    sender_woken, woken = _Bell(clock), _Heard()
    others[-1].woken = sender_woken
    steps.dispatcher.discovery.changed = woken
    for channel in others:
        channel.idle = SHORT
    fired, swept, cleared = Counter[str](), Counter[str](), Counter[str]()
    steps.sweep.count = lambda action, times: swept.update({action: times})
    steps.sweep.cleared = lambda kind, times: cleared.update({kind: times})
    return House(
        clock=clock,
        ids=engines.ids,
        trace=trace,
        metadata=engines.metadata,
        states=states,
        tasks=engines.tasks,
        work=engines.work,
        blobs=engines.blobs,
        control_queue=engines.control_queue,
        bodies=engines.bodies,
        coordination=engines.coordination,
        encryption=engines.encryption,
        told=told,
        file_inputs=steps.file_inputs,
        submit_job=steps.submit,
        add_tasks=steps.add_tasks,
        lifecycle=steps.lifecycle,
        complete=steps.complete,
        ingest=steps.ingest,
        settle=replace(steps.settle, outage=timedelta(milliseconds=1)),
        control_worker=steps.control_worker,
        sweep=steps.sweep,
        read=steps.read,
        rerun_job=steps.rerun,
        delete=steps.delete,
        purge=steps.purge,
        exporting=steps.export,
        callbacks=callbacks,
        heartbeats=heartbeats,
        callback_sender=OutboxSender(others),
        manage_webhooks=steps.manage_webhooks,
        rotate=replace(steps.rotate_signing_keys, secret=lambda: bytes(range(32))),
        webhook_sender=a_webhook_sender(engines.metadata, clock, steps.manage_webhooks.sender),
        fire=replace(steps.fire, count=lambda what: fired.update([what])),
        rescheduling=steps.manage_schedules,
        fired=fired,
        swept=swept,
        cleared=cleared,
        woken=woken.runs,
        sender_woken=sender_woken.rung_at,
    )


def _settings(limits: Limits, export_bytes: int) -> Settings:
    """Without quotas, whose reads would be calls of ports in every scenario."""
    given = {
        name: getattr(limits, name)
        for name in Limits.__struct_fields__
        if name in Settings.__struct_fields__
    }
    settings = Settings(
        **given,
        export_bytes=export_bytes,
        unused_file_inputs=0,
        active_exports=0,
        lease=LEASE,
        body_life=BODY_LIFE,
        scheduled_run_life=RUN_LIFE,
        step_functions="aws:",
    )
    assert settings.limits == limits
    return settings


def _memory_engines(
    clock: FakeClock,
    states: MemoryStepFunctions,
    told: ScriptedWebhooks,
    bodies: Bodies | None,
    blobs: Blobs | None,
) -> Engines:
    rows = Rows(clock, LEASE)
    return Engines(
        clock=clock,
        ids=ClockIds(clock),
        metadata=MemoryMetadata(clock),
        tasks=MemoryTasks(rows),
        work=MemoryWork(rows),
        control_queue=MemoryControlQueue(clock),
        bodies=bodies or MemoryBodies(),
        blobs=blobs or MemoryBlobs(),
        coordination=MemoryCoordination(clock, lease=LEASE),
        gateway=Mock(spec=Gateway),
        step_functions=states,
        webhooks=told,
        encryption=AesKeyRing(bytes(32)),
        link_secret=bytes(32),
        disk_space=Mock(),
        incarnation="incarnation",
    )


def _watched(engines: Engines, trace: Trace) -> Engines:
    names = ports().keys() - {"clock", "ids", "encryption", "gateway"}
    return replace(
        engines, **{name: watched(getattr(engines, name), name, trace) for name in names}
    )


class _Heard(set[RunId]):
    """The runs that the dispatcher was woken for, each time."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[RunId] = []

    def add(self, run_id: RunId) -> None:
        self.runs.append(run_id)


class _Bell(asyncio.Event):
    """Knows when the outbox sender was woken."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.rung_at: list[datetime] = []

    def set(self) -> None:
        self.rung_at.append(self._clock.now())
        super().set()


def a_webhook_sender(
    metadata: Metadata, clock: Clock, sender: WebhookSender
) -> ChannelSender[Webhook]:
    """The sender of one process; more of them compete for the same events."""
    chance = lambda: 0.5  # noqa: E731
    return ChannelSender(
        metadata=metadata,
        clock=clock,
        channel=WebhookChannel(
            metadata=metadata, clock=clock, sender=sender, chance=chance, lease_length=LEASE
        ),
        queue=DeliveryQueue(chance=chance),
        idle=SHORT,
    )


def a_call(
    count: int = 3,
    *,
    key: str | None = None,
    caller: CallerId = CALLER,
    first: int = 0,
    **given: object,
) -> Call:
    """A submission, or an addition, of so many tasks."""
    tasks = [{"url": f"https://ok.example/{number}"} for number in range(first, first + count)]
    raw = msgspec.json.encode({"tasks": tasks, **given})
    return Call(caller=caller, gateway_key=KEY, raw=raw, fingerprint=raw, idempotency_key=key)


def a_rerun(status: str | None = None, *, key: str | None = None) -> Call:
    mark = f"rerun {status}".encode()
    return Call(caller=CALLER, gateway_key=KEY, raw=b"", fingerprint=mark, idempotency_key=key)


def figures_as_answer(told: Rerunning) -> bytes:
    return f"{told.run.id} {told.retried} {told.inherited}".encode()


def ids_as_answer(job: Job, run: Run | None, count: int) -> bytes:
    return f"{job.id} {run.id if run else '-'} {count}".encode()


async def ids_as_reply(job: Job, run: Run, count: int) -> bytes:
    return ids_as_answer(job, run, count)


def ids_in(answer: Answer) -> tuple[JobId, RunId]:
    job_id, run_id, _ = answer.body.decode().split()
    return JobId(job_id), RunId(run_id)


def an_assignment(job: Job, policy: RetryPolicy | None = None) -> Assignment:
    return Assignment(
        job_id=job.id, gateway_key=KEY, params={}, format=job.format, policy=policy or RetryPolicy()
    )


def body_name(job: Job, task: Task) -> BodyName:
    return BodyName(job.id, task.run_id, task.id, task.claim_no)


def held(task: Task) -> Held:
    return Held(task.run_id, task.id, task.claim_no)


async def survives(effect: Awaitable[object]) -> bool:
    """Whether the process lives to the end of it."""
    try:
        await effect
    except Crash:
        return False
    except BaseExceptionGroup as group:
        if group.split(Crash)[1]:
            raise
        return False
    return True


class RealRounds:
    """The date is the house's, so that leases lapse when a test says so; rests are real."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> datetime:
        return self._clock.now()

    def monotonic(self) -> float:
        return time.monotonic()


class ScriptedAttempts:
    """An attempt at a page that ends when the test says so."""

    def __init__(self, *, is_open: bool = True, lasting: timedelta = timedelta()) -> None:
        self.lasting = lasting
        self.started: list[Task] = []
        self.cancelled: list[Task] = []
        self.inflight: Counter[RunId] = Counter()
        self.waiting = 0  # attempts that do not end before the gate is opened
        self.most: Counter[RunId] = Counter()
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()

    async def attempt(self, task: Task, assignment: Assignment) -> CallResult:
        assert assignment.gateway_key == KEY
        self.started.append(task)
        self.inflight[task.run_id] += 1
        self.most[task.run_id] = max(self.most[task.run_id], self.inflight[task.run_id])
        try:
            self.waiting += 1
            try:
                await self.gate.wait()
            finally:
                self.waiting -= 1
            await asyncio.sleep(self.lasting.total_seconds())
        except asyncio.CancelledError:
            self.cancelled.append(task)
            raise
        finally:
            self.inflight[task.run_id] -= 1
        return A_PAGE


async def until(holds: Callable[[], object]) -> None:
    """Wait for something that other tasks of this loop bring about."""
    async with asyncio.timeout(SOON):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


@contextmanager
def away(trace: Trace, name: str, error: BaseException) -> Iterator[None]:
    """An engine that cannot do one thing for a while."""
    trace.broken[name] = error
    try:
        yield
    finally:
        del trace.broken[name]
