"""One life of the program: the wired service over its engines, driven step by step.

A script is run from its top in every life. What the caller was answered in an earlier one it
remembers, and does not ask again; what it was not it asks again, with the same key.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message

from conveyor.app.engines import Engines, open_engines, ports
from conveyor.app.services import Service, build_service
from conveyor.domain.task_list.rows import ReaderLimits
from conveyor.settings import Settings
from conveyor.steps.shared.work_limits import Sizes
from conveyor.testing.clock import NOON, FakeClock, FakeIds
from tests.crash.deaths import Crossing, Deaths
from tests.crash.gateway import ScriptedGateway
from tests.crash.snapshot import EmbeddedState, Picture, Stored
from tests.crash.states import KeptStates
from tests.crash.webhooks import ScriptedByHost
from tests.harness.trace import watched

SYNC_TASKS = 8  # from so many tasks on a call is answered 202
MOST_ROUNDS = 60
SIZES = Sizes(chunk_rows=4, reader=ReaderLimits(chunk_lines=4))  # so that ten rows are many
REMEMBERED = timedelta(hours=23)  # for which the answer to a repeated call is surely kept
BEGUN = "begun"
PORTS = ports().keys() - {"clock", "ids"}  # those keep nothing, and say nothing to anyone
A_MINUTE = timedelta(minutes=1)
# From one sweep to the next: two passes find what looks broken, the second repairs it.
SWEEPS = (timedelta(minutes=11), timedelta(minutes=11), A_MINUTE, A_MINUTE)


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes

    def __getitem__(self, name: str) -> Any:
        return msgspec.json.decode(self.body)[name]


class Outcome(msgspec.Struct, frozen=True):
    """What a life that came to rest left behind, and the calls it came by."""

    complaints: list[str]
    picture: Picture
    crossed: list[Crossing]


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the caller's journal: what it was answered, or how late it is."""

    label: str = ""
    call: tuple[str, str, object, str | None] = ("", "", None, None)
    answer: Answer = Answer(0, b"")
    passed: float = 0.0


