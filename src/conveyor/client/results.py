"""Results in order, page after page, their bodies fetched ahead within a bound."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing

import msgspec

from conveyor.client.errors import ClientError, Expired
from conveyor.client.shapes import Result, ResultPage
from conveyor.client.transport import Transport, path_of

PAGE = 1000

Spawn = Callable[
    [Coroutine[object, object, Result | ClientError]], asyncio.Task[Result | ClientError]
]


async def listed(
    transport: Transport, job_id: str, run_id: str | None, status: str | None
) -> AsyncGenerator[Result, None]:
    """Every row of one run, without bodies: of the latest when the first page was asked for."""
    cursor: str | None = None
    while True:
        parts = ("jobs", job_id, *(("runs", run_id) if run_id else ()), "results")
        query = {"status": status, "limit": PAGE, "cursor": cursor}
        page = await transport.read(ResultPage, path_of(*parts, query=query))
        for row in page.results:
            run_id = run_id or row.run_id  # a rerun between two pages has rows of its own
            yield msgspec.structs.replace(row, job_id=job_id)
        cursor = page.next_cursor
        if cursor is None:
            return


async def with_bodies(
    transport: Transport,
    rows: AsyncGenerator[Result, None],
    spawn: Spawn,
    *,
    concurrency: int,
) -> AsyncGenerator[Result, None]:
    """The rows in their order, each with its body; so many bodies are on their way at most."""
    ahead: deque[asyncio.Task[Result | ClientError]] = deque()
    try:
        async with aclosing(rows):
            async for row in rows:
                ahead.append(spawn(_outcome(transport, row)))
                if len(ahead) >= concurrency:
                    yield _fetched(await ahead.popleft())
        while ahead:
            yield _fetched(await ahead.popleft())
    finally:
        for task in ahead:
            task.cancel()


def content_of(row: Result) -> str:
    """By its own path and not by its link, which may name a host that only others can reach."""
    return path_of("jobs", row.job_id, "runs", row.run_id, "tasks", row.task_id, "content")


async def _outcome(transport: Transport, row: Result) -> Result | ClientError:
    """A failure is returned: raised in the client's group, it would end all else there."""
    if not row.has_body:
        return row
    try:
        return msgspec.structs.replace(row, body=await transport.body(content_of(row)))
    except Expired:  # between the listing and now
        return msgspec.structs.replace(row, status="expired", result_url=None)
    except ClientError as error:
        return error


def _fetched(outcome: Result | ClientError) -> Result:
    if isinstance(outcome, ClientError):
        raise outcome
    return outcome
