"""One process of the consistency trial: it adds, claims, renews and settles tasks beside others.

`python -m tests.postgres.trial URL NAME SEED TASKS` prints its report as JSON when all tasks have
ended. With `patient` behind it, calls are repeated while the server is unavailable. Chunks are added by every process, each with borders of its own; claims are abandoned, settles
repeated, and tasks retried.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from random import Random
from typing import cast

import msgspec

from conveyor.adapters.postgres.address import PostgresAddress, parse_address
from conveyor.adapters.postgres.engine import PostgresEngine, open_engine
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.domain.counts import Spend
from conveyor.domain.ids import RunId
from conveyor.domain.task import SettleDecision, Task, TaskStatus
from conveyor.errors import Unavailable
from conveyor.testing.factories import (
    add_rows,
    held,
    new_tasks,
    refused,
    scraped,
    settlement,
    to_retry,
    uncharged,
)

RUNS = [RunId(f"{number:026}") for number in range(1, 5)]
LEASE = timedelta(seconds=2)
LOOPS = 3  # loops that claim and settle, of one process
GROUP = 40


class Report(msgspec.Struct):
    """What one process was told."""

    claims: list[tuple[RunId, int, int]] = msgspec.field(default_factory=list)
    added: int = 0
    successful: int = 0
    failed: int = 0  # by its own settles
    failed_by_losses: int = 0
    credits: int = 0
    nanos: int = 0
    wrong: int = 0  # repeated settles that took effect


async def take_part(
    address: PostgresAddress, name: str, seed: str, tasks: int, *, patient: bool = False
) -> Report:
    report = Report()
    async with open_engine(
        address, ids=SystemIds(SystemClock()), lease=LEASE, holder=name
    ) as opened:
        engine = cast("PostgresEngine", _Patient(opened)) if patient else opened
        dice = Random(f"{seed} {name}")
        async with asyncio.TaskGroup() as group:
            group.create_task(_add(engine, dice, tasks, report))
            for _ in range(LOOPS):
                group.create_task(_work(engine, dice, tasks, report))
    return report


class _Patient:
    """An engine whose calls are repeated while the server is unavailable."""

    def __init__(self, engine: PostgresEngine) -> None:
        self.tasks, self.work = _Repeated(engine.tasks), _Repeated(engine.work)


class _Repeated:
    def __init__(self, port: object) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        async def call(*given: object, **named: object) -> object:
            while True:
                try:
                    return await getattr(self._port, name)(*given, **named)
                except Unavailable:
                    await asyncio.sleep(0.1)  # until the server has started again

        return call


async def _add(engine: PostgresEngine, dice: Random, tasks: int, report: Report) -> None:
    for run_id in dice.sample(RUNS, len(RUNS)):
        first = 0
        while first < tasks:
            count = min(dice.randint(1, tasks // 3), tasks - first)
            report.added += await add_rows(
                engine.tasks, run_id, new_tasks(run_id, count, first=first)
            )
            first += count


async def _work(engine: PostgresEngine, dice: Random, tasks: int, report: Report) -> None:
    while True:
        runs = dice.sample(RUNS, 2)
        given = await engine.work.claim({run_id: dice.randint(1, GROUP) for run_id in runs})
        report.failed_by_losses += sum(task.is_final for task in given)
        mine = [task for task in given if not task.is_final]
        report.claims += [(task.run_id, task.index, task.claim_no) for task in mine]
        if mine:
            await _settle(engine, dice, mine, report)
            continue
        counts = await engine.tasks.counts(RUNS)
        if sum(each.done for each in counts.values()) == tasks * len(RUNS):
            return
        lapsed = await engine.work.release_lapsed(dice.choice(RUNS), overdue=LEASE, limit=9)
        report.failed_by_losses += sum(each.failed for each in lapsed)
        await asyncio.sleep(0.02)  # until other processes have settled, or their leases end


async def _settle(
    engine: PostgresEngine, dice: Random, tasks: Sequence[Task], report: Report
) -> None:
    kept = [task for task in tasks if dice.random() > 0.02]  # the others are abandoned
    if dice.random() < 0.5:
        renewal = asyncio.create_task(engine.work.renew([held(task) for task in kept]))
    else:
        renewal = None
    decisions = [_decision(dice) for _ in kept]
    sent = [settlement(*pair) for pair in zip(kept, decisions, strict=True)]
    settled = await engine.work.settle(sent)
    if renewal:
        await renewal
    for decision, took_effect in zip(decisions, settled, strict=True):
        if took_effect:
            report.credits += decision.spend.credits
            report.nanos += decision.spend.nanos
            report.successful += decision.status is TaskStatus.SUCCESSFUL
            report.failed += decision.status is TaskStatus.FAILED
    if dice.random() < 0.2:
        report.wrong += sum(await engine.work.settle(sent))


def _decision(dice: Random) -> SettleDecision:
    spend = Spend(dice.randint(0, 5), dice.randint(0, 10**9))
    chosen = dice.random()
    if chosen < 0.1:
        return to_retry(delay=timedelta(milliseconds=dice.randint(0, 50)), spend=spend)
    if chosen < 0.15:
        return uncharged()
    if chosen < 0.25:
        return refused(host=f"{dice.randint(1, 30)}.example", spend=spend)
    return scraped(spend=spend)


if __name__ == "__main__":
    url, own_name, own_seed, count, *more = sys.argv[1:]
    made = asyncio.run(
        take_part(parse_address(url), own_name, own_seed, int(count), patient=more == ["patient"])
    )
    sys.stdout.buffer.write(msgspec.json.encode(made))
