"""Reschedule: a caller gives a scheduled job another schedule, pauses it, or lets it go on.

A run under way is left alone: only what is to come changes.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from conveyor.domain import job as life
from conveyor.domain.credentials import context
from conveyor.domain.ids import CallerId, JobId, KeyId
from conveyor.domain.job import Job
from conveyor.domain.schedule import Schedule, ScheduleState, first_fire, next_fire
from conveyor.errors import Conflict, Stale
from conveyor.ports.clock import Clock
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata
from conveyor.steps.shared.ownership import own_job

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reschedule:
    metadata: Metadata
    encryption: KeyRing
    clock: Clock

    async def replace(self, caller: CallerId, job_id: JobId, schedule: Schedule) -> None:
        """Put a schedule in the place of a job's own. A paused one stays paused."""

        def changed(job: Job, now: datetime) -> Job:
            return life.reschedule(job, schedule, first_fire(schedule, now), now)

        await self._change(caller, job_id, changed)
        log.info("schedule.replaced", job_id=job_id)

    async def turn(
        self,
        caller: CallerId,
        job_id: JobId,
        state: ScheduleState,
        *,
        key_id: KeyId | None = None,
        gateway_key: str | None = None,
    ) -> None:
        """Pause a schedule, or resume it from now on; if it stands so already, nothing changes.

        It fires from then on under the key it is resumed with, as after a rerun.
        """

        def changed(job: Job, now: datetime) -> Job:
            if job.schedule_state is state or job.schedule is None:
                return job
            at = job.next_fire_at
            if state is ScheduleState.ACTIVE:
                at = next_fire(job.schedule, now, anchor=at or now)
                job = self._under(job, key_id, gateway_key)
            return life.turn_schedule(job, state, at, now)

        with self.encryption.writing():
            is_changed = await self._change(caller, job_id, changed)
        if is_changed:
            log.info("schedule.turned", job_id=job_id, schedule_state=state)

    def _under(self, job: Job, key_id: KeyId | None, gateway_key: str | None) -> Job:
        if gateway_key is None:
            return job
        encrypted = self.encryption.encrypt(gateway_key, context=context(job.caller, job.id))
        return msgspec.structs.replace(job, api_key_id=key_id, encrypted_key=encrypted)

    async def _change(
        self, caller: CallerId, job_id: JobId, changed: Callable[[Job, datetime], Job]
    ) -> bool:
        """Make a change of a scheduled job, if it is one; say whether it was."""
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
