"""What calls do if they take effect, and how to find out whether those did that died."""

from dataclasses import dataclass, field
from typing import Any

from tests.simulation.book import Asked, KnownJob, KnownRun, Lot
from tests.simulation.callers import Callers

Document = dict[str, Any]


@dataclass(slots=True, eq=False)
class Submitted:
    callers: Callers
    caller: str
    name: str
    urls: list[str]
    at_once: bool
    ttl_days: int
    opened: bool
    job: KnownJob | None = None

    def took(self, told: Document) -> None:
        assert all(job.id != told["job_id"] for job in self.callers.jobs), "an effect again"
        shown = told["latest_run"]
        assert told["accepted_tasks"] == len(self.urls) == shown["stats"]["total"]
        assert told["status"] == ("open" if self.opened else "closed")
        self._adopt(told["job_id"], shown["run_id"])

    def _adopt(self, job_id: str, run_id: str) -> None:
        job = self.job = KnownJob(
            job_id,
            self.caller,
            self.ttl_days,
            closed=not self.opened,
            skew=self.callers.world.skew,
        )
        job.listed = None if self.at_once or self.opened else self.urls
        job.runs[run_id] = KnownRun(run_id, job, [Lot(self.urls, whole=self.at_once)])
        self.callers.jobs.append(job)

    async def find(self, callers: Callers) -> bool:
        listed = (await callers.get(self.caller, "/v1/jobs", "limit=100")).document["jobs"]
        known = {job.id for job in callers.jobs}
        new = [job for job in listed if job["job_id"] not in known]
        assert len(new) <= 1, f"jobs nobody submitted: {new}"
        for shown in new:
            assert shown["name"] == self.name
            self._adopt(shown["job_id"], shown["latest_run"]["run_id"])
        return bool(new)

    def is_told(self, told: Document) -> bool:
        return self.job is not None and told["job_id"] == self.job.id


@dataclass(slots=True, eq=False)
class Added:
    callers: Callers
    job: KnownJob
    run: KnownRun
    urls: list[str]
    last_batch: bool

    def took(self, told: Document) -> None:
        assert told["accepted_tasks"] == len(self.urls)
        assert told["latest_run"]["run_id"] == self.run.id
        self._adopt(whole=self.callers.undisturbed)

    def _adopt(self, *, whole: bool) -> None:
        self.run.lots.append(Lot(self.urls, whole=whole))
        self.job.closed |= self.last_batch

    async def find(self, callers: Callers) -> bool:
        path = f"/v1/jobs/{self.job.id}/runs/{self.run.id}"
        answer = await callers.get(self.job.caller, path)
        if answer.status == 404 or self.run.source:  # nothing can be added to a rerun
            return False
        before = sum(len(lot.urls) for lot in self.run.lots)
        if self.run.source and self.run.seen:  # its rows are copies
            before = self.run.seen["stats"]["total"]
        took = bool(answer.document["stats"]["total"] == before + len(self.urls))
        if took:
            self._adopt(whole=False)
        return took

    def is_told(self, told: Document) -> bool:
        return bool(told["latest_run"]["run_id"] == self.run.id)


@dataclass(slots=True, eq=False)
class Reran:
    callers: Callers
    job: KnownJob
    asked: Asked
    source: KnownRun | None = None  # as far as the caller knows
    judged: dict[str, bool] = field(default_factory=dict)  # its final rows: whether to scrape them
    run: KnownRun | None = None

    def took(self, told: Document) -> None:
        shown = told["latest_run"]
        assert shown["run_id"] not in self.job.runs, "an effect again"
        assert told["retried_tasks"] + told["inherited_tasks"] == shown["stats"]["total"]
        self._adopt(shown["run_id"], told["rerun_of"])

    def _adopt(self, run_id: str, source_id: str) -> None:
        source = self.job.runs[source_id]
        self.run = KnownRun(run_id, self.job, source=source, asked=self.asked)
        if source is self.source:
            self.run.judged = self.judged
        self.job.runs[run_id] = self.run
        self.job.closed = True

    async def find(self, callers: Callers) -> bool:
        answer = await callers.get(self.job.caller, f"/v1/jobs/{self.job.id}/runs", "limit=100")
        if answer.status == 404:
            return False
        new = [run for run in answer.document["runs"] if run["run_id"] not in self.job.runs]
        assert len(new) <= 1, f"runs nobody asked for: {new}"
        for shown in new:
            source = self.job.newest
            assert source
            self._adopt(shown["run_id"], source.id)
        return bool(new)

    def is_told(self, told: Document) -> bool:
        return self.run is not None and told["latest_run"]["run_id"] == self.run.id


@dataclass(slots=True, eq=False)
class Deleted:
    """A job is, or one of its runs."""

    callers: Callers
    job: KnownJob
    run: KnownRun | None = None

    def took(self, told: Document) -> None:
        if self.run:
            self.run.gone = True
        else:
            self.job.deleted_at = self.job.deleted_at or self.callers.world.clock.now()

    async def find(self, callers: Callers) -> bool:
        path = f"/v1/jobs/{self.job.id}" + (f"/runs/{self.run.id}" if self.run else "")
        gone = (await callers.get(self.job.caller, path)).status == 404
        if gone:
            self.took({})
        return gone

    def is_told(self, told: Document) -> bool:
        return True


@dataclass(slots=True, eq=False)
class Turned:
    """Something that the next look tells: closed, stopped, paused, resumed."""

    run: KnownRun | None = None

    def took(self, told: Document) -> None:
        if self.run and told.get("run_id") == self.run.id:
            self.run.stopped = True

    async def find(self, callers: Callers) -> bool:
        return False

    def is_told(self, told: Document) -> bool:
        return True
