"""Ports that are measured: wrappers that count work, and one that times every call of an engine."""

import functools
import inspect
import time
from collections import Counter as Counted
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
    Sized,
)
from datetime import timedelta
from typing import TypeVar, cast, get_origin, get_type_hints

import structlog

from conveyor.domain.counts import NANO, NOTHING
from conveyor.domain.ids import RunId
from conveyor.domain.outbox import DeliveryResult
from conveyor.domain.task import WORKER_LOST as LOST_PROBLEM
from conveyor.domain.task import NewRow, Settlement, Task, TaskStatus
from conveyor.errors import Unavailable
from conveyor.ports.bodies import Spool
from conveyor.ports.control_queue import ReceivedMessage
from conveyor.ports.gateway import Gateway, GatewayRefusal, Page, PageRequest
from conveyor.ports.tasks import Tasks
from conveyor.ports.webhooks import Webhooks
from conveyor.ports.work import Released, Work
from conveyor.telemetry.metrics import (
    DELIVERED,
    DELIVERY_OUTCOMES,
    DROPPED,
    GIVEN_BACK,
    INTERRUPTED,
    OTHER,
    PAGE,
    RETRIED,
    WORKER_LOST,
    Metrics,
    start_at_zero,
)

STREAMS = {AsyncIterator, AsyncGenerator}  # what methods return that stream
CONTENT = "content"  # the parameter of a method that takes a stream
IDS = {"job_id", "run_id", "task_id"}
IDS_OF = {"Job": "job_id", "Run": "run_id"}  # keys of other kinds may hold text of a caller

log = structlog.get_logger()

Port = TypeVar("Port")
Value = TypeVar("Value")
Ended = Callable[[float, tuple[object, ...], Mapping[str, object]], None]


class MeteredWork:
    """Counts the tasks that claims hand out, and how claims end."""

    def __init__(self, work: Work, metrics: Metrics) -> None:
        self._work = work
        self._metrics = metrics
        self.close = work.close
        self.enqueue = work.enqueue
        self.renew = work.renew
        self.ack = work.ack

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        tasks = await self._work.claim(wants)
        self._metrics.receives.inc(len(tasks))
        # Failed tasks whose message was delivered again, which ended before, have no problem here.
        self._count_lost(sum(task.problem == LOST_PROBLEM for task in tasks))
        return tasks

    async def release_lapsed(
        self, run_id: RunId, *, overdue: timedelta, limit: int
    ) -> Sequence[Released]:
        released = await self._work.release_lapsed(run_id, overdue=overdue, limit=limit)
        self._count_lost(sum(claim.failed for claim in released))
        return released

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        settled = await self._work.settle(settlements)
        outcomes = Counted(map(_outcome, settlements, settled))
        for outcome, times in outcomes.items():
            self._metrics.settled.labels(outcome).inc(times)
        if RETRIED in outcomes or GIVEN_BACK in outcomes:
            self._count_retries(settlements, settled)
        return settled

    def _count_lost(self, failed: int) -> None:
        if failed:
            self._metrics.settled.labels(WORKER_LOST).inc(failed)

    def _count_retries(self, settlements: Sequence[Settlement], settled: Sequence[bool]) -> None:
        for one, took in zip(settlements, settled, strict=True):
            if _outcome(one, took) in {RETRIED, GIVEN_BACK}:
                self._metrics.retries.labels(one.decision.reason or INTERRUPTED).inc()


def _outcome(settlement: Settlement, took: bool) -> str:
    decision = settlement.decision
    if not took:
        return DROPPED
    if decision.status is not TaskStatus.PENDING:
        return decision.status
    return RETRIED if decision.charged else GIVEN_BACK


class MeteredTasks:
    """Counts rows written."""

    def __init__(self, tasks: Tasks, metrics: Metrics) -> None:
        self._tasks = tasks
        self._metrics = metrics
        self.lay_out = tasks.lay_out
        self.get = tasks.get
        self.page = tasks.page
        self.history = tasks.history
        self.histories = tasks.histories
        self.counts = tasks.counts
        self.open_counts = tasks.open_counts
        self.failure_groups = tasks.failure_groups
        self.tally = tasks.tally
        self.runs_held = tasks.runs_held
        self.discard = tasks.discard

    async def add(self, run_id: RunId, tasks: Sequence[NewRow]) -> int:
        added = await self._tasks.add(run_id, tasks)
        self._metrics.ingested.inc(added)
        return added


