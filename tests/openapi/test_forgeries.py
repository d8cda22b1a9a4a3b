"""Ids, cursors, keys, links and headers that were altered: never an error of ours, never a row of
another caller's, never a forgery that is taken.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from starlette.types import Message

from conveyor.app.engines import open_engines
from conveyor.app.services import Service, build_service
from conveyor.settings import Settings
from conveyor.testing.clock import FakeClock, FakeIds

MINE, THEIRS = "my-own-key", "another-callers-key"
CANARY = "https://ok.example/theirs-alone"
SLOWEST = 60.0  # seconds for one answer: only what hangs
SEED = 20260302


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Stage:
    """A service with two callers, each with a job that has ended, and what they were given."""

    service: Service
    mine: dict[str, str] = field(default_factory=dict)
    theirs: dict[str, str] = field(default_factory=dict)

    async def ask(
        self,
        method: str,
        target: str,
        *,
        headers: list[tuple[bytes, bytes]] | None = None,
        body: bytes = b"",
        key: bytes | None = MINE.encode(),
    ) -> Answered:
        """As the server's own protocol hands a request on."""
        path, _, query = target.partition("?")
        given = [*(headers or []), *([(b"x-api-key", key)] if key is not None else [])]
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode("utf-8", "replace"), "root_path": "",
            "query_string": query.encode("utf-8", "replace"), "headers": given,
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "server": ("conveyor.example", 80), "client": ("192.0.2.1", 1),
        }  # fmt: skip
        answered, parts = Answered(0, {}, b""), list[bytes]()

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered.status = message["status"]
                answered.headers = {
                    name.decode(): value.decode() for name, value in message["headers"]
                }
            parts.append(message.get("body", b""))

        async with asyncio.timeout(SLOWEST):
            await self.service.app(scope, receive, send)
        answered.body = b"".join(parts)
        return answered


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    settings = Settings(
        data=str(tmp_path), durability="process", api_keys=(MINE, THEIRS), sync_tasks=10
    )
    async with AsyncExitStack() as stack:
        clock = FakeClock()
        engines = await open_engines(settings, stack, clock=clock, ids=FakeIds())
        one = Stage(build_service(settings, engines))
        one.mine = await _given(one, MINE.encode(), "https://ok.example/mine")
        one.theirs = await _given(one, THEIRS.encode(), CANARY)
        yield one


async def _given(stage: Stage, key: bytes, url: str) -> dict[str, str]:
    """A stopped job of three tasks, a file input and an export; their ids and links."""
    tasks = [{"url": f"{url}/{number}"} for number in range(3)]
    body = msgspec.json.encode({"tasks": tasks, "external_id": "an-id"})
    made = json.loads((await stage.ask("POST", "/v1/jobs", body=body, key=key)).body)
    job, run = made["job_id"], made["latest_run"]["run_id"]
    await stage.ask("POST", f"/v1/jobs/{job}/stop", key=key)
    page = await stage.ask("GET", f"/v1/jobs/{job}/results?limit=1", key=key)
    task = json.loads(page.body)["results"][0]["task_id"]
    file_input = await stage.ask("POST", "/v1/job_inputs", body=b'{"type":"txt"}', key=key)
    link = urlsplit(json.loads(file_input.body)["upload"]["url"])
    export = await stage.ask("POST", f"/v1/jobs/{job}/runs/{run}/exports", key=key)
    return {
        "job": job,
        "run": run,
        "task": task,
        "cursor": json.loads(page.body)["next_cursor"],
        "export": json.loads(export.body)["export_id"],
        "slot": f"{link.path}?{link.query}",
    }


