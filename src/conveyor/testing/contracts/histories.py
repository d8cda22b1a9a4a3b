"""Random histories of a run: after any calls in any order, its rows equal those of a model."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conveyor.domain import task as task_rules
from conveyor.domain.counts import ZERO, Spend
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import TaskId
from conveyor.domain.task import MOST_LOST, Attempt, SettleDecision, Settlement, Task, TaskStatus
from conveyor.errors import Stale
from conveyor.ports.work import Held
from conveyor.testing.contracts.engine import MANY, Engine, failures_of, given_tasks
from conveyor.testing.factories import (
    RUN,
    held,
    refused,
    released,
    scraped,
    settlement,
    to_retry,
    uncharged,
)

TASKS = 5
ROUNDS = 200


class Claim(msgspec.Struct, frozen=True):
    want: int


class Wait(msgspec.Struct, frozen=True):
    by: timedelta


class Renew(msgspec.Struct, frozen=True):
    picks: frozenset[int]


class SettleSome(msgspec.Struct, frozen=True):
    picks: frozenset[int]
    decision: SettleDecision


class Ack(msgspec.Struct, frozen=True):
    picks: frozenset[int]


class Release(msgspec.Struct, frozen=True):
    overdue: timedelta


class Lose(msgspec.Struct, frozen=True):
    """Claim all due tasks and let the leases lapse, `times` times."""

    times: int


class Enqueue(msgspec.Struct, frozen=True):
    pass


Step = Claim | Wait | Renew | SettleSome | Ack | Release | Lose | Enqueue

DURATIONS = st.integers(0, 200_000).map(lambda n: timedelta(milliseconds=n))
SHORT = st.integers(1, 5).map(lambda n: timedelta(seconds=n))
SPENDS = st.builds(Spend, st.integers(0, 9), st.integers(0, 10**9))
DECISIONS = st.one_of(
    st.builds(scraped, spend=SPENDS),
    st.builds(refused, reason=st.sampled_from(FailureReason), spend=SPENDS),
    st.builds(to_retry, delay=DURATIONS, spend=SPENDS),
    st.builds(uncharged, wait=DURATIONS),
)
# Which of the claims made so far, counted back from the newest: stale ones are among them.
PICKS = st.frozensets(st.integers(0, 2 * TASKS), min_size=1, max_size=TASKS)
# Few of many are claimed and time passes in between, so that tasks come due at different times.
STEPS = st.lists(
    st.one_of(
        st.builds(Claim, st.integers(1, 2)),
        st.builds(Claim, st.integers(1, TASKS + 1)),
        st.builds(Wait, DURATIONS),
        st.builds(Wait, SHORT),
        st.builds(Renew, PICKS),
        st.builds(SettleSome, PICKS, DECISIONS),
        st.builds(Ack, PICKS),
        st.builds(Release, DURATIONS),
        st.builds(Lose, st.sampled_from([1, 2, MOST_LOST - 1])),
        st.builds(Enqueue),
    ),
    min_size=20,
    max_size=40,
)


class HistoriesContract:
    """An engine passes by providing an `open_engine` fixture that opens a new one each time."""

    @settings(
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(steps=STEPS)
    async def test_every_history_leaves_what_the_domain_says(
        self, open_engine: Callable[[], AbstractAsyncContextManager[Engine]], steps: list[Step]
    ) -> None:
        async with open_engine() as engine:
            history = History(engine, await given_tasks(engine, TASKS))
            for step in steps:
                await history.take(step)
                await history.check_rows()
            await history.finish()
            await history.check_all()
            await history.drain()
            await history.check_all()


class Model:
    """The rows of a run as they must be, by the domain's functions alone."""

    def __init__(self, tasks: Iterable[Task], lease: timedelta, holder: str) -> None:
        self.tasks = {task.id: task for task in tasks}
        self.lines: defaultdict[TaskId, list[Attempt]] = defaultdict(list)
        self.counts = ZERO
        self._lease = lease
        self._holder = holder

    def due(self, now: datetime) -> list[Task]:
        return [task for task in self.tasks.values() if task_rules.is_due(task, now)]

    def lapsed(self, then: datetime) -> list[Task]:
        return [task for task in self.due(then) if task.status is TaskStatus.PROCESSING]

    def claim(self, task_id: TaskId, now: datetime) -> Task:
        before = self.tasks[task_id]
        after = task_rules.claim(before, now, self._lease, holder=self._holder)
        if before.status is TaskStatus.PROCESSING:
            self._lose(before, after, now)
        self.tasks[task_id] = after
        return after

    def release(self, task_id: TaskId, now: datetime) -> None:
        before = self.tasks[task_id]
        after = task_rules.release(before, now)
        self._lose(before, after, now)
        self.tasks[task_id] = after

    def renew(self, held: Held, now: datetime) -> bool:
        """Renew a claim, and return whether it still holds its task."""
        try:
            renewed = task_rules.renew(
                self.tasks[held.task_id], held.claim_no, now, self._lease, holder=self._holder
            )
        except Stale:
            return False
        self.tasks[held.task_id] = renewed
        return True

    def settle(self, ending: Settlement, now: datetime) -> bool:
        """Settle a claim, and return whether it still held its task."""
        before = self.tasks[ending.task_id]
        try:
            after = task_rules.settle(
                before, ending.claim_no, ending.decision, now, holder=self._holder
            )
        except Stale:
            return False
        line = task_rules.line(before, ending.decision, now)
        self.lines[ending.task_id] += [line] if line else []
        self.counts += task_rules.counted(ending.decision)
        self.tasks[ending.task_id] = after
        return True

    def _lose(self, before: Task, after: Task, now: datetime) -> None:
        self.lines[before.id].append(task_rules.lost_line(before, now))
        if after.is_final:
            lost = SettleDecision(status=after.status, charged=False, reason=after.reason)
            self.counts += task_rules.counted(lost)


