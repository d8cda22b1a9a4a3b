"""A service dies at any call of a port: another, or the next one, finishes what it began."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from tests.harness.postgres import TestDatabases
from tests.seed import drawn
from tests.simulation.postgres import PostgresStore
from tests.simulation.shared import ON_DYNAMODB, Conditions, SharedWorld
from tests.simulation.world import Answer, Moment, Request, is_death

T = TypeVar("T")
CALLER = "a-caller"
OUTCOMES = ["page", "spooled", "fail", "page"]
POINTS = 40  # of the calls of ports at which a service dies, in `make test`
ROUNDS = 200  # messages are lost, again and again, and each time the next try comes later
A_MINUTE = timedelta(seconds=61)


# What the services share -> how a world is made, and at how many points they die in `make test`.
KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "rows": ({"count": 2}, POINTS // 2),
    "queues": ({"count": 2, "queued": True}, POINTS // 2),
    "dynamodb": ({"count": 2, "conditions": ON_DYNAMODB}, 4),
    # One service on DynamoDB, whose death loses all messages.
    "alone": ({"count": 1, "conditions": replace(ON_DYNAMODB, is_alone=True)}, 4),
}


@asynccontextmanager
async def some_services(folder: Path, shared: dict[str, Any]) -> AsyncIterator[SharedWorld]:
    world = SharedWorld(folder, seed=1, **shared)
    await world.start()
    try:
        yield world
    finally:
        await world.end()


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_dead_service_began_the_next_finishes(tmp_path: Path, kind: str) -> None:
    await _die_at_each_call(tmp_path, kind, *KINDS[kind])


@pytest.mark.timeout(1_800)
async def test_what_a_dead_service_began_on_postgresql_the_next_finishes(
    tmp_path: Path, postgres_18: TestDatabases
) -> None:
    store = partial(PostgresStore, address=await postgres_18.empty())
    shared = {"count": 2, "conditions": Conditions(store=store, queued=False)}
    await _die_at_each_call(tmp_path, "postgresql", shared, 4)


async def _die_at_each_call(folder: Path, kind: str, shared: dict[str, Any], sampled: int) -> None:
    """Die at each call in turn, in `make test` at so many of them; the story must end the same."""
    async with some_services(folder / "alive", shared) as world:
        world.fate.plan(10_000, "before", world.fate.die)
        expected = await _story(world)
        calls = 10_000 - world.fate._left
    moments: list[Moment] = ["before", "after"]
    points = [(nth, moment) for nth in range(calls) for moment in moments]
    for nth, moment in drawn(points, sampled, of=f"deaths of one, {kind}"):
        async with some_services(folder / f"{nth}-{moment}", shared) as world:
            world.fate.plan(nth, moment, world.fate.die)
            found = await _story(world)
        assert found == expected, f"after a death {moment} call {nth} of {calls}"


async def _story(world: SharedWorld) -> dict[str, Any]:
    """Submit, ingest, scrape, export and delete; return what callers see of it in the end."""
    small, large, doomed = [await _job(world, count) for count in (3, 9, 2)]
    await _surviving(world, lambda: _work_once(world))
    await _surviving(world, lambda: _call(world, "DELETE", f"/v1/jobs/{doomed}"))
    await _drive(world, [small, large])
    run = (await _read(world, f"/v1/jobs/{small}")).document["latest_run"]["run_id"]
    exports = f"/v1/jobs/{small}/runs/{run}/exports"
    export = await _surviving(world, lambda: _call(world, "POST", exports))
    path = f"{exports}/{export.document['export_id']}"
    await _surviving(world, lambda: _export(world, path))
    return {
        "rows": [await _rows(world, job_id) for job_id in (small, large)],
        "runs": [await _stats(world, job_id) for job_id in (small, large)],
        "export": (await _read(world, path)).document["status"],
        "deleted": (await _read(world, f"/v1/jobs/{doomed}")).status,
        "dead letters": len(await world.ports.control_queue.dead_letters(limit=10)),
    }


async def _surviving(world: SharedWorld, act: Callable[[], Awaitable[T]]) -> T:
    """Repeat at the other service, or the next one, what the first did not finish."""
    try:
        return await act()
    except BaseException as error:
        if not is_death(error):
            raise
    await world.kill()
    if world.count == 1:
        await world.start()
    else:
        world.use(1)
    return await act()


async def _job(world: SharedWorld, count: int) -> str:
    tasks = [{"url": f"https://example.com/{count}/{number}"} for number in range(count)]
    request = _request(
        "POST", "/v1/jobs", msgspec.json.encode({"tasks": tasks}), key=f"job-{count}"
    )

    async def submit() -> str:
        answer = await world.call(request)
        assert answer.status < 300, answer
        return str(answer.document["job_id"])

    return await _surviving(world, submit)


async def _work_once(world: SharedWorld) -> None:
    while await world.service.steps.control_worker.step():
        pass
    await world.claim(20)
    claimed = list(world.claimed)
    await world.finish(claimed, [OUTCOMES[one.task.index % 4] for one in claimed] or OUTCOMES)


async def _drive(world: SharedWorld, job_ids: list[str]) -> None:
    """Do all there is to do; it must end."""
    for _ in range(ROUNDS):
        await _surviving(world, lambda: _work_once(world))
        stats = [await _stats(world, job_id) for job_id in job_ids]
        if all(run["status"] == "completed" for run in stats):
            return
        world.clock.advance(A_MINUTE)
        await _surviving(world, lambda: world.service.steps.sweep.step())  # noqa: PLW0108 - read late
    raise AssertionError(f"no end to it: {stats}")


async def _export(world: SharedWorld, path: str) -> None:
    for _ in range(ROUNDS):
        while await world.service.steps.control_worker.step():
            pass
        if (await _read(world, path)).document["status"] == "completed":
            return
        world.clock.advance(A_MINUTE)
        await world.service.steps.sweep.step()


async def _rows(world: SharedWorld, job_id: str) -> list[tuple[str, str, int]]:
    rows = (await _read(world, f"/v1/jobs/{job_id}/results")).document["results"]
    found = []
    for row in rows:
        content = await _read(world, f"/v1/jobs/{job_id}/tasks/{row['task_id']}/content")
        found.append((row["url"], row["status"], content.status))
    return found


async def _stats(world: SharedWorld, job_id: str) -> dict[str, Any]:
    run = (await _read(world, f"/v1/jobs/{job_id}")).document["latest_run"]
    stats = {name: value for name, value in run["stats"].items() if name != "spend"}
    return {"status": run["status"], **stats}


async def _read(world: SharedWorld, path: str) -> Answer:
    with world.fate.held_off():
        return await world.call(_request("GET", path))


async def _call(world: SharedWorld, method: str, path: str) -> Answer:
    answer = await world.call(_request(method, path))
    assert answer.status < 300, answer
    return answer


def _request(method: str, path: str, body: bytes = b"", key: str | None = None) -> Request:
    return Request(caller=CALLER, method=method, path=path, body=body, key=key)
