"""Dramatiq: threads in processes, over Redis. `dramatiq on_dramatiq --threads 50`."""

from collections.abc import Sequence

import dramatiq
import pages
import pool_fetcher
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=pages.BROKER))


@dramatiq.actor
def scrape(folder: str, number: int) -> None:
    pool_fetcher.fetch_and_keep(folder, number)


def feed(folder: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        scrape.send(folder, number)