class History:
    """An engine and its model, side by side."""

    def __init__(self, engine: Engine, tasks: Sequence[Task]) -> None:
        self._engine = engine
        self._model = Model(tasks, engine.lease, engine.holder)
        self._claims: list[Task] = []
        self._acked: set[Held] = set()  # while their tasks were final

    async def take(self, step: Step) -> None:
        match step:
            case Claim(want):
                await self._claim(want)
            case Wait(by):
                await self._engine.pass_time(by)
            case Renew(picks):
                await self._renew(self._picked(picks))
            case SettleSome(picks, decision):
                await self._settle(self._picked(picks), decision)
            case Ack(picks):
                await self._ack(self._picked(picks))
            case Release(overdue):
                await self._release(overdue)
            case Lose(times):
                await self._lose(times)
            case Enqueue():
                await self._engine.work.enqueue(RUN, list(self._model.tasks))

    async def finish(self) -> None:
        """Bring every task to an end: none may be stuck, whatever its history was."""
        for _ in range(ROUNDS):
            if self._is_over():
                break
            given = await self._claim(TASKS)
            await self._settle(given, scraped())
            await self._ack(task for task in given if task.is_final)
            await self._engine.pass_time(self._engine.lease)
        assert self._is_over(), "a task is stuck"
        await self.check_rows()

    async def drain(self) -> None:
        """Ack final tasks as they come, until each was acked.

        On engines with messages, a worker that died before its ack left a message behind.
        """
        for _ in range(ROUNDS):
            await self._engine.pass_time(self._engine.lease)
            given = await self._claim(MANY)
            await self._ack(given)
            if not given and not self._to_be_redelivered():
                return
        raise AssertionError(
            f"final tasks that were not delivered again, or for ever: {self._to_be_redelivered()}"
        )

    async def check_rows(self) -> None:
        assert await self._rows() == list(self._model.tasks.values())

    async def check_all(self) -> None:
        counts = await self._engine.tasks.counts([RUN])
        assert counts[RUN] == self._model.counts
        assert counts[RUN].done == TASKS
        rows = self._model.tasks.values()
        failed = Counter(task_rules.failure_of(task) for task in rows if task.reason)
        assert await failures_of(self._engine) == failed
        for task_id in self._model.tasks:
            history = await self._engine.tasks.history(RUN, task_id)
            assert list(history) == self._model.lines[task_id]

    async def _claim(self, want: int) -> list[Task]:
        now = self._engine.clock.now()
        due = {task.id: task for task in self._model.due(now)}
        given = list(await self._engine.work.claim({RUN: want}))
        assert len(given) <= want
        assert given == [self._claimed_or_final(task.id, now) for task in given]
        self._check_order(due, given)
        self._claims += given
        return given

    def _claimed_or_final(self, task_id: TaskId, now: datetime) -> Task:
        """What a claim should return: a task that was final before is only delivered again."""
        task = self._model.tasks[task_id]
        is_redelivered = task.is_final and self._engine.hinted
        return (
            task_rules.as_redelivered(task) if is_redelivered else self._model.claim(task_id, now)
        )

    def _check_order(self, due: dict[TaskId, Task], taken: Sequence[Task]) -> None:
        if self._engine.ordered:
            times = [due.pop(task.id).due_at for task in taken]
            left = [task.due_at for task in due.values()]
            assert all(time <= other for time in times for other in left if time and other)

    async def _renew(self, claims: Sequence[Task]) -> None:
        now = self._engine.clock.now()
        asked = [held(task) for task in claims]
        fallen = await self._engine.work.renew(asked)
        assert set(fallen) == {each for each in asked if not self._model.renew(each, now)}

    async def _settle(self, claims: Sequence[Task], decision: SettleDecision) -> None:
        now = self._engine.clock.now()
        endings = [settlement(task, decision) for task in claims]
        settled = await self._engine.work.settle(endings)
        assert list(settled) == [self._model.settle(ending, now) for ending in endings]

    async def _ack(self, claims: Iterable[Task]) -> None:
        acked = {held(task) for task in claims}
        await self._engine.work.ack(list(acked))
        self._acked |= acked & self._final()

    async def _release(self, overdue: timedelta) -> None:
        now = self._engine.clock.now()
        lapsed = self._model.lapsed(now - overdue)
        freed = await self._engine.work.release_lapsed(RUN, overdue=overdue, limit=MANY)
        for task in lapsed:
            self._model.release(task.id, now)
        assert set(freed) == {
            released(task, failed=self._model.tasks[task.id].is_final) for task in lapsed
        }

    async def _lose(self, times: int) -> None:
        for _ in range(times):
            await self._claim(TASKS)
            await self._engine.pass_time(self._engine.lease)

    def _to_be_redelivered(self) -> set[Held]:
        """Final tasks whose messages must still be delivered again."""
        return self._final() - self._acked if self._engine.hinted else set()

    def _final(self) -> set[Held]:
        return {held(task) for task in self._model.tasks.values() if task.is_final}

    def _is_over(self) -> bool:
        return all(task.is_final for task in self._model.tasks.values())

    def _picked(self, picks: frozenset[int]) -> list[Task]:
        recent = self._claims[::-1]
        return [recent[pick] for pick in sorted(picks) if pick < len(recent)]

    async def _rows(self) -> list[Task]:
        return list((await self._engine.tasks.page(RUN, limit=MANY)).tasks)
