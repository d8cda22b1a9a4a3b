"""The calls about a job's schedule."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from conveyor.api import render
from conveyor.api.auth import caller_of, scraper, who
from conveyor.api.intake import LARGEST_FORM, read_body
from conveyor.domain.ids import JobId
from conveyor.domain.schedule import ScheduleState, parse_schedule, parse_turn
from conveyor.steps.read import Read
from conveyor.steps.schedules import ManageSchedules


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    rescheduling: ManageSchedules
    read: Read

    async def replace_schedule(self, request: Request) -> Response:
        schedule = parse_schedule(await read_body(request, LARGEST_FORM))
        await self.rescheduling.replace(caller_of(request), _job(request), schedule)
        return await self._shown(request)

    async def turn_schedule(self, request: Request) -> Response:
        state = parse_turn(await read_body(request, LARGEST_FORM))
        known = who(request) if state is ScheduleState.PAUSED else scraper(request)
        await self.rescheduling.set_state(
            known.caller,
            _job(request),
            state,
            key_id=known.key_id,
            gateway_key=known.gateway_key,
        )
        return await self._shown(request)

    async def _shown(self, request: Request) -> Response:
        view = await self.read.job(caller_of(request), _job(request))
        return Response(render.encode(render.job_shown(view)), media_type="application/json")


def _job(request: Request) -> JobId:
    return JobId(request.path_params["job"])
