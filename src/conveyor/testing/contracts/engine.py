"""An engine under test, and the steps that several contracts share."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from conveyor.domain.concurrency import LONGEST_FUTILE_HIDING
from conveyor.domain.counts import Counts
from conveyor.domain.failure_groups import FailureKey
from conveyor.domain.ids import RunId
from conveyor.domain.task import (
    Attempt,
    SettleDecision,
    Task,
    as_claimed,
    as_listed,
    as_redelivered,
)
from conveyor.ports.claims import Claims
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Work
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import RUN, add_rows, held, ids_of, new_tasks, settlement

T = TypeVar("T")

TRIES = 60
MANY = 1000
TICK = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
# The methods of `Metadata` that may be answered from an index that lags.
LISTINGS = frozenset({"page", "jobs", "live_runs", "changed_runs", "due", "usage"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An open engine, with the clock it was opened with, and what it can do."""

    metadata: Metadata
    tasks: Tasks
    work: Work
    control_queue: ControlQueue
    clock: FakeClock
    lease: timedelta
    ordered: bool  # claims give the longest due first; an engine behind a queue cannot
    hinted: bool = False  # it has messages beside its rows: final tasks come again until acked
    claims: Claims | None = None
    holder: str = ""  # the name under which it claims
    other: Work | None = None  # the work of another process at the same rows
    precise: bool = True  # False: its times are whole seconds
    expires_itself: bool = False  # expired records disappear without `clear_expired`
    largest_record: int | None = None  # bytes that a record of metadata may have; None: any number
    # Waits by the clock of an engine that has one of its own; None: the fake clock is its clock.
    wait: Callable[[timedelta], Awaitable[None]] | None = None

    @property
    def moment(self) -> timedelta:
        """The shortest time that the engine can tell from none."""
        return TICK if self.precise else SECOND

    @property
    def longest_hiding(self) -> timedelta:
        """How long a message may be hidden although its task is due again."""
        return LONGEST_FUTILE_HIDING if self.hinted else timedelta()

    async def pass_time(self, by: timedelta) -> None:
        """Let time pass for the engine and for the fake clock."""
        self.clock.advance(by)
        if self.wait:
            await self.wait(by)


class CaughtUp:
    """Metadata whose listings lag, as an `Engine` has it: a listing waits until it has caught up.

    Contracts expect a listing to show what was committed before. An engine that promises this only
    after a while is tested through this class.
    """

    def __init__(self, metadata: Metadata, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._metadata = metadata
        self._catch_up = catch_up

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._metadata, name)
        if name not in LISTINGS:
            return method

        async def listing(*given: Any, **named: Any) -> Any:
            await self._catch_up()
            return await method(*given, **named)

        return listing


async def given_tasks(engine: Engine, n: int = 1, run_id: RunId = RUN) -> list[Task]:
    """Tasks of an open run, due now."""
    new = new_tasks(run_id, n)
    await add_rows(engine.tasks, run_id, new)
    await engine.work.enqueue(run_id, ids_of(new))
    return await rows(engine, run_id)


async def rows(engine: Engine, run_id: RunId = RUN) -> list[Task]:
    """All tasks of a run, whole, page by page."""
    found, after = list[Task](), -1
    while True:
        page = await engine.tasks.page(run_id, limit=MANY, after=after, whole=True)
        found += page.tasks
        if page.cursor is None:
            return found
        after = page.cursor


async def given_claim(engine: Engine) -> Task:
    """The only task of a run, claimed."""
    await given_tasks(engine)
    [task] = await claim(engine)
    return task


async def claim(engine: Engine, want: int = 1, run_id: RunId = RUN) -> list[Task]:
    """Claim up to `want` tasks, in many calls: one may return fewer than there are.

    Final tasks are acked as they come, as a dispatcher does.
    """
    taken: list[Task] = []
    for _ in range(TRIES):
        given = await _claim_once(engine, want - len(taken), run_id)
        await ack(engine, [task for task in given if task.is_final])
        taken += [task for task in given if not task.is_final]
        if len(taken) == want:
            break
    return taken


async def claim_final(engine: Engine, run_id: RunId = RUN) -> list[Task]:
    """Claim the first final tasks that come, if any, and do not ack them."""
    for _ in range(TRIES):
        given = await _claim_once(engine, 1, run_id)
        assert all(task.is_final for task in given)
        if given:
            return given
    return []


async def ack(engine: Engine, tasks: Iterable[Task]) -> None:
    await engine.work.ack([held(task) for task in tasks])


async def settle(engine: Engine, task: Task, decision: SettleDecision) -> bool:
    [took_effect] = await engine.work.settle([settlement(task, decision)])
    return took_effect


async def _claim_once(engine: Engine, want: int, run_id: RunId) -> list[Task]:
    given = list(await engine.work.claim({run_id: want}))
    assert len(given) <= want, "more was given than was wanted"
    # A listed task and a claimed one each lack some fields; the rest must be equal.
    kept = [as_claimed(await stored(engine, task)) for task in given]
    assert [as_listed(task) for task in given] == [
        as_redelivered(row) if task.is_final and task.problem is None else row
        for task, row in zip(given, kept, strict=True)
    ]
    return given


async def stored(engine: Engine, task: Task) -> Task:
    found = await engine.tasks.get(task.run_id, task.id)
    assert found is not None, f"task {task.id} is gone"
    return found


async def let_lapse(engine: Engine, times: int) -> Task:
    """Claim the only task `times` times, and let each lease lapse."""
    for _ in range(times):
        [task] = await claim(engine)
        await engine.pass_time(engine.lease)
    return task


async def counts_of(engine: Engine, run_id: RunId = RUN) -> Counts:
    counts = await engine.tasks.counts([run_id])
    return counts[run_id]


async def failures_of(engine: Engine, run_id: RunId = RUN) -> dict[FailureKey, int]:
    groups = await engine.tasks.failure_groups(run_id)
    return {group.key: group.count for group in groups}


async def all_of(
    engine: Engine, task: Task
) -> tuple[Task, list[Attempt], Counts, dict[FailureKey, int]]:
    """Everything that a settle could change."""
    history = list(await engine.tasks.history(task.run_id, task.id))
    counts, failures = await counts_of(engine, task.run_id), await failures_of(engine, task.run_id)
    return await stored(engine, task), history, counts, failures


async def joined(
    page: Callable[[Any], Awaitable[Sequence[T]]],
    cursor: Callable[[T], Any],
    *,
    size: int,
    start: Any = None,
) -> list[T]:
    """All rows of a listing, in pages of at most `size`, each after the last row before it."""
    listed, after = list[T](), start
    while rows := await page(after):
        assert len(rows) <= size
        listed += rows
        after = cursor(rows[-1])
    return listed


def by_index(tasks: Iterable[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: task.index)
