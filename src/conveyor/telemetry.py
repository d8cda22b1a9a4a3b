"""What the program tells about itself: log lines, metrics, and ports that are measured.

Telemetry wraps ports, so that steps and adapters measure nothing themselves.
"""

import logging
import re
import sys
import time
from collections import Counter as Counted
from collections.abc import Callable, Mapping, Sequence

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from conveyor.domain.ids import RunId
from conveyor.domain.task import Settlement, Task, TaskStatus
from conveyor.ports.bodies import Spool
from conveyor.ports.gateway import Gateway, Page, PageRequest, Refusal
from conveyor.ports.tasks import NewTask, Tasks
from conveyor.ports.work import Work

SECRET = re.compile(r"(?i)(apikey|api_key|x-api-key|authorization|signature)=[^&\s\"']+")


class Metrics:
    """Every metric by its public name."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.receives = self._counter(
            "conveyor_receives", "Tasks handed to a worker, however often"
        )
        self.settled = self._counter("conveyor_settled", "Claims that ended, by outcome", "outcome")
        self.ingested = self._counter("conveyor_ingested", "Task rows written")
        self.retries = self._counter("conveyor_retries", "Attempts to be made again", "reason")
        self.read_rows = self._counter("conveyor_read_rows", "Task rows read for result pages")
        self.served_rows = self._counter("conveyor_served_rows", "Task rows served in result pages")
        self.sweeps = self._counter("conveyor_sweeper_actions", "Repairs by the sweeper", "action")
        self.requests = self._counter("conveyor_requests", "HTTP requests, by status", "status")
        self.watch_reads = self._counter("conveyor_watch_reads", "Runs read for listeners")
        self.listeners = Gauge(
            "conveyor_listeners", "Open streams of events", registry=self.registry
        )
        self.inflight = Gauge("conveyor_inflight", "Tasks in flight", registry=self.registry)
        self.gateway = Histogram(
            "conveyor_gateway_seconds",
            "Time of calls to the gateway",
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180),
            registry=self.registry,
        )
        for action in SWEEPER_ACTIONS:
            self.sweeps.labels(action)

    def swept(self, action: str, times: int) -> None:
        self.sweeps.labels(action).inc(times)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)


SWEEPER_ACTIONS = (
    "lapsed_lease",
    "missed_completion",
    "unfinished_ingest",
    "unfinished_scrub",
    "orphan_rows",
    "orphan_list",
    "orphan_body",
)


class MeteredWork:
    """Counts what is handed out and how it ends."""

    def __init__(self, work: Work, metrics: Metrics) -> None:
        self._work = work
        self._metrics = metrics
        self.open = work.open
        self.close = work.close
        self.offer = work.offer
        self.renew = work.renew
        self.ack = work.ack
        self.release_lapsed = work.release_lapsed

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        tasks = await self._work.claim(wants)
        self._metrics.receives.inc(len(tasks))
        failed = sum(task.reason is not None for task in tasks)
        if failed:  # by the claim itself: their workers were lost
            self._metrics.settled.labels("worker_lost").inc(failed)
        return tasks

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        settled = await self._work.settle(settlements)
        outcomes = Counted(map(_outcome, settlements, settled))
        for outcome, times in outcomes.items():
            self._metrics.settled.labels(outcome).inc(times)
        if RETRIED in outcomes or GIVEN_BACK in outcomes:
            self._count_retries(settlements, settled)
        return settled

    def _count_retries(self, settlements: Sequence[Settlement], settled: Sequence[bool]) -> None:
        for one, took in zip(settlements, settled, strict=True):
            if _outcome(one, took) in {RETRIED, GIVEN_BACK}:
                self._metrics.retries.labels(one.verdict.reason or "interrupted").inc()


RETRIED = "retried"
GIVEN_BACK = "given_back"


def _outcome(settlement: Settlement, took: bool) -> str:
    verdict = settlement.verdict
    if not took:
        return "dropped"
    if verdict.status is not TaskStatus.PENDING:
        return verdict.status
    return RETRIED if verdict.charged else GIVEN_BACK


class MeteredTasks:
    """Counts rows written and rows read for pages."""

    def __init__(self, tasks: Tasks, metrics: Metrics) -> None:
        self._tasks = tasks
        self._metrics = metrics
        self.get = tasks.get
        self.history = tasks.history
        self.counts = tasks.counts
        self.tally = tasks.tally
        self.runs_held = tasks.runs_held
        self.discard = tasks.discard

    async def add(self, run_id: RunId, tasks: Sequence[NewTask]) -> int:
        added = await self._tasks.add(run_id, tasks)
        self._metrics.ingested.inc(added)
        return added

    async def page(
        self,
        run_id: RunId,
        *,
        limit: int,
        after: int = -1,
        statuses: frozenset[TaskStatus] | None = None,
    ) -> Sequence[Task]:
        found = await self._tasks.page(run_id, limit=limit, after=after, statuses=statuses)
        self._metrics.read_rows.inc(len(found))
        return found


class MeteredGateway:
    """Times calls to the gateway."""

    def __init__(self, gateway: Gateway, metrics: Metrics) -> None:
        self._gateway = gateway
        self._metrics = metrics

    async def fetch(self, request: PageRequest, spool: Callable[[], Spool]) -> Page | Refusal:
        started = time.perf_counter()
        try:
            return await self._gateway.fetch(request, spool)
        finally:
            self._metrics.gateway.observe(time.perf_counter() - started)


def set_up_logs(level: str, *, json: bool) -> None:
    """Events with fields, one a line, on standard error: JSON, or coloured for a terminal."""
    numeric = logging.getLevelNamesMapping()[level.upper()]
    shape = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _without_secrets,
            shape,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(numeric, logging.WARNING), stream=sys.stderr)


def _without_secrets(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """The last line of defence: what looks like a credential in a text is blotted out."""
    return {
        name: SECRET.sub(r"\1=***", value) if isinstance(value, str) else value
        for name, value in event.items()
    }
