"""Operators' commands on engines that processes share: from any machine, while services run."""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest

from conveyor.cli import admin as admin_module
from conveyor.cli.admin import OfflineAdmin, open_admin
from conveyor.domain.api_key import NewKey
from conveyor.domain.audit import DoctorEvent, DoctorScope, Environment, Finding
from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.ids import RunId
from conveyor.domain.job import PURGE
from conveyor.errors import RefusedToStart, Unavailable
from conveyor.ports.coordination import Member
from conveyor.settings import Settings
from conveyor.testing.factories import RUN, a_job, a_run, add_rows, new_tasks
from tests.harness.shared_engines import SharedEngines

A_MEMBER = Member(
    id="one", role="worker", host="here", version="1", started_at=datetime(2026, 1, 1, tzinfo=UTC)
)
AN_OLD_RUN = RunId("01HZZZZZZZZZZZZZZZZZZZZZZY")
A_PURGE = ControlMessage(kind=PURGE, subject="a job", payload={"id": "01HZZZZZZZZZZZZZZZZZZZZZZZ"})


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SharedEngines:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(admin_module, "set_up_logs", lambda *_, **__: None)  # for all later tests
    return SharedEngines(monkeypatch)


def test_commands_open_shared_engines_and_leave_the_data_folder_alone(
    shared: SharedEngines, tmp_path: Path
) -> None:
    _run(_one_dead_letter(shared))
    admin = open_admin(shared.settings())
    [dead] = admin.dead_letters()
    assert admin.find_dead_letter(dead.id) == dead
    assert admin.redrive(dead.id)
    assert not list(admin.dead_letters())

    created = admin.create_key(NewKey(caller="ann"))
    [listed] = admin.keys()
    assert listed.id == created.about.id
    assert admin.revoke_key(created.about.id)
    assert _examined(shared.settings())[0] == []
    assert not list(tmp_path.iterdir())


def test_dead_letters_in_the_memory_of_a_service_are_refused(shared: SharedEngines) -> None:
    admin = open_admin(shared.settings(control_queue="memory:"))
    with pytest.raises(RefusedToStart, match="dead letters are in the memory of the service"):
        list(admin.dead_letters())
    with pytest.raises(RefusedToStart, match="control_queue is memory:"):
        admin.redrive("1")


def test_the_doctor_leaves_the_claims_of_live_processes_alone(shared: SharedEngines) -> None:
    _run(_one_claim(shared))
    codes, environment = _examined(shared.settings())
    assert codes == ["lapsed_lease"]  # no process is alive, so the claim is a dead one's
    assert not environment.running
    assert (environment.folder, environment.free) == (None, None)

    _run(shared.coordination.announce(A_MEMBER, life=timedelta(minutes=1)))
    codes, environment = _examined(shared.settings())
    assert codes == []
    assert environment.running


def test_the_doctor_is_patient_if_it_cannot_tell_who_is_alive(
    shared: SharedEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(_one_claim(shared))
    assert _examined(shared.settings(coordination="memory:"))[0] == []

    async def away() -> NoReturn:
        raise Unavailable("it does not answer")

    monkeypatch.setattr(shared.coordination, "members", away)
    assert _examined(shared.settings())[0] == []


@pytest.mark.parametrize("is_alive", [False, True])
def test_the_doctor_looks_at_the_queues_of_runs(
    shared: SharedEngines, monkeypatch: pytest.MonkeyPatch, *, is_alive: bool
) -> None:
    queues = shared.use_queues(monkeypatch)
    settings = shared.settings(queues="here:")
    if is_alive:
        _run(shared.coordination.announce(A_MEMBER, life=timedelta(minutes=1)))
    _run(_one_task(shared))
    assert _examined(settings)[0] == ["lost_message"]  # it has no queue

    in_memory = shared.settings(queues="memory:")
    assert _examined(in_memory)[0] == []  # of another process, which has the queues

    _run(queues.open(RUN))
    assert _examined(settings)[0] == []
    _run(queues.open(AN_OLD_RUN))
    assert _examined(settings)[0] == ["orphan_queue"]


async def _one_task(shared: SharedEngines) -> None:
    await shared.metadata.commit(a_job(), a_run(total=1, next_index=1))
    await add_rows(shared.tasks, RUN, new_tasks(n=1))


async def _one_dead_letter(shared: SharedEngines) -> None:
    await shared.control_queue.send(A_PURGE)
    [message] = await shared.control_queue.receive(1, lease=timedelta(minutes=1))
    await shared.control_queue.dead_letter(message, "for a test")


async def _one_claim(shared: SharedEngines) -> None:
    await shared.metadata.commit(a_job(), a_run())
    await add_rows(shared.tasks, RUN, new_tasks(n=1))
    assert await shared.work.claim({RUN: 1})


def _examined(settings: Settings) -> tuple[list[str], Environment]:
    """What the doctor would have repaired, and what it says about the place."""
    events = list[DoctorEvent]()
    admin = open_admin(settings)
    assert isinstance(admin, OfflineAdmin)
    admin.examine(DoctorScope(), events.append)
    [environment] = [event for event in events if isinstance(event, Environment)]
    return [event.code for event in events if isinstance(event, Finding)], environment


def _run(coroutine: Coroutine[Any, Any, Any]) -> None:
    asyncio.run(coroutine)
