"""Random histories of the whole service, step by step, with deaths and races in their middle."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from conveyor.steps.control import ControlWorker
from tests.simulation import calls
from tests.simulation.book import KnownJob, KnownRun
from tests.simulation.callers import CALLERS, DAY, Callers
from tests.simulation.calls import FILTERS
from tests.simulation.rest import come_to_rest
from tests.simulation.world import LEASE, Moment, World, is_death

Step = Callable[["Machine"], Awaitable[Sequence[KnownJob]]]


@dataclass(frozen=True, slots=True)
class Fault:
    """At the nth call of a port the process dies, or another step is made in between."""

    nth: int
    moment: Moment
    meanwhile: "Doing | None" = None


@dataclass(frozen=True, slots=True)
class Doing:
    """A step to make, by name, so that it can be made in the middle of another."""

    verb: str
    given: tuple[tuple[str, Any], ...] = ()

    def __repr__(self) -> str:
        return f"{self.verb}({', '.join(f'{name}={value!r}' for name, value in self.given)})"


def doing(verb: str, /, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Doing]:
    names = tuple(given)
    return st.tuples(*given.values()).map(
        lambda values: Doing(verb, tuple(zip(names, values, strict=True)))
    )


FEW = 3  # jobs at a time, so that much happens to each
JOB = st.integers(0, 39)
WHO = st.sampled_from(CALLERS)
KEYS = st.sampled_from(["none", "none", "fresh", "fresh", "used"])
OUTCOMES = st.lists(
    st.sampled_from(
        [
            *["page"] * 7,
            *["fail"] * 4,
            "spooled",
            "spooled",
            "retry",
            "retry",
            "throttled",
            "blocked",
        ]
    ),
    min_size=1,
    max_size=4,
)
STATUSES = st.sampled_from(
    ["", "", "failed", "pending", "successful", "failed,pending", "processing", "successful,failed"]
)
DURATIONS = st.sampled_from([2, 2, 2, 31, 31, 61, 660, 90_000, 15 * 86_400]).map(
    lambda seconds: timedelta(seconds=seconds)
)

SUBMIT = doing(
    "submit",
    caller=WHO,
    count=st.sampled_from([2, 0, 1, 3, 4, 5, 7, 9, 12]),
    opened=st.booleans(),
    key=KEYS,
    ttl_days=st.sampled_from([1, 14]),
)
ADD = doing("add", job=JOB, count=st.integers(1, 4), last_batch=st.booleans(), key=KEYS)
CONDITIONS = st.sampled_from(["", "", "", "host", "code", "reason", "task_ids", "scraped_before"])
WAITS = st.sampled_from(["kept", "set", "set", "removed"])
RERUN = doing("rerun", job=JOB, statuses=STATUSES, condition=CONDITIONS, wait=WAITS, key=KEYS)
TURN = doing("turn", job=JOB, verb=st.sampled_from(["close", "stop", "pause", "resume"]))
DELETE = doing("delete", job=JOB, run=st.none() | st.integers(0, 3))
REPEAT = doing("repeat", pick=st.integers(0, 7), altered=st.booleans())
INTRUDE = doing("intrude", job=JOB, how=st.integers(0, 11))
PAGE = doing(
    "page",
    job=JOB,
    run=st.integers(0, 2),
    limit=st.integers(1, 5),
    status=st.sampled_from(list(FILTERS)),
)
READ = doing("read", job=JOB, task=st.integers(0, 11))
LIST = doing("list_jobs", caller=WHO, limit=st.integers(1, 4))
WORK = doing("work", each=st.sampled_from([20, 1, 3]), outcomes=OUTCOMES)
CLAIM = doing("claim", each=st.integers(1, 4))
SLEEP = doing("sleep", each=st.sampled_from([20, 1]))
LAND = doing("land", count=st.integers(1, 6), late=st.booleans(), outcomes=OUTCOMES)
CONTROL = doing("control", times=st.sampled_from([1, 5]))
SWEEP = doing("sweep", times=st.sampled_from([1, 2]))
MOMENTS = st.sampled_from(["before", "after"])
NTH = st.integers(0, 11)
DYING = st.just(-1) | NTH
LONGEST_WAIT = 1.0  # seconds; what happens in the middle of a step takes milliseconds


def any_of(*weighted: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """One of these, each as often as it weighs."""
    heavy = [strategy for weight, strategy in weighted for _ in range(weight)]
    return st.sampled_from(heavy).flatmap(lambda chosen: chosen)


CALLS = any_of((3, SUBMIT), (3, ADD), (5, RERUN), (4, TURN), (3, DELETE), (2, REPEAT))
LABOURS = any_of((5, WORK), (2, CLAIM), (2, SLEEP), (5, LAND), (3, CONTROL), (2, SWEEP))
LOOKS = any_of((4, PAGE), (1, READ), (1, LIST), (1, INTRUDE))
IN_BETWEEN = any_of((3, CALLS), (2, LABOURS))
DEATHS = st.builds(Fault, NTH, MOMENTS)
RACES = st.builds(Fault, NTH, MOMENTS, IN_BETWEEN)
FAULTS = any_of((1, DEATHS), (3, RACES))


SUITS: dict[str, Callable[[KnownJob], bool]] = {
    "add": lambda job: not job.closed and job.is_live,
    "rerun": lambda job: bool(job.newest) and not job.is_live,
    "turn": lambda job: job.is_live,
    "delete": lambda job: len(job.runs) > 1,
}


class Machine(RuleBasedStateMachine):
    """Each rule is a step; after it, what it touched is inspected."""

    def __init__(self, runner: asyncio.Runner, folder: Path) -> None:
        super().__init__()
        self.runner = runner
        self.world = self.new_world(folder)
        self.callers = Callers(self.world)
        self.failure: Exception | None = None
        self.job: KnownJob | None = None  # the last that something was done to
        self.waited = False
        self.beside: asyncio.Task[None] | None = None  # what happens in the middle of a step
        self.steps = 0
        self.runner.run(self.world.start())

    def new_world(self, folder: Path) -> World:
        return World(folder)

    def teardown(self) -> None:
        self.runner.run(self._end())

    async def _end(self) -> None:
        try:
            if not self.failure:
                await come_to_rest(self.world, self.callers)
        except Exception as error:
            self.failure = error
            raise
        finally:
            await self.world.end()

    def _has_jobs(self) -> bool:
        return bool(self.callers.jobs)

    @initialize(step=SUBMIT)
    def begin(self, step: Doing) -> None:
        self._make(step)

    @rule(step=any_of((3, CALLS), (1, LOOKS)))
    def call(self, step: Doing) -> None:
        self._make(step)

    @rule(step=any_of((5, CALLS), (1, LOOKS)), fault=FAULTS)
    def call_amid(self, step: Doing, fault: Fault) -> None:
        self._make(step, fault)

    @precondition(_has_jobs)
    @rule(step=LABOURS)
    def labour(self, step: Doing) -> None:
        self._make(step)

    @precondition(_has_jobs)
    @rule(step=LABOURS, fault=FAULTS)
    def labour_amid(self, step: Doing, fault: Fault) -> None:
        self._make(step, fault)

    @precondition(_has_jobs)
    @rule(control=CONTROL, step=WORK)
    def work_in_peace(self, control: Doing, step: Doing) -> None:
        self._make(control)
        self._make(step)
        self.steps -= 1

    @precondition(lambda self: not self.waited)
    @rule(by=DURATIONS, then=any_of((5, st.just("")), (4, st.just("renew")), (1, DYING)))
    def wait(self, by: timedelta, then: str | int) -> None:
        """Time passes; workers kept their leases, or not; or the process died between two steps,
        and maybe again as it started.
        """
        self.steps += 1
        self.waited = True
        if then == "renew":
            self.runner.run(self.world.renew())
        self.world.clock.advance(by)
        if by >= DAY:  # no call takes so long: what was claimed is never finished
            self.world.forget_claims()
        if isinstance(then, int):
            self.runner.run(self._restart(then))

    def _make(self, step: Doing, fault: Fault | None = None) -> None:
        self.steps += 1
        self.waited = False
        try:
            self.runner.run(self._go(step, fault))
        except Exception as error:
            self.failure = error
            raise

    async def _go(self, step: Doing, fault: Fault | None) -> None:
        touched: list[KnownJob] = []
        self.world.fate.forget()
        if fault:
            self.world.fate.plan(fault.nth, fault.moment, self._blow(fault, touched))
        try:
            touched += await self._do(step)
            await self._join_beside()
        except BaseException as error:
            if self.beside:
                self.beside.cancel()
                self.beside = None
            if self.failure:
                raise self.failure from error
            if not is_death(error):
                raise
        struck = self.world.fate.struck
        self.world.fate.forget()
        if fault and fault.meanwhile is None:
            await self._restart()
        elif fault and fault.meanwhile and not struck:
            touched += await self._do(fault.meanwhile)
        for job in {job.id: job for job in touched}.values():
            await self.callers.inspect(job)

    def _blow(self, fault: Fault, touched: list[KnownJob]) -> Callable[[], Awaitable[None]]:
        async def meanwhile() -> None:
            assert fault.meanwhile
            self.callers.meanwhile = True
            try:
                touched.extend(await self._do(fault.meanwhile))
            except Exception as error:  # noqa: BLE001 - it is raised again below
                # What is found here must not be taken for an error of the step around it.
                self.failure = error
                await self.world.fate.die()
            finally:
                self.callers.meanwhile = False

        async def begin() -> None:
            # It may wait for the step in whose middle it begins, such as for a read that both share.
            # Then that step goes on.
            self.beside = asyncio.create_task(meanwhile())
            done, _ = await asyncio.wait({self.beside}, timeout=LONGEST_WAIT)
            if done:
                await self._join_beside()

        return begin if fault.meanwhile else self.world.fate.die

    async def _join_beside(self) -> None:
        beside, self.beside = self.beside, None
        if beside:
            await beside

    async def _restart(self, nth: int = -1) -> None:
        """A new process owns the folder; with `nth`, one before it died at that call of a port."""
        if nth >= 0:
            self.world.fate.plan(nth, "before", self.world.fate.die)
            await self.world.kill()
            try:
                await self.world.start()
            except BaseException as error:
                if not is_death(error):
                    raise
        await self.world.restart()
        await self.callers.resolve()
        for job in self.callers.jobs:
            await self.callers.inspect(job)

    async def _do(self, step: Doing) -> Sequence[KnownJob]:
        given = dict(step.given)
        if step.verb == "submit" and len(self.callers.alive) >= FEW:
            return []
        if "job" in given:
            job = self._job(step.verb, given.pop("job"))
            given = {"job": job, **given} if job else {}
        if not given:
            return []
        touched: Sequence[KnownJob] = await (
            getattr(calls, step.verb)(self.callers, **given)
            if hasattr(calls, step.verb)
            else getattr(self, f"_{step.verb}")(**given)
        )
        return touched

    def _job(self, verb: str, pick: int) -> KnownJob | None:
        """What happens in the middle of something happens to the same job more often than not."""
        if self.callers.meanwhile and pick % 4 and self.job:
            return self.job
        self.job = self.callers.job(pick, SUITS.get(verb))
        return self.job

    async def _work(self, each: int, outcomes: Sequence[str]) -> Sequence[KnownJob]:
        """Take tasks and finish them at once."""
        before = len(self.world.claimed)
        tasks = await self.world.claim(each)
        await self.world.finish(self.world.claimed[before:], outcomes)
        return self._jobs_of([task.run_id for task in tasks])

    async def _claim(self, each: int) -> Sequence[KnownJob]:
        tasks = await self.world.claim(each)
        return self._jobs_of([task.run_id for task in tasks])

    async def _sleep(self, each: int) -> Sequence[KnownJob]:
        """Workers sleep through their leases, others take their tasks over, and all wake up."""
        touched = await self._claim(each)
        self.world.clock.advance(LEASE)
        return [*touched, *await self._claim(each)]

    async def _land(self, count: int, late: bool, outcomes: Sequence[str]) -> Sequence[KnownJob]:
        """Finish tasks taken before, the latest or the longest held, whose lease may be over."""
        claimed = self.world.claimed[-count:] if late else self.world.claimed[:count]
        await self.world.finish(claimed, outcomes)
        return self._jobs_of([one.task.run_id for one in claimed])

    async def _control(self, times: int) -> Sequence[KnownJob]:
        worker = self.world.service.steps.control_worker
        if self.callers.meanwhile:
            # As another process does it: this one may be in the middle of its receive, of which it
            # makes one at a time.
            worker = ControlWorker(worker.control_queue, worker.handlers, self.world.clock)
        while times and await worker.step():
            times -= 1
        return self.callers.jobs[-1:]

    async def _sweep(self, times: int) -> Sequence[KnownJob]:
        for _ in range(times):
            await self.world.service.steps.sweep.step()
        return self.callers.jobs[-1:]

    def _jobs_of(self, run_ids: Sequence[str]) -> Sequence[KnownJob]:
        runs: list[KnownRun] = [
            run for job in self.callers.jobs for run in job.runs.values() if run.id in run_ids
        ]
        return [run.job for run in runs]
