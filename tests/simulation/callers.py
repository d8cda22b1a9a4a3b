"""The callers: what each asks for, what it hears, and what it holds the service to."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from tests.simulation.book import KnownJob, KnownRun
from tests.simulation.world import Answer, Request, World

Document = dict[str, Any]

CALLERS = ("first-caller", "second-caller")
HOSTS = ("one.example", "two.example")
DAY = timedelta(hours=24)
SECOND = timedelta(seconds=1)
UNAVAILABLE = 503  # the call may have taken effect


class Effect(Protocol):
    """What a call does if it takes effect, seen from its caller."""

    def took(self, told: Document) -> None:
        """The service said so."""
        ...

    async def find(self, callers: "Callers") -> bool:
        """No answer came: ask what became of it."""
        ...

    def is_told(self, told: Document) -> bool:
        """Whether a late answer tells of this very effect."""
        ...


@dataclass(slots=True, eq=False)
class Record:
    """A key that was claimed, by which request, and the answer if it was heard."""

    request: Request
    effect: Effect
    at: datetime
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class Doubt:
    request: Request
    effect: Effect
    at: datetime


@dataclass(slots=True, repr=False, eq=False)
class Callers:
    world: World
    jobs: list[KnownJob] = field(default_factory=list)
    keys: dict[tuple[str, str], Record] = field(default_factory=dict)
    repeatable: list[tuple[Request, Effect]] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    under_way: dict[tuple[str, str], Request] = field(default_factory=dict)
    heard: dict[tuple[str, str], Answer] = field(default_factory=dict)  # meanwhile, by its key
    made: int = 0  # names, urls and keys given out
    replayed: bool = False  # the last answer should be one given before
    meanwhile: bool = False  # this happens in the middle of another step
    tally: Counter[str] = field(default_factory=Counter)

    @property
    def undisturbed(self) -> bool:
        """Whether nothing happens in the middle of anything, and every call was answered."""
        return not self.world.fate.struck and not self.world.unanswered

    def number(self) -> int:
        self.made += 1
        return self.made

    def name(self, prefix: str) -> str:
        return f"{prefix}-{self.number()}"

    def urls(self, count: int) -> list[str]:
        return [f"https://{HOSTS[n % len(HOSTS)]}/{self.name('page')}" for n in range(count)]

    @property
    def alive(self) -> list[KnownJob]:
        return [job for job in self.jobs if job.deleted_at is None]

    def job(self, pick: int, suits: Callable[[KnownJob], bool] | None) -> KnownJob | None:
        """One of the jobs, counted back from the newest: as a rule one to which the step can
        happen, now and then any that is there, or a deleted one.
        """
        fit = [job for job in self.alive if suits is None or suits(job)]
        chosen = [self.jobs, self.alive, *[fit] * 6][-1 - pick % 8] or self.alive
        return chosen[-1 - pick // 8 % len(chosen)] if chosen else None

    def key(self, mode: str, caller: str) -> str | None:
        if mode == "used":
            used = [key for whose, key in self.keys if whose == caller]
            return used[-1] if used else None
        return self.name("key") if mode == "fresh" else None

    async def get(self, caller: str, path: str, query: str = "") -> Answer:
        return await self.world.call(Request(caller=caller, method="GET", path=path, query=query))

    async def act(self, request: Request, effect: Effect) -> Answer:
        """Make a call that changes something, and hold its answer to what its key promises (I9)."""
        slot = (request.caller, request.key or "")
        if slot in self.under_way:
            record = self._record(slot)
            answer = await self.world.call(request)
            if not self.world.lags:
                assert answer.code == "idempotency_key_conflict", answer
            elif record and answer.status < 300:
                self._check_again(request, record, answer)
            elif answer.status < 300 and request == self.under_way[slot]:
                # Another service was first. The call that is under way must be answered alike.
                self.heard[slot] = answer
            elif answer.status < 300:
                effect.took(answer.document)
                self.keys[slot] = Record(request, effect, self.world.clock.now(), answer)
            return answer
        if request.key:
            self.under_way[slot] = request
        if record := self._record(slot):
            answer = await self.world.call(request)
            self._check_again(request, record, answer)
        else:
            answer = await self._first(request, effect)
            if heard := self.heard.pop(slot, None):
                assert (answer.status, answer.body) == (heard.status, heard.body), (answer, heard)
        self.replayed = record is not None
        self.under_way.pop(slot, None)
        return answer

    def _record(self, slot: tuple[str, str]) -> Record | None:
        """What the key promises, while it does."""
        record = self.keys.get(slot)
        return record if record and self.world.clock.now() < record.at + DAY else None

    def _check_again(self, request: Request, record: Record, answer: Answer) -> None:
        if answer.status == UNAVAILABLE:
            return
        if request != record.request:
            assert answer.code == "idempotency_key_conflict", (request, record, answer)
        elif record.answer is None:
            assert answer.status < 300, answer
            assert record.effect.is_told(answer.document), (answer, record)
            record.answer = answer
        else:
            known = (record.answer.status, record.answer.body)
            assert (answer.status, answer.body) == known, (answer, record)

    async def _first(self, request: Request, effect: Effect) -> Answer:
        slot = (request.caller, request.key or "")
        doubt = Doubt(request, effect, self.world.clock.now())
        if request.key:
            self.repeatable.append((request, effect))
        self.doubts.append(doubt)
        answer = await self.world.call(request)
        self.doubts.remove(doubt)
        if answer.status == UNAVAILABLE:
            with self.world.fate.held_off():
                await self._settle_doubt(doubt)
        elif answer.status < 300:
            effect.took(answer.document if answer.body else {})
            if request.key:
                self.keys[slot] = Record(request, effect, doubt.at, answer)
        return answer

    async def resolve(self) -> None:
        """After a death: find out what became of the calls that were not answered."""
        doubts, self.doubts = self.doubts, []
        self.heard.clear()
        self.under_way.clear()
        with self.world.fate.held_off():
            for doubt in doubts:
                await self._settle_doubt(doubt)

    async def _settle_doubt(self, doubt: Doubt) -> None:
        took = await doubt.effect.find(self)
        self.tally[f"died {type(doubt.effect).__name__} {took}"] += 1
        if took and doubt.request.key:
            slot = (doubt.request.caller, doubt.request.key)
            self.keys[slot] = Record(doubt.request, doubt.effect, doubt.at)

    async def inspect(self, job: KnownJob, *also: KnownRun) -> None:
        """Look at a job, all its runs, and the rows of its newest run and of some others."""
        with self.world.fate.held_off():
            await self._inspect(job, *also)

    async def _inspect(self, job: KnownJob, *also: KnownRun) -> None:
        path = f"/v1/jobs/{job.id}"
        self.world.clock.advance(SECOND)  # so that counts which pollers share are read again
        answer = await self.get(job.caller, path)
        if job.deleted_at:
            assert answer.status == 404, f"a deleted job is shown: {answer}"
            return
        assert answer.status == 200, f"a job is gone: {answer}"
        job.look(answer.document)
        runs = (await self.get(job.caller, f"{path}/runs", "limit=100")).document["runs"]
        job.look_at_runs(runs)
        latest = answer.document.get("latest_run")
        if latest:  # listings leave these out
            latest["stats"].pop("in_flight", None)
            latest["stats"].pop("waiting_for_retry", None)
        assert latest == (runs[0] if runs else None)
        for run in _sources_first(job.newest, *also):
            run.look_at_rows(await self.rows(run), self.world.clock.now())

    async def rows(self, run: KnownRun, status: str = "all") -> list[Document]:
        path = f"/v1/jobs/{run.job.id}/runs/{run.id}/results"
        with self.world.fate.held_off():
            answer = await self.get(run.job.caller, path, f"limit=1000&status={status}")
        assert answer.status == 200, answer
        return list(answer.document["results"])

    def check_there(self, job: KnownJob, answer: Answer, *, was_deleted: bool) -> None:
        """A job is 404 exactly when it was deleted; in the middle of something, nobody knows."""
        if self.meanwhile or self.replayed:
            return
        assert not (was_deleted and answer.status < 300), f"a deleted job answers: {answer}"
        if self.undisturbed:
            assert answer.status != 404 or job.deleted_at, f"a job is gone: {answer}"


def _sources_first(*runs: KnownRun | None) -> list[KnownRun]:
    """These runs, each after the run it was copied from: its rows are compared with those.

    Rows of a source that were looked at when the rerun was made need no second look.
    """
    known = [run for run in runs if run]
    unseen = [run.source for run in known if run.source and run.copies is None]
    wanted = {run.id: run for run in (*known, *unseen) if not run.gone}
    return [wanted[run_id] for run_id in sorted(wanted)]  # ids sort in the order they were made in
