"""The client in rough weather: a real server that cuts connections, refuses and replays."""

import asyncio
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from conveyor.client import (
    ApiError,
    AsyncConveyor,
    ConflictError,
    Conveyor,
    NotFoundError,
    NotSupportedError,
    Patience,
    Progress,
    RateLimitError,
    ServerError,
    UnfinishedError,
    UnreachableError,
)
from tests.e2e.threads import InThreads

Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]
PAGE = b"<html>" + bytes(100_000) + b"</html>"
RUN = {"run_id": "r", "job_id": "j", "status": "running"}
ENDED = {**RUN, "status": "completed"}
# The library repeats a GET by itself, once, when its connection is cut.
ATTEMPTS = 2 * 4
FEW = Patience(first=0.001, longest=0.002, attempts=4)


class Weather:
    """A service of one job, which does what it is asked, and answers as it is told to.

    Faults are used up in order, one a request. Those after the effect lose its answer.
    """

    def __init__(self) -> None:
        self.before: defaultdict[str, list[Fault]] = defaultdict(list)
        self.after: defaultdict[str, list[Fault]] = defaultdict(list)
        self.seen: Counter[str] = Counter()
        self.headers: list[str | None] = []
        self.kept: dict[str, bytes] = {}  # answers by key
        self.tasks: list[str] = []
        self.routes: dict[str, Fault] = {}

    async def serve(self, request: web.Request) -> web.StreamResponse:
        what = f"{request.method} {request.path.removeprefix('/v1')}"
        self.seen[what] += 1
        if self.before[what]:
            return await self.before[what].pop(0)(request)
        if what not in self.routes:
            return refused(404, "not_found")
        answer = await self.routes[what](request)
        if self.after[what]:
            return await self.after[what].pop(0)(request)
        return answer

    async def take(self, request: web.Request) -> web.StreamResponse:
        """Tasks, once for each key."""
        key = request.headers["Idempotency-Key"]
        raw = await request.read()
        if key not in self.kept:
            self.kept[key] = raw
            self.tasks += [task["url"] for task in json.loads(raw)["tasks"]]
        assert self.kept[key] == raw
        return web.json_response({"job_id": "j", "accepted_tasks": len(json.loads(raw)["tasks"])})


@pytest.fixture
async def weather() -> AsyncIterator[tuple[Weather, str]]:
    weather = Weather()
    weather.routes |= {"POST /jobs": weather.take, "POST /jobs/j/tasks": weather.take}
    weather.routes["GET /jobs/j"] = answer({"job_id": "j", "status": "closed", "latest_run": RUN})
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", weather.serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield weather, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


@pytest.fixture
def sky(weather: tuple[Weather, str]) -> Weather:
    return weather[0]


@pytest.fixture(params=[AsyncConveyor, Conveyor])
async def client(
    weather: tuple[Weather, str], request: pytest.FixtureRequest
) -> AsyncIterator[AsyncConveyor]:
    """Both clients: the synchronous one in threads, so that the server can answer meanwhile."""
    if request.param is AsyncConveyor:
        async with AsyncConveyor(weather[1], "key", patience=FEW) as client:
            yield client
    else:
        with Conveyor(weather[1], "key", patience=FEW) as client:
            yield cast("AsyncConveyor", InThreads(client))


def refused(status: int, code: str, **headers: str) -> web.Response:
    return web.json_response({"code": code, "detail": code}, status=status, headers=headers)


def refuse(status: int, code: str = "", **headers: str) -> Fault:
    async def fault(_: web.Request) -> web.StreamResponse:
        return refused(status, code, **headers)

    return fault


def answer(body: Any) -> Fault:
    async def give(_: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    return give


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport
    request.transport.abort()
    return web.Response()


PASSING = [
    cut,
    refuse(503, "unavailable"),
    refuse(503, "unavailable", **{"Retry-After": "0"}),
    refuse(429, "too_many", **{"Retry-After": "0"}),
    refuse(502),
    refuse(504),
]


@pytest.mark.parametrize("fault", PASSING)
async def test_what_passes_is_waited_out(client: AsyncConveyor, sky: Weather, fault: Fault) -> None:
    sky.before["GET /jobs/j"] = [fault, fault]
    assert (await client.job("j")).job_id == "j"
    assert sky.seen["GET /jobs/j"] == 3


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(cut, UnreachableError), (refuse(503), ServerError), (refuse(429), RateLimitError)],
)
async def test_patience_has_an_end(
    client: AsyncConveyor, sky: Weather, fault: Fault, kind: type[Exception]
) -> None:
    sky.before["GET /jobs/j"] = [fault] * 10
    with pytest.raises(kind):
        await client.job("j")
    assert FEW.attempts <= sky.seen["GET /jobs/j"] <= ATTEMPTS


