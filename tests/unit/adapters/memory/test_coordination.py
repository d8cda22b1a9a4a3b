"""What coordination in memory keeps is bounded."""

from contextlib import aclosing
from datetime import timedelta

from conveyor.adapters.memory.coordination import MOST_KEPT, MemoryCoordination
from conveyor.ports.coordination import Notification
from conveyor.testing.clock import FakeClock


async def test_a_subscriber_that_does_not_read_learns_that_it_missed_some() -> None:
    coordination = MemoryCoordination(FakeClock())
    async with aclosing(coordination.notifications(["runs", "outbox"])) as notifications:
        assert {(await anext(notifications)).topic for _ in range(2)} == {"runs", "outbox"}
        for number in range(2 * MOST_KEPT):
            await coordination.notify("runs", [str(number)])
        await coordination.notify("outbox")
        assert await anext(notifications) == Notification("runs", None)
        assert await anext(notifications) == Notification("outbox", frozenset())
        await coordination.notify("runs", ["one"])
        assert await anext(notifications) == Notification("runs", frozenset({"one"}))


async def test_names_that_are_notified_several_times_are_read_once() -> None:
    coordination = MemoryCoordination(FakeClock())
    async with aclosing(coordination.notifications(["runs"])) as notifications:
        await anext(notifications)
        for name in ("one", "other", "one"):
            await coordination.notify("runs", [name])
        assert await anext(notifications) == Notification("runs", frozenset({"one", "other"}))


async def test_the_oldest_cached_values_are_dropped_first() -> None:
    coordination = MemoryCoordination(FakeClock())
    values = {str(number): b"" for number in range(MOST_KEPT + 2)}
    await coordination.remember(values, life=timedelta(hours=1))
    kept = await coordination.recall(list(values))
    assert list(kept) == list(values)[2:]
