"""Fire: scheduled jobs run when their time has come.

One conditional commit makes the run, its batch, and the moment of the next fire: the job's version
lets one worker of many do so, and once. Whoever dies before it leaves the job due; whoever dies
after it leaves a batch, and an ingester makes its rows.

What was missed while nobody worked is fired once, and then comes what lies ahead.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import structlog

from conveyor.domain import job as life
from conveyor.domain.api_key import ApiKey
from conveyor.domain.batch import batch_of, ingest_message, run_of
from conveyor.domain.ids import RunId
from conveyor.domain.job import Job
from conveyor.domain.run import Run, Trigger
from conveyor.domain.schedule import PauseReason, ScheduleState, next_fire
from conveyor.domain.task_list.spec import SourceList
from conveyor.errors import InvalidArgument, Stale, Unavailable
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.metadata import Metadata
from conveyor.steps.shared.ownership import latest_run

BITE = 100

log = structlog.get_logger()


class Fired(StrEnum):
    """What came of a moment that a schedule named."""

    RUN = "run"
    SKIPPED = "skipped"
    PAUSED = "paused"  # its key is not good any more
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fire:
    metadata: Metadata
    control_queue: ControlQueue
    clock: Clock
    ids: Ids
    count: Callable[[Fired], None]

    async def step(self) -> int:
        """See to some of the jobs whose time has come, and say how many that were."""
        due = await self.metadata.due(Job, limit=BITE)
        return sum([await self._see_to(job) for job in due])

    async def _see_to(self, job: Job) -> int:
        try:
            self.count(await self._fire(job))
        except Stale:
            return 0  # another worker saw to it, or its caller has changed it
        except Unavailable:
            raise
        except Exception:
            # A bug in one schedule must not keep the others from firing.
            log.exception("schedule.bug", job_id=job.id)
            return await self._pause_broken(job)
        return 1

    async def _pause_broken(self, job: Job) -> int:
        with suppress(Stale):
            self.count(await self._pause(job, "a bug, logged as schedule.bug", self.clock.now()))
        return 1

    async def _fire(self, job: Job) -> Fired:
        now = self.clock.now()
        key = await self.metadata.get(ApiKey, job.api_key_id) if job.api_key_id else None
        paused = life.pause_without_key(job, key, now)
        if paused is not job:
            await self.metadata.commit(paused)
            log.warning("schedule.paused", job_id=job.id, why=paused.pause_reason)
            return Fired.PAUSED
        try:
            next_at = _next(job, now)
        except InvalidArgument as error:
            return await self._pause(job, str(error), now)
        if job.source_list is None:
            return await self._pause(job, "it has no list", now)
        last = await latest_run(self.metadata, job)
        if last and last.is_live:
            return await self._skip(job, last, next_at, now)
        return await self._run(job, job.source_list, next_at, now)

    async def _run(
        self, job: Job, source_list: SourceList, next_at: datetime | None, now: datetime
    ) -> Fired:
        run = run_of(job, source_list, RunId(self.ids.new()), Trigger.SCHEDULED, now)
        batch = batch_of(source_list, job.id, run.id, now)
        await self.metadata.commit(life.fire(job, run.id, next_at, now), run, batch)
        log.info("schedule.fired", job_id=job.id, run_id=run.id, late=_late(job, now))
        with suppress(Unavailable):  # the batch is on record: the sweeper sends its message
            await self.control_queue.send(ingest_message(batch, job.caller))
        return Fired.RUN

    async def _skip(self, job: Job, last: Run, next_at: datetime | None, now: datetime) -> Fired:
        await self.metadata.commit(life.skip_fire(job, next_at, now))
        log.warning("schedule.skipped", job_id=job.id, run_id=last.id, skipped=job.skipped + 1)
        return Fired.SKIPPED

    async def _pause(self, job: Job, why: str, now: datetime) -> Fired:
        """Put aside what can never fire, so that it keeps nothing else waiting."""
        why_shown = PauseReason.CANNOT_FIRE
        paused = life.turn_schedule(job, ScheduleState.PAUSED, None, now, why=why_shown)
        await self.metadata.commit(paused)
        log.error("schedule.broken", job_id=job.id, why=why)
        return Fired.BROKEN


def _next(job: Job, now: datetime) -> datetime | None:
    """The fire after the one that is due. It is ahead even of a clock that was set back."""
    due = job.next_fire_at or now
    return next_fire(job.schedule, max(now, due), anchor=due) if job.schedule else None


def _late(job: Job, now: datetime) -> float:
    """Seconds since the moment it was to be."""
    return round((now - (job.next_fire_at or now)).total_seconds(), 3)
