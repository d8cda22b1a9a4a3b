"""A call to the server can be cancelled at any point."""

import asyncio

from tests.harness.valkey import Valkey, coordination_at

MOST_STEPS = 12  # turns of the event loop that a call takes, and some more
TIMES = 5


async def test_a_call_that_is_cancelled_ends_its_task(valkey: Valkey) -> None:
    async with coordination_at(valkey.url) as coordination:
        await coordination.held("name")  # connects
        for steps in [*range(MOST_STEPS)] * TIMES:
            begun = asyncio.Event()

            async def call_and_go_on(begun: asyncio.Event = begun) -> None:
                begun.set()
                await coordination.held("name")
                await asyncio.Event().wait()

            task = asyncio.create_task(call_and_go_on())
            await begun.wait()
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            ended, _ = await asyncio.wait([task], timeout=5)
            assert ended, f"after {steps} steps"
