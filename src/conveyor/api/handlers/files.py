"""The handlers of uploaded lists, results and exports.

Three of them serve signed links, without an API key.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from conveyor import wire
from conveyor.api import problems, render
from conveyor.api.auth import caller_of
from conveyor.api.handlers.common import (
    JSON,
    NDJSON,
    caller_and_job,
    job_id,
    json_response,
    run_id,
    run_or_latest,
)
from conveyor.api.intake import LARGEST_SMALL_BODY, read_body
from conveyor.api.links import Links
from conveyor.domain import cursor, media
from conveyor.domain.export import Export
from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import MOST_GROUPS
from conveyor.domain.file_input import CONTENT_TYPES, UPLOAD_LIFE
from conveyor.domain.ids import ExportId, InputId, TaskId
from conveyor.domain.job import Job
from conveyor.domain.json_bodies import LONGEST_SHOWN, check_names, field_error
from conveyor.domain.selection import parse_filter
from conveyor.domain.task import Task, TaskStatus
from conveyor.errors import RangeNotSatisfiable
from conveyor.steps.export import ZIP, Download, ExportRuns
from conveyor.steps.file_inputs import FileInputs
from conveyor.steps.read import Read, ResultContent, ResultPart
from conveyor.telemetry.metrics import Metrics

EVERY_STATUS = frozenset(TaskStatus)
STATUS_FILTERS = {
    "all": EVERY_STATUS,
    "successful": frozenset({TaskStatus.SUCCESSFUL}),
    "failed": frozenset({TaskStatus.FAILED}),
    "processing": frozenset({TaskStatus.PENDING, TaskStatus.PROCESSING}),
}
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHandlers:
    links: Links
    metrics: Metrics
    file_inputs: FileInputs
    exporting: ExportRuns
    read: Read
    public_url: str | None = None

    async def create_file_input(self, request: Request) -> Response:
        caller = caller_of(request)
        file_input, signed = await self.file_inputs.create(
            caller, await read_body(request, LARGEST_SMALL_BODY)
        )
        if signed:
            expires_at = file_input.created_at + UPLOAD_LIFE
            upload = wire.WireUpload(signed.url, dict(signed.headers), expires_at)
        else:
            url, expires_at = self.links.to_file_input(self._base(request), file_input)
            headers = {"Content-Type": CONTENT_TYPES[file_input.spec.format]}
            upload = wire.WireUpload(url, headers, expires_at)
        shown = wire.WireFileInput(file_input.id, upload, file_input.expires_at)
        return json_response(shown, 201)

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

    async def ingest_errors(self, request: Request) -> Response:
        lines = await self.read.bad_rows(*caller_and_job(request), run_or_latest(request))
        return StreamingResponse(lines, media_type=NDJSON)

    async def list_results(self, request: Request) -> Response:
        query = request.query_params
        for name in query:
            if len(query.getlist(name)) > 1:
                raise field_error(
                    name[:LONGEST_SHOWN], "must be given once: separate values by commas"
                )
        job, parts = await self.read.results(
            *caller_and_job(request),
            run_or_latest(request),
            limit=cursor.limit(
                query.get("limit"), default=cursor.DEFAULT_PAGE, most=cursor.LARGEST_PAGE
            ),
            after=cursor.after_index(query.get("cursor")),
            selection=parse_filter(query, _status_filter(query.get("status"))),
        )
        base = self._base(request)

        def link(task: Task) -> str:
            return self._storage_link(job, task) or self.links.to_result(base, job.id, task)

        def shown(part: ResultPart) -> list[wire.WireResult]:
            self.metrics.served_rows.inc(len(part.tasks))
            return [
                render.result_shown(task, expired=self.read.has_expired(job, task), link=link)
                for task in part.tasks
            ]

        first = await anext(parts)
        if first.is_last:
            return json_response(wire.WireResults(shown(first), first.next_cursor))
        return StreamingResponse(_page_in_parts(first, parts, shown), media_type=JSON)

    async def list_failures(self, request: Request) -> Response:
        text, most = request.query_params.get("limit"), MOST_GROUPS + len(FailureReason)
        limit = cursor.limit(text, default=cursor.DEFAULT_PAGE, most=most)
        groups, examples = await self.read.failures(
            *caller_and_job(request), run_or_latest(request), limit=limit
        )
        return json_response(render.failures_shown(groups, examples, limit))

    async def get_content(self, request: Request) -> Response:
        run, task = run_or_latest(request), _task_id(request)
        return await _content(await self.read.content(*caller_and_job(request), run, task))

    async def get_linked_content(self, request: Request) -> Response:
        job, run, task = job_id(request), run_id(request), _task_id(request)
        self.links.check_result(job, run, task, request.query_params)
        return await _content(await self.read.content_by_link(job, run, task))

    async def get_history(self, request: Request) -> Response:
        run, task = run_or_latest(request), _task_id(request)
        attempts = await self.read.history(*caller_and_job(request), run, task)
        return json_response(render.history_shown(attempts))

    async def start_export(self, request: Request) -> Response:
        export = await self.exporting.start(*caller_and_job(request), run_id(request))
        return json_response(render.export_started(export), 202)

    async def get_export(self, request: Request) -> Response:
        export_id, base = _export_id(request), self._base(request)
        export = await self.exporting.find(*caller_and_job(request), run_id(request), export_id)

        def link(one: Export) -> str:
            in_storage = self.exporting.storage_link(one, life=self.links.life)
            return in_storage or self.links.to_export(base, one)

        return json_response(render.export_shown(export, link))

    async def get_linked_export(self, request: Request) -> Response:
        self.links.check_export(_export_id(request), request.query_params)
        return _download(request, await self.exporting.open(_export_id(request)))

    def _storage_link(self, job: Job, task: Task) -> str | None:
        if task.result is None:
            return None
        content_type, _ = _labels(task.id, task.result.format, task.result.content_type)
        # Always with a name: browsers ignore the one of `<a download>` on links to other origins.
        name = _file_name(task.id, task.result.format, task.result.content_type)
        return self.read.storage_link(
            job, task, life=self.links.life, content_type=content_type, filename=name
        )

    def _base(self, request: Request) -> str:
        return (self.public_url or str(request.base_url)).rstrip("/")


# Results.


def _labels(task_id: TaskId, format_: str, content_type: str | None) -> tuple[str, str | None]:
    """The content type of a result, and the file name under which a browser must save it.

    The name is None for formats that browsers may show. Of any other the site chose the type, which
    may be any: browsers must not render it.
    """
    label = media.type_of(format_, content_type)
    if format_ in media.TYPES_OF_FORMATS:
        return label, None
    return label, _file_name(task_id, format_, content_type)


def _file_name(task_id: TaskId, format_: str, content_type: str | None) -> str:
    return f"{task_id}.{media.extension(format_, content_type)}"


async def _content(content: ResultContent) -> Response:
    """Return a body in chunks.

    The first chunk is read before the response starts, while a body that is gone can still be
    answered with an error.
    """
    content_type, name = _labels(content.task_id, content.format, content.content_type)
    headers = {
        # Not as `media_type`: Starlette would add a charset that the site did not name.
        "Content-Type": content_type,
        "Content-Length": str(content.length),
        "ETag": f'"{content.checksum}"',
        # A scraped page must not run scripts with the origin of this service.
        "Content-Security-Policy": "sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    if name:
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
    """Encode a `WireResults` part by part: a page of large tasks must not be held in memory."""
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


def _task_id(request: Request) -> TaskId:
    return TaskId(request.path_params["task"])


def _status_filter(text: str | None) -> frozenset[TaskStatus] | None:
    """Return the statuses to list, from one name or several with commas; None lists all."""
    names = ("all" if text is None else text).split(",")
    check_names("status", names, STATUS_FILTERS)
    wanted = frozenset[TaskStatus]().union(*(STATUS_FILTERS[name] for name in names))
    return None if wanted == EVERY_STATUS else wanted


# Exports: files to download, whole or from where an earlier download broke off.


class Span(msgspec.Struct, frozen=True):
    """A range of bytes; `end` is exclusive."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def _export_id(request: Request) -> ExportId:
    return ExportId(request.path_params["export"])


