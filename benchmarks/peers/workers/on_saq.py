"""SAQ: asynchronous, over Redis. `saq on_saq.settings`."""

from collections.abc import Sequence

import aio_fetcher
import pages
from in_groups import in_groups
from saq import Queue

queue = Queue.from_url(pages.BROKER)


async def scrape(_context: object, *, folder: str, number: int) -> None:
    await aio_fetcher.fetch_and_keep(folder, number)


async def shutdown(_context: object) -> None:
    await aio_fetcher.close()


settings = {
    "queue": queue,
    "functions": [scrape],
    "concurrency": pages.IN_FLIGHT,
    "shutdown": shutdown,
}


async def feed(folder: str, numbers: Sequence[int]) -> None:
    await queue.connect()
    await in_groups(numbers, lambda number: queue.enqueue("scrape", folder=folder, number=number))
    await queue.disconnect()
