"""The handlers of the routes for operators: all callers, live runs, dead letters, processes, engines.

A request must have a key with the scope `operator`, which is checked before a handler runs. The
interface of operators' commands, with the token of the data folder, is in `admin.py`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from starlette.requests import Request
from starlette.responses import Response

from conveyor.api import render
from conveyor.api.auth import identity_of
from conveyor.api.handlers.common import job_id, jobs_filter, json_response, limit, page
from conveyor.domain import cursor
from conveyor.domain.api_key import CALLER
from conveyor.domain.ids import CallerId, JobId
from conveyor.domain.json_bodies import field_error
from conveyor.domain.run import PauseState, Run
from conveyor.steps.lifecycle import Lifecycle
from conveyor.steps.operators import Operators
from conveyor.steps.read import Read

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorHandlers:
    operators: Operators
    lifecycle: Lifecycle
    read: Read

    async def list_callers(self, request: Request) -> Response:
        after = cursor.after_caller(request.query_params.get("cursor"))
        found = await self.operators.callers(limit=limit(request), after=after)
        return json_response(render.callers_shown(*found))

    async def list_jobs_of_caller(self, request: Request) -> Response:
        caller = _caller(request.path_params["caller"])
        found = await self.read.jobs(caller, **page(request), **jobs_filter(request))
        return json_response(render.jobs_of_caller_shown(*found))

    async def list_live_runs(self, request: Request) -> Response:
        named = request.query_params.get("caller")
        wanted = page(request)
        found = await self.operators.live_runs(
            limit=wanted["limit"],
            after=wanted["before"] or "",
            caller=None if named is None else _caller(named),
        )
        return json_response(render.live_runs_shown(*found))

    async def list_dead_letters(self, request: Request) -> Response:
        wanted = page(request)
        found = await self.operators.dead_letters(
            limit=wanted["limit"], after=wanted["before"] or ""
        )
        return json_response(render.dead_letters_shown(*found))

    async def redrive_dead_letter(self, request: Request) -> Response:
        by = identity_of(request).api_key_id
        await self.operators.redrive(request.path_params["message"], by)
        return Response(status_code=202)

    async def list_processes(self, _: Request) -> Response:
        return json_response(render.processes_shown(await self.operators.processes()))

    async def check_engines(self, _: Request) -> Response:
        return json_response(render.health_shown(await self.operators.check_health()))

    async def stop_any_run(self, request: Request) -> Response:
        return await self._act(request, "stop", self.lifecycle.stop)

    async def pause_any_run(self, request: Request) -> Response:
        return await self._set_pause(request, "pause", PauseState.PAUSED)

    async def resume_any_run(self, request: Request) -> Response:
        return await self._set_pause(request, "resume", PauseState.ACTIVE)

    async def _set_pause(self, request: Request, action: str, state: PauseState) -> Response:
        async def act(caller: CallerId, job: JobId) -> Run:
            return await self.lifecycle.set_pause(caller, job, state)

        return await self._act(request, action, act)

    async def _act(
        self, request: Request, action: str, act: Callable[[CallerId, JobId], Awaitable[Run]]
    ) -> Response:
        job, by = job_id(request), identity_of(request)
        caller = await self.operators.caller_of(job)
        run = await act(caller, job)
        log.info(
            "operator.acted", action=action, job_id=job, run_id=run.id, caller=caller, by=by.caller
        )
        view = await self.read.run(caller, job, run.id)
        return json_response(render.run_view_shown(view))


def _caller(text: str) -> CallerId:
    if not CALLER.fullmatch(text):
        raise field_error("caller", f"must be the name of a caller, got {text[:80]!r}")
    return CallerId(text)
