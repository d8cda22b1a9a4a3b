"""arq: asynchronous, over Redis. `arq on_arq.WorkerSettings`."""

from collections.abc import Sequence

import aio_fetcher
import pages
from arq import create_pool
from arq.connections import RedisSettings
from in_groups import in_groups


async def scrape(_context: object, folder: str, number: int) -> None:
    await aio_fetcher.fetch_and_keep(folder, number)


async def shutdown(_context: object) -> None:
    await aio_fetcher.close()


class WorkerSettings:
    functions = (scrape,)
    redis_settings = RedisSettings.from_dsn(pages.BROKER)
    max_jobs = pages.IN_FLIGHT
    on_shutdown = shutdown


async def feed(folder: str, numbers: Sequence[int]) -> None:
    pool = await create_pool(WorkerSettings.redis_settings)
    await in_groups(numbers, lambda number: pool.enqueue_job("scrape", folder, number))
    await pool.aclose()
