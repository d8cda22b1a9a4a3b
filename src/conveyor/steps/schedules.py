"""Schedules: start the runs of scheduled jobs when they are due, and change schedules for callers.

A fire is one conditional commit of the run, its batch and the time of the next fire. The job's
version lets exactly one of many workers commit it. A crash before the commit leaves the job due. A
crash after it leaves the batch, and an ingest writes its rows.

One run makes up for all fires that were missed while no worker ran; the next fire is in the future.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec
import structlog

from conveyor.domain import job as job_rules
from conveyor.domain.api_key import ApiKey
from conveyor.domain.batch import batch_of, ingest_message, run_of
from conveyor.domain.credentials import context
from conveyor.domain.ids import ApiKeyId, CallerId, JobId, RunId
from conveyor.domain.job import Job
from conveyor.domain.run import Run, Trigger
from conveyor.domain.schedule import PauseReason, Schedule, ScheduleState, first_fire, next_fire
from conveyor.domain.task_list.spec import SourceList
from conveyor.errors import Conflict, InvalidArgument, Stale, Unavailable
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata
from conveyor.steps.shared.notifier import Notifier
from conveyor.steps.shared.ownership import latest_run, own_job

CHUNK = 100

log = structlog.get_logger()


class FireOutcome(StrEnum):
    """What happened at a time that a schedule names."""

    RUN = "run"
    SKIPPED = "skipped"
    PAUSED = "paused"  # its API key was revoked or has expired
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class FireSchedules:
    metadata: Metadata
    control_queue: ControlQueue
    clock: Clock
    ids: Ids
    notifier: Notifier
    count: Callable[[FireOutcome], None]

    async def step(self) -> int:
        """Process some of the jobs that are due; return how many."""
        due = await self.metadata.due(Job, limit=CHUNK)
        return sum([await self._process(job) for job in due])

    async def _process(self, job: Job) -> int:
        try:
            self.count(await self._fire(job))
        except Stale:
            return 0  # another worker fired it, or its caller has changed it
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

    async def _fire(self, job: Job) -> FireOutcome:
        now = self.clock.now()
        key = await self.metadata.get(ApiKey, job.api_key_id) if job.api_key_id else None
        paused = job_rules.pause_without_key(job, key, now)
        if paused is not job:
            await self.metadata.commit(paused)
            log.warning("schedule.paused", job_id=job.id, why=paused.pause_reason)
            return FireOutcome.PAUSED
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
    ) -> FireOutcome:
        run = run_of(job, source_list, RunId(self.ids.new()), Trigger.SCHEDULED, now)
        batch = batch_of(source_list, job.id, run.id, now)
        await self.metadata.commit(job_rules.fire(job, run.id, next_at, now), run, batch)
        log.info("schedule.fired", job_id=job.id, run_id=run.id, late=_late(job, now))
        with suppress(Unavailable):  # the batch is stored: the sweeper sends its message
            await self.control_queue.send(ingest_message(batch, job.caller))
            self.notifier.message_sent()
        return FireOutcome.RUN

    async def _skip(
        self, job: Job, last: Run, next_at: datetime | None, now: datetime
    ) -> FireOutcome:
        await self.metadata.commit(job_rules.skip_fire(job, next_at, now))
        log.warning("schedule.skipped", job_id=job.id, run_id=last.id, skipped=job.skipped + 1)
        return FireOutcome.SKIPPED

    async def _pause(self, job: Job, why: str, now: datetime) -> FireOutcome:
        """Pause a schedule that can never fire, so that it does not stay due forever."""
        why_shown = PauseReason.CANNOT_FIRE
        paused = job_rules.turn_schedule(job, ScheduleState.PAUSED, None, now, why=why_shown)
        await self.metadata.commit(paused)
        log.error("schedule.broken", job_id=job.id, why=why)
        return FireOutcome.BROKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class ManageSchedules:
    """Calls about the schedule of a job. A run that is under way is left alone."""

    metadata: Metadata
    encryption: KeyRing
    clock: Clock

    async def replace(self, caller: CallerId, job_id: JobId, schedule: Schedule) -> None:
        """Replace the schedule of a job. A paused one stays paused."""

        def changed(job: Job, now: datetime) -> Job:
            return job_rules.reschedule(job, schedule, first_fire(schedule, now), now)

        await self._change(caller, job_id, changed)
        log.info("schedule.replaced", job_id=job_id)

    async def set_state(
        self,
        caller: CallerId,
        job_id: JobId,
        state: ScheduleState,
        *,
        api_key_id: ApiKeyId | None = None,
        gateway_key: str | None = None,
    ) -> None:
        """Pause a schedule, or resume it from now on; nothing changes if it is in that state.

        It then fires under the gateway key it was resumed with, as after a rerun.
        """

        def changed(job: Job, now: datetime) -> Job:
            if job.schedule_state is state or job.schedule is None:
                return job
            at = job.next_fire_at
            if state is ScheduleState.ACTIVE:
                at = next_fire(job.schedule, now, anchor=at or now)
                job = self._with_key(job, api_key_id, gateway_key)
            return job_rules.turn_schedule(job, state, at, now)

        async with self.encryption.writing():
            is_changed = await self._change(caller, job_id, changed)
        if is_changed:
            log.info("schedule.turned", job_id=job_id, schedule_state=state)

    def _with_key(self, job: Job, api_key_id: ApiKeyId | None, gateway_key: str | None) -> Job:
        if gateway_key is None:
            return job
        encrypted = self.encryption.encrypt(gateway_key, context=context(job.caller, job.id))
        return msgspec.structs.replace(job, api_key_id=api_key_id, encrypted_gateway_key=encrypted)

    async def _change(
        self, caller: CallerId, job_id: JobId, changed: Callable[[Job, datetime], Job]
    ) -> bool:
        """Change a scheduled job; return whether there was something to change."""
        while True:
            job = await own_job(self.metadata, caller, job_id)
            if job.schedule is None:
                raise Conflict("This job has no schedule: submit one with `type: scheduled`")
            new = changed(job, self.clock.now())
            if new is job:
                return False
            with suppress(Stale):
                await self.metadata.commit(new)
                return True


def _next(job: Job, now: datetime) -> datetime | None:
    """The fire after the one that is due: later than both, even if the clock was set back."""
    due = job.next_fire_at or now
    return next_fire(job.schedule, max(now, due), anchor=due) if job.schedule else None


def _late(job: Job, now: datetime) -> float:
    """Seconds since it was due."""
    return round((now - (job.next_fire_at or now)).total_seconds(), 3)
