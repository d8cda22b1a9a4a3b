"""The script people would write instead: aiohttp, a semaphore, a file for each body.

Run as a program of its own: `python -m benchmarks.bare_script GATEWAY COUNT SIZE FOLDER`.
It loses everything when it dies.
"""

import asyncio
import sys
from pathlib import Path

import aiohttp
import uvloop

IN_FLIGHT = 100


async def scrape_all(gateway: str, count: int, size: int, folder: Path) -> None:
    gate = asyncio.Semaphore(IN_FLIGHT)
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def scrape(number: int) -> None:
            params = {"apikey": "k", "url": f"https://ok.example/{number}?size={size}"}
            async with gate, session.get(gateway, params=params) as response:
                (folder / str(number)).write_bytes(await response.read())

        await asyncio.gather(*(scrape(number) for number in range(count)))


if __name__ == "__main__":
    gateway, count, size, folder = sys.argv[1:]
    uvloop.run(scrape_all(gateway, int(count), int(size), Path(folder)))