class Journal:
    """What the world outside remembers when the program dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_bytes().splitlines() if path.exists() else []
        self.lines = [msgspec.json.decode(line, type=Heard) for line in lines]

    @property
    def passed(self) -> timedelta:
        return timedelta(seconds=max((line.passed for line in self.lines), default=0.0))

    def find(self, label: str) -> Answer | None:
        return next((line.answer for line in self.lines if line.label == label), None)

    def add(self, line: Heard) -> None:
        self.lines.append(line)
        with self._path.open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(line) + b"\n")


@dataclass(slots=True, kw_only=True)
class Life:
    deaths: Deaths
    clock: FakeClock
    journal: Journal
    service: Service
    raw: Engines  # the engines, unwatched
    stored: Stored
    data: Path
    states: KeptStates  # that wait for runs
    waits: bool = False  # for the leases of a service that died, which no start ends
    swept: Counter[str] = field(default_factory=Counter)
    has_begun: bool = False

    def begin(self) -> None:
        """From here on calls of ports are points of the scenario."""
        self.has_begun = True
        if not self.journal.find(BEGUN):
            self.journal.add(Heard(label=BEGUN, answer=Answer(1, b"")))
        self.deaths.begin()

    @property
    def is_past(self) -> bool:
        """Whether an earlier life has done what the script prepares here."""
        return not self.has_begun and self.journal.find(BEGUN) is not None

    def advance(self, by: timedelta) -> None:
        if self.is_past:
            return
        self.clock.advance(by)
        self.journal.add(Heard(passed=self.passed))

    @property
    def passed(self) -> float:
        return (self.clock.now() - NOON).total_seconds()

    async def call(
        self,
        label: str,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = None,
        faults: Mapping[str, Exception] | None = None,
    ) -> Answer:
        """What the caller was answered, in this life or in an earlier one."""
        if known := self.journal.find(label):
            return known
        self.deaths.broken.update(faults or {})
        answer = await _ask(self.service.app, method, path, body, key)
        self.deaths.broken.clear()
        call = (method, path, body, key)
        self.journal.add(Heard(label=label, call=call, answer=answer, passed=self.passed))
        self.deaths.step_is_over()
        return answer

    async def operate(self, label: str, method: str, path: str, body: object = None) -> Answer:
        """What an operator was answered, by whichever life."""
        if known := self.journal.find(label):
            return known
        answer = await _ask(self.service.app, method, path, body, token=self.service.token)
        self.journal.add(Heard(label=label, answer=answer, passed=self.passed))
        self.deaths.step_is_over()
        return answer

    async def handle_messages(self, times: int = MOST_ROUNDS) -> None:
        """Handle the control messages that are due."""
        if self.is_past:
            return
        for _ in range(times):
            done = await self.service.steps.control_worker.step()
            self.deaths.step_is_over()
            if not done:
                if not (self.waits and self.stored.has_messages()):
                    return
                self.advance(A_MINUTE)

    async def fire(self) -> None:
        """Have scheduled jobs run that are due."""
        if self.is_past:
            return
        await self.service.steps.fire.step()
        self.deaths.step_is_over()

    async def dispatch(self, *, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        """One round: take what is due, renew the leases, settle what came of it."""
        if self.is_past:
            return
        dispatcher = self.service.steps.dispatcher
        self.advance(timedelta(seconds=3))
        await dispatcher.fetch_round()
        if meanwhile:
            await meanwhile()
        await dispatcher.settle_finished()
        self.deaths.step_is_over()

    async def drain(self) -> None:
        """Rounds until nothing is left to do, and one in which ended runs are left."""
        if self.is_past:
            return
        for _ in range(MOST_ROUNDS):
            if not self.stored.has_open_tasks():
                break
            await self.dispatch()
            if self.waits:
                await self.sweep()
        await self.dispatch()

    async def deliver(self) -> None:
        """Send the events of the outbox that are due."""
        if self.is_past:
            return
        while await self.service.steps.deliver.step():
            pass
        self.deaths.step_is_over()

    async def rest_swept(self) -> None:
        """Go on until nobody has anything left to do, the sweeper included."""
        await self.rest()
        for wait in SWEEPS:
            self.advance(wait)
            await self.sweep()
            await self.rest()

    async def sweep(self) -> None:
        if self.waits:
            self.advance(A_MINUTE)  # the permit of the sweeper may be among the leases
        await self.service.steps.sweep.step()
        self.deaths.step_is_over()

    async def rest(self) -> None:
        """Go on until there is nothing left to do for anyone but the sweeper."""
        for _ in range(MOST_ROUNDS):
            if self.stored.has_messages():
                self.advance(A_MINUTE)
                await self.handle_messages()
            elif self.stored.has_open_tasks():
                await self.drain()
            elif self.stored.owes_events():
                self.advance(A_MINUTE)
                await self.deliver()
            else:
                return
        raise AssertionError("it does not come to rest")

    async def complaints(self) -> list[str]:
        """What is wrong at rest: things to repair, and repeated calls with another answer."""
        wrong = []
        for line in list(self.journal.lines):
            fresh = line.passed + REMEMBERED.total_seconds() > self.passed
            if fresh and line.call[3] and line.answer.status < 300:
                again = await _ask(self.service.app, *line.call)
                if again != line.answer:
                    wrong.append(f"{line.label}: first {line.answer}, then {again}")
        self.swept.clear()
        self.advance(timedelta(minutes=15))
        await self.sweep()
        self.advance(timedelta(minutes=1))
        await self.sweep()
        return [*wrong, *(f"left to the sweeper: {action}" for action in sorted(self.swept))]


def settings_of(folder: Path) -> Settings:
    return Settings(
        data=str(folder / "data"),
        gateway="http://gateway.example",  # not https: each life would load certificates
        durability="process",
        sync_tasks=SYNC_TASKS,
        open_job_tasks=20,
        list_rows=20,
    )


@asynccontextmanager
async def a_life(folder: Path, deaths: Deaths) -> AsyncIterator[Life]:
    """Open the folder as `open_service` does, with every port watched."""
    journal = Journal(folder / "journal")
    clock = FakeClock(NOON + journal.passed + timedelta(seconds=1))
    journal.add(Heard(passed=(clock.now() - NOON).total_seconds()))
    async with AsyncExitStack() as stack:
        raw = await open_engines(settings_of(folder), stack, clock=clock, ids=FakeIds(clock.now()))
        stored = EmbeddedState(folder / "data")
        life = wired(raw, folder, journal=journal, deaths=deaths, stored=stored)
        await life.service.steps.sweep.at_start(raw.dead_claims or ())
        yield life


def wired(raw: Engines, folder: Path, *, journal: Journal, deaths: Deaths, stored: Stored) -> Life:
    """The service over these engines, every port watched, in the world that the folder keeps."""
    states = KeptStates(folder / "states")
    raw = replace(
        raw,
        gateway=ScriptedGateway(stored.tried),
        webhooks=ScriptedByHost(stored.told),
        step_functions=states,
    )
    seen = {name: watched(getattr(raw, name), name, deaths) for name in PORTS if getattr(raw, name)}
    settings = msgspec.structs.replace(settings_of(folder), step_functions="aws:")
    service = build_service(settings, replace(raw, **seen), SIZES)
    service.steps.dispatcher.rng.seed(1)
    assert isinstance(raw.clock, FakeClock)
    life = Life(
        deaths=deaths,
        clock=raw.clock,
        journal=journal,
        service=service,
        raw=raw,
        stored=stored,
        data=folder / "data",
        states=states,
    )
    service.steps.sweep.count = lambda action, times: life.swept.update({action: times})
    return life


def _encoded(body: object) -> bytes:
    """A text is sent as it is."""
    if isinstance(body, str):
        return body.encode()
    return b"" if body is None else msgspec.json.encode(body)


async def _ask(
    app: ASGIApp,
    method: str,
    path: str,
    body: object = None,
    key: str | None = None,
    *,
    token: str | None = None,
) -> Answer:
    """One request of a caller, with its answer."""
    path, _, query = path.partition("?")
    headers = [(b"x-api-key", b"the-caller's-own-key"), (b"host", b"localhost")]
    if key:
        headers.append((b"idempotency-key", key.encode()))
    if token:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "asgi": {"version": "3.0", "spec_version": "2.4"},  # `send` tells who has gone
        "headers": headers, "server": ("localhost", 80), "client": ("192.0.2.1", 1),
    }  # fmt: skip
    if isinstance(body, str):
        headers.append((b"content-type", b"text/plain"))
    sent = {"type": "http.request", "body": _encoded(body)}
    status, parts = 0, list[bytes]()

    async def receive() -> Message:
        return sent

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return Answer(status, b"".join(parts))
