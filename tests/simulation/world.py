"""The whole program in this process, on the embedded engine: stepped, interrupted and killed.

Nothing here runs by itself. A test makes each call, each claim, each message and each sweep, and may
have the process die, or something else happen, at any call of a port in the middle of one.
"""

import inspect
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec

from conveyor.app.engines import Engines, open_engines
from conveyor.app.services import Service, build_service
from conveyor.domain.counts import Spend
from conveyor.domain.job import Job
from conveyor.domain.params import load
from conveyor.domain.problem import encoded, problem
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.task import Task, TaskStatus
from conveyor.ports.bodies import Spool
from conveyor.ports.gateway import GatewayRefusal, Page, PageRequest
from conveyor.ports.work import Held
from conveyor.settings import Settings
from conveyor.steps.shared.attempt import Assignment, FinishedAttempt
from conveyor.steps.shared.work_limits import Sizes
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import gateway_refusal
from tests.harness.memory_service import ClockIds

P = TypeVar("P")
T = TypeVar("T")
Moment = Literal["before", "after"]
Document = dict[str, Any]

LEASE = timedelta(seconds=30)
SYNC_TASKS = 4
SIZES = Sizes(chunk_rows=3)  # so that even short lists take several chunks
PORTS = ("metadata", "tasks", "work", "control_queue", "bodies", "blobs")


class Died(BaseException):
    """The process ended here. Nothing can catch it and tidy up."""


def is_death(error: BaseException) -> bool:
    """Whether an error is a death, or what task groups make of one."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_death(each) for each in error.exceptions)
    return isinstance(error, Died)


class Fate:
    """What befalls the process at some call of a port, counted from when it was planned."""

    def __init__(self) -> None:
        self.dead = False
        self.struck = False
        self._left = -1
        self._moment: Moment = "before"
        self._blow: Callable[[], Awaitable[object]] = self.die

    def plan(self, nth: int, moment: Moment, blow: Callable[[], Awaitable[object]]) -> None:
        self._left, self._moment, self._blow = nth, moment, blow
        self.struck = False

    def forget(self) -> None:
        self._left = -1
        self.struck = False

    @contextmanager
    def held_off(self) -> Iterator[None]:
        """For a while nothing befalls the process, and no call counts."""
        left, self._left = self._left, -1
        try:
            yield
        finally:
            self._left = left

    async def die(self) -> None:
        self.dead = True
        raise Died

    async def around(self, effect: Callable[[], Awaitable[T]]) -> T:
        if self.dead:
            raise Died
        due = self._left == 0
        self._left -= 1
        if due and self._moment == "before":
            await self._strike()
        result = await effect()
        if due and self._moment == "after":
            await self._strike()
        return result

    async def _strike(self) -> None:
        self.struck = True
        await self._blow()


class _Watched:
    """A port whose calls are in the hands of fate."""

    def __init__(self, port: object, fate: Fate) -> None:
        self._port, self._fate = port, fate

    def __getattr__(self, method: str) -> Any:
        target = getattr(self._port, method)
        fate = self._fate
        call: Any
        if inspect.isasyncgenfunction(target):

            async def call(*given: Any, **named: Any) -> AsyncIterator[bytes]:
                await fate.around(_nothing)
                async for part in target(*given, **named):
                    yield part

        elif inspect.iscoroutinefunction(target):

            def call(*given: Any, **named: Any) -> Awaitable[Any]:
                return fate.around(lambda: target(*given, **named))

        else:
            call = target
        setattr(self, method, call)
        return call


async def _nothing() -> None:
    return None


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def document(self) -> Document:
        return msgspec.json.decode(self.body, type=dict[str, Any])

    @property
    def code(self) -> str:
        return str(self.document.get("code")) if self.status >= 400 else ""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    caller: str
    method: str
    path: str
    query: str = ""
    body: bytes = b""
    key: str | None = None


# How the gateway answers, in the words of the rules.
OUTCOMES: dict[str, tuple[int, str]] = {
    "retry": (422, "RESP001"),
    "fail": (404, "RESP002"),
    "throttled": (429, "AUTH006"),
    "blocked": (402, "AUTH004"),
}
SPEND = Spend(1, 1_000)


class ToldGateway:
    """A gateway that answers as it is told, and remembers every page it gave."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.served: dict[str, set[bytes]] = defaultdict(set)
        self._pages = 0

    async def check_health(self) -> bool:
        return True

    async def fetch(
        self, request: PageRequest, spool: Callable[[], Spool]
    ) -> Page | GatewayRefusal:
        outcome = self.told.pop(request.url, "page")
        if outcome in OUTCOMES:
            status, code = OUTCOMES[outcome]
            text = encoded(problem(status=status, code=code, detail=outcome))
            spend = SPEND if outcome in {"retry", "fail"} else Spend(0, 0)
            return gateway_refusal(status, code, problem=text, spend=spend)
        self._pages += 1
        wait = request.params.get("wait")
        content = f"{request.url} {request.gateway_key} {wait} {self._pages}".encode()
        self.served[request.url].add(content)
        if outcome == "spooled":
            spooled = spool()
            await spooled.write(content)
            return Page(content=spooled, spend=SPEND)
        return Page(content=content, spend=SPEND)


