"""Every call of the lifecycle, with its answer held to account. Each says which jobs it touched."""

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from tests.simulation.book import FINAL, Asked, KnownJob, KnownRun, made_at
from tests.simulation.callers import CALLERS, DAY, HOSTS, UNAVAILABLE, Callers
from tests.simulation.effects import Added, Deleted, Reran, Submitted, Turned
from tests.simulation.world import SYNC_TASKS, Answer, Request

Document = dict[str, Any]
Selects = Callable[[Document], bool]

FILTERS = {
    "all": {"pending", "processing", *FINAL},
    "successful": {"successful"},
    "failed": {"failed"},
    "processing": {"pending", "processing"},
    "successful,failed": set(FINAL),
}


async def submit(
    callers: Callers, *, caller: str, count: int, opened: bool, key: str, ttl_days: int
) -> list[KnownJob]:
    urls, name = callers.urls(count), callers.name("job")
    body = {
        "name": name,
        "status": "open" if opened else "closed",
        "tasks": [{"url": url} for url in urls],
        "retries": 1,
        "result_ttl_days": ttl_days,
    }
    request = Request(
        caller=caller,
        method="POST",
        path="/v1/jobs",
        body=msgspec.json.encode(body),
        key=callers.key(key, caller),
    )
    effect = Submitted(callers, caller, name, urls, count < SYNC_TASKS, ttl_days, opened)
    answer = await callers.act(request, effect)
    if not urls and not opened and answer.status not in {409, UNAVAILABLE}:
        assert answer.code == "invalid_argument", answer
    elif answer.status not in {409, UNAVAILABLE}:
        assert answer.status == (201 if count < SYNC_TASKS else 202), answer
    return [effect.job] if effect.job else []


async def add(
    callers: Callers, job: KnownJob, *, count: int, last_batch: bool, key: str
) -> list[KnownJob]:
    run = job.newest
    if run is None:
        return []
    urls = callers.urls(count)
    body = {"tasks": [{"url": url} for url in urls], "last_batch": last_batch}
    request = Request(
        caller=job.caller,
        method="POST",
        path=f"/v1/jobs/{job.id}/tasks",
        body=msgspec.json.encode(body),
        key=callers.key(key, job.caller),
    )
    was_closed, was_deleted = job.closed, bool(job.deleted_at)
    answer = await callers.act(request, Added(callers, job, run, urls, last_batch))
    callers.check_there(job, answer, was_deleted=was_deleted)
    assert answer.status in {200, 404, 409, UNAVAILABLE}, answer
    assert not (was_closed and answer.status == 200), f"tasks added to a closed job: {answer}"
    return [job]


async def rerun(
    callers: Callers, job: KnownJob, *, statuses: str, condition: str, wait: str, key: str
) -> list[KnownJob]:
    if not callers.meanwhile and not job.deleted_at:
        await callers.inspect(job)
    source = job.newest
    rows = [row for row in source.rows.values() if row["status"] in FINAL] if source else []
    body, meets = _condition(condition, rows)
    number = callers.number() if wait == "set" else None
    asked = Asked(_selects(statuses, meets), changes_wait=wait != "kept", wait=number)
    if asked.changes_wait:
        body["zenrows_params"] = {"wait": asked.wait}
    request = Request(
        caller=job.caller,
        method="POST",
        path=f"/v1/jobs/{job.id}/rerun",
        query=f"status={statuses}" if statuses else "",
        body=msgspec.json.encode(body) if body else b"",
        key=callers.key(key, job.caller),
    )
    judged = {row["task_id"]: not asked.selects or asked.selects(row) for row in rows}
    effect = Reran(callers, job, asked, source, judged)
    was_deleted = bool(job.deleted_at)
    answer = await callers.act(request, effect)
    callers.check_there(job, answer, was_deleted=was_deleted)
    assert answer.status in {201, 202, 404, 409, UNAVAILABLE}, answer
    if effect.run and effect.run.source and not callers.meanwhile and not job.deleted_at:
        await callers.inspect(job, effect.run.source)
        if not effect.run.source.gone:
            effect.run.copies = frozenset(effect.run.source.rows)
    return [job]


def _selects(statuses: str, meets: Selects | None) -> Selects | None:
    if not statuses and not meets:
        return None
    narrowed = frozenset(statuses.split(",")) if statuses else FINAL
    return lambda row: row["status"] in narrowed and (not meets or meets(row))


