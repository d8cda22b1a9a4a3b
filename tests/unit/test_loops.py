"""Loops repeat their step, and rest while there is nothing to do."""

import asyncio
from datetime import timedelta

from conveyor.loops import Wakeup, repeat
from tests.harness.memory_service import SOON

LONG = timedelta(hours=1)


async def test_one_loop_is_woken_for_each_thing_to_do() -> None:
    wakeup, stopping, looked = Wakeup(), asyncio.Event(), asyncio.Queue[int]()

    async def look() -> int:
        looked.put_nowait(1)
        return 0

    loops = [
        asyncio.create_task(repeat(look, stopping, idle=LONG, name="look", wakeup=wakeup))
        for _ in range(3)
    ]
    async with asyncio.timeout(SOON):
        for _ in loops:
            await looked.get()
        wakeup.wake_one()
        await looked.get()
        await asyncio.sleep(0)
        assert looked.empty()
        wakeup.wake_one()
        wakeup.wake_one()
        for _ in range(2):
            await looked.get()
        stopping.set()
        wakeup.wake_all()
        await asyncio.wait(loops)


async def test_what_is_to_do_while_a_loop_is_busy_is_found_before_it_rests() -> None:
    wakeup = Wakeup()
    wakeup.wake_one()
    wakeup.wake_one()
    async with asyncio.timeout(SOON):
        await wakeup.wait(LONG)
    await wakeup.wait(timedelta())
