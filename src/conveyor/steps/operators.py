"""Operators: reads over all callers, and the redrive of dead letters.

The pages for callers read through `steps/read.py`, which knows one caller at a time. This module is the
only one that reads across callers, and only routes for operators call it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
import structlog

from conveyor.domain import run as run_rules
from conveyor.domain.api_key import ApiKey, KeyStatus
from conveyor.domain.api_key import status as key_status
from conveyor.domain.counts import Counts, total
from conveyor.domain.ids import ApiKeyId, CallerId, JobId, RunId
from conveyor.domain.job import Job, JobStatus
from conveyor.domain.progress import Waiting
from conveyor.domain.run import Run
from conveyor.errors import NotFound
from conveyor.ports.clock import Clock
from conveyor.ports.control_queue import DeadLetter, DeadLetters
from conveyor.ports.coordination import Coordination, Member
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.steps.shared.pagination import every, rows
from conveyor.steps.shared.run_waits import FindWaits, find_no_waits

PAGE = 100

log = structlog.get_logger()


class CallerView(msgspec.Struct, frozen=True, kw_only=True):
    """A caller's keys, and its live runs together."""

    caller: CallerId
    active_keys: int
    last_used_at: datetime | None
    live_runs: int
    open_tasks: int
    counts: Counts


class LiveRun(msgspec.Struct, frozen=True):
    job: Job
    run: Run
    settled: Counts
    waiting: Waiting | None


class EngineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an engine answered one small read, and how long that took."""

    holds: str  # the kind of state, by the name of its setting
    engine: str
    elapsed_ms: int
    error: str | None = None


class Health(msgspec.Struct, frozen=True):
    engines: Sequence[EngineHealth]
    disk_free: int | None  # bytes; None if no engine uses the data folder


@dataclass(slots=True)
class _Found:
    """What the listings of keys and of live runs have of one caller."""

    active_keys: int = 0
    last_used_at: datetime | None = None
    runs: list[Run] = field(default_factory=list)


class _FirstCallers:
    """The first callers by name, above `after`: `most` of them, whatever is listed.

    A caller that is dropped has `most` others before it, so it is not needed again, and one that is
    kept was kept from its first row on.
    """

    def __init__(self, most: int, after: str) -> None:
        self._most, self._after, self._last = most, after, ""
        self._found: dict[CallerId, _Found] = {}

    def get(self, caller: CallerId) -> _Found | None:
        """Return what was found of a caller so far; None if it is none of the first."""
        if caller <= self._after or (self._last and caller > self._last):
            return None
        found = self._found.setdefault(caller, _Found())
        if len(self._found) > 2 * self._most:
            self._found = dict(self.first())
            self._last = max(self._found)
        return found

    def first(self) -> list[tuple[CallerId, _Found]]:
        return sorted(self._found.items(), key=lambda one: one[0])[: self._most]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    metadata: Metadata
    tasks: Tasks
    control_queue: DeadLetters
    coordination: Coordination
    clock: Clock
    me: Member
    check_health: Callable[[], Awaitable[Health]]
    waits: FindWaits = find_no_waits

    async def callers(self, *, limit: int, after: str) -> tuple[list[CallerView], str | None]:
        """A page of the callers that have an API key or a live run, by name; and its cursor.

        No engine has an index of callers, so each page reads all API keys and all live runs. It
        keeps only those of the page.
        """
        first = _FirstCallers(limit + 1, after)
        now = self.clock.now()
        async for key in every(self.metadata, ApiKey):
            if found := first.get(key.caller):
                found.active_keys += key_status(key, now) is KeyStatus.ACTIVE
                uses = filter(None, (found.last_used_at, key.last_used_at))
                found.last_used_at = max(uses, default=None)
        live = rows(
            lambda above: self.metadata.live_runs(limit=PAGE, after=above),
            start="",
            key=lambda run: run.id,
        )
        async for run in live:
            if found := first.get(run.caller):
                found.runs.append(run)
        known = first.first()
        page = known[:limit]
        settled = await self._settled([run.id for _, found in page for run in found.runs])
        views = [_caller_view(caller, found, settled) for caller, found in page]
        return views, page[-1][0] if len(known) > limit else None

    async def _settled(self, run_ids: Sequence[RunId]) -> Mapping[RunId, Counts]:
        settled = dict[RunId, Counts]()
        for start in range(0, len(run_ids), PAGE):
            settled |= await self.tasks.counts(run_ids[start : start + PAGE])
        return settled

    async def live_runs(
        self, *, limit: int, after: str, caller: CallerId | None = None
    ) -> tuple[list[LiveRun], str | None]:
        """A page of the live runs of all callers, or of one, oldest first; and its cursor."""
        found = await self._live_runs(limit + 1, after, caller)
        page = found[:limit]
        jobs = await asyncio.gather(*(self.metadata.get(Job, run.job_id) for run in page))
        # A listing may lag: its job may be gone.
        pairs = [(job, run) for job, run in zip(jobs, page, strict=True) if job]
        settled = await self.tasks.counts([run.id for _, run in pairs])
        waits = await self.waits(pairs)
        views = [LiveRun(job, run, settled[run.id], waits.get(run.id)) for job, run in pairs]
        return views, page[-1].id if len(found) > limit else None

    async def _live_runs(self, limit: int, after: str, caller: CallerId | None) -> list[Run]:
        if caller is not None:
            usage = await self.metadata.usage(caller)
            return [run for run in usage.live_runs if run.id > after][:limit]
        found = list[Run]()
        # Only an empty page is the end: engines also bound the bytes of a page.
        while len(found) < limit and (
            more := await self.metadata.live_runs(limit=limit - len(found), after=after)
        ):
            found += more
            after = more[-1].id
        return found

    async def dead_letters(
        self, *, limit: int, after: str
    ) -> tuple[Sequence[DeadLetter], str | None]:
        """A page of the dead letters in order of id, and its cursor."""
        found = await self.control_queue.dead_letters(limit=limit + 1, after=after)
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    async def redrive(self, message_id: str, by: ApiKeyId | None) -> None:
        if not await self.control_queue.redrive(message_id):
            raise NotFound("No such dead letter")
        log.info("control.redriven", message_id=message_id, key_id=by)

    async def processes(self) -> Sequence[Member]:
        """The live processes, of which this one always is one, in order of id."""
        members = await self.coordination.members()
        alive = {member.id: member for member in members} | {self.me.id: self.me}
        return [alive[name] for name in sorted(alive)]

    async def caller_of(self, job_id: JobId) -> CallerId:
        job = await self.metadata.get(Job, job_id)
        if job is None or job.status is JobStatus.DELETED:
            raise NotFound("No such job")
        return job.caller


def _caller_view(caller: CallerId, found: _Found, settled: Mapping[RunId, Counts]) -> CallerView:
    return CallerView(
        caller=caller,
        active_keys=found.active_keys,
        last_used_at=found.last_used_at,
        live_runs=len(found.runs),
        open_tasks=sum(run_rules.open_tasks(run, settled[run.id]) for run in found.runs),
        counts=total(run_rules.counts(run, settled[run.id]) for run in found.runs),
    )
