"""How the bytes of a claim are divided between its runs."""

from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from conveyor.adapters.postgres.engine import PostgresEngine, open_engine
from conveyor.domain.ids import RunId
from conveyor.domain.task import NewRow
from conveyor.ports.work import CLAIM_BYTES
from conveyor.testing.clock import FakeClock, FakeIds
from conveyor.testing.factories import (
    RUN,
    a_task_spec,
    add_rows,
    held,
    new_ids,
    new_tasks,
    scraped,
    settlement,
)
from tests.harness.postgres import TestDatabases

LEASE = timedelta(seconds=60)
RUNS = [RunId(name) for name in new_ids(12)]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def engine(postgres_18: TestDatabases, clock: FakeClock) -> AsyncIterator[PostgresEngine]:
    address = await postgres_18.empty()
    async with open_engine(
        address, ids=FakeIds(), lease=LEASE, holder="one", clock=clock
    ) as opened:
        yield opened


async def _given(engine: PostgresEngine, run_id: RunId, count: int, *, size: int = 1) -> None:
    spec = a_task_spec(params="x" * size)
    rows = [NewRow(new.index, new.id, spec) for new in new_tasks(run_id, count)]
    await add_rows(engine.tasks, run_id, rows)


async def test_runs_with_nothing_due_take_no_bytes_from_the_others(engine: PostgresEngine) -> None:
    for run_id in RUNS:
        await _given(engine, run_id, 1)
    assert len(await engine.work.claim(dict.fromkeys(RUNS, 1))) == len(RUNS)
    await _given(engine, RUN, 10, size=CLAIM_BYTES // 12)

    assert len(await engine.work.claim(dict.fromkeys([*RUNS, RUN], 10))) == 10


async def test_a_claim_that_takes_over_from_many_runs_ends_with_its_bytes(
    engine: PostgresEngine, clock: FakeClock
) -> None:
    for run_id in RUNS:
        await _given(engine, run_id, 2, size=CLAIM_BYTES // 3)
        assert len(await engine.work.claim({run_id: 9})) == 2
    await _given(engine, RUN, 9, size=CLAIM_BYTES // 20)
    clock.advance(LEASE)

    taken = await engine.work.claim(dict.fromkeys([*RUNS, RUN], 9))

    # All that is fresh, and one task of each of the others, because two exceed the bytes.
    assert Counter(task.run_id for task in taken) == {RUN: 9} | dict.fromkeys(RUNS, 1)


async def test_a_claim_of_a_lost_run_cannot_settle_a_run_that_got_its_number(
    engine: PostgresEngine,
) -> None:
    """A restore, or a replica that lagged, loses a run; the next one gets its number."""
    lost, other = RUNS[:2]
    await _given(engine, lost, 1)
    [before] = await engine.work.claim({lost: 1})
    [row] = await engine.database.fetch("SELECT no FROM run_no")
    while await engine.tasks.discard(lost, limit=9):
        pass
    await engine.database.fetch(f"ALTER TABLE run_no ALTER COLUMN no RESTART WITH {row['no']}")
    await _given(engine, other, 1)
    [after] = await engine.work.claim({other: 1})

    assert await engine.work.renew([held(before)]) == [held(before)]
    assert await engine.work.settle([settlement(before, scraped())]) == [False]
    assert await engine.work.settle([settlement(after, scraped())]) == [True]


async def test_numbers_of_runs_may_be_lost_again_and_again(engine: PostgresEngine) -> None:
    lost, second, third = RUNS[:3]
    for run_id, run_no in ((lost, 1), (lost, 2), (second, 1), (third, 2)):
        engine.work._remember({run_id: run_no})
    assert engine.work._numbers == {second: 1, third: 2}
