"""Every metric of the service, by its public name."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from conveyor.domain.failure import FailureReason
from conveyor.domain.progress import Waiting
from conveyor.domain.task import TaskStatus

GATEWAY_TIMES = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180)
REQUEST_TIMES = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 30)
PORT_TIMES = (0.0005, 0.002, 0.01, 0.05, 0.25, 1, 5, 30)
LAG_TIMES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)

PAGE, OTHER, DELIVERED = "page", "other", "delivered"
INTERRUPTED, RETRIED, GIVEN_BACK = "interrupted", "retried", "given_back"
DROPPED, WORKER_LOST = "dropped", "worker_lost"
OUTCOMES = (TaskStatus.SUCCESSFUL, TaskStatus.FAILED, RETRIED, GIVEN_BACK, DROPPED, WORKER_LOST)
SWEEPER_ACTIONS = (
    "lapsed_lease", "missed_completion", "unfinished_ingest", "unfinished_purge",
    "unfinished_export", "held_input", "orphan_rows", "orphan_body", "orphan_list", "orphan_input",
    "orphan_export", "orphan_source_list", "orphan_report", "lost_message", "orphan_queue",
)  # fmt: skip
CLEARED = ("body", "event", "export", "input", "scheduled_run", "tombstone")
FIRES = ("run", "skipped", "paused", "broken")
DELIVERY_OUTCOMES = (
    DELIVERED, "http_3xx", "http_4xx", "http_5xx", "timeout", "transport_error", OTHER,
)  # fmt: skip

# The creation time of each series is a quarter of all lines, and no dashboard uses it.
disable_created_metrics()  # type: ignore[no-untyped-call]  # theirs


class Metrics:
    """The metrics of one process.

    The values of every label are listed here or bounded elsewhere: no label holds an id, a URL or
    text of a caller.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._count_work()
        self._count_gateway()
        self._count_webhooks()
        self._count_requests()
        self._time_ports()
        self._measure_process()

    def _count_work(self) -> None:
        self.receives = self._counter("conveyor_receives", "Tasks handed out by claims")
        self.settled = self._counter(
            "conveyor_settled", "Claims that ended, by outcome", "outcome", values=OUTCOMES
        )
        self.ingested = self._counter("conveyor_ingested", "Task rows written")
        self.retries = self._counter(
            "conveyor_retries",
            "Claims whose task is pending again, by reason",
            "reason",
            values=(*FailureReason, INTERRUPTED),
        )
        self.read_rows = self._counter("conveyor_read_rows", "Task rows read for result pages")
        self.served_rows = self._counter("conveyor_served_rows", "Task rows served in result pages")
        self.large_rows = self._gauge(
            "conveyor_large_rows", "Task rows written since the start that cost more than one unit"
        )
        self.sweeps = self._counter(
            "conveyor_sweeper_actions", "Repairs by the sweeper", "action", values=SWEEPER_ACTIONS
        )
        self.expired = self._counter(
            "conveyor_cleared", "Expired things that were removed", "kind", values=CLEARED
        )
        self.fires = self._counter(
            "conveyor_schedule_fires", "Fires of schedules, by result", "fired", values=FIRES
        )
        self.watch_reads = self._counter("conveyor_watch_reads", "Runs read for listeners")
        self.listeners = self._gauge("conveyor_listeners", "Open streams of events")
        self.inflight = self._gauge("conveyor_inflight", "Tasks in flight")
        self.live_runs = self._gauge("conveyor_live_runs", "Live runs this process works on")

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
            "conveyor_refused_keys", "Gateway keys that the gateway refuses"
        )

    def _count_webhooks(self) -> None:
        self.deliveries = self._counter(
            "conveyor_webhook_deliveries",
            "Attempts to deliver to webhooks, by outcome",
            "outcome",
            values=DELIVERY_OUTCOMES,
        )
        self.delivery = self._histogram(
            "conveyor_webhook_seconds", "Time of deliveries to webhooks", GATEWAY_TIMES
        )
        self.delivering = self._gauge("conveyor_webhooks_under_way", "Deliveries in flight")
        self.in_line = self._gauge(
            "conveyor_webhooks_waiting", "Events in the delivery queue of this process"
        )

    def _count_requests(self) -> None:
        route = ("route", "method")
        self.requests = self._counter(
            "conveyor_requests", "HTTP requests, by route", *route, "status"
        )
        self.request = self._histogram(
            "conveyor_request_seconds", "Time until a response begins", REQUEST_TIMES, *route
        )
        self.rate_limits_skipped = self._counter(
            "conveyor_rate_limits_skipped", "Requests that could not be counted against their limit"
        )

    def _time_ports(self) -> None:
        call = ("port", "method")
        self.port = self._histogram(
            "conveyor_port_seconds", "Time of calls to engines", PORT_TIMES, *call
        )
        self.slow = self._counter("conveyor_port_slow", "Slow calls to engines", *call)
        self.away = self._counter(
            "conveyor_port_unavailable", "Calls that an engine could not serve", *call
        )

    def _measure_process(self) -> None:
        self.lag = self._histogram(
            "conveyor_loop_lag_seconds", "How late timers of the event loop fire", LAG_TIMES
        )
        self.lag_max = self._gauge(
            "conveyor_loop_lag_max_seconds", "The largest lag in the last minute"
        )
        self.batches = self._gauge("conveyor_pending_ingests", "Lists whose rows are not written")
        self.dead_letters = self._gauge(
            "conveyor_dead_letters", "Control messages that could not be handled"
        )
        self.disk_free = self._gauge("conveyor_disk_free_bytes", "Free space for the data folder")
        self.disk_size = self._gauge("conveyor_disk_size_bytes", "Size of the disk it is on")
        self.database = self._gauge("conveyor_database_bytes", "Size of the database", "part")
        self.dead_rows = self._gauge(
            "conveyor_dead_rows", "Rows that PostgreSQL has yet to remove, by table", "table"
        )
        self.table_size = self._gauge(
            "conveyor_table_bytes", "Size of a table of PostgreSQL with its indexes", "table"
        )
        self.oldest_transaction = self._gauge(
            "conveyor_oldest_transaction_seconds",
            "For how long the oldest transaction of PostgreSQL has been open",
        )
        self.sampled = self._gauge(
            "conveyor_sampled_timestamp_seconds", "When the gauges of engines were last read"
        )
        self.build = self._gauge(
            "conveyor_build_info", "What runs here", "version", "engine", "durability"
        )

    def watch_gateway(self, waiting: Callable[[], Waiting | None]) -> None:
        """Show the state of the circuit breaker as of each scrape."""

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

    def _counter(self, name: str, text: str, *labels: str, values: Collection[str] = ()) -> Counter:
        counter = Counter(name, text, labels, registry=self.registry)
        start_at_zero(counter, values)
        return counter

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)


def start_at_zero(counter: Counter, values: Collection[str]) -> None:
    """Create the series of each label value: `rate()` misses the event that creates a series."""
    for value in values:
        counter.labels(value)
