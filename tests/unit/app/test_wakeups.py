"""What one process does reaches the loops of the others: by notifications, else by polls."""

import dataclasses
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from msgspec.structs import replace

from conveyor.app import roles
from conveyor.app.roles import Role
from conveyor.app.services import Service
from conveyor.domain.ids import RunId
from conveyor.domain.run import PauseState, RunStatus
from conveyor.ports.coordination import Coordination
from conveyor.steps.dispatch.discovery import Discovery
from tests.harness.memory_service import CALLER
from tests.harness.services import (
    LONG_AFTER,
    SlowSite,
    Store,
    a_service,
    running,
    submit,
    until,
    without_notifications,
    without_polls,
)
from tests.harness.valkey import Valkey, a_prefix, coordination_at

POLLED = 10.0  # seconds within which a poll finds what no notification told


@pytest.fixture
def store() -> Store:
    return Store(SlowSite(timedelta(milliseconds=20)))


@pytest.fixture(params=["memory", "valkey"])
async def coordinations(
    request: pytest.FixtureRequest, store: Store
) -> AsyncIterator[list[Coordination]]:
    """The coordination of each of three processes."""
    if request.param == "memory":
        yield [store.coordination] * 3
        return
    server: Valkey = request.getfixturevalue("valkey")
    address = f"{server.url}?prefix={a_prefix()}"
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(coordination_at(address)) for _ in range(3)]


def an_api_and_workers(
    store: Store, coordinations: list[Coordination]
) -> list[tuple[Service, Role]]:
    the_roles = [Role.API, Role.WORKER, Role.WORKER]
    return [
        (a_service(store.engines(one), role, concurrency=10), role)
        for one, role in zip(coordinations, the_roles, strict=True)
    ]


def serves(discovery: Discovery, run_id: RunId) -> bool:
    """Whether new tasks of a run may start in a process."""
    return run_id in discovery.runs and discovery.runs[run_id].is_open


async def test_new_runs_pauses_and_caps_reach_every_worker_by_notifications(
    store: Store, coordinations: list[Coordination]
) -> None:
    services = an_api_and_workers(store, coordinations)
    (api, _), *workers = services
    discoveries = [without_polls(one).steps.dispatcher.discovery for one, _ in workers]
    async with running(services):
        await until(lambda: all(one.resync_at > 0 for one in discoveries))
        job_id, run_id = await submit(api, 5_000)
        await until(lambda: all(serves(one, run_id) for one in discoveries))

        await api.steps.lifecycle.set_pause(CALLER, job_id, PauseState.PAUSED)
        await until(lambda: not any(serves(one, run_id) for one in discoveries))
        await until(lambda: not store.site.inflight)

        await store.metadata.commit(replace(await store.job(job_id), max_inflight=3))
        await api.steps.lifecycle.set_pause(CALLER, job_id, PauseState.ACTIVE)
        await until(lambda: all(serves(one, run_id) for one in discoveries))
        assert {one.runs[run_id].job.max_inflight for one in discoveries} == {3}
        await until(lambda: store.site.inflight > 0)
        assert store.site.inflight <= 3

        await api.steps.lifecycle.stop(CALLER, job_id)
        await until(lambda: not any(serves(one, run_id) for one in discoveries))


async def test_what_no_notification_tells_is_found_by_polls(store: Store) -> None:
    services = an_api_and_workers(store, [store.coordination] * 3)
    (api, _), *workers = services
    discoveries = [without_notifications(one).steps.dispatcher.discovery for one, _ in workers]
    async with running(services):
        job_id, run_id = await submit(api, 5_000)
        await until(lambda: all(serves(one, run_id) for one in discoveries), POLLED)
        await api.steps.lifecycle.set_pause(CALLER, job_id, PauseState.PAUSED)
        await until(lambda: not any(serves(one, run_id) for one in discoveries), POLLED)
        await api.steps.lifecycle.stop(CALLER, job_id)
        await until(lambda: not any(serves(one, run_id) for one in discoveries), POLLED)


async def test_messages_and_events_reach_the_loops_of_workers_by_notifications(
    store: Store, coordinations: list[Coordination], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker writes the rows of a job that is read later, and sends the event of its end."""
    monkeypatch.setattr(roles, "CONTROL_IDLE", LONG_AFTER)
    services = an_api_and_workers(store, coordinations)
    (api, _), *workers = services
    for one, _ in workers:
        without_polls(one)
    async with running(services):
        webhook = {"url": "https://hooks.example/", "signature": False}
        _, run_id = await submit(api, 2, webhook=webhook, **{"async": True})
        await until(lambda: bool(store.webhooks.told))
        assert (await store.run(run_id)).status is RunStatus.COMPLETED


async def test_a_process_that_is_alone_neither_publishes_nor_listens(store: Store) -> None:
    one_of_many = a_service(store.engines(), Role.SERVE)
    assert one_of_many.steps.notifier.coordination
    alone = a_service(dataclasses.replace(store.engines(), dead_claims=[]), Role.SERVE)
    assert alone.steps.notifier.coordination is None
