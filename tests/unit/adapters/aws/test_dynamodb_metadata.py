"""Metadata on DynamoDB: lost answers, late indexes, and items that expire, in simulated time."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

import msgspec
import pytest

from conveyor.adapters.aws.dynamodb.layout import GSI2, index_shards
from conveyor.adapters.aws.dynamodb.metadata import DynamoMetadata
from conveyor.adapters.aws.dynamodb.records import CHANGED, due_events
from conveyor.adapters.aws.dynamodb.setup import set_up_table
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.adapters.aws.faults import OutcomeUnknown
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import RunId
from conveyor.domain.job import Job
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.domain.run import Run, RunStatus
from conveyor.errors import KeyTaken, Stale, TooLarge
from conveyor.ports.metadata import MOST_CHANGES, Change, Removed
from conveyor.testing.clock import NOON
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.in_process import Loss, client_in_process
from conveyor.testing.factories import (
    CALLER,
    JOB,
    RUN,
    a_batch,
    a_job,
    a_run,
    an_event,
    an_export,
    an_idempotency_record,
    as_stored,
    new_ids,
)
from tests.harness import time_lapse
from tests.harness.time_lapse import LapseClock
from tests.seed import run_seed

TABLE = "conveyor"
SECOND = timedelta(seconds=1)
WRITES = {"PutItem", "DeleteItem", "TransactWriteItems"}


@dataclass(frozen=True, slots=True)
class SkewedClock:
    by: timedelta

    def now(self) -> datetime:
        return LapseClock().now() + self.by

    def monotonic(self) -> float:
        return LapseClock().monotonic()


@dataclass(slots=True)
class World:
    """A table on the fake, and processes that use it."""

    knobs: Knobs = field(default_factory=lambda: Knobs(writes_per_second=None))
    engine: DynamoDbEngine = field(init=False)
    losses: deque[Loss | None] = field(default_factory=deque)  # of the next writes
    always: Loss | None = None
    share: float = 0.0  # of all requests whose answers are lost
    dice: Random = field(default_factory=lambda: Random(run_seed()))

    def __post_init__(self) -> None:
        self.engine = DynamoDbEngine(LapseClock(), self.knobs)

    async def open(self, *, skew: timedelta = timedelta(), calm: bool = False) -> DynamoMetadata:
        client = client_in_process(self.engine, loss=self._no_loss if calm else self._loss)
        if TABLE not in self.engine.tables:
            await set_up_table(client, TABLE)
        return DynamoMetadata(DynamoTable(client, TABLE), SkewedClock(skew))

    def _no_loss(self, _operation: str) -> None:
        return None

    def _loss(self, operation: str) -> Loss | None:
        if self.dice.random() < self.share:
            return self.dice.choice(list(Loss))
        if operation not in WRITES:
            return None
        return self.losses.popleft() if self.losses else self.always

    def entries(self, listing: str) -> int:
        """How many entries of a listing `gsi2` has."""
        return sum(
            self.engine.execute(
                "Query",
                {
                    "TableName": TABLE,
                    "IndexName": GSI2,
                    "KeyConditionExpression": "g2p = :p",
                    "ExpressionAttributeValues": {":p": {"S": partition}},
                },
            )["Count"]
            for partition in index_shards(listing)
        )

    @property
    def items(self) -> list[tuple[str, str]]:
        return sorted(
            (item["pk"]["S"], item["sk"]["S"]) for item in self.engine.tables[TABLE].items()
        )


def run(main: Coroutine[Any, Any, None]) -> None:
    time_lapse.run(main)


# Lost answers.

COMMITS: dict[str, tuple[list[Change], list[Change]]] = {
    "a new row": ([], [a_job()]),
    "a change": ([a_job()], [a_job(version=1, name="new")]),
    "a new row with a pointer": ([], [a_run()]),
    "a record": ([], [an_idempotency_record()]),
    "many": ([a_job()], [a_job(version=1), a_run(), an_idempotency_record()]),
    "a removal": ([a_job()], [Removed(a_job(version=1))]),
    "a removal if unchanged": ([a_job()], [Removed(a_job(version=1), if_unchanged=True)]),
    "removals": ([a_batch()], [Removed(a_batch(version=1), if_unchanged=True), Removed(a_job())]),
}
each_commit = pytest.mark.parametrize("name", COMMITS)


@each_commit
@pytest.mark.parametrize("losses", [[Loss.BEFORE], [Loss.AFTER], [Loss.BEFORE, Loss.AFTER]])
def test_a_commit_succeeds_although_an_answer_is_lost(name: str, losses: list[Loss]) -> None:
    before, changes = COMMITS[name]

    async def main() -> None:
        world, plain = World(), World()
        for one in (world, plain):
            metadata = await one.open()
            await metadata.commit(*before)
            one.losses.extend(losses if one is world else [])
            await metadata.commit(*changes)
        assert not world.losses
        assert world.items == plain.items

    run(main())


@each_commit
def test_a_commit_whose_every_answer_is_lost_is_recognised(name: str) -> None:
    before, changes = COMMITS[name]

    async def main() -> None:
        world = World()
        metadata = await world.open()
        await metadata.commit(*before)
        world.always = Loss.AFTER
        removes = all(isinstance(change, Removed) for change in changes)
        if removes:  # nothing is left that tells who removed it
            with pytest.raises(OutcomeUnknown):
                await metadata.commit(*changes)
        else:
            await metadata.commit(*changes)

    run(main())


@each_commit
def test_a_commit_that_never_arrives_is_unknown(name: str) -> None:
    before, changes = COMMITS[name]

    async def main() -> None:
        world = World()
        metadata = await world.open()
        await metadata.commit(*before)
        items = world.items
        world.always = Loss.BEFORE
        with pytest.raises(OutcomeUnknown):
            await metadata.commit(*changes)
        assert world.items == items

    run(main())


@pytest.mark.parametrize("changes", [[a_job(version=1)], [a_job(version=1), a_run()]])
@pytest.mark.parametrize("is_found_later", [False, True])
def test_who_lost_to_another_is_stale_although_answers_are_lost(
    changes: list[Change], is_found_later: bool
) -> None:
    async def main() -> None:
        world = World()
        ours, theirs = await world.open(), await world.open(calm=True)
        await theirs.commit(a_job())
        world.losses.append(Loss.BEFORE)
        world.always = Loss.BEFORE if is_found_later else None
        commit = asyncio.ensure_future(ours.commit(*changes))
        await asyncio.sleep(0.01)
        await theirs.commit(a_job(version=1, name="theirs"))
        with pytest.raises(Stale):
            await commit
        found = await ours.get(Job, JOB)
        assert found
        assert found.name == "theirs"

    run(main())


def test_a_change_that_was_overtaken_is_not_called_stale() -> None:
    """It took effect, its answer was lost, and another writer found it and changed the row."""

    async def main() -> None:
        world = World()
        ours, theirs = await world.open(), await world.open(calm=True)
        await theirs.commit(a_job())
        world.losses.append(Loss.AFTER)
        commit = asyncio.ensure_future(ours.commit(a_job(version=1, name="ours")))
        await asyncio.sleep(0.01)
        found = await theirs.get(Job, JOB)
        assert found
        assert found.name == "ours"
        await theirs.commit(msgspec.structs.replace(found, name="theirs"))
        with pytest.raises(OutcomeUnknown):
            await commit

    run(main())


@pytest.mark.parametrize("always", [None, Loss.BEFORE])
def test_a_row_that_is_gone_cannot_be_changed_although_answers_are_lost(
    always: Loss | None,
) -> None:
    async def main() -> None:
        world = World()
        metadata = await world.open()
        world.losses.append(Loss.BEFORE)
        world.always = always
        with pytest.raises(Stale):
            await metadata.commit(a_job(version=1))

    run(main())


@pytest.mark.parametrize("always", [None, Loss.BEFORE])
def test_a_key_that_another_took_is_taken_although_answers_are_lost(always: Loss | None) -> None:
    async def main() -> None:
        world = World()
        ours, theirs = await world.open(), await world.open(calm=True)
        world.losses.extend([Loss.BEFORE] * 2)
        world.always = always
        mine = an_idempotency_record(status=201)
        commit = asyncio.ensure_future(ours.commit(a_job(), mine))
        alone = asyncio.ensure_future(ours.commit(mine))
        await asyncio.sleep(0.01)
        await theirs.commit(an_idempotency_record(status=202))
        for each in (commit, alone):
            with pytest.raises(KeyTaken):
                await each
        assert await ours.get(Job, JOB) is None

    run(main())


def test_an_expired_record_of_another_does_not_take_the_key() -> None:
    async def main() -> None:
        world = World()
        metadata = await world.open()
        await metadata.commit(an_idempotency_record(expires_at=NOON + SECOND))
        await asyncio.sleep(1)
        world.always = Loss.BEFORE
        with pytest.raises(OutcomeUnknown):
            await metadata.commit(an_idempotency_record(status=202))

    run(main())


def test_every_change_that_was_confirmed_is_made_once() -> None:
    """Writers that add to one row while requests and answers are lost."""

    async def main() -> None:
        world = World(Knobs(writes_per_second=None, transaction_time=0.02 * SECOND))
        calm = await world.open(calm=True)
        await calm.commit(a_job(), a_run(total=0))
        world.share = 0.3
        confirmed = unknown = 0

        async def writer(number: int) -> None:
            nonlocal confirmed, unknown
            metadata = await world.open()
            for turn in range(15):
                while True:
                    stored = await metadata.get(Run, RUN)
                    assert stored
                    more = msgspec.structs.replace(stored, total=stored.total + 1)
                    batch = a_batch(run_id=RunId("other"), first=100 * number + turn)
                    try:
                        await metadata.commit(more, *[batch] * (number % 2))
                    except Stale:
                        continue
                    except OutcomeUnknown:
                        unknown += 1
                        break
                    confirmed += 1
                    break

        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(writer(number))
        stored = await calm.get(Run, RUN)
        assert stored
        assert confirmed > 30
        assert confirmed <= stored.total <= confirmed + unknown
        assert stored.version == stored.total + 1

    run(main())


def test_a_lone_writer_is_never_told_that_another_was_first() -> None:
    async def main() -> None:
        world = World()
        metadata = await world.open()
        await metadata.commit(a_job())
        world.share = 0.4
        for number in range(100):
            version = number + 1
            event = an_event(id=f"event-{number:03d}")
            record = an_idempotency_record(key=str(number))
            await metadata.commit(a_job(version=version))
            await metadata.commit(event, record)
            await metadata.commit(Removed(as_stored(event), if_unchanged=True))
        found = await metadata.get(Job, JOB)
        assert found
        assert found.version == 101

    run(main())


# Late indexes.


def test_listings_leave_out_what_an_index_still_has() -> None:
    async def main() -> None:
        world = World()
        metadata = await world.open()
        names = new_ids(2)
        await metadata.commit(a_job(), a_run(), an_event(), an_export())
        world.knobs.index_lag = 1000 * SECOND
        ended = a_run(version=1, status=RunStatus.COMPLETED)
        await metadata.commit(ended, an_event(version=1, due_at=None), a_job(id=names[0]))
        await metadata.commit(Removed(an_export(version=1)))

        assert not await metadata.live_runs(limit=9)
        assert not (await metadata.usage(CALLER)).live_runs
        assert not await metadata.due(OutboxEvent, channel=Channel.WEBHOOK, limit=9)
        assert not await metadata.page(type(an_export()), limit=9)
        assert [job.id for job, _ in await metadata.jobs(CALLER, limit=9)] == [JOB]
        assert [each.status for each in await metadata.runs(JOB, limit=9)] == [RunStatus.COMPLETED]

    run(main())


def test_each_change_of_a_run_is_listed_although_indexes_lag_and_clocks_differ() -> None:
    async def main() -> None:
        world = World()
        writers = [await world.open(skew=skew * SECOND) for skew in (0, -5, 5)]
        reader = await world.open(skew=2 * SECOND)
        runs = [RunId(name) for name in new_ids(20)]
        await writers[0].commit(a_job(), *[a_run(id=run_id) for run_id in runs])
        world.knobs.index_lag = 8 * SECOND
        world.share = 0.1
        _, mark = await reader.changed_runs(None, limit=9)
        versions = dict.fromkeys(runs, 1)
        listed = dict.fromkeys(runs, 1)
        repeated = 0
        for turn in range(300):
            if turn < 200:
                run_id = world.dice.choice(runs)
                change = a_run(id=run_id, version=versions[run_id], total=turn)
                await world.dice.choice(writers).commit(change)
                versions[run_id] += 1
            await asyncio.sleep(world.dice.uniform(0, 1))
            found, mark = await reader.changed_runs(mark, limit=3)
            repeated += sum(listed[one.id] == one.version for one in found)
            listed |= {one.id: one.version for one in found}
        assert listed == versions
        assert repeated < 100  # entries of earlier changes came late
        assert len(mark) < 600

    run(main())


def test_what_an_index_has_at_its_old_and_its_new_place_is_listed_once() -> None:
    async def main() -> None:
        world = World(Knobs(writes_per_second=None, index_lag=20 * SECOND))
        metadata = await world.open()
        _, mark = await metadata.changed_runs(None, limit=9)
        await metadata.commit(a_run(), an_event(due_at=NOON - 9 * SECOND))
        await asyncio.sleep(20)
        await metadata.commit(
            a_run(version=1, total=7), an_event(version=1, due_at=NOON - 5 * SECOND)
        )
        most = dict.fromkeys([CHANGED, due_events(Channel.WEBHOOK)], 0)
        for _ in range(40):
            await asyncio.sleep(0.5)
            most = {name: max(times, world.entries(name)) for name, times in most.items()}
            due = await metadata.due(OutboxEvent, channel=Channel.WEBHOOK, limit=9)
            found, _ = await metadata.changed_runs(mark, limit=9)
            assert len(due) == 1
            assert [one.total for one in found] == [7]
        assert set(most.values()) == {2}

    run(main())


def test_a_clock_that_is_ahead_hides_no_change() -> None:
    async def main() -> None:
        world = World()
        ahead, right = await world.open(skew=3600 * SECOND), await world.open()
        first, second = (RunId(name) for name in new_ids(2))
        _, mark = await right.changed_runs(None, limit=9)
        await ahead.commit(a_run(id=first))
        found, mark = await right.changed_runs(mark, limit=9)
        assert [one.id for one in found] == [first]
        await asyncio.sleep(60)
        await right.commit(a_run(id=second))
        found, mark = await right.changed_runs(mark, limit=9)
        assert [one.id for one in found] == [second]
        assert await right.changed_runs(mark, limit=9) == ([], mark)

    run(main())


# Expiry.


def test_an_expired_record_is_none_until_it_is_removed() -> None:
    async def main() -> None:
        world = World()
        metadata = await world.open()
        record = an_idempotency_record(expires_at=NOON + 1.5 * SECOND)
        await metadata.commit(record)
        await asyncio.sleep(1)
        assert await metadata.get(IdempotencyRecord, (CALLER, "key")) == record
        await asyncio.sleep(1)
        assert await metadata.get(IdempotencyRecord, (CALLER, "key")) is None
        assert len(world.items) == 1
        await asyncio.sleep(world.knobs.ttl_delay.total_seconds())
        assert await metadata.get(IdempotencyRecord, (CALLER, "key")) is None
        assert not world.items

    run(main())


# Sizes.


def test_a_page_of_large_records_can_be_committed_at_once() -> None:
    async def main() -> None:
        world = World()
        metadata = await world.open()
        for name in new_ids(24):
            await metadata.commit(a_job(id=name, metadata="x" * 200_000))
        page = await metadata.page(Job, limit=MOST_CHANGES)
        assert 15 < len(page) < 24
        await metadata.commit(*page)
        with pytest.raises(TooLarge, match="together"):
            await metadata.commit(*page, *[a_job(id=name, metadata="x" * 300_000) for name in "ab"])

    run(main())
