"""Scrapy with JOBDIR, its requests in files. A crawl is one program: nothing else runs."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pages
import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.http import Response


class Pages(scrapy.Spider):
    name = "pages"

    def __init__(self, *, folder: str, numbers: Sequence[int]) -> None:
        super().__init__()
        self._folder, self._numbers = folder, numbers

    async def start(self) -> AsyncIterator[scrapy.Request]:
        for number in self._numbers:
            yield scrapy.Request(pages.address(number), meta={"number": number})

    def parse(self, response: Response) -> None:
        pages.keep(self._folder, response.meta["number"], response.body)


def feed(folder: str, numbers: Sequence[int]) -> None:
    process = CrawlerProcess(
        {
            "JOBDIR": str(Path(folder).with_suffix(".job")),
            "CONCURRENT_REQUESTS": pages.IN_FLIGHT,
            "CONCURRENT_REQUESTS_PER_DOMAIN": pages.IN_FLIGHT,
            "LOG_LEVEL": "INFO",
        }
    )
    process.crawl(Pages, folder=folder, numbers=numbers)
    process.start()
