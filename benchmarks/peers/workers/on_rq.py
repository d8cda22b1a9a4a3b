"""RQ: a process forked for each task, over Redis. `rq worker-pool -n 8 -c on_rq`.

Given as the configuration too, so that workers have it imported before they fork: RQ's own advice.
"""

from collections.abc import Sequence

import pages
import pool_fetcher
from redis import Redis
from rq import Queue

REDIS_URL = pages.BROKER


def scrape(folder: str, number: int) -> None:
    pool_fetcher.fetch_and_keep(folder, number)


def feed(folder: str, numbers: Sequence[int]) -> None:
    queue = Queue(connection=Redis.from_url(pages.BROKER))
    queue.enqueue_many([Queue.prepare_data(scrape, (folder, number)) for number in numbers])
