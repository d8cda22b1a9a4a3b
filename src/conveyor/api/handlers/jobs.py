"""The handlers of jobs and runs: submit, list, change, follow, schedule and delete them."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from conveyor import wire
from conveyor.api import render
from conveyor.api.auth import caller_of, identity_of, scraping_identity_of
from conveyor.api.handlers.common import (
    EVENT_STREAM,
    JSON,
    caller_and_job,
    job_id,
    jobs_filter,
    json_response,
    page,
    run_id,
    run_or_latest,
)
from conveyor.api.intake import LARGEST_SMALL_BODY, read_body, take_call
from conveyor.domain.ids import RunId
from conveyor.domain.job import Job
from conveyor.domain.json_bodies import LONGEST_SHOWN
from conveyor.domain.run import PauseState, Run
from conveyor.domain.schedule import ScheduleState, parse_schedule, parse_turn
from conveyor.domain.selection import parse_rerun
from conveyor.domain.submission import Limits
from conveyor.errors import InvalidArgument
from conveyor.steps.add_tasks import AddTasks
from conveyor.steps.delete import Delete
from conveyor.steps.lifecycle import Lifecycle
from conveyor.steps.progress import ProgressFeed, Updates
from conveyor.steps.read import Read
from conveyor.steps.rerun import RerunJob
from conveyor.steps.schedules import ManageSchedules
from conveyor.steps.shared.idempotency import Answer
from conveyor.steps.submit import SubmitJob

KEEP_ALIVE = b":\n\n"  # a comment of an event stream: proxies see bytes, clients ignore it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHandlers:
    limits: Limits
    submit: SubmitJob
    additions: AddTasks
    lifecycle: Lifecycle
    reruns: RerunJob
    deleting: Delete
    schedules: ManageSchedules
    read: Read
    progress: ProgressFeed
    has_default_key: bool

    async def submit_job(self, request: Request) -> Response:
        call = await take_call(request, scraping_identity_of(request), self.limits.inline_bytes)
        return _answered(await self.submit.submit(call, render.submitted))

    async def add_tasks(self, request: Request) -> Response:
        call = await take_call(request, identity_of(request), self.limits.inline_bytes)

        async def added(job: Job, run: Run, accepted: int) -> bytes:
            settled = (await self.read.tasks.counts([run.id]))[run.id]
            shown = render.run_shown(run, settled)
            return render.encode(wire.WireAdded(accepted, job.status, shown))

        return _answered(await self.additions.add(call, job_id(request), added))

    async def rerun_job(self, request: Request) -> Response:
        call = await take_call(request, scraping_identity_of(request), LARGEST_SMALL_BODY)
        _check_query(request)
        asked = parse_rerun(call.raw, request.query_params.get("status"), self.limits)
        rerun = self.reruns.rerun(call, job_id(request), asked, render.rerun_shown)
        return _answered(await rerun)

    async def list_jobs(self, request: Request) -> Response:
        found = await self.read.jobs(caller_of(request), **page(request), **jobs_filter(request))
        return json_response(render.jobs_shown(*found))

    async def get_caller(self, request: Request) -> Response:
        known = identity_of(request)
        scopes = list(map(str, known.scopes))
        return json_response(wire.WireIdentity(known.caller, scopes, self.has_default_key))

    async def get_job(self, request: Request) -> Response:
        view = await self.read.job(*caller_and_job(request))
        return json_response(render.job_shown(view))

    async def close_job(self, request: Request) -> Response:
        await self.lifecycle.close(*caller_and_job(request))
        return await self.get_job(request)

    async def stop_job(self, request: Request) -> Response:
        run = await self.lifecycle.stop(*caller_and_job(request))
        return await self._run(request, run.id)

    async def pause_run(self, request: Request) -> Response:
        run = await self.lifecycle.set_pause(*caller_and_job(request), PauseState.PAUSED)
        return await self._run(request, run.id)

    async def resume_run(self, request: Request) -> Response:
        run = await self.lifecycle.set_pause(*caller_and_job(request), PauseState.ACTIVE)
        return await self._run(request, run.id)

    async def delete_job(self, request: Request) -> Response:
        await self.deleting.job(*caller_and_job(request))
        return Response(status_code=202)

    async def list_runs(self, request: Request) -> Response:
        views, after = await self.read.runs(*caller_and_job(request), **page(request))
        return json_response(render.runs_shown(views, after))

    async def get_run(self, request: Request) -> Response:
        return await self._run(request, run_id(request))

    async def get_timeline(self, request: Request) -> Response:
        found = await self.read.timeline(*caller_and_job(request), run_or_latest(request))
        return json_response(render.timeline_shown(*found))

    async def delete_run(self, request: Request) -> Response:
        await self.deleting.run(*caller_and_job(request), run_id(request))
        return Response(status_code=202)

    async def follow_run(self, request: Request) -> Response:
        seen, api_key_id = request.headers.get("last-event-id"), identity_of(request).api_key_id
        updates = await self.progress.listen(
            *caller_and_job(request), run_or_latest(request), seen=seen, api_key_id=api_key_id
        )
        return EventStream(updates)

    async def replace_schedule(self, request: Request) -> Response:
        schedule = parse_schedule(await read_body(request, LARGEST_SMALL_BODY))
        await self.schedules.replace(*caller_and_job(request), schedule)
        return await self.get_job(request)

    async def turn_schedule(self, request: Request) -> Response:
        state = parse_turn(await read_body(request, LARGEST_SMALL_BODY))
        # Only a schedule that resumes will scrape, and so needs a gateway key.
        known = (
            identity_of(request) if state is ScheduleState.PAUSED else scraping_identity_of(request)
        )
        await self.schedules.set_state(
            known.caller,
            job_id(request),
            state,
            api_key_id=known.api_key_id,
            gateway_key=known.gateway_key,
        )
        return await self.get_job(request)

    async def _run(self, request: Request, run: RunId) -> Response:
        view = await self.read.run(*caller_and_job(request), run)
        return json_response(render.run_view_shown(view))


class EventStream(Response):
    """A response of server-sent events. It lasts until the updates end or the client leaves.

    The response to HEAD has no events.
    """

    media_type = EVENT_STREAM

    def __init__(self, updates: Updates) -> None:
        # nginx buffers responses, and would hold events back, unless a header tells it not to.
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._updates = updates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        if scope["method"] != "HEAD":
            await self._stream(receive, send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _stream(self, receive: Receive, send: Send) -> None:
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._send_updates(send))
            listening = group.create_task(_until_disconnect(receive))
            await asyncio.wait({sending, listening}, return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
            listening.cancel()

    async def _send_updates(self, send: Send) -> None:
        async with aclosing(self._updates) as updates:
            async for update in updates:
                part = KEEP_ALIVE if update is None else update
                await send({"type": "http.response.body", "body": part, "more_body": True})


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


def _check_query(request: Request) -> None:
    """Refuse what would be ignored: a misspelt `status` repeats, and pays for, all tasks."""
    unknown = request.query_params.keys() - {"status"}
    if unknown:
        name = min(unknown)[:LONGEST_SHOWN]
        raise InvalidArgument(
            f"A rerun takes the query parameter `status` alone, got `{name}`: give other conditions "
            "in the body",
            extras={"field": name},
        )


def _answered(answer: Answer) -> Response:
    headers = {render.IGNORED: ", ".join(answer.ignored)} if answer.ignored else None
    return Response(answer.body, answer.status, headers, media_type=JSON)