@dataclass(slots=True, eq=False)
class ClaimedTask:
    """A task in somebody's hands."""

    task: Task
    assignment: Assignment


@dataclass(slots=True, repr=False, eq=False)
class World:
    """A data folder, time, and the process that owns the folder, if one lives."""

    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)
    fate: Fate = field(default_factory=Fate)
    gateway: ToldGateway = field(default_factory=ToldGateway)
    claimed: list[ClaimedTask] = field(default_factory=list)
    # Bodies that claims which had lost their task may have left when their process died.
    garbage: set[str] = field(default_factory=set)
    ids: ClockIds = field(init=False)
    stack: AsyncExitStack = field(init=False)
    service: Service = field(init=False)
    ports: Engines = field(init=False)  # unwatched: to look at what is stored
    watched: Engines = field(init=False)
    deaths: int = 0
    lags: bool = False  # listings of jobs may lag behind
    skew: timedelta = timedelta()  # by which clocks of services differ

    def __post_init__(self) -> None:
        self.ids = ClockIds(self.clock)

    async def start(self) -> None:
        """Open the folder as a new process does, repairs included."""
        settings = Settings(
            data=str(self.folder),
            gateway="http://gateway.example",  # not https: each start would load certificates
            durability="process",
            lease=LEASE,
            sync_tasks=SYNC_TASKS,
        )
        self.stack = AsyncExitStack()
        self.fate.dead = False
        engines = await open_engines(settings, self.stack, clock=self.clock, ids=self.ids)
        self.ports = replace(engines, gateway=self.gateway)
        self.watched = watched_ports(self.ports, self.fate)
        self.service = build_service(settings, self.watched, SIZES)
        await self.service.steps.sweep.at_start(self.ports.dead_claims or ())

    @property
    def unanswered(self) -> bool:
        """Whether an engine was unavailable during this step."""
        return False

    async def kill(self) -> None:
        """End the process: no step hears of it. Only what the system closes is closed."""
        self.deaths += 1
        self.fate.dead = True
        self.claimed.clear()
        await self.stack.aclose()

    async def restart(self) -> None:
        self.fate.forget()
        await self.kill()
        await self.start()

    async def end(self) -> None:
        await self.stack.aclose()
        shutil.rmtree(self.folder)

    async def call(self, request: Request) -> Answer:
        """One request over HTTP, as the server hands it to the application."""
        headers = [(b"x-api-key", request.caller.encode()), (b"host", b"localhost")]
        if request.key:
            headers.append((b"idempotency-key", request.key.encode()))
        scope = {
            "type": "http",
            "method": request.method,
            "path": request.path,
            "query_string": request.query.encode(),
            "headers": headers,
            "scheme": "http",
            "server": ("localhost", 80),
            "root_path": "",
        }
        sent: list[Document] = []

        async def receive() -> Document:
            return {"type": "http.request", "body": request.body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.service.app(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        answer = Answer(sent[0]["status"], body, told)
        assert answer.status != 500, f"a bug: {request} was answered {answer}"
        return answer

    async def claim(self, each: int) -> list[Task]:
        """Take up to so many tasks of each live run that is not paused, as the dispatcher would."""
        ports = self.watched
        live = [run for run in await ports.metadata.live_runs(limit=100) if not run.is_paused]
        if not live:
            return []
        tasks = await ports.work.claim({run.id: each for run in live})
        jobs = {run.id: await self.ports.metadata.get(Job, run.job_id) for run in live}
        for task in tasks:
            if not task.is_final:
                job = jobs[task.run_id]
                assert job
                gateway_key = await ports.encryption.decrypt(
                    job.encrypted_gateway_key, context=f"{job.caller}|{job.id}"
                )
                assignment = Assignment(
                    job_id=job.id,
                    gateway_key=gateway_key,
                    params=load(job.params),
                    format=job.format,
                    policy=RetryPolicy(retries=job.retries),
                )
                self.claimed.append(ClaimedTask(task, assignment))
        await self.service.steps.dispatcher.settle_final([task for task in tasks if task.is_final])
        return list(tasks)

    async def renew(self) -> None:
        await self.watched.work.renew(
            [Held(one.task.run_id, one.task.id, one.task.claim_no) for one in self.claimed]
        )

    def forget_claims(self) -> None:
        self.claimed.clear()

    def heal(self) -> None:
        """End the faults that are not those of single calls. Here there are none."""

    async def finish(self, claimed: Sequence[ClaimedTask], outcomes: Sequence[str]) -> None:
        """Let the gateway answer claimed tasks so, and settle them in one group."""
        self.claimed = [one for one in self.claimed if one not in claimed]
        ended = []
        for number, one in enumerate(claimed):
            self.gateway.told[one.task.spec.url] = outcomes[number % len(outcomes)]
            result = await self.service.steps.dispatcher.fetcher.attempt(one.task, one.assignment)
            ended.append(FinishedAttempt(one.task, one.assignment, result))
        # Read, not remembered: a claim may have taken effect although its process died before it was
        # answered.
        rows = [await self._row(one.task) for one in claimed]
        lost = [
            (one.task, row)
            for one, row in zip(claimed, rows, strict=True)
            if row and not _holds(one.task, row)
        ]
        try:
            if ended:
                await self.service.steps.settle.settle(ended)
        except BaseException as error:
            if is_death(error):
                self.garbage |= {claim_name(one) for one, _ in lost}
            raise
        held = {
            row for one, row in zip(claimed, rows, strict=True) if row and _holds(one.task, row)
        }
        for task, row in lost:
            now = await self._row(task)
            allowed = (
                row in held or self.fate.struck
            )  # another claim of the group, or a step between
            assert now == row or allowed, f"a lost claim wrote: {row} -> {now}"

    async def _row(self, task: Task) -> Task | None:
        return await self.ports.tasks.get(task.run_id, task.id)

    def swept(self) -> dict[str, float]:
        """What the sweeper has done in this process."""
        return {
            sample.labels["action"]: sample.value
            for family in self.service.metrics.sweeps.collect()
            for sample in family.samples
            if sample.name.endswith("_total") and sample.value
        }


def _holds(claimed: Task, row: Task) -> bool:
    """Whether a claim still holds its task: otherwise what it brings must change nothing."""
    return row.status is TaskStatus.PROCESSING and row.claim_no == claimed.claim_no


def claim_name(task: Task) -> str:
    return f"{task.run_id}/{task.id}.{task.claim_no}"


def watched_ports(ports: Engines, fate: Fate) -> Engines:
    def watched(port: P) -> P:
        return cast("P", _Watched(port, fate))

    return replace(ports, **{name: watched(getattr(ports, name)) for name in PORTS})