class MeteredGateway:
    """Times calls to the gateway, and counts their results and their cost."""

    def __init__(self, gateway: Gateway, metrics: Metrics, codes: Collection[str]) -> None:
        self._gateway = gateway
        self._metrics = metrics
        self._codes = codes
        start_at_zero(metrics.answers, (PAGE, *codes, OTHER))
        self._pages = metrics.answers.labels(PAGE)
        self.check_health = gateway.check_health

    async def fetch(
        self, request: PageRequest, spool: Callable[[], Spool]
    ) -> Page | GatewayRefusal:
        started = time.perf_counter()
        try:
            answer = await self._gateway.fetch(request, spool)
        finally:
            self._metrics.gateway.observe(time.perf_counter() - started)
        self._count(answer)
        if answer.spend is not NOTHING:
            self._metrics.credits.inc(answer.spend.credits)
            self._metrics.dollars.inc(answer.spend.nanos / NANO)
        return answer

    def _count(self, answer: Page | GatewayRefusal) -> None:
        # Codes that are not in the table count as `other`: a gateway could send any number of them,
        # and each would be a series.
        if isinstance(answer, Page):
            self._pages.inc()
        else:
            self._metrics.answers.labels(answer.code if answer.code in self._codes else OTHER).inc()


class MeteredWebhooks:
    """Times requests to webhooks, and counts their results."""

    def __init__(self, webhooks: Webhooks, metrics: Metrics) -> None:
        self._webhooks = webhooks
        self._metrics = metrics
        self.check_url = webhooks.check_url
        self.origin = webhooks.origin

    async def post(self, url: str, headers: Mapping[str, str], content: bytes) -> DeliveryResult:
        started = time.perf_counter()
        result = await self._webhooks.post(url, headers, content)
        self._metrics.delivery.observe(time.perf_counter() - started)
        outcome = (result.error or DELIVERED).partition(":")[0]
        known = outcome if outcome in DELIVERY_OUTCOMES else OTHER
        self._metrics.deliveries.labels(known).inc()
        return result


def timed(
    port: Port, name: str, metrics: Metrics, *, slow: timedelta, protocol: type = object
) -> Port:
    """Return the port with every call timed; calls over `slow` are also counted and logged.

    A stream that is read is timed up to its first chunk: from there on it is as slow as its reader.
    For a stream that is written, the time spent waiting for content is left out. Other methods are
    not timed. `TypeError` if a method that waits in the `protocol` is one of these in the engine, for
    example a plain function that returns a coroutine: its calls would be missing from the metrics.
    """
    for method, promised in inspect.getmembers(protocol, inspect.isfunction):
        # Proxies that make their methods on request are not judged: their class has none.
        declared = getattr(type(port), method, None)
        if declared and _waits(promised) and not _is_timed(declared):
            raise TypeError(
                f"{type(port).__name__}.{method} must be a coroutine function or an asynchronous "
                "generator, so that its calls can be timed"
            )
    return cast("Port", _Timed(port, _CallTimer(name, metrics, slow.total_seconds())))


def _waits(promised: Callable[..., object]) -> bool:
    """Whether a method of a protocol is one to await, or a stream to read."""
    returned = get_origin(get_type_hints(promised).get("return"))
    return inspect.iscoroutinefunction(promised) or returned in STREAMS


def _is_timed(method: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)


class _Timed:
    """A port with its methods wrapped.

    They are wrapped once, here: a lookup at each call would cost more than the timing itself.
    """

    def __init__(self, port: object, timer: "_CallTimer") -> None:
        self._port = port
        for name, method in inspect.getmembers(port, inspect.ismethod):
            if not name.startswith("_"):
                setattr(self, name, timer.wrapped(name, method))

    def __getattr__(self, name: str) -> object:
        return getattr(self._port, name)


