"""Every call of the client: submit lists of any length, follow runs, fetch their results."""

import os
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Unpack, cast

import msgspec

from conveyor.client import results as result_pages
from conveyor.client.chunks import Chunk, Tasks, chunked, key_of
from conveyor.client.errors import ApiError, NotFoundError, Problem, UnfinishedError
from conveyor.client.events import Following
from conveyor.client.models import (
    Added,
    Attempt,
    BadRow,
    Failures,
    FileFormat,
    FileJobOptions,
    History,
    Job,
    JobOptions,
    JobPage,
    Progress,
    Rerun,
    RerunConditions,
    RowConditions,
    Run,
    RunExport,
    RunPage,
    SubmittedJob,
    TaskResult,
    Timeline,
    latest_run,
)
from conveyor.client.results import OnReceived, completed_export, content_of, download, export_state
from conveyor.client.settings import SettingCalls
from conveyor.client.transport import (
    Query,
    SendCount,
    Transport,
    decoded,
    is_complete,
    of_run,
    path_of,
)
from conveyor.client.uploads import File, OnSent, bad_rows, spec_of, upload

DEFAULT_URL = "http://127.0.0.1:8080/v1"
NO_TASKS = "the list must not be empty: there is no task in it"
TOO_LONG_TO_SCHEDULE = (
    "a scheduled job takes its whole list in one call, at most 10,000 tasks: upload a longer one with "
    "submit_file"
)
INGESTING = frozenset({"run_not_terminal"})  # the rows of an earlier call are still being written


