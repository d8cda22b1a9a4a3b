"""A service that starts beside another touches nothing of what the other is doing."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kept import every_body
from tests.seed import drawn
from tests.simulation.shared import SharedWorld
from tests.simulation.world import Answer, Request

CALLER = "a-caller"
OUTCOMES = ["page", "spooled", "fail", "page"]
POINTS = 40  # of the calls of ports in whose place the other starts, in `make test`


@asynccontextmanager
async def a_world(folder: Path) -> AsyncIterator[SharedWorld]:
    world = SharedWorld(folder, count=1)
    await world.start()
    try:
        yield world
    finally:
        await world.end()


@pytest.mark.timeout(1_800)
async def test_a_service_that_starts_meanwhile_changes_nothing_in_the_outcome(
    tmp_path: Path,
) -> None:
    async with a_world(tmp_path / "alone") as world:
        world.fate.plan(10_000, "before", world.fate.die)
        expected = await _story(world)
        calls = 10_000 - world.fate._left
    assert calls > POINTS
    for nth in drawn(range(calls), POINTS, of="two services"):
        async with a_world(tmp_path / str(nth)) as world:
            world.fate.plan(nth, "before", partial(_start_another, world))
            assert await _story(world) == expected, f"a start before call {nth} of {calls}"
            assert world.fate.struck


async def _start_another(world: SharedWorld) -> None:
    """Another service starts, and does once what its loops would do."""
    world.count = 2
    with world.fate.held_off():
        await world.start()
        with world.another():
            steps = world.service.steps
            await steps.sweep.step()
            await steps.fire.step()
            await steps.authenticate.step()


async def _story(world: SharedWorld) -> dict[str, Any]:
    """Submit, ingest, scrape, export and delete; return what callers see of it."""
    kept = await _job(world, 3)
    listed = await _job(world, 9)
    doomed = await _job(world, 3)
    await _control(world)
    await world.claim(20)
    await world.finish(list(world.claimed), OUTCOMES)
    run_id = (await _call(world, "GET", f"/v1/jobs/{kept}")).document["latest_run"]["run_id"]
    exports = f"/v1/jobs/{kept}/runs/{run_id}/exports"
    export = (await _call(world, "POST", exports)).document["export_id"]
    await _call(world, "DELETE", f"/v1/jobs/{doomed}")
    await _control(world)
    return {
        "rows": [await _rows(world, job_id) for job_id in (kept, listed)],
        "runs": [await _stats(world, job_id) for job_id in (kept, listed)],
        "deleted": (await world.call(_request("GET", f"/v1/jobs/{doomed}"))).status,
        "bodies": len(every_body(world.folder)),
        "export": (await _call(world, "GET", f"{exports}/{export}")).document["status"],
        "blobs": len(await world.ports.blobs.keys("", limit=100)),
    }


async def _job(world: SharedWorld, count: int) -> str:
    tasks = [{"url": f"https://example.com/{number}"} for number in range(count)]
    answer = await _call(world, "POST", "/v1/jobs", msgspec.json.encode({"tasks": tasks}))
    return str(answer.document["job_id"])


async def _control(world: SharedWorld) -> None:
    while await world.service.steps.control_worker.step():
        pass


async def _rows(world: SharedWorld, job_id: str) -> list[tuple[str, str, bool]]:
    rows = (await _call(world, "GET", f"/v1/jobs/{job_id}/results")).document["results"]
    found = []
    for row in rows:
        path = f"/v1/jobs/{job_id}/tasks/{row['task_id']}/content"
        content = await world.call(_request("GET", path))
        is_whole = content.headers.get("etag") == f'"{hashlib.sha256(content.body).hexdigest()}"'
        found.append((row["url"], row["status"], is_whole))
    return found


async def _stats(world: SharedWorld, job_id: str) -> dict[str, Any]:
    run = (await _call(world, "GET", f"/v1/jobs/{job_id}")).document["latest_run"]
    return {"status": run["status"], **run["stats"]}


async def _call(world: SharedWorld, method: str, path: str, body: bytes = b"") -> Answer:
    answer = await world.call(_request(method, path, body))
    assert answer.status < 300, answer
    return answer


def _request(method: str, path: str, body: bytes = b"") -> Request:
    return Request(caller=CALLER, method=method, path=path, body=body)
