"""Steps wake the loops of their process at once, and those of others by notifications."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.domain.ids import RunId
from conveyor.errors import Unavailable
from conveyor.ports.coordination import Notification
from conveyor.steps.shared import notifier as notifier_module
from conveyor.steps.shared.notifier import MOST_NAMES, Notifier, Topic
from conveyor.testing.clock import FakeClock
from tests.harness.memory_service import SOON

RUN = RunId("run")


class Heard:
    """What wakes the loops of a process, in order."""

    def __init__(self, notifier: Notifier) -> None:
        self.woken: list[tuple[Topic, frozenset[str] | None]] = []
        self._changed = asyncio.Event()
        for topic in Topic:
            notifier.on(topic, lambda names, topic=topic: self._add(topic, names))  # type: ignore[misc]

    def _add(self, topic: Topic, names: Collection[str] | None) -> None:
        self.woken.append((topic, None if names is None else frozenset(names)))
        self._changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(SOON):
            while len(self.woken) < count:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def at_work(*notifiers: Notifier) -> AsyncIterator[list[Heard]]:
    """Processes that are subscribed; what they have heard since."""
    heard = [Heard(one) for one in notifiers]
    tasks = [
        asyncio.create_task(loop) for one in notifiers for loop in (one.publish(), one.listen())
    ]
    try:
        for one in heard:
            await one.until(len(Topic))  # a subscription begins with each topic as missed
            assert {names for _, names in one.woken} == {None}
            one.woken.clear()
        yield heard
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def a_notifier(coordination: MemoryCoordination, name: str) -> Notifier:
    return Notifier(coordination=coordination, incarnation=name)


async def test_a_process_that_is_alone_wakes_its_loops_and_publishes_nothing() -> None:
    notifier = Notifier()
    heard = Heard(notifier)
    notifier.run_changed(RUN)
    notifier.events_due()
    notifier.message_sent()
    notifier.key_served("digest")
    assert heard.woken == [
        (Topic.RUNS, frozenset({RUN})),
        (Topic.OUTBOX, None),
        (Topic.CONTROL_QUEUE, None),
        (Topic.GATEWAY_KEYS, frozenset({"digest"})),
    ]
    assert not notifier.unsent


async def test_others_are_woken_and_the_sender_only_once() -> None:
    coordination = MemoryCoordination(FakeClock())
    one, other = a_notifier(coordination, "one"), a_notifier(coordination, "other")
    async with at_work(one, other) as (of_one, of_other):
        one.run_changed(RUN)
        await of_other.until(1)
        one.message_sent()
        await of_other.until(2)
        other.run_changed(RunId("another"))
        await of_one.until(3)
        assert of_other.woken[:2] == [(Topic.RUNS, frozenset({RUN})), (Topic.CONTROL_QUEUE, None)]
        assert of_one.woken == [*of_other.woken[:2], (Topic.RUNS, frozenset({"another"}))]


async def test_many_changes_are_told_as_everything() -> None:
    coordination = MemoryCoordination(FakeClock())
    one, other = a_notifier(coordination, "one"), a_notifier(coordination, "other")
    async with at_work(one, other) as (_, of_other):
        for number in range(2 * MOST_NAMES):
            one.run_changed(RunId(f"run-{number}"))
        assert len(one.unsent[Topic.RUNS]) <= MOST_NAMES + 1
        await of_other.until(1)
        assert of_other.woken == [(Topic.RUNS, None)]


class Broken(MemoryCoordination):
    """Notifications fail while `is_away`; a subscription ends when it is cut."""

    is_away = False

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.tried = asyncio.Event()
        self.cut = asyncio.Event()

    async def notify(self, topic: str, names: Collection[str] = ()) -> None:
        if self.is_away:
            self.tried.set()
            raise Unavailable("away")
        await super().notify(topic, names)

    async def notifications(self, topics: Collection[str]) -> AsyncGenerator[Notification, None]:
        if self.is_away:
            raise Unavailable("away")
        async for notification in super().notifications(topics):
            yield notification
            if self.cut.is_set():
                raise Unavailable("cut")


async def test_a_step_does_not_notice_that_notifications_fail() -> None:
    coordination = Broken()
    one, other = a_notifier(coordination, "one"), a_notifier(coordination, "other")
    async with at_work(one, other) as (of_one, of_other), asyncio.timeout(SOON):
        coordination.is_away = True
        one.run_changed(RUN)
        assert of_one.woken == [(Topic.RUNS, frozenset({RUN}))]
        await coordination.tried.wait()
        coordination.is_away = False
        one.run_changed(RunId("later"))
        await of_other.until(1)
        assert of_other.woken == [(Topic.RUNS, frozenset({"later"}))]


async def test_a_subscription_that_was_lost_begins_again_with_a_look_at_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifier_module, "FIRST_DELAY", notifier_module.BATCH_WAIT)
    monkeypatch.setattr(notifier_module, "LONGEST_DELAY", notifier_module.BATCH_WAIT)
    coordination = Broken()
    one = a_notifier(coordination, "one")
    with capture_logs() as logs:
        async with at_work(one) as (of_one,):
            coordination.cut.set()
            coordination.is_away = True
            await MemoryCoordination.notify(coordination, Topic.RUNS, ["two/run"])
            await of_one.until(1)
            coordination.cut.clear()
            coordination.is_away = False
            await of_one.until(1 + len(Topic))
            assert of_one.woken[1:] == [(topic, None) for topic in sorted(Topic)]
    assert [line["event"] for line in logs] == ["notifications.unavailable"]
