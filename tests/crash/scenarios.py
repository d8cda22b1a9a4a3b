"""What callers and loops do, as scripts whose every call of a port is a point to die at."""

import io
import re
import zipfile
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec

from conveyor.domain.export import EXPORT, EXPORT_LIFE, Export, export_blob
from conveyor.domain.file_input import FileInput
from conveyor.domain.ids import CallerId, ExportId, InputId, JobId, RunId, TaskId, task_ids
from conveyor.domain.task_list.spec import ListFormat, ListSpec
from conveyor.errors import NotFound, StorageFull, Unavailable
from conveyor.ports.blobs import as_stream
from conveyor.ports.bodies import Body, BodyName
from conveyor.steps.sweep.sweeper import FOREVER
from tests.crash.life import Answer, Life
from tests.crash.snapshot import Picture

Script = Callable[[Life], Awaitable[None]]
Told = Callable[[Picture], Picture]
LARGE = 10
FULL = StorageFull("no room")
AWAY = Unavailable("away")


class Scenario(msgspec.Struct, frozen=True):
    """A script, and what of its outcome does not depend on when it was cut off."""

    name: str
    script: Script
    told: Told


SCENARIOS: dict[str, Scenario] = {}


def _all_of_it(picture: Picture) -> Picture:
    return picture


def scenario(told: Told = _all_of_it) -> Callable[[Script], Script]:
    def register(script: Script) -> Script:
        name = script.__name__
        SCENARIOS[name] = Scenario(name, script, told)
        return script

    return register


def pages(count: int, kind: str = "ok") -> list[dict[str, str]]:
    return [{"url": f"https://{kind}.example/{number}"} for number in range(count)]


async def submit(
    life: Life, tasks: list[dict[str, str]], name: str = "job", **given: Any
) -> Answer:
    body = {"tasks": tasks, "name": name, **given}
    return await life.call(f"submit {name}", "POST", "/v1/jobs", body, key=name)


async def on(life: Life, job: Answer, verb: str, *, label: str = "", body: object = None) -> Answer:
    path = f"/v1/jobs/{job['job_id']}/{verb}"
    key = label or verb if verb.startswith("rerun") else None
    return await life.call(label or verb, "POST", path, body, key=key and key.replace("?", "-"))


async def add(life: Life, job: Answer, count: int, label: str, **given: Any) -> Answer:
    body = {"tasks": pages(count, label), **given}
    return await life.call(label, "POST", f"/v1/jobs/{job['job_id']}/tasks", body, key=label)


# Taking in.


@scenario()
async def submit_small(life: Life) -> None:
    life.begin()
    assert (await submit(life, pages(3))).status == 201


@scenario()
async def submit_large(life: Life) -> None:
    life.begin()
    assert (await submit(life, pages(LARGE))).status == 202
    await life.handle_messages()


@scenario()
async def submit_nothing_to_an_open_job(life: Life) -> None:
    life.begin()
    await submit(life, [], status="open")


@scenario()
async def submit_without_room(life: Life) -> None:
    life.begin()
    for name, count in ("small", 3), ("large", LARGE):
        body = {"tasks": pages(count), "name": name}
        refused = {"metadata.commit": FULL}
        label = f"refused-{name}"
        answer = await life.call(label, "POST", "/v1/jobs", body, key=label, faults=refused)
        assert answer.status == 503


@scenario()
async def add_tasks_with_the_last_batch(life: Life) -> None:
    job = await submit(life, pages(2), status="open")
    await life.drain()
    life.begin()
    assert (await add(life, job, 3, "first")).status == 200
    assert (await add(life, job, LARGE, "second", last_batch=True)).status == 200


@scenario()
async def add_tasks_that_are_refused_or_late(life: Life) -> None:
    job = await submit(life, pages(2), status="open")
    life.begin()
    assert (await add(life, job, 21, "refused")).status == 429
    body = {"tasks": pages(3, "late")}
    path = f"/v1/jobs/{job['job_id']}/tasks"
    answer = await life.call("late", "POST", path, body, key="late", faults={"tasks.add": AWAY})
    assert answer.status == 200
    await life.handle_messages()
    await on(life, job, "close")


