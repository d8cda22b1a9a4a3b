"""Schedules of a key that is revoked or expires: they pause, and say why."""

from dataclasses import dataclass
from datetime import timedelta

import msgspec
import pytest

from conveyor.adapters.crypto.key_ring import new_secret
from conveyor.domain import api_key
from conveyor.domain.api_key import ApiKey, NewKey
from conveyor.domain.credentials import context
from conveyor.domain.ids import ApiKeyId, JobId
from conveyor.domain.job import Job
from conveyor.domain.schedule import PauseReason, ScheduleState
from conveyor.steps.api_keys import ApiKeyAdmin
from conveyor.steps.schedules import FireOutcome
from tests.harness.memory_service import CALLER, House, a_call, a_house, ids_as_answer, ids_in

HOUR = timedelta(hours=1)
HOURLY = {"rate": {"every": 1, "unit": "hour"}}


@dataclass(slots=True)
class Desk:
    house: House
    admin: ApiKeyAdmin

    async def key(self, expires_in: timedelta | None = None) -> ApiKeyId:
        expires_at = self.house.clock.now() + expires_in if expires_in else None
        wanted = NewKey(caller=CALLER, expires_at=expires_at)
        return (await self.admin.create(wanted)).about.id

    async def schedule(self, key_id: ApiKeyId | None) -> JobId:
        call = a_call(3, type="scheduled", schedule=HOURLY)
        call = msgspec.structs.replace(call, api_key_id=key_id)
        return ids_in(await self.house.submit_job.submit(call, ids_as_answer))[0]

    async def job(self, job_id: JobId) -> Job:
        return await self.house.job(job_id)

    async def fire(self) -> int:
        self.house.clock.advance(HOUR)
        return await self.house.fire.step()


@pytest.fixture
def desk() -> Desk:
    house = a_house()
    admin = ApiKeyAdmin(
        metadata=house.metadata,
        encryption=house.encryption,
        clock=house.clock,
        ids=house.fire.ids,
        new_secret=new_secret,
        auth="keys",
    )
    return Desk(house, admin)


async def test_revoking_a_key_pauses_its_schedules_and_no_others(desk: Desk) -> None:
    revoked, kept = await desk.key(), await desk.key()
    jobs = [await desk.schedule(key_id) for key_id in (revoked, kept, None)]

    await desk.admin.revoke(revoked)

    states = [await desk.job(job_id) for job_id in jobs]
    assert [(job.schedule_state, job.pause_reason) for job in states] == [
        (ScheduleState.PAUSED, PauseReason.API_KEY_REVOKED),
        (ScheduleState.ACTIVE, None),
        (ScheduleState.ACTIVE, None),
    ]
    assert await desk.fire() == 2
    assert [bool((await desk.job(job_id)).runs) for job_id in jobs] == [False, True, True]


async def test_what_a_crash_left_of_a_revocation_is_paused_when_it_is_due(desk: Desk) -> None:
    key_id = await desk.key()
    job_id = await desk.schedule(key_id)
    key = await desk.admin.metadata.get(ApiKey, key_id)
    assert key
    await desk.house.metadata.commit(api_key.revoke(key, desk.house.clock.now()))

    assert await desk.fire() == 1

    job = await desk.job(job_id)
    assert (job.runs, job.pause_reason) == (0, PauseReason.API_KEY_REVOKED)
    assert desk.house.fired == {FireOutcome.PAUSED: 1}
    assert await desk.fire() == 0


async def test_a_key_that_expires_pauses_its_schedules(desk: Desk) -> None:
    job_id = await desk.schedule(await desk.key(expires_in=90 * timedelta(minutes=1)))

    assert await desk.fire() == 1
    assert await desk.fire() == 1

    job = await desk.job(job_id)
    assert (job.runs, job.schedule_state) == (1, ScheduleState.PAUSED)
    assert job.pause_reason is PauseReason.API_KEY_EXPIRED


async def test_a_schedule_resumes_under_the_key_that_resumes_it(desk: Desk) -> None:
    revoked, good = await desk.key(), await desk.key()
    job_id = await desk.schedule(revoked)
    await desk.admin.revoke(revoked)

    await desk.house.rescheduling.set_state(
        CALLER, job_id, ScheduleState.ACTIVE, api_key_id=good, gateway_key="another gateway key"
    )

    job = await desk.job(job_id)
    assert (job.schedule_state, job.pause_reason) == (ScheduleState.ACTIVE, None)
    opened = await desk.house.encryption.decrypt(
        job.encrypted_gateway_key, context=context(CALLER, job_id)
    )
    assert opened == "another gateway key"
    assert await desk.fire() == 1
    assert (await desk.job(job_id)).runs == 1
