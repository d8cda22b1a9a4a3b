"""The script people would write instead: aiohttp, a semaphore, a file for each body.

Run as a program of its own: `python -m benchmarks.bare_script GATEWAY COUNT IN_FLIGHT FOLDER`. It
says how many seconds it took, its start left out, and loses everything when it dies.
"""

import asyncio
import sys
import time
from pathlib import Path

import aiohttp
import uvloop


async def scrape_all(gateway: str, count: int, in_flight: int, folder: Path) -> None:
    gate = asyncio.Semaphore(in_flight)
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def scrape(number: int) -> None:
            params = {"apikey": "k", "url": f"https://ok.example/{number}"}
            async with gate, session.get(gateway, params=params) as response:
                (folder / str(number)).write_bytes(await response.read())

        await asyncio.gather(*(scrape(number) for number in range(count)))


if __name__ == "__main__":
    gateway, count, in_flight, folder = sys.argv[1:]
    started, used = time.perf_counter(), time.process_time()
    uvloop.run(scrape_all(gateway, int(count), int(in_flight), Path(folder)))
    print(time.perf_counter() - started, time.process_time() - used)
