"""Metadata in memory."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

from conveyor.adapters.memory.answers import MemoryAnswers
from conveyor.domain.api_key import ApiKey
from conveyor.domain.batch import Batch
from conveyor.domain.deletion import Deletion
from conveyor.domain.export import Export
from conveyor.domain.file_input import FileInput
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.outbox import OutboxEvent
from conveyor.domain.run import Run, RunStatus
from conveyor.domain.signing import SigningKeys
from conveyor.errors import KeyTaken, Stale
from conveyor.ports.metadata import JOBS_BYTES, Change, Removed, Row


class MemoryMetadata:
    def __init__(self, answers: MemoryAnswers) -> None:
        self._answers = answers
        self._jobs: dict[JobId, Job] = {}
        self._runs: dict[RunId, Run] = {}
        self._batches: dict[tuple[str, int], Batch] = {}
        self._deletions: dict[str, Deletion] = {}
        self.inputs: dict[str, FileInput] = {}
        self.exports: dict[str, Export] = {}
        self.events: dict[str, OutboxEvent] = {}
        self.signing_keys: dict[str, SigningKeys] = {}
        self.api_keys: dict[str, ApiKey] = {}

    async def commit(self, *changes: Change) -> None:
        for change in changes:
            self._check_key(change)
        for change in changes:
            self._check_version(change)
        for change in changes:
            self._write(change)

    async def job(self, job_id: JobId) -> Job | None:
        return self._jobs.get(job_id)

    async def run(self, run_id: RunId) -> Run | None:
        return self._runs.get(run_id)

    async def jobs(
        self,
        caller: CallerId,
        *,
        limit: int,
        before: str | None = None,
        status: JobStatus | None = None,
        kind: JobType | None = None,
    ) -> Sequence[tuple[Job, Run | None]]:
        asked = [
            job
            for job in self._jobs.values()
            if job.caller == caller and _is_asked_for(job, status, kind)
        ]
        return [
            (job, self._runs.get(job.latest_run_id) if job.latest_run_id else None)
            for job in within(_newest_first(asked, lambda job: job.id, before)[:limit])
        ]

    async def runs(
        self, job_id: JobId, *, limit: int, before: str | None = None, deleted: bool = False
    ) -> Sequence[Run]:
        runs = [
            run
            for run in self._runs.values()
            if run.job_id == job_id and (deleted or run.status is not RunStatus.DELETED)
        ]
        return _newest_first(runs, lambda run: run.id, before)[:limit]

    async def live(self, *, limit: int, after: str = "") -> Sequence[tuple[Run, Job]]:
        live = sorted(run_id for run_id, run in self._runs.items() if run.is_live)
        rest = [self._runs[run_id] for run_id in live if run_id > after][:limit]
        jobs = within([self._jobs[run.job_id] for run in rest])
        return list(zip(rest, jobs, strict=False))

    async def batches(self, *, limit: int, after: tuple[str, int] = ("", -1)) -> Sequence[Batch]:
        rest = sorted(place for place in self._batches if place > after)
        return [self._batches[place] for place in rest[:limit]]

    async def deletions(self, *, limit: int, after: str = "") -> Sequence[Deletion]:
        rest = sorted(name for name in self._deletions if name > after)
        return [self._deletions[name] for name in rest[:limit]]

    def every_job(self) -> list[Job]:
        return sorted(self._jobs.values(), key=lambda job: job.id)

    def _check_key(self, change: Change) -> None:
        if not isinstance(change, IdempotencyRecord):
            return
        if self._answers.standing(change.caller, change.key):
            raise KeyTaken(f"the idempotency key {change.key!r} is taken")

    def _check_version(self, change: Change) -> None:
        if isinstance(change, Removed | IdempotencyRecord):
            return
        stored = self._stored(change)
        if change.version != (stored.version if stored else 0):
            raise Stale(f"{type(change).__name__} moved on from version {change.version}")

    def _stored(self, change: Row) -> Row | None:
        return self._table(change).get(_place(change))

    def _write(self, change: Change) -> None:
        match change:
            case Removed(row):
                self._table(row).pop(_place(row), None)
            case IdempotencyRecord():
                self._answers.keep(change)
            case _:
                raised = msgspec.structs.replace(change, version=change.version + 1)
                self._table(change)[_place(change)] = raised

    def _table(self, row: Row) -> dict[Any, Any]:
        """Where rows of this kind are, by their place."""
        match row:
            case Job():
                return self._jobs
            case Run():
                return self._runs
            case Batch():
                return self._batches
            case Deletion():
                return self._deletions
            case FileInput():
                return self.inputs
            case Export():
                return self.exports
            case OutboxEvent():
                return self.events
            case SigningKeys():
                return self.signing_keys
            case ApiKey():
                return self.api_keys


_Listed = TypeVar("_Listed", Job, Run)


def within(jobs: Sequence[Job]) -> Sequence[Job]:
    """The first jobs, as many as a page may hold."""
    used = list(accumulate(len(msgspec.json.encode(job)) for job in jobs))
    return jobs[: max(bisect_right(used, JOBS_BYTES), 1)]


def _place(row: Row) -> str | tuple[str, int]:
    return (row.run_id, row.first) if isinstance(row, Batch) else row.id


def _is_asked_for(job: Job, status: JobStatus | None, kind: JobType | None) -> bool:
    fits = job.status is not JobStatus.DELETED if status is None else job.status is status
    return fits and (kind is None or job.type is kind)


def _newest_first(
    rows: Sequence[_Listed], name: Callable[[_Listed], str], before: str | None
) -> list[_Listed]:
    rest = [row for row in rows if before is None or name(row) < before]
    return sorted(rest, key=name, reverse=True)