class _CallTimer:
    """Wraps the methods of one port."""

    def __init__(self, port: str, metrics: Metrics, slow: float) -> None:
        self._port, self._metrics, self._slow = port, metrics, slow

    def wrapped(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        if inspect.iscoroutinefunction(method):
            fed = CONTENT in inspect.signature(method).parameters
            return self._fed(name, method) if fed else self._call(name, method)
        return self._stream(name, method) if inspect.isasyncgenfunction(method) else method

    def _call(
        self, name: str, method: Callable[..., Awaitable[Value]]
    ) -> Callable[..., Awaitable[Value]]:
        ended, away = self._ended(name, method), self._metrics.away.labels(self._port, name)
        now = time.perf_counter

        @functools.wraps(method)
        async def call(*given: object, **named: object) -> Value:
            started = now()
            try:
                return await method(*given, **named)
            except Unavailable:
                away.inc()
                raise
            finally:
                ended(now() - started, given, named)

        return call

    def _fed(
        self, name: str, method: Callable[[str, AsyncIterable[bytes]], Awaitable[Value]]
    ) -> Callable[..., Awaitable[Value]]:
        ended, away = self._ended(name, method), self._metrics.away.labels(self._port, name)

        @functools.wraps(method)
        async def call(key: str, content: AsyncIterable[bytes]) -> Value:
            awaited = _TimedContent(content)
            started = time.perf_counter()
            try:
                return await method(key, awaited.content())
            except Unavailable:
                away.inc()
                raise
            finally:
                ended(time.perf_counter() - started - awaited.seconds, (key, content), {})

        return call

    def _stream(
        self, name: str, method: Callable[..., AsyncGenerator[Value, None]]
    ) -> Callable[..., AsyncGenerator[Value, None]]:
        ended, away = self._ended(name, method), self._metrics.away.labels(self._port, name)
        now = time.perf_counter

        @functools.wraps(method)
        async def stream(*given: object, **named: object) -> AsyncGenerator[Value, None]:
            started: float | None = now()
            chunks = method(*given, **named)
            try:
                async for chunk in chunks:
                    if started is not None:
                        ended(now() - started, given, named)
                        started = None
                    yield chunk
            except Unavailable:
                away.inc()
                raise
            finally:
                if started is not None:  # the stream was empty
                    ended(now() - started, given, named)
                await chunks.aclose()

        return stream

    def _ended(self, name: str, method: Callable[..., object]) -> Ended:
        port, limit = self._port, self._slow
        observe = self._metrics.port.labels(port, name).observe
        slow = self._metrics.slow.labels(port, name)
        signature = inspect.signature(method)

        def ended(took: float, given: tuple[object, ...], named: Mapping[str, object]) -> None:
            observe(took)
            if took >= limit:
                slow.inc()
                about = _about(signature.bind(*given, **named).arguments)
                fields = about | {"port": port, "method": name, "seconds": round(took, 3)}
                log.warning("port.slow", **fields)

        return ended


class _TimedContent:
    """Content that is being written, and the seconds spent waiting for it."""

    def __init__(self, content: AsyncIterable[bytes]) -> None:
        self._content = content
        self.seconds = 0.0

    async def content(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._content)
        while (piece := await self._next(pieces)) is not None:
            yield piece

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        began = time.perf_counter()
        try:
            return await anext(pieces, None)
        finally:  # also when the sender breaks the stream off
            self.seconds += time.perf_counter() - began


def _about(arguments: Mapping[str, object]) -> dict[str, object]:
    """The fields that a log line may have about a call: ids, kinds and numbers, but no content."""
    about: dict[str, object] = {}
    for name, value in arguments.items():
        if name in IDS:
            about[name] = value
        elif isinstance(value, type):
            about[name] = value.__name__
        elif name == "key":
            about |= {IDS_OF[kind]: value} if (kind := about.get("kind")) in IDS_OF else {}
        elif isinstance(value, ReceivedMessage):
            about["message_id"] = value.id
        elif isinstance(value, Sized) and not isinstance(value, str | bytes):
            about[name] = len(value)
    return about