def without_how_far(picture: Picture) -> Picture:
    """How many rows a stopped ingest got to is a matter of when; that rows and total agree not."""
    rows = {len(picture["task"])}
    return picture | {
        "task": [row for row in picture["task"] if row["idx"] >= LARGE or row["status"] != 0],
        "run": [
            run
            | {
                "total": {run["total"]} == rows,
                "next_index": run["next_index"] >= run["total"],
                "is_cut": run["is_cut"] or run["total"] >= LARGE,
            }
            for run in picture["run"]
        ],
        "run_no": [],
    }


@scenario(without_how_far)
async def stop_in_the_middle_of_an_ingest(life: Life) -> None:
    job = await submit(life, pages(LARGE))
    life.begin()
    life.deaths.after("metadata.commit", 2, lambda: on(life, job, "stop"))
    await life.handle_messages()
    assert (await on(life, job, "stop")).status == 200


@scenario()
async def a_list_that_cannot_be_read_at_first(life: Life) -> None:
    await submit(life, pages(LARGE))
    life.begin()
    life.deaths.broken["blobs.read"] = AWAY
    await life.handle_messages(1)
    life.deaths.broken.clear()
    life.advance(timedelta(minutes=1))
    await life.handle_messages()


def _without_the_dead_letter(picture: Picture) -> Picture:
    """A control message whose list was given up already has nothing left to be dead-lettered for."""
    return picture | {
        "control_message": [
            message for message in picture["control_message"] if not message["reason"]
        ]
    }


@scenario(_without_the_dead_letter)
async def a_list_that_can_never_be_read(life: Life) -> None:
    await submit(life, pages(LARGE))
    for path in (life.data / "blobs").rglob("*.ndjson"):
        path.write_bytes(b"not a task\n")
    life.begin()
    await life.handle_messages()


# Working off.


@scenario()
async def settle_every_kind_of_answer(life: Life) -> None:
    others = ("flaky", "busy", "missing", "large")
    tasks = [*pages(2), *(page for kind in others for page in pages(1, kind))]
    await submit(life, tasks)
    life.begin()
    await life.drain()


@scenario()
async def settle_the_last_of_two_runs_at_once(life: Life) -> None:
    await submit(life, pages(2), "one")
    await submit(life, pages(1), "other")
    life.begin()
    await life.drain()


@scenario()
async def settle_one_page_at_a_time(life: Life) -> None:
    await submit(life, pages(2), max_inflight=1)
    life.begin()
    await life.drain()


@scenario()
async def settle_for_a_blocked_account(life: Life) -> None:
    await submit(life, pages(2, "blocked"))
    life.begin()
    await life.drain()


@scenario()
async def settle_after_a_delete(life: Life) -> None:
    job = await submit(life, pages(2))

    async def delete() -> None:
        await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}")
        await life.handle_messages()

    life.begin()
    await life.dispatch(meanwhile=delete)
    await delete()


@scenario()
async def settle_in_the_middle_of_a_purge(life: Life) -> None:
    job = await submit(life, pages(2))

    async def delete() -> None:
        await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}")
        life.deaths.before("tasks.discard", 1, life.service.steps.dispatcher.settle_finished)
        await life.handle_messages()

    life.begin()
    await life.dispatch(meanwhile=delete)
    await delete()


@scenario()
async def a_task_that_lost_its_tenth_worker(life: Life) -> None:
    job = await submit(life, pages(1))
    if not life.is_past:
        run_id = RunId(job["latest_run"]["run_id"])
        for _ in range(9):
            await life.raw.work.claim({run_id: 1})
            await life.raw.work.release_lapsed(run_id, overdue=-FOREVER, limit=1)
        await life.raw.work.claim({run_id: 1})
    life.advance(timedelta(seconds=31))
    life.begin()
    await life.drain()


