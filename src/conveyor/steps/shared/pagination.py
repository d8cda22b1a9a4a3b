"""Keyset pagination: read a listing page by page, each page from above the last key of the one before."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from conveyor.domain.ids import JobId, RunId
from conveyor.domain.run import Run
from conveyor.ports.metadata import AnyRow, Metadata, RowOfRun, key_of

PAGE = 100

Row = TypeVar("Row")
Key = TypeVar("Key")

Read = Callable[[Key], Awaitable[Sequence[Row]]]


async def pages(
    read: Read[Key, Row], *, start: Key, key: Callable[[Row], Key]
) -> AsyncIterator[Sequence[Row]]:
    """Yield the pages of a listing from above `start` until one is empty: keyset pagination.

    A short page is not the end, because engines also bound the bytes of a page. `key` returns the
    position of a row in the listing. Rows that are removed between two reads move no other row.
    """
    after = start
    while page := await read(after):
        yield page
        after = key(page[-1])


async def rows(
    read: Read[Key, Row], *, start: Key, key: Callable[[Row], Key]
) -> AsyncIterator[Row]:
    """Yield the rows of a listing one by one, as `pages` reads them."""
    async for page in pages(read, start=start, key=key):
        for row in page:
            yield row


def every(metadata: Metadata, kind: type[AnyRow]) -> AsyncIterator[AnyRow]:
    """Yield all rows of a kind, as `Metadata.page` lists them."""
    return rows(lambda after: metadata.page(kind, limit=PAGE, after=after), start=None, key=key_of)


def every_of_run(
    metadata: Metadata, kind: type[RowOfRun], run_id: RunId
) -> AsyncIterator[RowOfRun]:
    """Yield all rows of a kind that belong to a run, as `Metadata.of_run` lists them."""
    return rows(
        lambda after: metadata.of_run(kind, run_id, limit=PAGE, after=after),
        start=None,
        key=key_of,
    )


def runs_of(metadata: Metadata, job_id: JobId) -> AsyncIterator[Run]:
    """Yield the runs of a job that are not deleted, newest first."""
    return rows(
        lambda before: metadata.runs(job_id, limit=PAGE, before=before),
        start=None,
        key=lambda run: run.id,
    )
