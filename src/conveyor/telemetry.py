"""What the program tells about itself: log lines, metrics, and ports that are measured.

Telemetry wraps ports, so that steps and adapters measure nothing themselves.
"""

import logging
import re
import sys
import time
from collections import Counter as Counted
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from conveyor.domain.counts import NANO, NOTHING
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import RunId
from conveyor.domain.outbox import DeliveryResult
from conveyor.domain.progress import Waiting
from conveyor.domain.task import NewRow, Settlement, Task, TaskStatus
from conveyor.ports.bodies import Spool
from conveyor.ports.gateway import Gateway, Page, PageRequest, Refusal
from conveyor.ports.tasks import TaskPage, Tasks
from conveyor.ports.webhooks import Webhooks
from conveyor.ports.work import Work

SECRET = re.compile(r"(?i)(apikey|api_key|x-api-key|authorization|signature)=[^&\s\"']+")
OWN_KEY = re.compile(r"\b(cvk_[0-9A-Za-z]+)_\w+")
QUERY = re.compile(r"(?i)(\bhttps?://[^\s?#\"'<>]*)[?#][^\s\"'<>]*")


# When each series was born is of no use to a person, and a quarter of all lines.
disable_created_metrics()  # type: ignore[no-untyped-call]  # theirs


class Metrics:
    """Every metric by its public name. What a label can be is known here or bounded elsewhere:
    no label holds an id, a URL or any other word of a caller's.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._count_work()
        self._count_gateway()
        self._count_webhooks()
        self._count_requests()
        self._time_ports()
        self._look_at_process()

    def _count_work(self) -> None:
        self.receives = self._counter(
            "conveyor_receives", "Tasks handed to a worker, however often"
        )
        self.settled = self._counter("conveyor_settled", "Claims that ended, by outcome", "outcome")
        self.ingested = self._counter("conveyor_ingested", "Task rows written")
        self.retries = self._counter("conveyor_retries", "Attempts to be made again", "reason")
        self.read_rows = self._counter("conveyor_read_rows", "Task rows read for result pages")
        self.served_rows = self._counter("conveyor_served_rows", "Task rows served in result pages")
        self.sweeps = self._counter("conveyor_sweeper_actions", "Repairs by the sweeper", "action")
        self.expired = self._counter("conveyor_cleared", "What was over and was removed", "kind")
        self.fires = self._counter(
            "conveyor_schedule_fires", "Moments that schedules named, by what came of them", "fired"
        )
        self.watch_reads = self._counter("conveyor_watch_reads", "Runs read for listeners")
        self.listeners = self._gauge("conveyor_listeners", "Open streams of events")
        self.inflight = self._gauge("conveyor_inflight", "Tasks in flight")
        self.live_runs = self._gauge("conveyor_live_runs", "Live runs this process works on")
        # A rate that begins with its first event misses it: what can happen stands at zero.
        _start_at_zero(self.settled, OUTCOMES)
        _start_at_zero(self.retries, (*FailureReason, INTERRUPTED))
        _start_at_zero(self.sweeps, SWEEPER_ACTIONS)
        _start_at_zero(self.expired, CLEARED)
        _start_at_zero(self.fires, FIRES)

    def _count_gateway(self) -> None:
        self.gateway = self._histogram(
            "conveyor_gateway_seconds", "Time of calls to the gateway", GATEWAY_TIMES
        )
        self.answers = self._counter("conveyor_gateway_answers", "Answers by their code", "answer")
        self.credits = self._counter("conveyor_gateway_credits", "Credits the gateway charged")
        self.dollars = self._counter("conveyor_gateway_dollars", "US dollars the gateway charged")
        self.gateway_available = self._gauge(
            "conveyor_gateway_available", "0 while the circuit breaker of the gateway is open"
        )
        self.gateway_since = self._gauge(
            "conveyor_gateway_unavailable_since_timestamp_seconds",
            "When the circuit breaker opened; 0 while it is closed",
        )
        self.gateway_next = self._gauge(
            "conveyor_gateway_next_attempt_timestamp_seconds",
            "When the gateway is tried again; 0 while the circuit breaker is closed",
        )
        self.refused_keys = self._gauge(
            "conveyor_refused_keys", "API keys that the gateway refuses"
        )

    def _count_webhooks(self) -> None:
        self.deliveries = self._counter(
            "conveyor_webhook_deliveries", "Attempts to deliver to webhooks, by outcome", "outcome"
        )
        self.delivery = self._histogram(
            "conveyor_webhook_seconds", "Time of deliveries to webhooks", GATEWAY_TIMES
        )
        self.delivering = self._gauge("conveyor_webhooks_under_way", "Deliveries under way")
        self.in_line = self._gauge(
            "conveyor_webhooks_waiting", "Events that wait for their receiver in this process"
        )
        _start_at_zero(self.deliveries, DELIVERY_OUTCOMES)

    def _count_requests(self) -> None:
        route = ("route", "method")
        self.requests = self._counter(
            "conveyor_requests", "HTTP requests, by what serves them", *route, "status"
        )
        self.request = self._histogram(
            "conveyor_request_seconds", "Time until an answer begins", REQUEST_TIMES, *route
        )

    def _time_ports(self) -> None:
        call = ("port", "method")
        self.port = self._histogram(
            "conveyor_port_seconds", "Time of calls to engines", PORT_TIMES, *call
        )
        self.slow = self._counter("conveyor_port_slow", "Calls to engines that took long", *call)
        self.away = self._counter(
            "conveyor_port_unavailable", "Calls that an engine could not serve", *call
        )

    def _look_at_process(self) -> None:
        self.lag = self._histogram(
            "conveyor_loop_lag_seconds", "How late timers of the event loop fire", LAG_TIMES
        )
        self.lag_max = self._gauge(
            "conveyor_loop_lag_max_seconds", "The latest of them in the last minute"
        )
        self.batches = self._gauge("conveyor_pending_ingests", "Lists still to become rows")
        self.dead_letters = self._gauge(
            "conveyor_dead_letters", "Control messages that could not be handled"
        )
        self.disk_free = self._gauge("conveyor_disk_free_bytes", "Room where the data are")
        self.disk_size = self._gauge("conveyor_disk_size_bytes", "Size of the disk they are on")
        self.database = self._gauge("conveyor_database_bytes", "Size of the database", "part")
        self.sampled = self._gauge(
            "conveyor_sampled_timestamp_seconds", "When the gauges of engines were last read"
        )
        self.build = self._gauge(
            "conveyor_build_info", "What runs here", "version", "engine", "durability"
        )

    def watch_gateway(self, waiting: Callable[[], Waiting | None]) -> None:
        """Show the state of the circuit breaker, read when the metrics are."""

        def moment(of: Callable[[Waiting], datetime | None]) -> float:
            found = waiting()
            at = of(found) if found else None
            return at.timestamp() if at else 0.0

        self.gateway_available.set_function(lambda: 0.0 if waiting() else 1.0)
        self.gateway_since.set_function(lambda: moment(lambda one: one.since))
        self.gateway_next.set_function(lambda: moment(lambda one: one.next_attempt_at))

    def swept(self, action: str, times: int) -> None:
        self.sweeps.labels(action).inc(times)

    def cleared(self, kind: str, times: int) -> None:
        self.expired.labels(kind).inc(times)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)


def _start_at_zero(metric: Counter, values: Collection[str]) -> None:
    for value in values:
        metric.labels(value)


GATEWAY_TIMES = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180)
REQUEST_TIMES = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30)
PORT_TIMES = (0.0005, 0.002, 0.01, 0.05, 0.25, 1, 5, 30)
LAG_TIMES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
PAGE = "page"
OTHER = "other"
INTERRUPTED = "interrupted"
RETRIED = "retried"
GIVEN_BACK = "given_back"
DROPPED = "dropped"
WORKER_LOST = "worker_lost"
OUTCOMES = (TaskStatus.SUCCESSFUL, TaskStatus.FAILED, RETRIED, GIVEN_BACK, DROPPED, WORKER_LOST)
SWEEPER_ACTIONS = (
    "lapsed_lease",
    "missed_completion",
    "unfinished_ingest",
    "unfinished_purge",
    "unfinished_export",
    "held_input",
    "orphan_rows",
    "orphan_body",
    "orphan_list",
    "orphan_input",
    "orphan_export",
    "orphan_pin",
    "orphan_report",
)
CLEARED = ("body", "event", "export", "input", "tombstone")
DELIVERED = "delivered"
DELIVERY_OUTCOMES = (
    DELIVERED,
    "http_3xx",
    "http_4xx",
    "http_5xx",
    "timeout",
    "transport_error",
    OTHER,
)
FIRES = ("run", "skipped", "broken")


class MeteredWork:
    """Counts what is handed out and how it ends."""

    def __init__(self, work: Work, metrics: Metrics) -> None:
        self._work = work
        self._metrics = metrics
        self.open = work.open
        self.close = work.close
        self.enqueue = work.enqueue
        self.renew = work.renew
        self.ack = work.ack
        self.release_lapsed = work.release_lapsed

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        tasks = await self._work.claim(wants)
        self._metrics.receives.inc(len(tasks))
        failed = sum(task.reason is not None for task in tasks)
        if failed:  # by the claim itself: their workers were lost
            self._metrics.settled.labels(WORKER_LOST).inc(failed)
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
                self._metrics.retries.labels(one.decision.reason or INTERRUPTED).inc()


def _outcome(settlement: Settlement, took: bool) -> str:
    decision = settlement.decision
    if not took:
        return DROPPED
    if decision.status is not TaskStatus.PENDING:
        return decision.status
    return RETRIED if decision.charged else GIVEN_BACK


class MeteredTasks:
    """Counts rows written and rows read for pages."""

    def __init__(self, tasks: Tasks, metrics: Metrics) -> None:
        self._tasks = tasks
        self._metrics = metrics
        self.get = tasks.get
        self.history = tasks.history
        self.histories = tasks.histories
        self.lapsed = tasks.lapsed
        self.counts = tasks.counts
        self.tally = tasks.tally
        self.runs_held = tasks.runs_held
        self.discard = tasks.discard

    async def add(self, run_id: RunId, tasks: Sequence[NewRow]) -> int:
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
        whole: bool = False,
    ) -> TaskPage:
        found = await self._tasks.page(
            run_id, limit=limit, after=after, statuses=statuses, whole=whole
        )
        self._metrics.read_rows.inc(len(found.tasks))
        return found


class MeteredGateway:
    """Times calls to the gateway, and counts what they brought and what they cost."""

    def __init__(self, gateway: Gateway, metrics: Metrics, codes: Collection[str]) -> None:
        self._gateway = gateway
        self._metrics = metrics
        self._codes = codes
        _start_at_zero(metrics.answers, (PAGE, *codes, OTHER))
        self._pages = metrics.answers.labels(PAGE)
        self.check = gateway.check

    async def fetch(self, request: PageRequest, spool: Callable[[], Spool]) -> Page | Refusal:
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

    def _count(self, answer: Page | Refusal) -> None:
        """By its code if it is a known one: a gateway may think of any number of others."""
        if isinstance(answer, Page):
            self._pages.inc()
        else:
            self._metrics.answers.labels(answer.code if answer.code in self._codes else OTHER).inc()


class MeteredWebhooks:
    """Times requests to webhooks, and counts their results."""

    def __init__(self, webhooks: Webhooks, metrics: Metrics) -> None:
        self._webhooks = webhooks
        self._metrics = metrics
        self.check = webhooks.check
        self.origin = webhooks.origin

    async def post(self, url: str, headers: Mapping[str, str], content: bytes) -> DeliveryResult:
        started = time.perf_counter()
        result = await self._webhooks.post(url, headers, content)
        self._metrics.delivery.observe(time.perf_counter() - started)
        outcome = (result.error or DELIVERED).partition(":")[0]
        known = outcome if outcome in DELIVERY_OUTCOMES else OTHER
        self._metrics.deliveries.labels(known).inc()
        return result


def set_up_logs(level: str, *, json: bool) -> None:
    """Events with fields, one a line, on standard error: JSON, or coloured for a terminal.

    What libraries log takes the same form, under `logger`, from warnings on.
    """
    numeric = logging.getLevelNamesMapping()[level.upper()]
    shape: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(default=str)
        if json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    common: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*common, without_secrets, shape],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    _set_up_library_logs(max(numeric, logging.WARNING), common, shape)


def _set_up_library_logs(
    level: int,
    common: Sequence[structlog.typing.Processor],
    shape: structlog.typing.Processor,
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *common],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                without_secrets,
                shape,
            ],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)


def without_secrets(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """The last line of defence: credentials, and the queries of addresses, are blotted out."""
    return {name: _blotted(value) for name, value in event.items()}


def _blotted(value: object) -> object:
    match value:
        case str():
            return QUERY.sub(r"\1?***", SECRET.sub(r"\1=***", OWN_KEY.sub(r"\1_***", value)))
        case dict():
            return {name: _blotted(item) for name, item in value.items()}
        case list() | tuple():
            return [_blotted(item) for item in value]
        case _:
            return value