@scenario()
async def close_a_job_that_is_done(life: Life) -> None:
    job = await submit(life, pages(2), status="open")
    await life.drain()
    life.begin()
    await on(life, job, "close")


@scenario()
async def pause_and_resume(life: Life) -> None:
    job = await submit(life, pages(2))
    life.begin()
    await on(life, job, "pause")
    await life.dispatch()
    await on(life, job, "resume")
    await life.drain()


@scenario()
async def stop_a_run_with_a_page_in_flight(life: Life) -> None:
    job = await submit(life, pages(2), max_inflight=1)
    await life.dispatch()
    life.begin()
    await on(life, job, "stop")
    await life.dispatch()


# Once more.


@scenario()
async def rerun_all_of_a_small_run(life: Life) -> None:
    job = await submit(life, [*pages(2), *pages(2, "missing")])
    await life.drain()
    life.begin()
    assert (await on(life, job, "rerun")).status == 201


@scenario()
async def rerun_what_failed_of_a_small_run(life: Life) -> None:
    job = await submit(life, [*pages(2), *pages(2, "missing")])
    await life.drain()
    life.begin()
    assert (await on(life, job, "rerun?status=failed")).status == 201


@scenario()
async def rerun_what_failed_of_a_large_run(life: Life) -> None:
    job = await submit(life, [*pages(LARGE - 3), *pages(3, "missing")])
    await life.handle_messages()
    await life.drain()
    life.begin()
    assert (await on(life, job, "rerun?status=failed")).status == 202
    await life.handle_messages()


@scenario()
async def rerun_a_group_of_a_large_run_with_other_parameters(life: Life) -> None:
    job = await submit(life, [*pages(LARGE - 3), *pages(3, "missing")])
    await life.handle_messages()
    await life.drain()
    life.begin()
    asked = {"host": ["missing.example"], "reason": ["bad_target"], "status": ["failed"]}
    body = {**asked, "zenrows_params": {"premium_proxy": True}}
    assert (await on(life, job, "rerun", body=body)).status == 202
    await life.handle_messages()


@scenario()
async def rerun_tasks_of_a_small_run_by_their_ids(life: Life) -> None:
    job = await submit(life, pages(3))
    await life.drain()
    life.begin()
    named = task_ids(RunId(job["latest_run"]["run_id"]))
    assert (await on(life, job, "rerun", body={"task_ids": [named(0), named(2)]})).status == 201


@scenario()
async def rerun_all_of_a_large_run(life: Life) -> None:
    job = await submit(life, pages(LARGE))
    await life.handle_messages()
    await on(life, job, "stop")
    life.begin()
    assert (await on(life, job, "rerun")).status == 202
    await life.handle_messages()


@scenario()
async def rerun_that_loses_to_a_delete(life: Life) -> None:
    job = await submit(life, pages(3))
    await life.drain()

    async def delete() -> None:
        await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}")

    life.begin()
    life.deaths.before("metadata.commit", 1, delete)
    assert (await on(life, job, "rerun")).status == 404
    await delete()
    await life.handle_messages()


@scenario()
async def rerun_nothing(life: Life) -> None:
    job = await submit(life, pages(2))
    await life.drain()
    life.begin()
    assert (await on(life, job, "rerun?status=failed")).status == 409


# Away with it.


@scenario()
async def delete_a_large_live_job(life: Life) -> None:
    job = await submit(life, pages(LARGE), max_inflight=5)
    await life.handle_messages()
    await life.dispatch()
    life.begin()
    assert (await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}")).status == 202
    await life.handle_messages()


@scenario()
async def delete_a_job_before_its_list_is_in(life: Life) -> None:
    job = await submit(life, pages(LARGE))
    life.begin()
    await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}")
    await life.handle_messages()


@scenario()
async def delete_a_job_whose_list_nobody_took_up(life: Life) -> None:
    body = {"tasks": pages(LARGE), "name": "job"}
    away = {"control_queue.send": AWAY}
    job = await life.call("submit", "POST", "/v1/jobs", body, key="job", faults=away)
    life.begin()
    await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}")
    await life.handle_messages()


