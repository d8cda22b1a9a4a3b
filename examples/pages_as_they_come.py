"""Add tasks to an open job while it runs, as a crawler does that finds links on pages."""

import asyncio
import os

from conveyor.client import AsyncConveyor

URL = os.environ.get("CONVEYOR_URL", "http://127.0.0.1:8080/v1")
KEY = os.environ.get("CONVEYOR_KEY", "my-key")


async def main() -> None:
    async with AsyncConveyor(URL, KEY) as conveyor:
        job_id = await conveyor.open(name="crawl")
        await conveyor.add(job_id, ["https://ok.example/"])
        found = [f"https://ok.example/{name}" for name in ("about", "prices", "contact")]
        await conveyor.add(job_id, found)
        await conveyor.close(job_id)
        run = await conveyor.wait(job_id)
        print(run.status, run.stats.successful, "of", run.stats.total)
        async for result in conveyor.results(job_id, status="successful"):
            print(result.url, len(result.body or b""), "bytes")
        await conveyor.delete(job_id)


asyncio.run(main())
