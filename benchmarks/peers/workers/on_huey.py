"""Huey: greenlets, over a Redis list. `huey_consumer on_huey.huey -k greenlet -w 100`."""

from collections.abc import Sequence

import pages
import pool_fetcher
from huey import RedisHuey

huey = RedisHuey("peers", url=pages.BROKER)


@huey.task()
def scrape(folder: str, number: int) -> None:
    pool_fetcher.fetch_and_keep(folder, number)


def feed(folder: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        scrape(folder, number)
