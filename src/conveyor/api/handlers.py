"""The calls of the contract, each a few lines between a request and a step."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from conveyor import wire
from conveyor.api import downloads, render
from conveyor.api.auth import caller_of, scraper, who
from conveyor.api.events import EventStream
from conveyor.api.intake import LARGEST_FORM, read_body, take_call
from conveyor.api.links import Links
from conveyor.domain import cursor, media
from conveyor.domain.file_input import CONTENT_TYPES as CONTENT_TYPES_OF_LISTS
from conveyor.domain.ids import ExportId, InputId, JobId, RunId, TaskId
from conveyor.domain.job import Job, JobStatus, JobType
from conveyor.domain.rerun import parse_statuses
from conveyor.domain.run import PauseState, Run
from conveyor.domain.submission import Limits
from conveyor.domain.task import Task, TaskStatus
from conveyor.errors import InvalidArgument
from conveyor.steps.add_tasks import AddTasks
from conveyor.steps.delete import Delete
from conveyor.steps.export import ExportRuns
from conveyor.steps.file_inputs import FileInputs
from conveyor.steps.lifecycle import Lifecycle
from conveyor.steps.progress import ProgressFeed
from conveyor.steps.read import Read, ResultContent, ResultPart
from conveyor.steps.rerun import RerunJob
from conveyor.steps.shared.idempotency import Answer
from conveyor.steps.submit import SubmitJob
from conveyor.telemetry.metrics import Metrics

JSON = "application/json"
CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "json": "application/json",
    "markdown": "text/markdown; charset=utf-8",
    "plaintext": "text/plain; charset=utf-8",
    "pdf": "application/pdf",
}
EVERY_STATUS = frozenset(TaskStatus)
STATUS_FILTERS = {
    "all": EVERY_STATUS,
    "successful": frozenset({TaskStatus.SUCCESSFUL}),
    "failed": frozenset({TaskStatus.FAILED}),
    "processing": frozenset({TaskStatus.PENDING, TaskStatus.PROCESSING}),
}
Choice = TypeVar("Choice", JobStatus, JobType)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    links: Links
    limits: Limits
    metrics: Metrics
    file_inputs: FileInputs
    submit: SubmitJob
    additions: AddTasks
    lifecycle: Lifecycle
    reruns: RerunJob
    deleting: Delete
    exporting: ExportRuns
    read: Read
    progress: ProgressFeed
    public_url: str | None = None

    async def submit_job(self, request: Request) -> Response:
        call = await take_call(request, scraper(request), self.limits.inline_bytes)
        return _answered(await self.submit.submit(call, render.submitted))

    async def create_file_input(self, request: Request) -> Response:
        caller = caller_of(request)
        file_input = await self.file_inputs.create(caller, await read_body(request, LARGEST_FORM))
        url, expires_at = self.links.to_file_input(self._base(request), file_input)
        headers = {"Content-Type": CONTENT_TYPES_OF_LISTS[file_input.spec.format]}
        upload = wire.WireUpload(url, headers, expires_at)
        shown = wire.WireFileInput(file_input.id, upload, file_input.expires_at)
        return Response(render.encode(shown), 201, media_type=JSON)

    async def upload_file_input(self, request: Request) -> Response:
        file_input_id = InputId(request.path_params["input"])
        content_type = request.headers.get("content-type", "")
        self.links.check_file_input(file_input_id, content_type, request.query_params)
        declared = request.headers.get("content-length", "")
        await self.file_inputs.upload(
            file_input_id,
            request.stream(),
            request.headers.getlist("content-encoding"),
            length=int(declared) if declared.isascii() and declared.isdigit() else None,
        )
        return Response(status_code=200)

    async def list_bad_rows(self, request: Request) -> Response:
        lines = await self.read.bad_rows(caller_of(request), _job(request), _run(request))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def list_jobs(self, request: Request) -> Response:
        caller = caller_of(request)
        query = request.query_params
        views, after = await self.read.jobs(
            caller,
            limit=cursor.limit(
                query.get("limit"), default=cursor.DEFAULT_LIMIT, most=cursor.MOST_LISTED
            ),
            before=cursor.after_id(query.get("cursor")),
            status=_choice(query.get("status"), "status", JobStatus),
            kind=_choice(query.get("type"), "type", JobType),
        )
        return _json(render.encode(render.jobs_shown(views, after)))

    async def get_job(self, request: Request) -> Response:
        view = await self.read.job(caller_of(request), _job(request))
        return _json(render.encode(render.job_shown(view)))

    async def add_tasks(self, request: Request) -> Response:
        call = await take_call(request, who(request), self.limits.inline_bytes)

        async def added(job: Job, run: Run, accepted: int) -> bytes:
            settled = (await self.read.tasks.counts([run.id]))[run.id]
            shown = render.run_shown(run, settled)
            return render.encode(wire.WireAdded(accepted, job.status, shown))

        return _answered(await self.additions.add(call, _job(request), added))

    async def close_job(self, request: Request) -> Response:
        caller = caller_of(request)
        await self.lifecycle.close(caller, _job(request))
        view = await self.read.job(caller, _job(request))
        return _json(render.encode(render.job_shown(view)))

    async def stop_job(self, request: Request) -> Response:
        caller = caller_of(request)
        run = await self.lifecycle.stop(caller, _job(request))
        view = await self.read.run(caller, _job(request), run.id)
        return _json(render.encode(render.run_shown(view.run, view.settled, view.waiting)))

    async def pause_run(self, request: Request) -> Response:
        return await self._turn(request, PauseState.PAUSED)

    async def resume_run(self, request: Request) -> Response:
        return await self._turn(request, PauseState.ACTIVE)

    async def rerun_job(self, request: Request) -> Response:
        call = await take_call(request, scraper(request), LARGEST_FORM)
        statuses = parse_statuses(request.query_params.get("status"))
        return _answered(await self.reruns.rerun(call, _job(request), statuses, render.rerun_shown))

    async def delete_job(self, request: Request) -> Response:
        await self.deleting.job(caller_of(request), _job(request))
        return Response(status_code=202)

    async def delete_run(self, request: Request) -> Response:
        run_id = RunId(request.path_params["run"])
        await self.deleting.run(caller_of(request), _job(request), run_id)
        return Response(status_code=202)

    async def list_runs(self, request: Request) -> Response:
        query = request.query_params
        views, after = await self.read.runs(
            caller_of(request),
            _job(request),
            limit=cursor.limit(
                query.get("limit"), default=cursor.DEFAULT_LIMIT, most=cursor.MOST_LISTED
            ),
            before=cursor.after_id(query.get("cursor")),
        )
        return _json(render.encode(render.runs_shown(views, after)))

    async def get_run(self, request: Request) -> Response:
        run_id = RunId(request.path_params["run"])
        view = await self.read.run(caller_of(request), _job(request), run_id)
        return _json(render.encode(render.run_shown(view.run, view.settled, view.waiting)))

    async def list_results(self, request: Request) -> Response:
        query = request.query_params
        job, parts = await self.read.results(
            caller_of(request),
            _job(request),
            _run(request),
            limit=cursor.limit(
                query.get("limit"), default=cursor.DEFAULT_PAGE, most=cursor.LARGEST_PAGE
            ),
            after=cursor.after_index(query.get("cursor")),
            statuses=_status_filter(query.get("status")),
        )
        base = self._base(request)

        def link(task: Task) -> str:
            return self.links.to_result(base, job.id, task)

        def shown(part: ResultPart) -> list[wire.WireResult]:
            self.metrics.served_rows.inc(len(part.tasks))
            return [
                render.result_shown(task, expired=self.read.has_expired(job, task), link=link)
                for task in part.tasks
            ]

        first = await anext(parts)
        if first.is_last:
            return _json(render.encode(wire.WireResults(shown(first), first.next_cursor)))
        return StreamingResponse(_page_in_parts(first, parts, shown), media_type=JSON)

    async def get_content(self, request: Request) -> Response:
        caller = caller_of(request)
        return await _content(
            await self.read.content(caller, _job(request), _run(request), _task(request))
        )

    async def get_linked_content(self, request: Request) -> Response:
        job_id, run_id = _job(request), RunId(request.path_params["run"])
        self.links.check_result(job_id, run_id, _task(request), request.query_params)
        return await _content(await self.read.content_by_link(job_id, run_id, _task(request)))

    async def get_history(self, request: Request) -> Response:
        caller = caller_of(request)
        lines = await self.read.history(caller, _job(request), _run(request), _task(request))
        return _json(render.encode(render.history_shown(lines)))

    async def start_export(self, request: Request) -> Response:
        run_id = RunId(request.path_params["run"])
        export = await self.exporting.start(caller_of(request), _job(request), run_id)
        return _json(render.encode(render.export_started(export)), 202)

    async def get_export(self, request: Request) -> Response:
        run_id, base = RunId(request.path_params["run"]), self._base(request)
        export = await self.exporting.find(
            caller_of(request), _job(request), run_id, _export(request)
        )
        shown = render.export_shown(export, lambda one: self.links.to_export(base, one))
        return _json(render.encode(shown))

    async def get_linked_export(self, request: Request) -> Response:
        self.links.check_export(_export(request), request.query_params)
        return downloads.answer(request, await self.exporting.open(_export(request)))

    async def follow_run(self, request: Request) -> Response:
        seen = request.headers.get("last-event-id")
        known = who(request)
        news = await self.progress.listen(
            known.caller, _job(request), _run(request), seen=seen, key_id=known.key_id
        )
        return EventStream(news)

    async def _turn(self, request: Request, state: PauseState) -> Response:
        caller = caller_of(request)
        run = await self.lifecycle.set_pause(caller, _job(request), state)
        view = await self.read.run(caller, _job(request), run.id)
        return _json(render.encode(render.run_shown(view.run, view.settled, view.waiting)))

    def _base(self, request: Request) -> str:
        return (self.public_url or str(request.base_url)).rstrip("/")


async def _content(content: ResultContent) -> Response:
    """A body in chunks. The first is read here: a body that is gone is still an error then."""
    content_type = content.content_type or CONTENT_TYPES.get(content.format, media.UNLABELLED)
    headers = {
        # Not as `media_type`: Starlette would add a charset that the site did not name.
        "Content-Type": content_type,
        "Content-Length": str(content.length),
        "ETag": f'"{content.checksum}"',
        # A scraped page must not run as if it were ours.
        "Content-Security-Policy": "sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    if content.format not in CONTENT_TYPES:
        # Any type that a site likes: to be saved, never to be shown or run by a browser here.
        name = f"{content.task_id}.{media.extension(content.format, content.content_type)}"
        headers["Content-Disposition"] = f'attachment; filename="{name}"'
    first = await anext(content.chunks, b"")
    if len(first) == content.length:
        return Response(first, headers=headers)
    return StreamingResponse(_chain(first, content.chunks), headers=headers)


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


async def _page_in_parts(
    first: ResultPart,
    rest: AsyncGenerator[ResultPart, None],
    shown: Callable[[ResultPart], list[wire.WireResult]],
) -> AsyncIterator[bytes]:
    """A page of results that is too large to be held: the bytes of `WireResults`, part by part."""
    yield b'{"results":[' + _listed(shown(first))
    is_empty = not first.tasks
    async with aclosing(rest):
        async for part in rest:
            if part.tasks:
                yield (b"" if is_empty else b",") + _listed(shown(part))
                is_empty = False
            if part.is_last:
                yield b'],"next_cursor":%b}' % msgspec.json.encode(part.next_cursor)


def _listed(results: list[wire.WireResult]) -> bytes:
    return b",".join(map(render.encode, results))


def _answered(answer: Answer) -> Response:
    headers = {render.IGNORED: ", ".join(answer.ignored)} if answer.ignored else None
    return Response(answer.body, answer.status, headers, media_type=JSON)


def _json(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type=JSON)


def _job(request: Request) -> JobId:
    return JobId(request.path_params["job"])


def _run(request: Request) -> RunId | None:
    run_id = request.path_params.get("run")
    return RunId(run_id) if run_id else None


def _task(request: Request) -> TaskId:
    return TaskId(request.path_params["task"])


def _export(request: Request) -> ExportId:
    return ExportId(request.path_params["export"])


def _choice(text: str | None, name: str, kind: type[Choice]) -> Choice | None:
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        choices = ", ".join(kind)
        raise InvalidArgument(
            f"`{name}` must be one of {choices}, got {text[:40]!r}", extras={"field": name}
        ) from None


def _status_filter(text: str | None) -> frozenset[TaskStatus] | None:
    """The statuses a listing is narrowed to: one name, or several with commas."""
    names = (text or "all").split(",")
    if not STATUS_FILTERS.keys() >= set(names):
        choices = ", ".join(STATUS_FILTERS)
        raise InvalidArgument(
            f"`status` must be one or more of {choices}, separated by commas, "
            f"got {','.join(names)[:40]!r}",
            extras={"field": "status"},
        )
    wanted = frozenset[TaskStatus]().union(*(STATUS_FILTERS[name] for name in names))
    return None if wanted == EVERY_STATUS else wanted
