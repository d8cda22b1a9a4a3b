"""Results in order, page after page, their bodies fetched ahead within a bound."""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from conveyor.client.errors import ClientError, ExpiredError
from conveyor.client.models import ResultRows, TaskResult
from conveyor.client.transport import Fetching, Transport, decoded, of_run, path_of

PAGE = 1000


async def rows(
    transport: Transport, job_id: str, run_id: str | None, status: str | None
) -> AsyncGenerator[msgspec.Raw, None]:
    """Every row of one run as it came: of the run that is the latest when the first is read."""
    cursor: str | None = None
    while True:
        query = {"status": status, "limit": PAGE, "cursor": cursor}
        path = path_of(*of_run(job_id, run_id, "results"), query=query)
        page = await transport.read(ResultRows, path)
        if page.results and run_id is None:  # a rerun between two pages has rows of its own
            run_id = decoded(page.results[0], TaskResult).run_id
        for row in page.results:
            yield row
        cursor = page.next_cursor
        if cursor is None:
            return


async def results(
    transport: Transport, job_id: str, run_id: str | None, status: str | None
) -> AsyncGenerator[TaskResult, None]:
    """Every row of one run, without bodies."""
    async with aclosing(rows(transport, job_id, run_id, status)) as raw_rows:
        async for raw in raw_rows:
            yield msgspec.structs.replace(decoded(raw, TaskResult), job_id=job_id)


async def with_bodies(
    transport: Transport, listed: AsyncGenerator[TaskResult, None], *, concurrency: int
) -> AsyncGenerator[TaskResult, None]:
    """The rows in their order, each with its body; at most so many bodies are fetched ahead."""
    ahead: deque[Fetching[TaskResult | ClientError]] = deque()
    try:
        async with aclosing(listed):
            async for row in listed:
                ahead.append(transport.network.spawn(_outcome(transport, row)))
                if len(ahead) >= concurrency:
                    yield _fetched(await ahead.popleft())
        while ahead:
            yield _fetched(await ahead.popleft())
    finally:
        for fetching in ahead:
            fetching.cancel()


def content_of(row: TaskResult) -> str:
    """By its own path and not by its link, which may name a host that only others can reach."""
    return path_of("jobs", row.job_id, "runs", row.run_id, "tasks", row.task_id, "content")


async def _outcome(transport: Transport, row: TaskResult) -> TaskResult | ClientError:
    """A failure is returned: raised in the client's group, it would end all else there."""
    if not row.has_body:
        return row
    try:
        return msgspec.structs.replace(row, body=await transport.body(content_of(row)))
    except ExpiredError:  # between the listing and now
        return msgspec.structs.replace(row, status="expired", result_url=None)
    except ClientError as error:
        return error


def _fetched(outcome: TaskResult | ClientError) -> TaskResult:
    if isinstance(outcome, ClientError):
        raise outcome
    return outcome
