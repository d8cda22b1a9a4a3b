"""Two services over one store: one dies at a call of a port, the other is alive and finishes."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.adapters.files.blobs import DRAFT, FileBlobs
from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.adapters.queued.work import QueuedWork
from conveyor.app.engines import Engines
from conveyor.domain.batch import Batch
from conveyor.domain.export import Export
from conveyor.domain.file_input import FileInput
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.job import Deletion, Job
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.domain.run import Run, RunStatus, counts, is_complete
from conveyor.domain.signing import SigningKeys
from conveyor.domain.task import Task, TaskStatus, failure_of
from conveyor.testing.clock import FakeClock, FakeIds
from conveyor.testing.shared.store import LEASE, SharedStore
from tests.crash.deaths import DeathOfOne, Deaths, Point
from tests.crash.life import Journal, Life, Outcome, wired
from tests.crash.scenarios import Scenario
from tests.crash.snapshot import (
    Picture,
    files_below,
    names,
    told_row,
    with_body,
    without_ids,
)
from tests.harness.trace import watched
from tests.kept import every_body

# Rows of metadata, by their name in a picture.
KINDS: dict[str, type] = {
    "job": Job,
    "run": Run,
    "batch": Batch,
    "deletion": Deletion,
    "file_input": FileInput,
    "export": Export,
    "outbox_event": OutboxEvent,
    "signing_keys": SigningKeys,
}
# Scenarios that only an engine which is alone has, and why.
ROTATION = "a rotation waits for other processes: tests/simulation/test_key_rotation.py dies there"
EMBEDDED_ONLY = {
    "change_the_encryption_key": ROTATION,
    "change_the_encryption_key_while_jobs_move": ROTATION,
    "sweep_at_the_start": "a start beside others repairs nothing",
}
STATUSES = list(TaskStatus)


async def outlived(
    folder: Path, scenario: Scenario, point: Point | None, *, queued: bool
) -> Outcome:
    """Let the first service run a script; if it dies, let the second go on from there."""
    store = OpenStore(folder, queued=queued)
    mortal = DeathOfOne(point)
    life, survivor = store.a_life(mortal), store.a_life(Deaths())
    await survivor.service.steps.dispatcher.discovery.refresh()
    try:
        await scenario.script(life)
        mortal.end()
    except BaseException:
        if not mortal.is_dead:
            raise
    if point:
        if not mortal.is_dead:
            return Outcome([f"no service died {point}"], {}, [])
        life, life.waits = survivor, True
        await scenario.script(life)
    await life.rest_swept()
    return Outcome(
        [*await life.complaints(), *store.state.unsound()], store.state.picture(), mortal.crossed
    )


class OpenStore:
    """The store, and what else all services share."""

    def __init__(self, folder: Path, *, queued: bool) -> None:
        self._folder, self._data, self._queued = folder, folder / "data", queued
        self._data.mkdir()
        self._clock = FakeClock()
        self._ids = FakeIds(self._clock.now())
        self._store = SharedStore(self._clock)
        self._coordination = MemoryCoordination(self._clock, lease=LEASE)
        self._journal = Journal(folder / "journal")
        self.state = SharedState(self._store, self._data)

    def a_life(self, deaths: Deaths) -> Life:
        raw, journal = self._engines(deaths), self._journal
        return wired(raw, self._folder, journal=journal, deaths=deaths, stored=self.state)

    def _engines(self, deaths: Deaths) -> Engines:
        incarnation = self._ids.new()
        ports = self._store.open(holder=incarnation)
        work, queues = ports.work, None
        if self._queued:
            # Watched, because work does one thing to rows and another to messages.
            queues = ports.queues
            work = QueuedWork(
                watched(ports.claims, "claims", deaths),
                watched(queues, "queues", deaths),
                clock=self._clock,
                lease=LEASE,
                holder=incarnation,
            )
        return Engines(
            clock=self._clock,
            ids=self._ids,
            metadata=ports.metadata,
            tasks=ports.tasks,
            work=work,
            queues=queues,
            control_queue=ports.control_queue,
            bodies=FileBodies(self._data / "bodies", self._ids, sync=False, owner=incarnation),
            blobs=FileBlobs(self._data / "blobs", sync=False, owner=incarnation),
            coordination=self._coordination,
            encryption=AesKeyRing(bytes(32)),
            link_secret=bytes(32),
            disk_space=None,
            incarnation=incarnation,
            shares_coordination=True,
            **dict.fromkeys(("gateway", "step_functions", "webhooks"), cast("Any", None)),
        )


class SharedState:
    def __init__(self, store: SharedStore, data: Path) -> None:
        self._metadata, self._rows = store.metadata, store._rows
        self._control_queue, self._data = store._control_queue, data

    def has_messages(self) -> bool:
        return bool(self._control_queue._live)

    def has_open_tasks(self) -> bool:
        return any(
            task.due_at is not None
            for run in self._all(Run)
            if run.is_live and not run.is_paused
            for task in self._rows.of_run(run.id)
        )

    def owes_events(self) -> bool:
        live = {run.id for run in self._all(Run) if run.is_live}
        return any(
            event.due_at and (event.channel is not Channel.HEARTBEAT or event.run_id not in live)
            for event in self._all(OutboxEvent)
        )

    def tried(self, url: str) -> tuple[int, int]:
        task = [task for task in self._tasks() if task.spec.url == url][-1]
        return task.attempts, task.claim_no

    def told(self, event_id: str) -> int:
        return sum(len(one.deliveries) for one in self._all(OutboxEvent) if one.id == event_id)

    def picture(self) -> Picture:
        bodies = every_body(self._data)
        held: Picture = {
            kind: [told_row(msgspec.json.encode(row).decode()) for row in self._all(rows)]
            for kind, rows in KINDS.items()
        }
        held |= {
            "task": [with_body(_task(task), bodies) for task in self._tasks()],
            "history": list(self._history()),
            "counts": list(self._rows._counts.items()),
            "failure group": [
                (run_id, list(self._rows.failures(run_id))) for run_id in self._rows.run_ids()
            ],
            "control_message": list(self._messages()),
            "answer": [
                (one.key, one.status, one.body.decode()) for one in self._all(IdempotencyRecord)
            ],
            # Not drafts: those of a dead process are removed by their age.
            "list": [name for name in files_below(self._data / "blobs") if DRAFT not in name],
            # A body without its row stays to the end of its run.
            "orphan body": [],
            "run_no": [],
        }
        runs = [(run.id, run.job_id, run.sequence) for run in self._all(Run)]
        return without_ids(held, names([job.id for job in self._all(Job)], runs))

    def unsound(self) -> Iterator[str]:
        """Tasks that are lost or counted twice, and runs that ought to have ended."""
        for run in self._all(Run):
            if run.status is RunStatus.DELETED:
                continue
            rows, settled = self._rows.of_run(run.id), self._rows.counts(run.id)
            tally, told = Counter(task.status for task in rows), counts(run, settled)
            if len(rows) != run.total:
                yield f"{run.id} has {len(rows)} of {run.total} tasks"
            done = (tally[TaskStatus.SUCCESSFUL], tally[TaskStatus.FAILED])
            if done != (told.successful, told.failed):
                yield f"{run.id} counts {told} of {done}"
            failed = Counter(failure_of(task) for task in rows if task.status is TaskStatus.FAILED)
            if failed != {group.key: group.count for group in self._rows.failures(run.id)}:
                yield f"{run.id} has other failures than {failed}"
            if is_complete(run, settled):
                yield f"{run.id} has not ended"

    def _all(self, kind: type[Any]) -> list[Any]:
        table = self._metadata._table(kind)
        return [table[key] for key in sorted(table)]

    def _tasks(self) -> Iterator[Task]:
        for run_id in sorted(self._rows.run_ids()):
            yield from self._rows.of_run(run_id)

    def _history(self) -> Iterator[object]:
        for task in self._tasks():
            for line in self._rows.history(task.run_id, task.id):
                if "worker_lost" not in (line.problem or ""):
                    yield task.run_id, task.index, line.attempt, line.problem, line.spend

    def _messages(self) -> Iterator[Picture]:
        for one in self._control_queue._live.values():
            yield {"kind": one.message.kind, "payload": one.message.payload, "reason": None}
        for letter, _ in self._control_queue._dead.values():
            yield {"kind": letter.kind, "payload": letter.payload, "reason": letter.reason}


def _task(task: Task) -> Picture:
    """The columns that a picture of the embedded engine has."""
    spec, result = task.spec, task.result
    return {
        "run_id": task.run_id,
        "idx": task.index,
        "id": task.id,
        "status": STATUSES.index(task.status),
        "waits": task.due_at is not None,
        "attempts": task.attempts,
        "url": spec.url,
        "method": spec.method,
        "locator": result.locator if result else None,
        "length": result.length if result else None,
        "checksum": result.checksum if result else None,
        "problem": task.problem,
        "reason": task.reason,
        "source_run_id": task.source_run_id,
    }
