"""taskiq: asynchronous, over a Redis stream with acknowledgements. `taskiq worker on_taskiq:broker`."""

from collections.abc import Sequence

import aio_fetcher
import pages
from in_groups import in_groups
from taskiq import TaskiqEvents
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(url=pages.BROKER)


@broker.task
async def scrape(folder: str, number: int) -> None:
    await aio_fetcher.fetch_and_keep(folder, number)


@broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)
async def shutdown(_state: object) -> None:
    await aio_fetcher.close()


async def feed(folder: str, numbers: Sequence[int]) -> None:
    await broker.startup()
    await in_groups(numbers, lambda number: scrape.kiq(folder, number))
    await broker.shutdown()