def _condition(name: str, rows: list[Document]) -> tuple[Document, Selects | None]:
    """A condition of a rerun, and what it says of a final row."""
    match name:
        case "host":
            return {"host": [HOSTS[0]]}, lambda row: HOSTS[0] in row["url"]
        case "code":
            return {"code": ["RESP002"]}, lambda row: _code(row) == "RESP002"
        case "reason":
            return {"reason": ["blocked"]}, lambda row: _code(row) == "RESP001"
        case "task_ids" if rows:
            ids = [row["task_id"] for row in rows[::2]]
            return {"task_ids": ids}, lambda row: row["task_id"] in ids
        case "scraped_before":
            moments = sorted(made_at(row) for row in rows)
            then = moments[len(moments) // 2] if moments else "2026-01-01T00:00:00Z"
            return {"scraped_before": then}, lambda row: made_at(row) < then
    return {}, None


def _code(row: Document) -> str | None:
    return row["error"]["code"] if row["status"] == "failed" else None


async def turn(callers: Callers, job: KnownJob, *, verb: str) -> list[KnownJob]:
    """Close, stop, pause or resume."""
    request = Request(caller=job.caller, method="POST", path=f"/v1/jobs/{job.id}/{verb}")
    was_deleted = bool(job.deleted_at)
    answer = await callers.act(request, Turned(job.newest if verb == "stop" else None))
    callers.check_there(job, answer, was_deleted=was_deleted)
    assert answer.status in {200, 404, 409, UNAVAILABLE}, answer
    if verb == "close" and answer.status == 200:
        job.closed = True
    if answer.status == 200 and verb in {"pause", "resume"} and callers.undisturbed:
        assert ("pause_state" in answer.document) == (verb == "pause"), answer
    return [job]


async def delete(callers: Callers, job: KnownJob, *, run: int | None) -> list[KnownJob]:
    """Delete a job, or one of its runs."""
    known = list(job.runs.values())
    one = known[-1 - run % len(known)] if run is not None else None
    path = f"/v1/jobs/{job.id}" + (f"/runs/{one.id}" if one else "")
    request = Request(caller=job.caller, method="DELETE", path=path)
    deleted_at = job.deleted_at
    answer = await callers.act(request, Deleted(callers, job, one))
    assert answer.status in {202, 404, 409, UNAVAILABLE}, answer
    if one is None and not callers.meanwhile:
        recent = deleted_at and callers.world.clock.now() < deleted_at + DAY
        assert answer.status in {202, UNAVAILABLE} or (deleted_at and not recent), answer
    return [job]


async def repeat(callers: Callers, *, pick: int, altered: bool) -> list[KnownJob]:
    """Send a call again whose key was used, to the byte or not quite so."""
    if not callers.repeatable:
        return []
    request, effect = callers.repeatable[-1 - pick % len(callers.repeatable)]
    record = callers.keys.get((request.caller, request.key or ""))
    holds = record and callers.world.clock.now() < record.at + DAY
    if altered and holds:
        request = msgspec.structs.replace(request, body=request.body + b" ")
    match effect:
        case Submitted():
            again: Any = Submitted(
                callers,
                effect.caller,
                effect.name,
                effect.urls,
                effect.at_once,
                effect.ttl_days,
                effect.opened,
            )
        case Added() if effect.job.newest and (holds or _never_took(effect)):
            again = Added(callers, effect.job, effect.job.newest, effect.urls, effect.last_batch)
        case Reran():
            again = Reran(callers, effect.job, effect.asked)
        case _:
            return []
    await callers.act(request, again)
    return [again.job] if again.job else []


def _never_took(effect: Added) -> bool:
    handed_in = [lot.urls for run in effect.job.runs.values() for lot in run.lots]
    return effect.urls not in handed_in


async def intrude(callers: Callers, job: KnownJob, *, how: int) -> list[KnownJob]:
    """Somebody else's job does not exist."""
    stranger = next(caller for caller in CALLERS if caller != job.caller)
    run = next(iter(job.runs))
    method, path = [
        ("GET", ""),
        ("GET", "/runs"),
        ("GET", "/results"),
        ("GET", f"/runs/{run}"),
        ("GET", f"/runs/{run}/results"),
        ("POST", "/close"),
        ("POST", "/stop"),
        ("POST", "/pause"),
        ("POST", "/tasks"),
        ("POST", "/rerun"),
        ("DELETE", ""),
        ("DELETE", f"/runs/{run}"),
    ][how % 12]
    body = b'{"tasks": [{"url": "https://example.com/stranger"}]}' if path == "/tasks" else b""
    answer = await callers.world.call(
        Request(caller=stranger, method=method, path=f"/v1/jobs/{job.id}{path}", body=body)
    )
    assert answer.status in {404, UNAVAILABLE}, f"a stranger got in: {method} {path} {answer}"
    return [job]


async def page(
    callers: Callers, job: KnownJob, *, run: int, limit: int, status: str
) -> list[KnownJob]:
    """Page through a run, come what may in between: every row once, in order (I10)."""
    known = [one for one in job.runs.values() if not one.gone]
    if job.deleted_at or not known or callers.meanwhile:
        return [job]
    one = known[-1 - run % len(known)]
    before = _matching(await callers.rows(one), status)
    got: list[Document] = []
    path, cursor = f"/v1/jobs/{job.id}/runs/{one.id}/results", ""
    while True:
        query = f"limit={limit}&status={status}&cursor={cursor}"
        answer = await callers.get(job.caller, path, query)
        if answer.status == 404:
            assert job.deleted_at or one.gone, answer
            return [job]
        results, cursor = answer.document["results"], answer.document["next_cursor"]
        got += results
        assert len(results) == limit or not cursor, "a page that is not the last is not full"
        assert results or not got or not callers.undisturbed, "a page that there was no need for"
        assert _matching(results, status).keys() == {row["task_id"] for row in results}
        if not cursor:
            break
    if job.deleted_at or one.gone:
        return [job]
    names = [row["task_id"] for row in got]
    assert names == sorted(set(names)), f"out of order, or twice: {names}"
    after = _matching(await callers.rows(one), status)
    assert before.keys() & after.keys() <= set(names), "a row was passed over"
    if status == "all":
        assert set(names) <= after.keys()
    return [job]


def _matching(rows: list[Document], status: str) -> dict[str, Document]:
    wanted = FILTERS[status]
    shown = wanted | {"expired"} if "successful" in wanted else wanted
    return {row["task_id"]: row for row in rows if row["status"] in shown}


async def list_jobs(callers: Callers, *, caller: str, limit: int) -> list[KnownJob]:
    """Page through a caller's jobs: those on record, each once, newest first."""
    if callers.meanwhile:
        return []
    known = [job for job in callers.jobs if job.caller == caller]
    before = {job.id for job in known if not job.deleted_at}
    got: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = await callers.get(caller, "/v1/jobs", f"limit={limit}&cursor={cursor}")
        got += [job["job_id"] for job in answer.document["jobs"]]
        cursor = answer.document["next_cursor"]
    after = {job.id for job in callers.jobs if job.caller == caller and not job.deleted_at}
    assert got == sorted(set(got), reverse=True), got
    assert callers.world.lags or before & after <= set(got), "a job was passed over"
    assert set(got) <= {job.id for job in callers.jobs}, "a job nobody submitted"
    return []


async def read(callers: Callers, job: KnownJob, *, task: int) -> list[KnownJob]:
    """The content of a task, and its history."""
    run = job.newest
    if job.deleted_at or run is None or not run.rows or callers.meanwhile:
        return [job]
    rows = list(run.rows.values())
    row = rows[task % len(rows)]
    path = f"/v1/jobs/{job.id}/runs/{run.id}/tasks/{row['task_id']}"
    await check_content(callers, run, await callers.get(job.caller, f"{path}/content"), row)
    answer = await callers.get(job.caller, f"{path}/history")
    assert answer.status == 200 or job.deleted_at or run.gone, answer
    return [job]


async def check_content(callers: Callers, run: KnownRun, answer: Answer, row: Document) -> None:
    if answer.status == 404:
        assert run.gone or run.job.deleted_at, f"content is gone: {answer}"
    elif row["status"] == "successful":
        assert answer.status in {200, 410}, (row, answer)
    elif row["status"] == "failed":
        assert answer.status == 422, (row, answer)
    if answer.status == 200:
        assert answer.body in callers.world.gateway.served[row["url"]], "a page nobody served"
        parameter = run.parameter_of(row["task_id"]).encode()
        assert parameter in answer.body, (parameter, answer)
        assert answer.headers["etag"] == f'"{hashlib.sha256(answer.body).hexdigest()}"'
