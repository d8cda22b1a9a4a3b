"""Engines: each address is opened once, and a start frees nothing that may be alive."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.app import engines as engines_module
from conveyor.app import roles
from conveyor.app.engines import Engines, open_engines
from conveyor.app.roles import open_service
from conveyor.app.schemes import Opening, Scheme
from conveyor.domain.batch import ingest_message
from conveyor.domain.task import TaskStatus
from conveyor.ports.coordination import Coordination
from conveyor.settings import Settings
from conveyor.testing.clock import FakeClock, FakeIds
from conveyor.testing.factories import RUN, a_batch, a_job, a_run, add_rows, new_tasks
from tests.harness.shared_engines import SharedEngines


async def test_what_kinds_of_state_share_is_opened_once_for_each_address() -> None:
    opened: list[str] = []

    @asynccontextmanager
    async def a_database(_opening: Opening, address: str) -> AsyncIterator[str]:
        opened.append(address)
        yield address

    async with AsyncExitStack() as stack:
        clock = FakeClock()
        opening = Opening(
            settings=Settings(), stack=stack, clock=clock, ids=FakeIds(), incarnation="incarnation"
        )
        found = [await opening.once(a_database, one) for one in ("//a", "//b", "//a")]
    assert found == ["//a", "//b", "//a"]
    assert opened == ["//a", "//b"]


async def test_an_engine_is_opened_with_the_address_of_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses: list[str] = []

    async def open_it(opening: Opening, address: str) -> Coordination:
        addresses.append(address)
        return MemoryCoordination(opening.clock, lease=opening.settings.lease)

    monkeypatch.setattr(engines_module, "COORDINATION", {"redis": Scheme(open=open_it)})
    settings = Settings(data=str(tmp_path), durability="process")
    settings = msgspec.structs.replace(settings, coordination="redis://host:6379/0")
    async with AsyncExitStack() as stack:
        await open_engines(settings, stack)
    assert addresses == ["//host:6379/0"]


@pytest.mark.parametrize("alone", [True, False])
async def test_a_start_releases_claims_only_if_no_other_process_can_hold_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    settings = Settings(data=str(tmp_path), durability="process")

    async with AsyncExitStack() as stack:
        engines = await open_engines(settings, stack)
        await engines.metadata.commit(a_job(), a_run())
        await add_rows(engines.tasks, RUN, new_tasks(n=1))
        assert await engines.work.claim({RUN: 1})

    async def open_them(settings: Settings, stack: AsyncExitStack) -> Engines:
        engines = await open_engines(settings, stack)
        return engines if alone else replace(engines, dead_claims=None)

    monkeypatch.setattr(roles, "open_engines", open_them)
    async with open_service(settings) as service:
        [task] = (await service.steps.read.tasks.page(RUN, limit=1)).tasks
    assert task.status is (TaskStatus.PENDING if alone else TaskStatus.PROCESSING)


async def test_each_start_has_an_incarnation_later_than_those_before(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), durability="process")
    found: list[str] = []
    for _ in range(2):
        async with AsyncExitStack() as stack:
            found.append((await open_engines(settings, stack)).incarnation)
    assert found[0] < found[1]


@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_start_sends_the_messages_again_that_ended_with_the_last_process(
    monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    shared = SharedEngines(monkeypatch)
    await shared.metadata.commit(a_job(), a_run(), a_batch())
    settings = shared.settings(**({"control_queue": "memory:"} if in_memory else {}))
    async with open_service(settings) as service:
        queue = service.steps.control_worker.control_queue
        message = ingest_message(a_batch(), None)
        assert await queue.is_live(message.kind, message.subject) == in_memory