@pytest.mark.parametrize(
    "fault", [refuse(400), refuse(401), refuse(409), refuse(500), refuse(429, "quota_exceeded")]
)
async def test_what_lasts_is_told_at_once(
    client: AsyncConveyor, sky: Weather, fault: Fault
) -> None:
    sky.before["GET /jobs/j"] = [fault]
    with pytest.raises(ApiError):
        await client.job("j")
    assert sky.seen["GET /jobs/j"] == 1


async def test_a_redirect_is_not_followed_with_the_key(client: AsyncConveyor, sky: Weather) -> None:
    sky.before["GET /jobs/j"] = [refuse(302, Location="/v1/elsewhere")]
    with pytest.raises(ApiError, match="302"):
        await client.job("j")
    assert "GET /elsewhere" not in sky.seen


@pytest.mark.parametrize("count", [3, 25_000])
async def test_a_lost_answer_adds_nothing_twice(
    client: AsyncConveyor, sky: Weather, count: int
) -> None:
    urls = [f"https://a.example/{number}" for number in range(count)]
    sky.after["POST /jobs"] = [cut]
    sky.before["POST /jobs"] = [refuse(503)]
    sky.after["POST /jobs/j/tasks"] = [cut, refuse(502)]
    job = await client.submit(iter(urls))
    assert job.accepted_tasks == count
    assert sky.tasks == urls
    assert len(sky.kept) == (1 if count == 3 else 4)


async def test_a_first_call_that_is_still_under_way_is_waited_for(
    client: AsyncConveyor, sky: Weather
) -> None:
    under_way = refuse(409, "idempotency_key_conflict")
    sky.before["POST /jobs"] = [cut, under_way, under_way]
    assert (await client.submit(["https://a.example"])).job_id == "j"
    sky.before["POST /jobs"] = [under_way]
    with pytest.raises(ConflictError):  # it was another's key from the first
        await client.submit(["https://a.example"], idempotency_key="taken")


async def test_rows_that_are_still_written_are_waited_for(
    client: AsyncConveyor, sky: Weather
) -> None:
    sky.before["POST /jobs/j/tasks"] = [refuse(409, "run_not_terminal")] * 2
    assert (await client.add("j", ["https://a.example"])).accepted_tasks == 1


async def test_a_service_that_goes_away_midway_leaves_the_job_named(
    client: AsyncConveyor, sky: Weather
) -> None:
    healthy, sky.routes["POST /jobs/j/tasks"] = sky.routes["POST /jobs/j/tasks"], _then_cut(sky)
    urls = [f"https://a.example/{number}" for number in range(25_000)]
    with pytest.raises(UnfinishedError) as error:
        await client.submit(urls, idempotency_key="k")
    assert (error.value.job_id, error.value.accepted_tasks) == ("j", 10_000)
    assert isinstance(error.value.__cause__, UnreachableError)
    sky.routes["POST /jobs/j/tasks"] = healthy
    assert (await client.submit(urls, idempotency_key="k")).accepted_tasks == 25_000
    assert sky.tasks == urls


def _then_cut(sky: Weather) -> Fault:
    """The first call is served, all others are cut."""

    async def serve(request: web.Request) -> web.StreamResponse:
        return await (cut if len(sky.kept) > 1 else sky.take)(request)

    return serve


async def test_a_rerun_whose_answer_is_lost_is_made_once(
    client: AsyncConveyor, sky: Weather
) -> None:
    keys: list[str] = []

    async def rerun(request: web.Request) -> web.StreamResponse:
        keys.append(request.headers["Idempotency-Key"])
        return web.json_response({"job_id": "j", "latest_run": RUN, "retried_tasks": 2})

    sky.routes["POST /jobs/j/rerun"] = rerun
    sky.after["POST /jobs/j/rerun"] = [cut]
    assert (await client.rerun("j", status="failed")).retried_tasks == 2
    assert len(keys) == 2
    assert len(set(keys)) == 1


async def test_a_delete_whose_answer_is_lost_is_done(client: AsyncConveyor, sky: Weather) -> None:
    sky.before["DELETE /jobs/j"] = [cut, refuse(404)]
    await client.delete("j")
    with pytest.raises(NotFoundError):
        await client.delete("j")
    sky.before["DELETE /jobs/j/runs/r"] = [cut, refuse(404)]
    await client.delete_run("j", "r")
    with pytest.raises(NotFoundError):
        await client.delete_run("j", "r")


