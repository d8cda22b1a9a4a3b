"""The end of a history: faults are healed, all is driven to its end, and everything is counted."""

import re
from collections import Counter
from datetime import timedelta

from conveyor.domain.batch import Batch
from conveyor.domain.ids import RunId
from conveyor.domain.job import Deletion
from conveyor.domain.run import Run, counts
from conveyor.domain.task import TaskStatus, failure_of
from tests.kept import every_body
from tests.simulation.book import LIVE, KnownRun
from tests.simulation.callers import CALLERS, Callers
from tests.simulation.calls import check_content
from tests.simulation.world import Request, World

ROUNDS = 40
A_MINUTE = timedelta(seconds=61)
BODY_LIFE = timedelta(days=30)
OLD = timedelta(minutes=11)


async def come_to_rest(world: World, callers: Callers) -> None:
    world.heal()
    await world.restart()
    await callers.resolve()
    for job in callers.jobs:
        if not job.deleted_at:
            for verb in ("close", "resume"):
                path = f"/v1/jobs/{job.id}/{verb}"
                await world.call(Request(caller=job.caller, method="POST", path=path))
    await _drive(world)
    for job in callers.jobs:
        await callers.inspect(job, *job.runs.values())
    await _check_everything(world, callers)
    await _clear(world)
    await _check_nothing_is_left_over(world, callers)


async def _drive(world: World) -> None:
    """Do all there is to do; it must end."""
    for _ in range(ROUNDS):
        while await world.service.steps.control_worker.step():
            pass
        while await world.claim(20):
            await world.finish(list(world.claimed), ["page"])
        if not await world.ports.metadata.live_runs(
            limit=1
        ) and not await world.ports.metadata.page(Batch, limit=1):
            return
        world.clock.advance(A_MINUTE)
        await world.service.steps.sweep.step()
    raise AssertionError(f"no end to it: {await world.ports.metadata.live_runs(limit=10)}")


async def _check_everything(world: World, callers: Callers) -> None:
    for caller in CALLERS:
        listed = (await callers.get(caller, "/v1/jobs", "limit=100")).document["jobs"]
        known = {job.id for job in callers.jobs if job.caller == caller and not job.deleted_at}
        assert {job["job_id"] for job in listed} == known
    for job in callers.jobs:
        if job.deleted_at:
            continue
        for run in job.runs.values():
            if not run.gone:
                assert run.status not in LIVE
                await _check_figures(world, run)
                await _check_rows(callers, run)


async def _check_figures(world: World, known: KnownRun) -> None:
    """The rows themselves, the counters and what is shown tell one story (I2)."""
    run_id = RunId(known.id)
    run = await world.ports.metadata.get(Run, run_id)
    assert run
    tally = await world.ports.tasks.tally(run_id)
    told = counts(run, (await world.ports.tasks.counts([run_id]))[run_id])
    assert sum(tally.values()) == run.total, (tally, run)
    assert tally.get(TaskStatus.SUCCESSFUL, 0) == told.successful, (tally, told)
    assert tally.get(TaskStatus.FAILED, 0) == told.failed, (tally, told)
    failed = await world.ports.tasks.page(
        run_id, limit=told.failed + 1, statuses=frozenset({TaskStatus.FAILED})
    )
    groups = await world.ports.tasks.failure_groups(run_id)
    assert {group.key: group.count for group in groups} == Counter(map(failure_of, failed.tasks))
    now_told = run.inherited.counts + (await world.ports.tasks.counts([run_id]))[run_id]
    assert run.frozen in {None, now_told}, (run, now_told)


async def _check_rows(callers: Callers, run: KnownRun) -> None:
    """Every page can be read, every attempt is accounted for, to the credit."""
    path, charged = f"/v1/jobs/{run.job.id}/runs/{run.id}/tasks", 0
    for name, row in run.rows.items():
        content = await callers.get(run.job.caller, f"{path}/{name}/content")
        await check_content(callers, run, content, row)
        history = await callers.get(run.job.caller, f"{path}/{name}/history")
        events = history.document["events"]
        if "source_run_id" not in row:
            charged += sum(event["spend"]["credits"] for event in events)
        if row["status"] == "successful":
            assert "error" not in events[-1], (row, events)
    assert run.seen
    assert charged == run.seen["stats"]["spend"]["credits"], (charged, run.seen)


async def _clear(world: World) -> None:
    """Let time pass until everything is old enough for the sweeper."""
    for wait in (OLD, OLD, A_MINUTE, timedelta(hours=25), A_MINUTE):
        world.clock.advance(wait)
        await world.service.steps.sweep.step()
        while await world.service.steps.control_worker.step():
            pass


async def _check_nothing_is_left_over(world: World, callers: Callers) -> None:
    """What is stored is what is on record, and the sweeper finds nothing more to do."""
    before = world.swept()
    for _ in range(2):
        world.clock.advance(OLD)
        await world.service.steps.sweep.step()
    assert world.swept() == before, f"the sweeper has no rest: {world.swept()}"
    alive = {
        run.id
        for job in callers.jobs
        for run in job.runs.values()
        if not job.deleted_at and not run.gone
    }
    held = set(await world.ports.tasks.runs_held(limit=1000))
    assert held <= alive, f"rows of nobody: {held - alive}"
    kept = {f"pins/{job.id}.ndjson" for job in callers.jobs if not job.deleted_at}
    left = set(await world.ports.blobs.keys("", limit=1000))
    assert left <= kept, f"objects of nobody: {left - kept}"
    assert not await world.ports.metadata.page(Deletion, limit=10)
    assert not await world.ports.control_queue.dead_letters(limit=10)
    assert not await world.ports.control_queue.receive(1, lease=A_MINUTE)
    for job in callers.jobs:
        stored = await world.ports.metadata.runs(job.id, limit=100, deleted=True)  # type: ignore[arg-type]
        assert {run.id for run in stored} == alive & job.runs.keys()
    named, fresh = set[str](), set[str]()
    for run_id in held:
        rows = (await world.ports.tasks.page(RunId(run_id), limit=1000)).tasks
        kept_at = {row.result.locator: row for row in rows if row.result}
        named |= kept_at.keys()
        # Older ones may have been cleared away: nobody can read them any more. A row that a rerun
        # copied is younger than its body.
        young = world.clock.now() - BODY_LIFE
        fresh |= {place for place, row in kept_at.items() if row.made_at > young}
    found = every_body(world.folder).keys()
    left = {place for place in found - named if _claim_of(place) not in world.garbage}
    assert not left, f"bodies of nobody: {left}"
    assert fresh <= found, f"missing: {fresh - found}"


def _claim_of(locator: str) -> str:
    """Run, task and claim of a body, however it is kept."""
    form = r"[^/]+/(?:runs/)?(?P<run>[^/]+)/(?:\w+/)?(?P<claim>[^/.]+\.\d+)(?:\.[^/.]+)?$"
    found = re.search(form, locator)
    assert found
    return f"{found['run']}/{found['claim']}"
