"""Procrastinate: asynchronous, over PostgreSQL.

`procrastinate --app on_procrastinate.app worker --concurrency 100`.
"""

from collections.abc import Sequence

import aio_fetcher
import pages
from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=pages.BROKER))


@app.task
async def scrape(folder: str, number: int) -> None:
    await aio_fetcher.fetch_and_keep(folder, number)


async def feed(folder: str, numbers: Sequence[int]) -> None:
    async with app.open_async():
        await scrape.batch_defer_async(*({"folder": folder, "number": one} for one in numbers))