def event(number: int, **changes: object) -> bytes:
    kind = "end" if changes else "progress"
    data = json.dumps({**RUN, "stats": {"completed": number}, "rate": 1.0, **changes})
    return f"id: {number}\nevent: {kind}\ndata: {data}\n\n".encode()


def stream(sky: Weather, *parts: bytes, ends_well: bool = True) -> Fault:
    async def send(request: web.Request) -> web.StreamResponse:
        sky.headers.append(request.headers.get("Last-Event-ID"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        return response if ends_well else await cut(request)

    return send


async def followed(client: AsyncConveyor, **options: Any) -> list[Progress]:
    return [state async for state in client.progress("j", poll_every=0.001, **options)]


async def test_a_cut_stream_is_resumed_where_it_was(client: AsyncConveyor, sky: Weather) -> None:
    sky.before["GET /jobs/j/events"] = [stream(sky, event(1), event(2)[:-5], ends_well=False)]
    sky.before["GET /jobs/j/runs/r/events"] = [
        stream(sky, b":\n\n", event(3)),  # the service was stopped in good order
        cut,
        refuse(503, **{"Retry-After": "0"}),
        stream(sky, event(4, status="completed")),
    ]
    states = await followed(client)
    assert [state.stats.completed for state in states] == [1, 3, 4]
    assert sky.headers == [None, "1", "3"]


async def test_following_has_an_end_when_nobody_answers(
    client: AsyncConveyor, sky: Weather
) -> None:
    sky.before["GET /jobs/j/events"] = [cut] * 20
    with pytest.raises(UnreachableError):
        await followed(client)
    assert FEW.attempts <= sky.seen["GET /jobs/j/events"] <= ATTEMPTS


async def test_a_run_that_is_deleted_while_followed_ends_as_such(
    client: AsyncConveyor, sky: Weather
) -> None:
    sky.before["GET /jobs/j/events"] = [stream(sky, event(1), ends_well=False)]
    states = await followed(client)
    assert [state.status for state in states] == ["running", "deleted"]
    assert states[-1].stats.completed == 1


@pytest.mark.parametrize("fault", [refuse(404), refuse(405), refuse(501), answer({"spa": True})])
async def test_without_events_it_is_asked_for(
    client: AsyncConveyor, sky: Weather, fault: Fault
) -> None:
    sky.before["GET /jobs/j/events"] = [fault]
    told = [{**RUN, "stats": {"completed": done, "total": 9}} for done in (1, 1, 2)]
    sky.before["GET /jobs/j/runs/r"] = [*map(answer, told), answer(ENDED)]
    states = await followed(client)
    assert [(state.status, state.stats.completed) for state in states] == [
        ("running", 0), ("running", 1), ("running", 2), ("completed", 0),
    ]  # fmt: skip
    assert states[0].rate is None
    assert states[1].rate
    assert states[1].eta_seconds


async def test_a_job_that_is_not_there_is_not_followed(client: AsyncConveyor, sky: Weather) -> None:
    del sky.routes["GET /jobs/j"]
    with pytest.raises(NotFoundError):
        await followed(client)


async def test_a_job_without_a_run_is_not_followed(client: AsyncConveyor, sky: Weather) -> None:
    sky.routes["GET /jobs/j"] = answer({"job_id": "j", "status": "closed", "latest_run": None})
    with pytest.raises(NotFoundError, match="no run"):
        await followed(client)


def page(tag: str | None = None, body: bytes = PAGE) -> Fault:
    async def give(_: web.Request) -> web.StreamResponse:
        digest = tag or hashlib.sha256(PAGE).hexdigest()
        return web.Response(body=body, headers={"ETag": f'"{digest}"'})

    return give


async def half(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": str(len(PAGE))})
    await response.prepare(request)
    await response.write(PAGE[:1000])
    return await cut(request)


def _listing(sky: Weather, *names: str) -> None:
    rows = [
        {"task_id": name, "run_id": "r", "url": "u", "status": "successful", "result_url": "x"}
        for name in names
    ]

    async def give(request: web.Request) -> web.StreamResponse:
        at = int(request.query.get("cursor", "0"))
        following = str(at + 2) if at + 2 < len(rows) else None
        return web.json_response({"results": rows[at : at + 2], "next_cursor": following})

    sky.routes["GET /jobs/j/results"] = sky.routes["GET /jobs/j/runs/r/results"] = give
    for name in names:
        sky.routes[f"GET /jobs/j/runs/r/tasks/{name}/content"] = page()


@pytest.mark.parametrize("fault", [half, page(tag="0" * 64), page(body=PAGE[:-1]), cut])
async def test_a_page_that_is_cut_or_altered_is_fetched_again(
    client: AsyncConveyor, sky: Weather, tmp_path: Path, fault: Fault
) -> None:
    _listing(sky, "t")
    content = "GET /jobs/j/runs/r/tasks/t/content"
    sky.before[content] = [fault, fault]
    [result] = [one async for one in client.results("j")]
    assert result.body == PAGE
    sky.before[content] = [fault, fault]
    assert await client.save(result, tmp_path / "page") == len(PAGE)
    assert (tmp_path / "page").read_bytes() == PAGE
    sky.before[content] = [fault] * ATTEMPTS
    with pytest.raises(UnreachableError):
        await client.save(result, tmp_path / "other")
    for name in ("other", "other.part"):
        assert not (tmp_path / name).exists()


async def test_a_page_for_a_folder_that_is_not_there_is_told(
    client: AsyncConveyor, sky: Weather, tmp_path: Path
) -> None:
    _listing(sky, "t")
    [result] = [one async for one in client.results("j", bodies=False)]
    with pytest.raises(FileNotFoundError):
        await client.save(result, tmp_path / "nowhere" / "page")


async def test_a_rerun_between_two_pages_does_not_get_into_the_listing(
    client: AsyncConveyor, sky: Weather
) -> None:
    _listing(sky, "a", "b", "c", "d", "e")
    rerun = {"task_id": "a", "run_id": "r2", "url": "u", "status": "pending"}
    found = []
    async for one in client.results("j", bodies=False):
        found.append((one.run_id, one.task_id))
        sky.routes["GET /jobs/j/results"] = answer({"results": [rerun], "next_cursor": None})
    assert found == [("r", name) for name in "abcde"]


async def test_a_rerun_before_the_first_row_that_matches_does_not_get_into_the_listing(
    client: AsyncConveyor, sky: Weather
) -> None:
    run = {"run_id": "r", "job_id": "j", "run_sequence": 1, "status": "running"}
    sky.routes["GET /jobs/j"] = answer({"job_id": "j", "status": "closed", "latest_run": run})
    row = {"task_id": "a", "run_id": "r", "url": "u", "status": "failed"}
    pages = [{"results": [], "next_cursor": "c"}, {"results": [row], "next_cursor": None}]
    path = "GET /jobs/j/runs/r/results"
    sky.before[path] = [answer(pages[0]), answer(pages[1])]
    found = [one.task_id async for one in client.results("j", bodies=False, code=["X", "Y"])]
    assert found == ["a"]
    with pytest.raises(TypeError, match="code must be a list"):
        [one async for one in client.results("j", bodies=False, code="X")]


async def test_bodies_are_fetched_ahead_within_the_bound_and_told_in_order(
    client: AsyncConveyor, sky: Weather
) -> None:
    names = [f"t{number}" for number in range(9)]
    _listing(sky, *names)
    now = most = 0
    gate = asyncio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if request.path.endswith("/t2/content"):
            gate.set()
        if request.path.endswith("/t0/content"):
            await gate.wait()  # the first comes last
        now -= 1
        return await page()(request)

    for name in names:
        sky.routes[f"GET /jobs/j/runs/r/tasks/{name}/content"] = slowly
    async with asyncio.timeout(10):
        found = [one.task_id async for one in client.results("j", concurrency=3)]
    assert found == names
    assert 2 <= most <= 3


async def test_a_page_that_expires_meanwhile_is_told_and_another_refusal_raised(
    client: AsyncConveyor, sky: Weather
) -> None:
    _listing(sky, "a", "b")
    sky.before["GET /jobs/j/runs/r/tasks/a/content"] = [refuse(410, "result_expired")]
    found = [(one.status, one.body) async for one in client.results("j")]
    assert found == [("expired", None), ("successful", PAGE)]
    sky.before["GET /jobs/j/runs/r/tasks/b/content"] = [refuse(501)]
    with pytest.raises(NotSupportedError):
        assert [one async for one in client.results("j")]


async def test_an_answer_that_makes_no_sense_is_told(client: AsyncConveyor, sky: Weather) -> None:
    senseless: list[Any] = [[], {}, "x", {"job_id": 1}]
    for body in senseless:
        sky.before["GET /jobs/j"] = [answer(body)]
        with pytest.raises(UnreachableError, match="base URL"):
            await client.job("j")
