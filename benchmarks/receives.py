"""How often is a message received when 50 workers want 5 places, with each line of defence?

500 tasks of one job, over a queue that behaves like SQS and gives a message up after its tenth
receive, in simulated time. The plain worker receives first and then asks for a permit; each line
is switched on for it in turn: a gate (receive nothing while as many as are allowed are under way
in this process), a cool-down of a second after a message that found no permit, and bounces that
hide such a message for 5 s and longer each time, instead of giving it back at once. It is one
process with 50 workers, which is kind to its gate. Conveyor's dispatcher is 50 processes.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import product

import msgspec
import structlog
from tests.harness import time_lapse
from tests.harness.fleet import Fleet
from tests.harness.permits import reserve

from conveyor.domain import concurrency
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.task import Throttled
from conveyor.ports.queues import TaskMessage
from conveyor.steps.dispatch.config import DispatchConfig, config_over_queues
from conveyor.steps.dispatch.permits import permit_name
from conveyor.steps.shared.attempt import Assignment
from conveyor.testing.factories import JOB, RUN, a_task, new_tasks

TASKS = 500
CAP = 5
WORKERS = 50
GIVEN_UP_AFTER = 10  # receives: what SQS does unless it is told otherwise
GOAL = 1.05
A_CALL = 0.001  # of the queue or the permits, in seconds: next door, which is kind too
A_SKIP = 0.01
AN_EMPTY_RECEIVE = 1.0
COOL_DOWN = 1.0
LONGEST = 3_600.0
IDLE_FOR = 600.0
ASSIGNMENT = Assignment(
    job_id=JOB, gateway_key="key", params={}, format="html", policy=RetryPolicy()
)


class Scene(msgspec.Struct, frozen=True):
    """What the gateway is like."""

    title: str
    fastest: float
    slowest: float
    limit: int = TASKS  # calls that the account allows at once


SCENES = (
    Scene("pages of 0.05 to 0.15 s", 0.05, 0.15),
    Scene("pages of 0.5 to 1.5 s", 0.5, 1.5),
    Scene("pages of 0.5 to 1.5 s, an account of 3 calls", 0.5, 1.5, 3),
)


class Lines(msgspec.Struct, frozen=True):
    gate: bool
    cooldown: bool
    bounce: bool

    def __str__(self) -> str:
        on = [name for name in self.__struct_fields__ if getattr(self, name)]
        return "plain worker" + (f", {' + '.join(on)}" if on else "")


class Figures(msgspec.Struct, frozen=True):
    received: int
    calls: int
    empty: int
    dead: int
    seconds: float


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for scene in SCENES:
        print(f"\n{scene.title}")
        print(f"{'':42} receives   calls   empty    dead   drained")
        for gate, cooldown, bounces in product((False, True), repeat=3):
            lines = Lines(gate, cooldown, bounces)
            _show(str(lines), time_lapse.run(_plain(scene, lines)))
        _show("conveyor, one process", time_lapse.run(_dispatchers(scene, 1)))
        ours = time_lapse.run(_dispatchers(scene, WORKERS))
        _show(f"conveyor, {WORKERS} processes", ours)
        kept = ours.received <= GOAL * TASKS and not ours.dead
        print(f"at most {GOAL} receives a message and none dead: {'yes' if kept else 'NO'}")
    for name, config in (
        ("config of a database", _of_a_database),
        ("config of a queue", config_over_queues),
    ):
        asked = time_lapse.run(_idle(config))
        print(f"an idle run, {WORKERS} processes, {name}: {asked:.1f} receives a second")


def _show(name: str, found: Figures) -> None:
    print(
        f"{name:42} {found.received / TASKS:8.2f} {found.calls:7} {found.empty:7} {found.dead:7}"
        f" {found.seconds:7.0f} s"
    )


def _fleet(scene: Scene, processes: int) -> Fleet:
    fleet = Fleet(cap=CAP, processes=processes, most_receives=GIVEN_UP_AFTER)
    fleet.gateway.fastest, fleet.gateway.slowest = scene.fastest, scene.slowest
    fleet.gateway.limit = scene.limit
    return fleet


async def _dispatchers(scene: Scene, processes: int) -> Figures:
    fleet = _fleet(scene, processes)
    await fleet.submit(TASKS)
    async with fleet.at_work():
        return _figures(fleet, await fleet.drained())


async def _plain(scene: Scene, lines: Lines) -> Figures:
    fleet = _fleet(scene, 1)
    await fleet.queues.open(RUN)
    entries = [(task.id, timedelta()) for task in new_tasks(RUN, TASKS)]
    await fleet.queues.send(RUN, entries)
    process = PlainProcess(fleet, lines)
    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(process.work())
    return _figures(fleet, fleet.clock.monotonic())


def _figures(fleet: Fleet, seconds: float) -> Figures:
    queues = fleet.queues
    received, dead = queues.received.total(), len(queues.dead(RUN))
    return Figures(received, queues.asked, queues.empty, dead, seconds)


@dataclass(slots=True)
class PlainProcess:
    """Workers that receive a message each, and then see whether there is a permit for it."""

    fleet: Fleet
    lines: Lines
    done: int = 0
    under_way: int = 0
    cool_until: float = 0.0

    async def work(self) -> None:
        fleet = self.fleet
        while self._is_at_it():
            if self._skips():
                await asyncio.sleep(A_SKIP)
                continue
            await asyncio.sleep(A_CALL)
            for message in await fleet.queues.receive(RUN, 1) or ():
                self.under_way += 1
                await self._handle(message)
                self.under_way -= 1
                break
            else:
                await asyncio.sleep(AN_EMPTY_RECEIVE)

    def _is_at_it(self) -> bool:
        left = TASKS - self.done - len(self.fleet.queues.dead(RUN))
        return left > 0 and self.fleet.clock.monotonic() < LONGEST

    def _skips(self) -> bool:
        if self.lines.gate and self.under_way >= CAP:
            return True
        return self.lines.cooldown and self.fleet.clock.monotonic() < self.cool_until

    async def _handle(self, message: TaskMessage) -> None:
        await asyncio.sleep(A_CALL)
        permits = await reserve(self.fleet.coordination, JOB, want=1, cap=CAP)
        if not permits:
            await self._put_back(message)
            return
        result = await self.fleet.gateway.attempt(a_task(), ASSIGNMENT)
        await asyncio.sleep(A_CALL)
        await self.fleet.coordination.release({permit_name(JOB): permits})
        if isinstance(result, Throttled):
            await self._put_back(message)
            return
        await self.fleet.queues.ack(RUN, [message.receipt])
        self.done += 1

    async def _put_back(self, message: TaskMessage) -> None:
        self.cool_until = self.fleet.clock.monotonic() + COOL_DOWN
        hidden = concurrency.hidden_for(message.task_id, message.receives)
        await asyncio.sleep(A_CALL)
        delay = hidden if self.lines.bounce else timedelta()
        await self.fleet.queues.postpone(RUN, {message.receipt: delay})


async def _idle(config: Callable[[int], DispatchConfig]) -> float:
    """Receives a second of an open run that has nothing to do."""
    fleet = Fleet(cap=100, processes=WORKERS, is_closed=False, config=config)
    await fleet.submit(1)
    async with fleet.at_work():
        await asyncio.sleep(60)
        before = fleet.queues.asked
        await asyncio.sleep(IDLE_FOR)
        return (fleet.queues.asked - before) / IDLE_FOR


def _of_a_database(places: int) -> DispatchConfig:
    return DispatchConfig(concurrency=places)


if __name__ == "__main__":
    main()