class Forger:
    """Makes something near what is real, and something far from it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def text(self, real: str, other: str) -> str:
        make: Callable[[str, str], str] = self.dice.choice([
            self._flipped, self._spliced, self._cut, self._doubled, self._odd, self._cased, self._other,
        ])  # fmt: skip
        return make(real, other)

    def _flipped(self, real: str, _other: str) -> str:
        at = self.dice.randrange(len(real))
        return real[:at] + chr(ord(real[at]) ^ (1 << self.dice.randrange(7))) + real[at + 1 :]

    def _spliced(self, real: str, other: str) -> str:
        at = self.dice.randrange(1, max(len(real), 2))
        return real[:at] + other[at:]

    def _cut(self, real: str, _other: str) -> str:
        return real[: self.dice.randrange(len(real))]

    def _doubled(self, real: str, other: str) -> str:
        return real + self.dice.choice(["", "\x00", ",", "/", "%2f", "\n"]) + other

    def _odd(self, _real: str, _other: str) -> str:
        odd = [
            "\x00",
            "../..",
            "%00",
            "'; DROP TABLE job --",
            "\ud7ff",
            "ä",
            "0",
            "-1",
            "null",
            "x" * 7_000,
        ]
        return self.dice.choice(odd)

    def _cased(self, real: str, _other: str) -> str:
        return real.swapcase()

    def _other(self, _real: str, other: str) -> str:
        return other


PATHS = (
    ("GET", "/v1/jobs/{job}"),
    ("GET", "/v1/jobs/{job}/results?cursor={cursor}"),
    ("GET", "/v1/jobs/{job}/runs?cursor={run}"),
    ("GET", "/v1/jobs?cursor={job}"),
    ("GET", "/v1/jobs/{job}/runs/{run}"),
    ("GET", "/v1/jobs/{job}/runs/{run}/results?cursor={cursor}"),
    ("GET", "/v1/jobs/{job}/runs/{run}/tasks/{task}/history"),
    ("GET", "/v1/jobs/{job}/tasks/{task}/content"),
    ("GET", "/v1/jobs/{job}/runs/{run}/exports/{export}"),
    ("GET", "/v1/jobs/{job}/runs/{run}/ingest_errors"),
    ("POST", "/v1/jobs/{job}/pause"),
    ("POST", "/v1/jobs/{job}/close"),
    ("POST", "/v1/jobs/{job}/stop"),
)


async def test_altered_ids_and_cursors_lead_nowhere(stage: Stage) -> None:
    await _try_ids(stage, 2_000)


@pytest.mark.long
@pytest.mark.timeout(1_800)
async def test_many_altered_ids_and_cursors_lead_nowhere(stage: Stage) -> None:
    await _try_ids(stage, 50_000)


async def _try_ids(stage: Stage, times: int) -> None:
    forger = Forger(SEED)
    for _ in range(times):
        method, path = forger.dice.choice(PATHS)
        ids, names = dict(stage.mine), list(stage.mine)
        for name in forger.dice.sample(names, k=forger.dice.choice([1, 1, 2])):
            ids[name] = forger.text(stage.mine[name], stage.theirs[name])
        target = path.format(**{name: _in_url(value) for name, value in ids.items()})
        _check(await stage.ask(method, target), target, stage)


def _in_url(value: str) -> str:
    """What a path or query holds once the server has undone its escapes."""
    return value.replace("?", "").replace("#", "")


def _check(answered: Answered, about: str, stage: Stage) -> None:
    assert 200 <= answered.status < 500, (about, answered)
    assert answered.headers["x-request-id"]
    for secret in (CANARY.encode(), stage.theirs["task"].encode()):
        if secret in answered.body:  # only what the caller itself sent may come back
            assert answered.status >= 400, (about, answered)
            assert secret.decode() in about, (about, answered)
    if answered.status >= 400:
        assert answered.headers["content-type"] == "application/problem+json"
        assert json.loads(answered.body)["code"]
    else:
        shown = json.loads(answered.body) if answered.body else {}
        assert stage.theirs["job"] not in json.dumps(shown)


async def test_no_altered_link_is_taken(stage: Stage) -> None:
    await _try_links(stage, 1_000)


@pytest.mark.long
@pytest.mark.timeout(1_800)
async def test_none_of_many_altered_links_is_taken(stage: Stage) -> None:
    await _try_links(stage, 30_000)


async def _try_links(stage: Stage, times: int) -> None:
    forger, real = Forger(SEED + 1), stage.mine["slot"]
    text = [(b"content-type", b"text/plain")]
    for _ in range(times):
        forged = forger.text(real, stage.theirs["slot"])
        if forged in {real, stage.theirs["slot"]} or not forged.startswith("/_local"):
            continue
        if _same(forged, real) or _same(forged, stage.theirs["slot"]):
            continue  # the same link, spelt otherwise
        answered = await stage.ask(
            "PUT", forged, headers=text, body=b"https://ok.example/", key=None
        )
        assert answered.status in {400, 404, 405, 414}, (forged, answered)
    answered = await stage.ask("PUT", real, headers=text, body=b"https://ok.example/", key=None)
    assert answered.status == 200


def _same(forged: str, real: str) -> bool:
    """Whether two links say the same: what follows the signature counts for nothing."""
    path, _, query = forged.partition("?")
    known, _, signed = real.partition("?")
    return path == known and query.split("&")[:2] == signed.split("&")


async def test_no_altered_key_is_known(stage: Stage) -> None:
    await _try_keys(stage, 1_000)


@pytest.mark.long
async def test_none_of_many_altered_keys_is_known(stage: Stage) -> None:
    await _try_keys(stage, 20_000)


async def _try_keys(stage: Stage, times: int) -> None:
    forger = Forger(SEED + 2)
    for _ in range(times):
        key = forger.text(MINE, THEIRS)
        if key.strip() in {MINE, THEIRS}:
            continue
        answered = await stage.ask("GET", "/v1/jobs", key=key.encode("latin-1", "replace"))
        assert answered.status == 401, (key, answered)


HEADERS = {
    b"idempotency-key": '"a-key"',
    b"x-request-id": "a-request",
    b"conveyor-retries": "3",
    b"conveyor-async": "true",
    b"conveyor-on-invalid": "skip",
    b"content-type": "application/json; charset=utf-8",
    b"content-length": "30",
    b"content-encoding": "identity",
    b"last-event-id": "01ARZ3NDEKTSV4RRFFQ69G5FAV-1-2-3",
    b"range": "bytes=0-10",
    b"host": "conveyor.example",
    b"accept": "application/json",
}


async def test_altered_headers_are_refused_or_let_be(stage: Stage) -> None:
    await _try_headers(stage, 1_000)


@pytest.mark.long
@pytest.mark.timeout(1_800)
async def test_many_altered_headers_are_refused_or_let_be(stage: Stage) -> None:
    await _try_headers(stage, 20_000)


async def _try_headers(stage: Stage, times: int) -> None:
    forger = Forger(SEED + 3)
    body = b'{"status":"open"}'
    names = list(HEADERS)
    for _ in range(times):
        headers = [
            (
                name,
                forger.text(HEADERS[name], HEADERS[forger.dice.choice(names)]).encode(
                    "latin-1", "replace"
                ),
            )
            for name in forger.dice.sample(names, k=3)
        ]
        answered = await stage.ask("POST", "/v1/jobs", headers=headers, body=body)
        assert 200 <= answered.status < 500, (headers, answered)


def _bodies(stage: Stage) -> Iterator[bytes]:
    """What a body can be that is none."""
    task = '{"url":"https://ok.example/","method":"POST","body":%s}'
    for depth in (50, 1_000, 100_000):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            deep = opening * depth + "1" + closing * depth
            yield deep.encode()
            yield f'{{"tasks":[{task % deep}]}}'.encode()
    yield b"\x00" * 1_000_000
    yield b'"' + b"a" * 1_000_000
    yield b"[" * 1_000_000
    yield b'{"name":"' + b"\\u0000" * 100 + b'"}'
    yield b"\xff\xfe{}"
    yield b'{"tasks":[{"url":"https://ok.example/","metadata":{"a":"' + b"x" * 1_000_000 + b'"}}]}'
    yield f'{{"file_input_id":"{stage.theirs["slot"].split("/")[3].split("?")[0]}"}}'.encode()
    yield b'{"tasks":[{"url":"https://ok.example/\\u0000"}],"external_id":"\\u0000"}'
    yield b'{"retries":1e400}'
    yield b'{"retries":' + b"9" * 100_000 + b"}"


async def test_odd_bodies_are_refused(stage: Stage) -> None:
    before = await stage.ask("GET", "/v1/jobs")
    for body in _bodies(stage):
        for path in ("/v1/jobs", f"/v1/jobs/{stage.mine['job']}/tasks", "/v1/job_inputs"):
            answered = await stage.ask("POST", path, body=body)
            assert answered.status in {400, 404, 409, 413}, (path, body[:80], answered)
    assert (await stage.ask("GET", "/v1/jobs")).body == before.body
