"""The loops of a worker, and how they end."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from conveyor.domain.batch import SCRUB, Scrub
from conveyor.settings import Settings
from conveyor.wiring import open_embedded, wire


async def test_a_long_duty_does_not_hold_up_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be cut off anywhere, and comes again at the next start."""
    settings = Settings(data=str(tmp_path), durability="process", grace=timedelta(milliseconds=50))
    async with AsyncExitStack() as stack:
        engines = await open_embedded(settings, stack)
        begun, stopping = asyncio.Event(), asyncio.Event()

        async def endless(**_: object) -> list[Scrub]:
            begun.set()
            await asyncio.Event().wait()
            return []

        monkeypatch.setattr(engines.metadata, "scrubs", endless)
        await engines.duties.send(SCRUB, {"id": "01HZZZZZZZZZZZZZZZZZZZZZZZ"})
        service = wire(settings, engines)
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(service.work(stopping))
            await begun.wait()
            stopping.set()
    async with AsyncExitStack() as stack:
        engines = await open_embedded(settings, stack)
        [duty] = await engines.duties.receive(9, lease=timedelta(seconds=1))
        assert duty.kind == SCRUB
