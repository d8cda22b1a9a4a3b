"""The feed of runs that have changed, from which dispatchers learn what other processes did."""

import pytest

from conveyor.domain import run as run_rules
from conveyor.domain.ids import RunId
from conveyor.domain.run import Run
from conveyor.ports.metadata import Removed
from conveyor.testing.contracts.engine import Engine
from conveyor.testing.factories import a_job, a_run, new_ids


class ChangedRunsContract:
    @pytest.mark.parametrize("size", [1, 2, 3, 100])
    async def test_runs_that_changed_are_listed_in_the_order_of_their_changes(
        self, engine: Engine, size: int
    ) -> None:
        runs = await _given_runs(engine, 5)
        _, mark = await engine.metadata.changed_runs(None, limit=size)
        for number in (3, 4, 1, 3):
            await _change(engine, runs[number])
        stopped = run_rules.stop(await _stored(engine, runs[0]), engine.clock.now())
        await engine.metadata.commit(stopped)

        listed, mark = await _changed(engine, mark, size)

        assert [run.id for run in listed] == [runs[number] for number in (4, 1, 3, 0)]
        assert listed == [await _stored(engine, run.id) for run in listed]
        assert await _changed(engine, mark, size) == ([], mark)

    async def test_a_new_run_has_changed(self, engine: Engine) -> None:
        _, mark = await engine.metadata.changed_runs(None, limit=9)
        runs = await _given_runs(engine, 2)

        listed, _ = await _changed(engine, mark, 9)

        assert [run.id for run in listed] == runs

    async def test_a_change_after_a_removal_is_listed(self, engine: Engine) -> None:
        first, second = await _given_runs(engine, 2)
        _, mark = await engine.metadata.changed_runs(None, limit=9)
        await engine.metadata.commit(Removed(await _stored(engine, second)))
        await _change(engine, first)

        listed, _ = await _changed(engine, mark, 9)

        assert [run.id for run in listed] == [first]


async def _given_runs(engine: Engine, n: int) -> list[RunId]:
    runs = [RunId(name) for name in new_ids(n)]
    await engine.metadata.commit(a_job(), *[a_run(id=run_id) for run_id in runs])
    return runs


async def _change(engine: Engine, run_id: RunId) -> None:
    run = await _stored(engine, run_id)
    await engine.metadata.commit(run_rules.latch(run, engine.clock.now()))


async def _stored(engine: Engine, run_id: RunId) -> Run:
    run = await engine.metadata.get(Run, run_id)
    assert run is not None
    return run


async def _changed(engine: Engine, mark: str, size: int) -> tuple[list[Run], str]:
    """Every run that has changed since the mark, in pages of at most `size`."""
    listed = list[Run]()
    while True:
        runs, mark = await engine.metadata.changed_runs(mark, limit=size)
        assert len(runs) <= size
        listed += runs
        if not runs:
            return listed, mark