@scenario()
async def delete_the_latest_run(life: Life) -> None:
    job = await submit(life, pages(3))
    await life.drain()
    again = await on(life, job, "rerun")
    await life.drain()
    life.begin()
    run_id = again["latest_run"]["run_id"]
    await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}/runs/{run_id}")
    await life.handle_messages()


# All in one file.


def _without_claims(picture: Picture) -> Picture:
    """How many makers an export had is a matter of deaths; each wrote under a number of its own."""
    return picture | {
        "export": [{**export, "claim_no": 1} for export in picture["export"]],
        "list": [re.sub(r"\.\d+\.zip", ".zip", name) for name in picture["list"]],
    }


async def _export(life: Life, job: Answer) -> Answer:
    """A start has no key: one that was asked again is another export."""
    path = f"/v1/jobs/{job['job_id']}/runs/{job['latest_run']['run_id']}/exports"
    return await life.call("export", "POST", path)


async def _download(life: Life, job: Answer, export: Answer) -> None:
    path = f"/v1/jobs/{job['job_id']}/runs/{job['latest_run']['run_id']}/exports"
    told = await life.call("poll", "GET", f"{path}/{export['export_id']}")
    assert told["status"] == "completed"
    link = told["download_url"].removeprefix("http://localhost")
    file = await life.call("download", "GET", link)
    with zipfile.ZipFile(io.BytesIO(file.body)) as archive:
        assert archive.testzip() is None


@scenario(_without_claims)
async def export_a_run(life: Life) -> None:
    job = await submit(life, [*pages(3), *pages(1, "missing"), *pages(1, "large")])
    await life.drain()
    export = await _export(life, job)
    life.begin()
    await life.handle_messages()
    await _download(life, job, export)


def _without_unheard(picture: Picture) -> Picture:
    """Whoever did not hear that an export was started has another."""
    return _without_claims(picture) | {"export": picture["export"][:0], "list": []}


@scenario(_without_unheard)
async def start_an_export(life: Life) -> None:
    job = await submit(life, pages(2))
    await life.drain()
    life.begin()
    assert (await _export(life, job)).status == 202


@scenario(lambda picture: _without_the_dead_letter(_without_claims(picture)))
async def an_export_that_can_never_be_made(life: Life) -> None:
    job = await submit(life, pages(2))
    await life.drain()
    export = await _export(life, job)
    life.begin()
    life.deaths.broken["tasks.page"] = NotFound("no such rows")
    await life.handle_messages()
    life.deaths.broken.clear()
    path = f"/v1/jobs/{job['job_id']}/runs/{job['latest_run']['run_id']}/exports"
    told = await life.call("poll", "GET", f"{path}/{export['export_id']}")
    assert told["status"] == "failed"


@scenario(_without_claims)
async def delete_in_the_middle_of_an_export(life: Life) -> None:
    job = await submit(life, pages(3))
    await life.drain()
    await _export(life, job)

    async def delete() -> None:
        await life.call("delete", "DELETE", f"/v1/jobs/{job['job_id']}")
        await life.handle_messages()

    life.begin()
    life.deaths.after("tasks.page", 1, delete)
    await life.handle_messages()
    await delete()


# Coming after.


