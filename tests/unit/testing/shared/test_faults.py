from datetime import timedelta
from random import Random

import pytest

from conveyor.domain.job import Job
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.domain.run import Run
from conveyor.errors import Unavailable
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import EVENT, JOB, RUN, a_job, a_run, an_event
from conveyor.testing.shared.faults import NONE, FaultInjector, StoreFaults
from conveyor.testing.shared.store import SharedPorts, SharedStore, SkewedClock


def opened(
    faults: StoreFaults, clock: FakeClock | None = None
) -> tuple[SharedPorts, FaultInjector]:
    injector = FaultInjector(Random(1), faults)
    return SharedStore(clock or FakeClock(), injector=injector).open(), injector


async def test_a_throttled_call_has_no_effect_and_a_lost_answer_has_one() -> None:
    ports, injector = opened(StoreFaults(throttled=1))
    with pytest.raises(Unavailable, match="throttled"):
        await ports.metadata.commit(a_job())
    injector.faults = NONE
    assert await ports.metadata.get(Job, JOB) is None

    injector.faults = StoreFaults(lost=1)
    with pytest.raises(Unavailable, match="lost"):
        await ports.metadata.commit(a_job())
    injector.faults = NONE
    assert await ports.metadata.get(Job, JOB)
    assert +injector.counted == {"throttled": 1, "lost": 1}


async def test_an_index_lags_for_some_seconds_and_point_reads_do_not() -> None:
    clock = FakeClock()
    faults = StoreFaults(lagging=1)
    ports, _ = opened(faults, clock)
    await ports.metadata.commit(a_job(), a_run())

    assert await ports.metadata.get(Run, RUN)
    assert not await ports.metadata.live_runs(limit=10)
    assert not (await ports.metadata.changed_runs("0", limit=10)).runs
    assert not (await ports.metadata.usage(a_job().caller)).live_runs

    clock.advance(faults.lag)
    assert [run.id for run in await ports.metadata.live_runs(limit=10)] == [RUN]


async def test_a_mark_of_changes_never_skips_one_that_is_behind() -> None:
    clock = FakeClock()
    ports, _ = opened(StoreFaults(lagging=1), clock)
    await ports.metadata.commit(a_run())
    mark = (await ports.metadata.changed_runs(None, limit=10)).mark
    clock.advance(timedelta(seconds=9))
    assert [run.id for run in (await ports.metadata.changed_runs(mark, limit=10)).runs] == [RUN]


async def test_services_see_one_state_by_clocks_of_their_own() -> None:
    clock = FakeClock()
    store = SharedStore(clock)
    ahead = store.open(clock=SkewedClock(clock, timedelta(hours=1)))
    here = store.open()
    await here.metadata.commit(an_event(due_at=clock.now() + timedelta(minutes=1)))

    assert not await here.metadata.due(OutboxEvent, limit=1, channel=Channel.WEBHOOK)
    [due] = await ahead.metadata.due(OutboxEvent, limit=1, channel=Channel.WEBHOOK)
    assert due.id == EVENT