class Calls(SettingCalls):
    """The calls of `AsyncConveyor` and `Conveyor`, over the transport of either."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def submit(self, tasks: Tasks, **options: Unpack[JobOptions]) -> SubmittedJob:
        """Submit URLs or tasks as a job: any number of them, from any iterable.

        Up to 10,000 tasks are one call. A longer list becomes an open job, which is filled call by
        call and closed; at most 10,000 tasks are held in memory. If the iterable raises, or the
        service refuses a later call, the error is `UnfinishedError`: it names the job, which
        stays open.
        """
        fields, key = _fields(options, JobOptions.__optional_keys__)
        chunks = chunked(tasks)
        first = await anext(chunks)
        if not first.tasks:
            raise ValueError(NO_TASKS)
        if first.is_last:
            return await self._create(first.body(**fields), key)
        if "schedule" in fields:
            raise ValueError(TOO_LONG_TO_SCHEDULE)
        job_id = await self._open(fields, key)
        accepted = await self._fill(job_id, first, chunks, key, last_batch=True)
        return SubmittedJob(job_id=job_id, accepted_tasks=accepted, idempotency_key=key)

    async def submit_file(self, file: File, **options: Unpack[FileJobOptions]) -> SubmittedJob:
        """Upload a list and submit it: a path, or an open binary file, compressed or not.

        The service reads a long list after its response, which then has 0 `accepted_tasks`.
        """
        fields, key = _fields(options, FileJobOptions.__optional_keys__)
        form = {name: fields.pop(name) for name in FileFormat.__optional_keys__ & fields.keys()}
        fields["file_input_id"] = await self.upload(file, **cast("FileFormat", form))
        return await self._create(msgspec.json.encode(fields), key)

    async def upload(
        self, file: File, *, on_sent: OnSent | None = None, **form: Unpack[FileFormat]
    ) -> str:
        """Upload a list without submitting it; returns the `file_input_id` to submit it by.

        `on_sent` is called with the number of bytes of every chunk that was sent.
        """
        _fields(form, FileFormat.__optional_keys__)
        return await upload(self._transport, file, spec_of(file, form), on_sent)

    async def errors(
        self, job_id: str, *, run_id: str | None = None
    ) -> AsyncGenerator[BadRow, None]:
        """The rows of an uploaded list that are not tasks, in order; of the latest run by default."""
        async with aclosing(self.error_rows(job_id, run_id=run_id)) as rows:
            async for row in rows:
                yield decoded(row, BadRow)

    def error_rows(self, job_id: str, *, run_id: str | None = None) -> AsyncGenerator[bytes, None]:
        """Like `errors`, each row as the line of JSON that the service sent."""
        return bad_rows(self._transport, job_id, run_id)

    async def open(self, **options: Unpack[JobOptions]) -> str:
        """Create an open job without tasks, to be filled by `add`; returns its id."""
        return await self._open(*_fields(options, JobOptions.__optional_keys__))

    async def add(
        self,
        job_id: str,
        tasks: Tasks,
        *,
        last_batch: bool = False,
        idempotency_key: str | None = None,
    ) -> Added:
        """Add any number of tasks to an open job; `last_batch` closes it after them."""
        chunks = chunked(tasks)
        first = await anext(chunks)
        if not first.tasks:
            raise ValueError(NO_TASKS)
        key = idempotency_key or str(uuid.uuid4())
        try:
            return Added(await self._fill(job_id, first, chunks, key, last_batch=last_batch))
        except UnfinishedError as error:
            if error.accepted_tasks or error.__cause__ is None:
                raise
            raise error.__cause__ from None  # nothing was added

    async def close(self, job_id: str) -> Job:
        """Close an open job: no more tasks can be added."""
        return decoded(await self._transport.call("POST", path_of("jobs", job_id, "close")), Job)

    async def job(self, job_id: str) -> Job:
        return await self._transport.read(Job, path_of("jobs", job_id))

    async def jobs(
        self,
        *,
        status: str | None = None,
        type: str | None = None,  # noqa: A002 - as in the API
        name: str | None = None,
    ) -> AsyncGenerator[Job, None]:
        """Your jobs, the newest first: of a status (open, closed or deleted), of a type (regular or
        scheduled), and with `name` those whose name or external id contains it.
        """
        async for page in self._pages(JobPage, "jobs", status=status, type=type, name=name):
            for job in page.jobs:
                yield job

    def progress(
        self, job_id: str, *, run_id: str | None = None, poll_every: float = 2.0
    ) -> AsyncGenerator[Progress, None]:
        """The progress of a run whenever it changes, to its end; of the latest run by default.

        It comes from the service's server-sent events. A stream that breaks is resumed. A service
        without events is polled every `poll_every` seconds.
        """
        return Following(self._transport, job_id, run_id, poll_every).progress()

    async def wait(self, job_id: str, *, poll_every: float = 2.0) -> Run:
        """Wait for the end of the latest run, and return it."""
        states = self.progress(job_id, poll_every=poll_every)
        async with aclosing(states):
            async for state in states:
                if state.has_ended and state.status != "deleted":
                    return await self.run(job_id, state.run_id)
        raise NotFoundError(Problem(status=404, code="not_found", detail="The run was deleted"))

    async def run(self, job_id: str, run_id: str) -> Run:
        return await self._transport.read(Run, path_of("jobs", job_id, "runs", run_id))

    async def runs(self, job_id: str) -> AsyncGenerator[Run, None]:
        """The runs of a job, the newest first."""
        async for page in self._pages(RunPage, "jobs", job_id, "runs"):
            for run in page.runs:
                yield run

    def results(
        self,
        job_id: str,
        *,
        run_id: str | None = None,
        status: str | None = None,
        bodies: bool = True,
        concurrency: int = 8,
        **conditions: Unpack[RowConditions],
    ) -> AsyncGenerator[TaskResult, None]:
        """Results in the order of submission; `status` may be successful, failed or processing.

        With conditions only those of tasks that `rerun` selects by them.
        All are of one run, the latest by default, even if the job is rerun meanwhile.
        With bodies, up to `concurrency` of them are fetched ahead and held in memory. Without,
        fetch the ones you want by `body`, or by `save` if they are large.
        """
        filters = _filters(status, conditions)
        rows = result_pages.results(self._transport, job_id, run_id, filters)
        if not bodies:
            return rows
        return result_pages.with_bodies(self._transport, rows, concurrency=concurrency)

    def result_rows(
        self,
        job_id: str,
        *,
        run_id: str | None = None,
        status: str | None = None,
        **conditions: Unpack[RowConditions],
    ) -> AsyncGenerator[bytes, None]:
        """Like `results` without bodies, each row as the JSON that the service sent."""
        filters = _filters(status, conditions)
        return result_pages.rows(self._transport, job_id, run_id, filters)

    async def body(self, result: TaskResult) -> bytes:
        """The body of a result."""
        return result.body or await self._transport.body(content_of(result))

    async def save(self, result: TaskResult, path: str | os.PathLike[str]) -> int:
        """Stream a body into a file, which appears only when complete; returns its length."""
        return await self._transport.save(content_of(result), Path(path))

    async def is_saved(self, result: TaskResult, path: str | os.PathLike[str]) -> bool:
        """Whether a file holds the body of a result, by length and checksum."""
        file = Path(path)
        if not file.exists():  # noqa: ASYNC240 - a quick call
            return False
        headers = await self._transport.head(content_of(result))
        return await self._transport.network.blocking(is_complete, file, headers)

    async def start_export(self, job_id: str, *, run_id: str | None = None) -> RunExport:
        """Start an export: all results of a run, the latest by default, in one file."""
        run_id = run_id or latest_run(await self.job(job_id)).run_id
        raw = await self._transport.call("POST", path_of(*of_run(job_id, run_id, "exports")))
        return decoded(raw, RunExport).of(job_id, run_id)

    async def export(self, export: RunExport) -> RunExport:
        """The current state of an export; a completed one has a fresh link."""
        return await export_state(self._transport, export)

    async def wait_export(self, export: RunExport, *, poll_every: float = 1.0) -> RunExport:
        """Wait until the file of an export exists; `ExportError` if the service could not make it."""
        return await completed_export(self._transport, export, poll_every)

    async def save_export(
        self,
        export: RunExport,
        path: str | os.PathLike[str],
        *,
        poll_every: float = 1.0,
        on_received: OnReceived | None = None,
    ) -> int:
        """Wait for an export and save it to a file; returns the length of the file.

        The file appears only when complete. A download that breaks is resumed, by this call or by
        a later one for the same export and path: the partial file stays beside the target.
        `on_received` is called with the number of bytes so far and in all.
        """
        return await download(self._transport, export, Path(path), poll_every, on_received)

    async def history(
        self, job_id: str, task_id: str, *, run_id: str | None = None
    ) -> list[Attempt]:
        """The attempts at a task, in the latest run by default."""
        path = path_of(*of_run(job_id, run_id, "tasks", task_id, "history"))
        return (await self._transport.read(History, path)).events

    async def stop(self, job_id: str) -> Run:
        """Stop the live run for good; its results are kept."""
        return await self._turn(job_id, "stop")

    async def pause(self, job_id: str) -> Run:
        """Pause the live run: tasks in flight finish, no others are started."""
        return await self._turn(job_id, "pause")

    async def resume(self, job_id: str) -> Run:
        """Resume a paused run."""
        return await self._turn(job_id, "resume")

    async def failures(
        self, job_id: str, *, run_id: str | None = None, limit: int = 100
    ) -> Failures:
        """The failed tasks by host, reason and code, the largest groups first.

        They are of the latest run by default.
        """
        path = path_of(*of_run(job_id, run_id, "failures"), query={"limit": limit})
        return await self._transport.read(Failures, path)

    async def timeline(self, job_id: str, *, run_id: str | None = None) -> Timeline:
        """How many tasks succeeded and failed in each interval of time, by default of the latest run.

        For a large run this is an estimate from a sample of its rows.
        """
        return await self._transport.read(Timeline, path_of(*of_run(job_id, run_id, "timeline")))

    async def rerun(
        self,
        job_id: str,
        *,
        status: str | None = None,
        idempotency_key: str | None = None,
        **conditions: Unpack[RerunConditions],
    ) -> Rerun:
        """Run a job again: all its tasks, or those that meet every given condition.

        `status` takes several with commas. The new run inherits the results of the other tasks.
        """
        given = {name: value for name, value in conditions.items() if value is not None}
        if "params" in given:
            given["zenrows_params"] = given.pop("params")
        path = path_of("jobs", job_id, "rerun", query={"status": status})
        key = idempotency_key or str(uuid.uuid4())
        raw = msgspec.json.encode(given) if given else None
        return decoded(await self._transport.call("POST", path, raw, key=key), Rerun)

    async def delete(self, job_id: str) -> None:
        """Delete a job with all its runs and results; `NotFoundError` if there is none."""
        await self._delete(path_of("jobs", job_id))

    async def delete_run(self, job_id: str, run_id: str) -> None:
        """Delete a run that has ended, with its results. The job stays, even without a run."""
        await self._delete(path_of("jobs", job_id, "runs", run_id))

    async def request(
        self,
        method: str,
        *path: str,
        query: Query | None = None,
        body: object = None,
        idempotency_key: str | None = None,
    ) -> bytes:
        """Make any other call of the API; returns the body of the response.

        `path` is given in parts, which are quoted; `body` is sent as JSON. The call is repeated
        like the others, so one that creates something needs an `idempotency_key`.
        """
        raw = None if body is None else msgspec.json.encode(body)
        target = path_of(*path, query=query)
        return await self._transport.call(method, target, raw, key=idempotency_key)

    async def _delete(self, path: str) -> None:
        send_count = SendCount()

        async def once() -> None:
            try:
                await self._transport.call_once("DELETE", path, send_count=send_count)
            except NotFoundError:
                # After a lost response, 404 means that the earlier request did delete it.
                if send_count.times == 1:
                    raise

        await self._transport.with_retries(once)

    async def _turn(self, job_id: str, verb: str) -> Run:
        return decoded(await self._transport.call("POST", path_of("jobs", job_id, verb)), Run)

    async def _create(self, body: bytes, key: str) -> SubmittedJob:
        raw = await self._transport.call("POST", "/jobs", body, key=key)
        return msgspec.structs.replace(decoded(raw, SubmittedJob), idempotency_key=key)

    async def _open(self, fields: Mapping[str, object], key: str) -> str:
        body = Chunk(0, 0, [], is_last=False).body(**fields, status="open")
        raw = await self._transport.call("POST", "/jobs", body, key=key_of(key, "open"))
        return decoded(raw, SubmittedJob).job_id

    async def _fill(
        self,
        job_id: str,
        first: Chunk,
        rest: AsyncGenerator[Chunk, None],
        key: str,
        *,
        last_batch: bool,
    ) -> int:
        """Add chunks, each with its own idempotency key; return how many tasks were accepted."""
        accepted, chunk = 0, first
        try:
            while True:
                accepted += await self._add(job_id, chunk, key, close=last_batch)
                if chunk.is_last:
                    return accepted
                chunk = await anext(rest)
        except ApiError as error:
            cause = _shifted(error, chunk.first)
            raise UnfinishedError(job_id, accepted, key, cause) from cause
        except Exception as error:
            raise UnfinishedError(job_id, accepted, key, error) from error

    async def _add(self, job_id: str, chunk: Chunk, key: str, *, close: bool) -> int:
        raw = await self._transport.call(
            "POST",
            path_of("jobs", job_id, "tasks"),
            chunk.body(last_batch=True if close and chunk.is_last else None),
            key=key_of(key, chunk.number),
            wait_out=INGESTING,
        )
        return decoded(raw, Added).accepted_tasks


def _fields(options: Mapping[str, object], known: frozenset[str]) -> tuple[dict[str, object], str]:
    """The fields of the API's document, and the idempotency key, which is made if none is given."""
    # A type checker rejects other keywords by the `TypedDict`; at run time Python accepts any.
    if unknown := sorted(options.keys() - known):
        raise TypeError(f"options must be among {', '.join(sorted(known))}, got {unknown[0]!r}")
    fields = {
        "zenrows_params" if name == "params" else name: value
        for name, value in options.items()
        if value is not None
    }
    if "schedule" in fields:
        fields["type"] = "scheduled"
    return fields, str(fields.pop("idempotency_key", None) or uuid.uuid4())


def _filters(status: str | None, conditions: RowConditions) -> dict[str, str]:
    """The query of a listing of results; Python accepts any keyword, as `_fields` says."""
    if unknown := sorted(conditions.keys() - RowConditions.__optional_keys__):
        known = ", ".join(sorted(RowConditions.__optional_keys__))
        raise TypeError(f"conditions must be among {known}, got {unknown[0]!r}")
    given = cast("Mapping[str, Sequence[str] | None]", conditions)
    for name, values in given.items():
        if isinstance(values, str):
            raise TypeError(f"{name} must be a list of texts, got {values!r}")
    filters = {name: ",".join(values) for name, values in given.items() if values is not None}
    return filters if status is None else {"status": status, **filters}


def _shifted(error: ApiError, by: int) -> ApiError:
    """The same refusal, with the tasks' indexes in the whole list instead of the chunk."""
    faults = [
        msgspec.structs.replace(fault, index=fault.index + by) for fault in error.invalid_tasks
    ]
    return type(error)(msgspec.structs.replace(error.problem, invalid_tasks=faults))