def _download(request: Request, file: Download) -> Response:
    """Return a file, or the one range of it that was requested (RFC 9110)."""
    mark = f'"{file.mark}"'
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": mark,
        "Content-Disposition": f'attachment; filename="{file.name}"',
        "X-Content-Type-Options": "nosniff",
    }
    span, status = Span(0, file.length), 200
    # If the file has changed since the client got its first part, it needs the whole file.
    if request.headers.get("if-range", mark) == mark:
        asked = _range(request.headers.get("range", ""), file.length)
        if asked is None:
            return _beyond(file, request.url.path)
        if asked != span:
            span, status = asked, 206
            headers["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{file.length}"
    headers["Content-Length"] = str(span.length)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=ZIP)
    content = _cut(file.read(span.start), span.length)
    return StreamingResponse(content, status, headers, media_type=ZIP)


def _range(text: str, length: int) -> Span | None:
    """Return the requested part of a file, or None if it lies beyond the end.

    A header that is malformed or has several ranges is ignored, as RFC 9110 14.2 allows: the
    response is then the whole file.
    """
    found = RANGE.fullmatch(text.strip())
    if found is None or found[1] == found[2] == "":
        return Span(0, length)
    first, last = found.groups()
    if first == "":  # the last bytes of the file
        span = Span(max(length - int(last), 0), length)
    else:
        span = Span(int(first), min(int(last) + 1 if last else length, length))
        if last and int(last) < int(first):
            return Span(0, length)
    return span if span.length > 0 else None


async def _cut(content: AsyncIterator[bytes], left: int) -> AsyncIterator[bytes]:
    async for chunk in content:
        yield chunk[:left]
        left -= len(chunk)
        if left <= 0:
            return


def _beyond(file: Download, path: str) -> Response:
    error = RangeNotSatisfiable(f"The file has {file.length} bytes: the range lies beyond its end")
    response = problems.answer(error, path)
    response.headers["Content-Range"] = f"bytes */{file.length}"
    return response
