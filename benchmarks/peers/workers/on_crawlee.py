"""Crawlee's HTTP crawler, its request queue in files. A crawl is one program: nothing else runs."""

from collections.abc import Sequence

import pages
from crawlee import ConcurrencySettings, Request
from crawlee.crawlers import HttpCrawler, HttpCrawlingContext


async def feed(folder: str, numbers: Sequence[int]) -> None:
    crawler = HttpCrawler(
        concurrency_settings=ConcurrencySettings(
            desired_concurrency=pages.IN_FLIGHT, max_concurrency=pages.IN_FLIGHT
        ),
    )

    @crawler.router.default_handler
    async def handle(context: HttpCrawlingContext) -> None:
        body = await context.http_response.read()
        pages.keep(folder, int(context.request.user_data["number"]), body)

    await crawler.run(
        [Request.from_url(pages.address(one), user_data={"number": one}) for one in numbers]
    )