async def _mess(life: Life, *, soon: timedelta) -> None:
    """One of everything that the sweeper repairs, made without a death.

    What nobody here would make, an export, is over soon after the sweep.
    """
    if life.is_past:
        return
    gone = await submit(life, pages(1), "gone")
    await life.call("delete gone", "DELETE", f"/v1/jobs/{gone['job_id']}")
    kept = await submit(life, pages(1), "kept")
    path = f"/v1/jobs/{kept['job_id']}/runs/{kept['latest_run']['run_id']}"
    await life.call("delete its run", "DELETE", path)
    await life.handle_messages()
    life.advance(timedelta(hours=25))
    for name, count in ("no rows", 3), ("no list", LARGE):
        body = {"tasks": pages(count), "name": name}
        away = {"metadata.commit": FULL, "tasks.discard": AWAY, "blobs.delete": AWAY}
        await life.call(name, "POST", "/v1/jobs", body, key="orphans", faults=away)
    away = {"control_queue.send": AWAY}
    body = {"tasks": pages(LARGE), "name": "unsent"}
    await life.call("unsent", "POST", "/v1/jobs", body, key="unsent", faults=away)
    left = await submit(life, pages(1), "left")
    await life.call("delete left", "DELETE", f"/v1/jobs/{left['job_id']}", faults=away)
    done = await submit(life, [], "done", status="open")
    path = f"/v1/jobs/{done['job_id']}/close"
    await life.call("close done", "POST", path, faults={"tasks.counts": AWAY})
    await _leave_objects(life, soon)
    nobodys = BodyName(JobId(life.raw.ids.new()), RunId(life.raw.ids.new()), TaskId("0-0"), 1)
    await life.raw.bodies.put_many([Body(nobodys, b"nobody's")])


async def _leave_objects(life: Life, soon: timedelta) -> None:
    """Lists and exports that are over, that nobody began, and that nothing refers to."""
    now, ids = life.raw.clock.now(), life.raw.ids
    old = now - timedelta(days=2)
    caller, spec = CallerId("caller"), ListSpec(format=ListFormat.TXT)
    for jobs in ((), (JobId(ids.new()),)):
        name = InputId(ids.new())
        file_input = FileInput(
            id=name, caller=caller, spec=spec, created_at=old, blob=f"inputs/{name}/{ids.new()}",
            jobs=jobs,
        )  # fmt: skip
        await _put(life, file_input.blob or "")
        await life.raw.metadata.commit(file_input)
    for at in (old, now - EXPORT_LIFE + soon):
        export = Export(
            id=ExportId(ids.new()), job_id=JobId(ids.new()), run_id=RunId(ids.new()),
            caller=caller, created_at=at, sent_at=at,
        )  # fmt: skip
        await _put(life, export_blob(export))
        await life.raw.metadata.commit(export)
    for kind in ("lists", "inputs", "exports", "reports"):
        parts = [ids.new() for _ in range(2 if kind == "inputs" else 3)]
        await _put(life, "/".join([kind, *parts]))


async def _put(life: Life, key: str) -> None:
    await life.raw.blobs.put(key, as_stream([b"an object"]))


async def _lapse(life: Life) -> None:
    """A claim that nobody holds any more, with the body it wrote."""
    if life.is_past:
        return
    job = await submit(life, pages(1), "held")
    job_id, run_id = JobId(job["job_id"]), RunId(job["latest_run"]["run_id"])
    [task] = await life.raw.work.claim({run_id: 1})
    name = BodyName(job_id, run_id, task.id, task.claim_no)
    await life.raw.bodies.put_many([Body(name, b"unsettled")])


def _without_asking_for_exports(picture: Picture) -> Picture:
    """How often an export was asked for, that nobody could make, is a matter of when."""
    return picture | {
        "control_message": [
            message for message in picture["control_message"] if message["kind"] != EXPORT
        ]
    }


def _without_the_lapsed_body(picture: Picture) -> Picture:
    """Whoever dies between a release and the removal of the claim's body leaves the body to the
    end of its run: nobody knows any more that it was ever there.
    """
    picture = _without_asking_for_exports(picture)
    unsettled = "pack:job 4/run 4.1/task 4.1.0.1"
    return picture | {"orphan body": [name for name in picture["orphan body"] if name != unsettled]}


@scenario(_without_the_lapsed_body)
async def sweep_with_patience(life: Life) -> None:
    await _mess(life, soon=timedelta(minutes=25))
    await _lapse(life)
    life.advance(timedelta(minutes=15))
    life.begin()
    await life.sweep()
    life.advance(timedelta(minutes=1))
    await life.sweep()


@scenario(_without_asking_for_exports)
async def sweep_at_the_start(life: Life) -> None:
    await _mess(life, soon=timedelta(minutes=10))
    life.begin()
    await life.service.steps.sweep.at_start([])
    life.deaths.step_is_over()
