"""The loops of a worker, and how they end."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from conveyor.domain.batch import SCRUB, Scrub
from conveyor.domain.message import Message
from conveyor.settings import Settings
from conveyor.wiring import open_embedded, wire

A_SCRUB = Message(kind=SCRUB, subject="a job", about={"id": "01HZZZZZZZZZZZZZZZZZZZZZZZ"})


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
        await engines.duties.send(A_SCRUB)
        service = wire(settings, engines)
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(service.work(stopping))
            await begun.wait()
            stopping.set()
    async with AsyncExitStack() as stack:
        engines = await open_embedded(settings, stack)
        [duty] = await engines.duties.receive(9, lease=timedelta(seconds=1))
        assert duty.kind == SCRUB


async def test_a_bug_in_a_background_loop_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loop logs it, rests and goes on; the message that met one is tried again later."""
    settings = Settings(
        data=str(tmp_path), durability="process", sweep_every=timedelta(milliseconds=1)
    )
    met: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        engines = await open_embedded(settings, stack)
        stopping = asyncio.Event()

        def break_call(port: object, name: str) -> None:
            async def fail(*_: object, **__: object) -> NoReturn:
                met[name] += 1
                raise ZeroDivisionError(name)

            monkeypatch.setattr(port, name, fail)

        break_call(engines.outbox, "due")
        break_call(engines.timetable, "due")
        break_call(engines.work, "release_lapsed")
        break_call(engines.metadata, "scrubs")
        await engines.duties.send(A_SCRUB)
        service = wire(settings, engines)
        with capture_logs() as logs:
            async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                group.create_task(service.work(stopping))
                while met["scrubs"] < 3 or met["release_lapsed"] < 3:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
                stopping.set()
    assert {"duty.bug", "step.bug", "sweeper.failed"} <= {line["event"] for line in logs}
    assert {"notify", "report", "fire"} <= {line.get("step") for line in logs}
