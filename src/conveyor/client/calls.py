"""Every call of the client: submit lists of any length, follow runs, fetch their results."""

import os
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path

import msgspec

from conveyor.client import results as result_pages
from conveyor.client.chunks import Chunk, Tasks, chunked, key_of
from conveyor.client.errors import ApiError, NotFoundError, Problem, UnfinishedError
from conveyor.client.events import Following
from conveyor.client.exports import OnReceived, completed_export, download, export_state
from conveyor.client.models import (
    Added,
    Attempt,
    BadRow,
    Column,
    History,
    Job,
    JobPage,
    Progress,
    Rerun,
    Run,
    RunExport,
    RunPage,
    SubmittedJob,
    TaskResult,
    latest_run,
)
from conveyor.client.results import content_of
from conveyor.client.transport import Query, Sendings, Transport, decoded, is_whole, of_run, path_of
from conveyor.client.uploads import Csv, File, OnSent, bad_rows, spec_of, upload

LISTED = 100  # jobs or runs of a page
DEFAULT_URL = "http://127.0.0.1:8080/v1"
INGESTING = frozenset({"run_not_terminal"})  # rows of an addition before are still written


class Calls:
    """The calls of `AsyncConveyor` and `Conveyor`, over the transport of either."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def submit(
        self,
        tasks: Tasks,
        *,
        params: Mapping[str, object] | None = None,
        name: str | None = None,
        external_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        max_inflight: int | None = None,
        retries: int | None = None,
        result_ttl_days: int | None = None,
        idempotency_key: str | None = None,
    ) -> SubmittedJob:
        """Submit URLs or tasks as a job: any number of them, from any iterable.

        Up to 10,000 tasks are one call; beyond that an open job is made, filled and closed, and
        no more than 10,000 tasks are held here. When the list raises, or a later part of it is
        refused, the error is `UnfinishedError`: it names the job, which stays open.
        """
        key = idempotency_key or str(uuid.uuid4())
        fields = {
            "zenrows_params": params,
            "name": name,
            "external_id": external_id,
            "metadata": metadata,
            "max_inflight": max_inflight,
            "retries": retries,
            "result_ttl_days": result_ttl_days,
        }
        chunks = chunked(tasks)
        first = await anext(chunks)
        if not first.tasks:
            raise ValueError("there is no task in the list")
        if first.is_last:
            raw = await self._transport.call("POST", "/jobs", first.body(**fields), key=key)
            return msgspec.structs.replace(decoded(raw, SubmittedJob), idempotency_key=key)
        job_id = await self._open(fields, key)
        accepted = await self._fill(job_id, first, chunks, key, last_batch=True)
        return SubmittedJob(job_id=job_id, accepted_tasks=accepted, idempotency_key=key)

    async def submit_file(
        self,
        file: File,
        *,
        type: str | None = None,  # noqa: A002 - the field's name
        header: bool = True,
        delimiter: str = ",",
        url_column: Column | None = None,
        id_column: Column | None = None,
        on_invalid: str | None = None,
        params: Mapping[str, object] | None = None,
        name: str | None = None,
        external_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        max_inflight: int | None = None,
        retries: int | None = None,
        result_ttl_days: int | None = None,
        idempotency_key: str | None = None,
    ) -> SubmittedJob:
        """Upload a list as it is, packed or not, and submit it: a path, or an open binary file.

        `type` is csv, ndjson or txt, by the file's name unless given; what follows it is for CSV.
        The service reads a long list after its response, which then has 0 `accepted_tasks`.
        """
        fields = {
            "on_invalid": on_invalid,
            "zenrows_params": params,
            "name": name,
            "external_id": external_id,
            "metadata": metadata,
            "max_inflight": max_inflight,
            "retries": retries,
            "result_ttl_days": result_ttl_days,
        }
        body = {name: value for name, value in fields.items() if value is not None}
        body["file_input_id"] = await self.upload(
            file,
            type=type,
            header=header,
            delimiter=delimiter,
            url_column=url_column,
            id_column=id_column,
        )
        key, raw = idempotency_key or str(uuid.uuid4()), msgspec.json.encode(body)
        made = decoded(await self._transport.call("POST", "/jobs", raw, key=key), SubmittedJob)
        return msgspec.structs.replace(made, idempotency_key=key)

    async def upload(
        self,
        file: File,
        *,
        type: str | None = None,  # noqa: A002 - the field's name
        header: bool = True,
        delimiter: str = ",",
        url_column: Column | None = None,
        id_column: Column | None = None,
        on_sent: OnSent | None = None,
    ) -> str:
        """Upload a list without submitting it; the `file_input_id` to submit it by.

        `on_sent` is called with the number of bytes of every chunk that was sent.
        """
        csv = Csv(header=header, delimiter=delimiter, url_column=url_column, id_column=id_column)
        return await upload(self._transport, file, spec_of(file, type, csv), on_sent)

    async def errors(
        self, job_id: str, *, run_id: str | None = None
    ) -> AsyncGenerator[BadRow, None]:
        """The rows of an uploaded list that are not tasks, in its order; of the latest run by default."""
        async with aclosing(bad_rows(self._transport, job_id, run_id)) as rows:
            async for row in rows:
                yield decoded(row, BadRow)

    async def error_rows(
        self, job_id: str, *, run_id: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The same as `errors`, each row as the line of JSON that the service sent."""
        async with aclosing(bad_rows(self._transport, job_id, run_id)) as rows:
            async for row in rows:
                yield row

    async def open(
        self,
        *,
        params: Mapping[str, object] | None = None,
        name: str | None = None,
        max_inflight: int | None = None,
        retries: int | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Make an open job without tasks, to be filled by `add`; its id."""
        fields = {
            "zenrows_params": params,
            "name": name,
            "max_inflight": max_inflight,
            "retries": retries,
        }
        return await self._open(fields, idempotency_key or str(uuid.uuid4()))

    async def add(
        self,
        job_id: str,
        tasks: Tasks,
        *,
        last_batch: bool = False,
        idempotency_key: str | None = None,
    ) -> Added:
        """Add tasks to an open job, any number of them; `last_batch` closes it after them."""
        chunks = chunked(tasks)
        first = await anext(chunks)
        if not first.tasks:
            raise ValueError("there is no task in the list")
        key = idempotency_key or str(uuid.uuid4())
        try:
            return Added(await self._fill(job_id, first, chunks, key, last_batch=last_batch))
        except UnfinishedError as error:
            if error.accepted_tasks or error.__cause__ is None:
                raise
            raise error.__cause__ from None  # nothing was begun

    async def close(self, job_id: str) -> Job:
        """Close an open job: no more tasks will come."""
        return decoded(await self._transport.call("POST", path_of("jobs", job_id, "close")), Job)

    async def job(self, job_id: str) -> Job:
        return await self._transport.read(Job, path_of("jobs", job_id))

    async def jobs(self, *, status: str | None = None) -> AsyncGenerator[Job, None]:
        """Your jobs, the newest first."""
        cursor: str | None = None
        while True:
            path = path_of("jobs", query={"status": status, "limit": LISTED, "cursor": cursor})
            page = await self._transport.read(JobPage, path)
            for job in page.jobs:
                yield job
            cursor = page.next_cursor
            if cursor is None:
                return

    async def progress(
        self, job_id: str, *, run_id: str | None = None, poll_every: float = 2.0
    ) -> AsyncGenerator[Progress, None]:
        """How far a run is, whenever that has changed, to its end; of the latest run by default.

        By the service's events, resumed where they were cut; by asking every `poll_every`
        seconds where the service has none.
        """
        following = Following(self._transport, job_id, run_id, poll_every)
        async with aclosing(following.progress()) as states:
            async for state in states:
                yield state

    async def wait(self, job_id: str, *, poll_every: float = 2.0) -> Run:
        """The latest run once it is over."""
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
        cursor: str | None = None
        while True:
            path = path_of("jobs", job_id, "runs", query={"limit": LISTED, "cursor": cursor})
            page = await self._transport.read(RunPage, path)
            for run in page.runs:
                yield run
            cursor = page.next_cursor
            if cursor is None:
                return

    async def results(
        self,
        job_id: str,
        *,
        run_id: str | None = None,
        status: str | None = None,
        bodies: bool = True,
        concurrency: int = 8,
    ) -> AsyncGenerator[TaskResult, None]:
        """Results in the order of submission; `status` may be successful, failed or processing.

        All are of one run, the latest by default, whatever is run again meanwhile.
        With bodies, up to `concurrency` of them are fetched ahead and held. Without, fetch those
        you want by `body`, or by `save` when they are large.
        """
        rows = result_pages.results(self._transport, job_id, run_id, status)
        if bodies:
            rows = result_pages.with_bodies(self._transport, rows, concurrency=concurrency)
        async with aclosing(rows):
            async for row in rows:
                yield row

    async def result_rows(
        self, job_id: str, *, run_id: str | None = None, status: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The same as `results` without bodies, each row as the JSON that the service sent."""
        async with aclosing(result_pages.rows(self._transport, job_id, run_id, status)) as rows:
            async for row in rows:
                yield bytes(row)

    async def body(self, result: TaskResult) -> bytes:
        """The page of a result."""
        return result.body or await self._transport.body(content_of(result))

    async def save(self, result: TaskResult, path: str | os.PathLike[str]) -> int:
        """Stream the page of a result into a file, which appears only when whole; its length."""
        return await self._transport.save(content_of(result), Path(path))

    async def is_saved(self, result: TaskResult, path: str | os.PathLike[str]) -> bool:
        """Whether a file holds the whole page of a result, by the page's length and checksum."""
        file = Path(path)
        if not file.exists():  # noqa: ASYNC240 - a quick call
            return False
        headers = await self._transport.head(content_of(result))
        return await self._transport.network.blocking(is_whole, file, headers)

    async def start_export(self, job_id: str, *, run_id: str | None = None) -> RunExport:
        """Have all of a run put into one file, of the latest by default."""
        run_id = run_id or latest_run(await self.job(job_id)).run_id
        raw = await self._transport.call("POST", path_of(*of_run(job_id, run_id, "exports")))
        return decoded(raw, RunExport).of(job_id, run_id)

    async def export(self, export: RunExport) -> RunExport:
        """An export as it is now; a completed one has a fresh link."""
        return await export_state(self._transport, export)

    async def wait_export(self, export: RunExport, *, poll_every: float = 1.0) -> RunExport:
        """An export once its file is there; `ExportError` if it never will be."""
        return await completed_export(self._transport, export, poll_every)

    async def save_export(
        self,
        export: RunExport,
        path: str | os.PathLike[str],
        *,
        poll_every: float = 1.0,
        on_received: OnReceived | None = None,
    ) -> int:
        """Wait for an export and save its file, which appears only when whole; its length.

        A download that is cut goes on where it was, in this call and in another for the same
        export and path: the part that has arrived stays beside the file. `on_received` is called
        with the bytes so far and in all.
        """
        return await download(self._transport, export, Path(path), poll_every, on_received)

    async def history(
        self, job_id: str, task_id: str, *, run_id: str | None = None
    ) -> list[Attempt]:
        """The attempts at a task, in the latest run by default."""
        path = path_of(*of_run(job_id, run_id, "tasks", task_id, "history"))
        return (await self._transport.read(History, path)).events

    async def stop(self, job_id: str) -> Run:
        """Stop the live run for good; what is scraped is kept."""
        return await self._turn(job_id, "stop")

    async def pause(self, job_id: str) -> Run:
        """Take up nothing more of the live run; what is under way finishes."""
        return await self._turn(job_id, "pause")

    async def resume(self, job_id: str) -> Run:
        return await self._turn(job_id, "resume")

    async def rerun(
        self, job_id: str, *, status: str | None = None, idempotency_key: str | None = None
    ) -> Rerun:
        """Run a job again: all of it, or the tasks of that status, several with commas."""
        path = path_of("jobs", job_id, "rerun", query={"status": status})
        key = idempotency_key or str(uuid.uuid4())
        return decoded(await self._transport.call("POST", path, key=key), Rerun)

    async def delete(self, job_id: str) -> None:
        """Delete a job with all its runs and results. One that is gone already is `NotFoundError`."""
        await self._delete(path_of("jobs", job_id))

    async def delete_run(self, job_id: str, run_id: str) -> None:
        """Delete a run that has ended, with its results; the job stays, if without a run."""
        await self._delete(path_of("jobs", job_id, "runs", run_id))

    async def request(
        self,
        method: str,
        *path: str,
        query: Query | None = None,
        body: object = None,
        idempotency_key: str | None = None,
    ) -> bytes:
        """Any other call of the API: the response as it came.

        `path` is given in parts, which are quoted; `body` is sent as JSON. The call may be repeated.
        """
        raw = None if body is None else msgspec.json.encode(body)
        target = path_of(*path, query=query)
        return await self._transport.call(method, target, raw, key=idempotency_key)

    async def _delete(self, path: str) -> None:
        sendings = Sendings()

        async def once() -> None:
            try:
                await self._transport.call_once("DELETE", path, sendings=sendings)
            except NotFoundError:
                if sendings.times == 1:  # else a call whose response was lost has deleted it
                    raise

        await self._transport.patiently(once)

    async def _turn(self, job_id: str, verb: str) -> Run:
        return decoded(await self._transport.call("POST", path_of("jobs", job_id, verb)), Run)

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
        """Add all chunks, each under a key of its own; how many tasks were accepted."""
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


def _shifted(error: ApiError, by: int) -> ApiError:
    """The same refusal, naming tasks by their place in the whole list."""
    faults = [
        msgspec.structs.replace(fault, index=fault.index + by) for fault in error.invalid_tasks
    ]
    return type(error)(msgspec.structs.replace(error.problem, invalid_tasks=faults))
