"""Celery: greenlets, over Redis. `celery -A on_celery worker -P gevent -c 100`."""

from collections.abc import Sequence

import pages
import pool_fetcher
from celery import Celery

app = Celery("on_celery", broker=pages.BROKER)


@app.task
def scrape(folder: str, number: int) -> None:
    pool_fetcher.fetch_and_keep(folder, number)


def feed(folder: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        scrape.delay(folder, number)
