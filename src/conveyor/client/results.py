"""The results of a run: its rows in order, bodies fetched ahead within a bound, or one export file."""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path

import msgspec

from conveyor.client.errors import (
    ClientError,
    ExpiredError,
    ExportError,
    UnreachableError,
    refusal,
)
from conveyor.client.models import Job, ResultRows, RunExport, TaskResult, latest_run
from conveyor.client.transport import (
    Failures,
    Fetching,
    Query,
    Transport,
    decoded,
    is_retryable,
    of_run,
    path_of,
)

PAGE = 1000
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 206, 416

OnReceived = Callable[[int, int | None], None]  # bytes so far, and in all where that is known


async def rows(
    transport: Transport, job_id: str, run_id: str | None, filters: Mapping[str, str]
) -> AsyncGenerator[bytes, None]:
    """Every row of one run as the service sent it, by default of the latest run."""
    cursor: str | None = None
    if run_id is None and filters:
        # The first pages may be empty, and so would not tell the run.
        run_id = latest_run(await transport.read(Job, path_of("jobs", job_id))).run_id
    while True:
        query: Query = {**filters, "limit": PAGE, "cursor": cursor}
        path = path_of(*of_run(job_id, run_id, "results"), query=query)
        page = await transport.read(ResultRows, path)
        if page.results and run_id is None:
            # From here on by the run's id: after a rerun the job's results are of another run.
            run_id = decoded(page.results[0], TaskResult).run_id
        for row in page.results:
            yield bytes(row)
        cursor = page.next_cursor
        if cursor is None:
            return


async def results(
    transport: Transport, job_id: str, run_id: str | None, filters: Mapping[str, str]
) -> AsyncGenerator[TaskResult, None]:
    """Every row of one run, without bodies."""
    async with aclosing(rows(transport, job_id, run_id, filters)) as raw_rows:
        async for raw in raw_rows:
            yield msgspec.structs.replace(decoded(raw, TaskResult), job_id=job_id)


async def with_bodies(
    transport: Transport, listed: AsyncGenerator[TaskResult, None], *, concurrency: int
) -> AsyncGenerator[TaskResult, None]:
    """The rows in their order, each with its body; at most `concurrency` bodies are fetched ahead."""
    ahead: deque[Fetching[TaskResult | ClientError]] = deque()
    try:
        async with aclosing(listed):
            async for row in listed:
                ahead.append(transport.network.spawn(_fetch_body(transport, row)))
                if len(ahead) >= concurrency:
                    yield _raised_or(await ahead.popleft())
        while ahead:
            yield _raised_or(await ahead.popleft())
    finally:
        for fetching in ahead:
            fetching.cancel()


def content_of(row: TaskResult) -> str:
    """The path of a body. `result_url` may name a host that this client cannot reach."""
    return path_of("jobs", row.job_id, "runs", row.run_id, "tasks", row.task_id, "content")


async def _fetch_body(transport: Transport, row: TaskResult) -> TaskResult | ClientError:
    """A failure is returned: raised in the client's task group, it would cancel all other tasks."""
    if not row.has_body:
        return row
    try:
        return msgspec.structs.replace(row, body=await transport.body(content_of(row)))
    except ExpiredError:  # between the listing and now
        return msgspec.structs.replace(row, status="expired", result_url=None)
    except ClientError as error:
        return error


def _raised_or(outcome: TaskResult | ClientError) -> TaskResult:
    if isinstance(outcome, ClientError):
        raise outcome
    return outcome


async def export_state(transport: Transport, export: RunExport) -> RunExport:
    path = path_of(*of_run(export.job_id, export.run_id, "exports", export.export_id))
    return (await transport.read(RunExport, path)).of(export.job_id, export.run_id)


async def completed_export(transport: Transport, export: RunExport, poll_every: float) -> RunExport:
    """The export once its file exists, with a fresh link to it."""
    while True:
        export = await export_state(transport, export)
        if export.status == "failed":
            raise ExportError(export.export_id, export.error or "no reason was given")
        if export.status == "completed" and export.download_url:
            return export
        await transport.network.sleep(poll_every)


async def download(
    transport: Transport,
    export: RunExport,
    file: Path,
    poll_every: float,
    on_received: OnReceived | None,
) -> int:
    """Save the file of an export, which appears only when complete; return its length."""
    # Named after the export: a partial file of another export must not be continued.
    partial = file.with_name(f"{file.name}.{export.export_id}.part")
    failures = Failures(transport)
    while True:
        had = _size(partial)
        try:
            # Each attempt gets a new link: the last one may have expired meanwhile.
            ready = await completed_export(transport, export, poll_every)
            await _fetch_rest(transport, ready.download_url or "", partial, on_received)
            break
        except ClientError as error:
            # A connection that brought some bytes worked: only attempts without any are counted.
            if _size(partial) > had:
                failures.end()
            await failures.wait_or_raise(error, retryable=is_retryable(error))
    length = _size(partial)
    partial.replace(file)
    return length


async def _fetch_rest(
    transport: Transport, link: str, file: Path, on_received: OnReceived | None
) -> None:
    had = _size(file)
    headers = {"Range": f"bytes={had}-"} if had else {}
    async with transport.exchange("GET", link, headers=headers) as response:
        if response.status == RANGE_NOT_SATISFIABLE:
            # The partial file is as long as the export or longer. Its length alone does not prove
            # that its content is right, so it is fetched again.
            file.unlink()  # noqa: ASYNC240 - a quick call
            raise UnreachableError("the partial file does not belong to this export")
        if response.status >= 300:
            raise refusal(response.status, await response.read(), response.headers)
        done = had if response.status == PARTIAL_CONTENT else 0  # 200: the whole file
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdigit() else None
        with file.open("ab" if done else "wb") as into:
            async for chunk in response.chunks():
                await transport.network.blocking(into.write, chunk)
                done += len(chunk)
                if on_received:
                    on_received(done, total)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
