"""Metadata on DynamoDB answers random calls as metadata in memory does."""

import asyncio
from datetime import timedelta
from random import Random
from typing import Any

import msgspec
import pytest

from conveyor.adapters.aws.dynamodb.metadata import DynamoMetadata
from conveyor.adapters.aws.dynamodb.setup import set_up_table
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.domain.batch import Batch
from conveyor.domain.export import Export, ExportStatus
from conveyor.domain.file_input import FileInput
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.domain.run import Run, RunStatus
from conveyor.domain.schedule import ScheduleState
from conveyor.errors import KeyTaken, Stale
from conveyor.ports.metadata import Change, Metadata, Record, Removed, key_of
from conveyor.testing.clock import NOON, FakeClock
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.in_process import client_in_process
from conveyor.testing.factories import (
    a_batch,
    a_file_input,
    a_job,
    a_run,
    an_event,
    an_export,
    an_idempotency_record,
    new_ids,
)
from conveyor.testing.memory.metadata import MemoryMetadata
from tests.seed import run_seed, sampled

NAMES = new_ids(6)
CALLERS = ["one", "two"]
KINDS = (Job, Run, Batch, OutboxEvent, Export, FileInput)
STEPS = 400


class RandomUse:
    """Commits and reads of few records, so that they meet."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)
        self.known: dict[tuple[type, Any], Any] = {}  # as they were last committed

    def changes(self) -> list[Change]:
        made = {}
        for _ in range(self.random.choice([1, 1, 2, 3])):
            record = self._record()
            made[type(record), key_of(record)] = record
        return [self._change(record) for record in made.values()]

    def _change(self, record: Record) -> Change:
        if isinstance(record, IdempotencyRecord):
            return record
        stored = self.known.get((type(record), key_of(record)))
        version = stored.version if stored and self.random.random() < 0.9 else 0
        row = msgspec.structs.replace(record, version=version)
        # A run and an export never move to another job or run.
        if stored and isinstance(row, Run):
            row = msgspec.structs.replace(row, job_id=stored.job_id)
        if stored and isinstance(row, Export):
            row = msgspec.structs.replace(row, run_id=stored.run_id)
        if stored and self.random.random() < 0.2:
            return Removed(row, if_unchanged=self.random.random() < 0.5)
        return row

    def _record(self) -> Record:
        name, parent = self.random.choice(NAMES), self.random.choice(NAMES)
        caller, choose = self.random.choice(CALLERS), self.random.choice
        at = NOON + timedelta(seconds=self.random.randrange(-5, 900))
        match self.random.randrange(7):
            case 0:
                return a_job(
                    id=name,
                    caller=caller,
                    status=choose(list(JobStatus)),
                    type=choose(list(JobType)),
                    schedule_state=choose(list(ScheduleState)),
                    next_fire_at=choose([None, at]),
                    latest_run_id=choose([None, parent]),
                )
            case 1:
                return a_run(id=name, job_id=parent, caller=caller, status=choose(list(RunStatus)))
            case 2:
                return a_batch(run_id=parent, first=self.random.randrange(12))
            case 3:
                channel = choose(list(Channel))
                return an_event(id=name, job_id=parent, channel=channel, due_at=choose([None, at]))
            case 4:
                status = choose(list(ExportStatus))
                return msgspec.structs.replace(
                    an_export(id=name, run_id=parent), status=status, caller=caller
                )
            case 5:
                jobs = choose([(), (parent,)])
                return msgspec.structs.replace(a_file_input(id=name), caller=caller, jobs=jobs)
            case _:
                return an_idempotency_record(caller=caller, key=choose("ab"), expires_at=at)

    def reading(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        choose, name = self.random.choice, self.random.choice(NAMES)
        limit = {"limit": self.random.randrange(1, 8)}
        before = {"before": choose([None, name])}
        match self.random.randrange(9):
            case 0 if self.known:
                return "get", choose(list(self.known)), {}
            case 1:
                keys = [key for kind, key in self.known if kind is Run]
                return "page", (Run,), limit | {"after": choose([None, *keys])}
            case 2:
                return "page", (choose(KINDS),), limit
            case 3:
                asked = {
                    "status": choose([None, *JobStatus]),
                    "kind": choose([None, *JobType]),
                }
                return "jobs", (choose(CALLERS),), limit | before | asked
            case 4:
                return "runs", (name,), limit | before | {"deleted": choose([True, False])}
            case 5:
                return "events", (name,), limit | before
            case 6:
                return "of_run", (choose([Batch, Export]), name), limit
            case 7:
                kind = choose([Job, OutboxEvent])
                channel = {} if kind is Job else {"channel": choose(list(Channel))}
                return "due", (kind,), limit | channel
            case _:
                return choose([("usage", (choose(CALLERS),), {}), ("live_runs", (), limit)])


async def outcome(metadata: Metadata, changes: list[Change]) -> type[Exception] | None:
    try:
        await metadata.commit(*changes)
    except (Stale, KeyTaken) as refused:
        return type(refused)
    return None


@pytest.mark.parametrize("number", sampled(range(20), 1, of="use of metadata"))
async def test_both_engines_agree(number: int) -> None:
    clock = FakeClock()
    knobs = Knobs(writes_per_second=None, reads_per_second=None)
    client = client_in_process(DynamoDbEngine(clock, knobs), latency=timedelta())
    await set_up_table(client, "conveyor")
    ours, model = DynamoMetadata(DynamoTable(client, "conveyor"), clock), MemoryMetadata(clock)
    use, committed = RandomUse(f"{run_seed()} {number}"), 0
    for step in range(STEPS):
        clock.advance(timedelta(seconds=use.random.randrange(3)))
        changes = use.changes()
        expected = await outcome(model, changes)
        assert await outcome(ours, changes) is expected, (step, changes)
        committed += expected is None
        if expected is None:
            for change in changes:
                record = change.row if isinstance(change, Removed) else change
                use.known[type(record), key_of(record)] = await model.get(
                    type(record), key_of(record)
                )
        method, given, named = use.reading()
        found, wanted = await asyncio.gather(
            *[getattr(one, method)(*given, **named) for one in (ours, model)]
        )
        assert found == wanted, (step, method, given, named)
    assert committed > STEPS / 4
