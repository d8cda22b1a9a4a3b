"""Coordination on DynamoDB: lost answers, races between workers, clocks that differ, and cost."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from conveyor.adapters.aws.client import AwsClient
from conveyor.adapters.aws.dynamodb import coordination
from conveyor.adapters.aws.dynamodb.coordination import (
    LATE,
    MOST_NOTES,
    POLL_EVERY,
    RESYNC_EVERY,
    DynamoDbCoordination,
)
from conveyor.adapters.aws.dynamodb.layout import table_definition
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.adapters.aws.faults import OutcomeUnknown
from conveyor.errors import Unavailable
from conveyor.ports.coordination import Notification, PermitRequest
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.in_process import client_in_process
from tests.harness import time_lapse
from tests.seed import run_seed, sampled

LEASE = timedelta(seconds=30)
TABLE = "conveyor"
JOB = "job:one"


class LossyClient:
    """A client whose answers are lost, before or after the effect of the call."""

    def __init__(self, client: AwsClient, random: Random) -> None:
        self._client, self._random = client, random
        self.lost = 0.0  # share of writes
        self.lose: Callable[[str], bool] = lambda operation: (
            operation not in {"Query", "GetItem"} and random.random() < self.lost
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def call(self, operation: str, request: object, **options: Any) -> Any:
        if not self.lose(operation):
            return await self._client.call(operation, request, **options)
        if self._random.random() < 0.5:
            await self._client.call(operation, request, **options)
        raise OutcomeUnknown("the answer was lost")


@dataclass(slots=True)
class World:
    """Workers at one table, in simulated time."""

    seed: object = 0
    engine: DynamoDbEngine = field(init=False)
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        knobs = Knobs(transaction_time=timedelta(milliseconds=3), seed=0)
        self.engine = DynamoDbEngine(time_lapse.LapseClock(), knobs)
        self.engine.execute("CreateTable", table_definition(TABLE))
        self.random = Random(f"{self.seed}")

    def worker(
        self, name: str, *, ahead: timedelta = timedelta()
    ) -> tuple[DynamoDbCoordination, LossyClient]:
        client = LossyClient(client_in_process(self.engine, seed=len(name)), self.random)
        clock = Ahead(self.engine.clock, ahead)
        table = DynamoTable(client, TABLE)  # type: ignore[arg-type]
        return DynamoDbCoordination(table, clock=clock, incarnation=name, lease=LEASE), client

    def units(self) -> tuple[float, float]:
        return self.engine.meter.units.written, self.engine.meter.units.consumed


class Ahead:
    """A clock that is ahead of another."""

    def __init__(self, clock: Any, by: timedelta) -> None:
        self._clock, self._by = clock, by

    def now(self) -> datetime:
        moment: datetime = self._clock.now() + self._by
        return moment

    def monotonic(self) -> float:
        seconds: float = self._clock.monotonic()
        return seconds


async def contend(seed: str) -> None:
    """Six workers reserve and release at random, and lose answers."""
    world, cap, used = World(seed), 7, 0
    random = world.random

    async def work(name: str) -> None:
        nonlocal used
        permits, client = world.worker(name)
        client.lost = 0.1
        for _ in range(25):
            ids: list[str] = []
            with suppress(Unavailable):
                wants = {JOB: PermitRequest(random.randint(1, 4), cap)}
                ids = list((await permits.reserve(wants)).get(JOB, ()))
            used += len(ids)
            assert used <= cap
            await asyncio.sleep(random.random())
            if ids:
                with suppress(Unavailable):
                    await permits.renew({JOB: ids})
            used -= len(ids)  # before the call: it may take effect at any time
            with suppress(Unavailable):
                await permits.release({JOB: ids})
        client.lost = 0.0
        await permits.renew({"other": ["x"]})  # any later call corrects the rows
        await permits.release({"other": ["x"]})

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(work(f"worker-{number}"))
    permits, _ = world.worker("reader")
    assert await permits.held(JOB) == 0


@pytest.mark.parametrize("number", sampled(range(30), 2, of="permits on dynamodb"))
def test_workers_that_contend_never_exceed_the_cap(number: int) -> None:
    time_lapse.run(contend(f"{run_seed()} {number}"))


async def lose_each(operations: set[str]) -> None:
    world = World()
    (one, client), (other, _) = world.worker("one"), world.worker("other")
    client.lose = lambda operation: operation in operations
    for _ in range(6):  # before and after the effect
        with pytest.raises(Unavailable):
            await one.reserve({JOB: PermitRequest(5, 5)})
    client.lose = lambda _: False
    await one.renew({"job:other": ["x"]})
    assert len((await other.reserve({JOB: PermitRequest(5, 5)}))[JOB]) == 5


def test_permits_whose_answer_was_lost_are_released_by_a_later_call() -> None:
    time_lapse.run(lose_each({"TransactWriteItems"}))


async def fail_for_one_name() -> None:
    world = World()
    one, client = world.worker("one")
    reserved = 0

    def lose(operation: str) -> bool:
        nonlocal reserved
        reserved += operation == "TransactWriteItems"
        return reserved == 2

    client.lose = lose
    with pytest.raises(Unavailable):
        await one.reserve({JOB: PermitRequest(2, 2), "job:other": PermitRequest(2, 2)})
    client.lose = lambda _: False
    granted = await one.reserve({JOB: PermitRequest(2, 2), "job:other": PermitRequest(2, 2)})
    assert {name: len(ids) for name, ids in granted.items()} == {JOB: 2, "job:other": 2}


def test_a_call_that_fails_for_one_name_keeps_no_permits_of_others() -> None:
    time_lapse.run(fail_for_one_name())


async def cost() -> None:
    world = World()
    one, _ = world.worker("one")
    granted = await one.reserve({JOB: PermitRequest(500, 500)})
    assert world.units() == (4, 1)  # the row and the gate, in a transaction
    await asyncio.sleep(10)
    await one.renew(granted)
    assert world.units() == (5, 1)
    await one.release({JOB: granted[JOB][:100]})
    assert world.units() == (6, 1)
    await one.release({JOB: ["unknown"]})
    assert not (await world.worker("two")[0].reserve({JOB: PermitRequest(1, 400)})).get(JOB)
    assert world.units() == (6, 2)  # a name without room costs a read


def test_the_number_of_permits_does_not_change_what_they_cost() -> None:
    time_lapse.run(cost())


async def take() -> None:
    world = World()
    (one, client), (two, _) = world.worker("one"), world.worker("two")
    for _ in range(3):
        assert (await one.take("b", rate=0.01, burst=4)).granted
    assert (await two.take("b", rate=0.01, burst=4)).granted
    assert not (await two.take("b", rate=0.01, burst=4)).granted
    assert not (await one.take("b", rate=0.01, burst=4)).granted
    written, read = world.units()
    for _ in range(10):
        assert not (await one.take("b", rate=0.01, burst=4)).granted
    assert world.units() == (written, read)  # a refusal costs nothing at all
    assert read == 0
    client.lose = lambda _: True
    with pytest.raises(Unavailable):
        await one.take("other", rate=0.01, burst=4)


def test_a_token_costs_one_write_and_a_refusal_nothing() -> None:
    time_lapse.run(take())


async def listen(ahead: timedelta) -> None:
    world = World()
    (reader, _), (sender, _) = world.worker("reader"), world.worker("sender", ahead=ahead)
    async with aclosing(reader.notifications(["runs"])) as notifications:
        assert (await anext(notifications)).names is None
        await asyncio.sleep(60)
        for name in ("first", "second"):
            await sender.notify("runs", [name])
            found = await anext(notifications)
            assert found == Notification("runs", frozenset({name}))
        for number in range(MOST_NOTES + 1):
            await sender.notify("runs", [str(number)])
        assert (await anext(notifications)).names is None


@pytest.mark.parametrize("ahead", [-LATE / 2, timedelta(), LATE / 2])
def test_notifications_arrive_although_clocks_differ(ahead: timedelta) -> None:
    time_lapse.run(listen(ahead))


@dataclass(slots=True)
class Burst:
    """Senders that notify without a pause, and what came of it at one subscriber."""

    senders: int
    pause: timedelta
    sent_at: dict[str, float] = field(default_factory=dict)
    heard_at: dict[str, float] = field(default_factory=dict)
    resynced_at: list[float] = field(default_factory=list)

    async def run(self, length: timedelta) -> None:
        world, now = World(), asyncio.get_running_loop().time
        reader, _ = world.worker("reader")

        async def hear() -> None:
            async for notification in reader.notifications(["runs"]):
                if notification.names is None:
                    self.resynced_at.append(now())
                for name in notification.names or ():
                    self.heard_at.setdefault(name, now())

        async def send(number: int) -> None:
            sender, _ = world.worker(f"sender-{number}")
            while now() < end:
                name = f"{number}.{len(self.sent_at)}"
                self.sent_at[name] = now()
                await sender.notify("runs", [name])
                await asyncio.sleep(self.pause.total_seconds())

        hearing = asyncio.create_task(hear())
        await asyncio.sleep(60)  # the first notification, of a new subscription, is long past
        end = now() + length.total_seconds()
        async with asyncio.TaskGroup() as group:
            for number in range(self.senders):
                group.create_task(send(number))
        await asyncio.sleep(60)
        hearing.cancel()

    def unheard(self) -> list[str]:
        """The names of which neither a notification nor a resync came within two polls."""
        polls = 2 * POLL_EVERY.total_seconds()
        return [
            name
            for name, sent_at in self.sent_at.items()
            if self.heard_at.get(name, sent_at + 1e9) > sent_at + polls
            and not any(sent_at <= at <= sent_at + polls for at in self.resynced_at)
        ]


FEW = 50  # notifications that a poll reads


async def send_many() -> None:
    busy = Burst(senders=2, pause=timedelta(milliseconds=95))
    await busy.run(timedelta(minutes=1))
    assert len(busy.sent_at) > 20 * FEW  # 20 a second
    assert not busy.unheard()
    assert len(busy.resynced_at) <= 2 + 70 / RESYNC_EVERY.total_seconds()


def test_many_notifications_arrive_by_name_and_seldom_make_all_be_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordination, "MOST_NOTES", FEW)
    time_lapse.run(send_many())


async def send_too_many() -> None:
    busy = Burst(senders=2, pause=timedelta(milliseconds=15))
    await busy.run(timedelta(seconds=25))
    assert len(busy.unheard()) > 10 * FEW  # a poll cannot read them all
    _, *resynced_at = busy.resynced_at
    assert len(resynced_at) in {3, 4}
    for before, after in pairwise(resynced_at):
        assert after - before >= RESYNC_EVERY.total_seconds()
    assert resynced_at[-1] > max(busy.sent_at.values())  # what was missed last is not forgotten


def test_more_notifications_than_a_poll_reads_make_all_be_read_again_at_intervals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordination, "MOST_NOTES", FEW)
    time_lapse.run(send_too_many())


async def idle() -> None:
    world = World()
    reader, _ = world.worker("reader")

    async def subscribe() -> None:
        async for _ in reader.notifications(["runs", "outbox"]):
            pass

    polling = asyncio.create_task(subscribe())
    await asyncio.sleep(60)
    polling.cancel()
    polls = 60 / POLL_EVERY.total_seconds()
    assert world.units()[1] <= polls * 0.5 + 1


def test_a_subscriber_costs_half_a_read_unit_a_second() -> None:
    time_lapse.run(idle())
