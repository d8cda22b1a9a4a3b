"""What the commands read of the API's answers; whatever else is there is left alone."""

from datetime import datetime, timedelta

import msgspec

COMPLETED = "completed"
ENDED = {COMPLETED, "stopped", "failed", "deleted"}


class Stats(msgspec.Struct, frozen=True):
    total: int = 0
    completed: int = 0
    successful: int = 0
    failed: int = 0
    failure_reasons: dict[str, int] = {}


# What a run waits for, by the reason that the service gives.
WAITS_FOR = {
    "gateway_unavailable": "for the gateway",
    "storage_full": "for room on the disk",
    "api_key_refused": "for the API key to be accepted",
}


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Why no task of a live run can be started."""

    reason: str = ""
    since: datetime | None = None
    next_attempt_at: datetime | None = None
    detail: str = ""

    @property
    def what(self) -> str:
        return WAITS_FOR.get(self.reason, f"({self.reason})")

    def told(self, now: datetime) -> str:
        """For what, since when, and how long until the next attempt, in the reader's own time."""
        since = f" since {_moment(self.since, now)}" if self.since else ""
        if self.next_attempt_at is None:
            return f"{self.what}{since}"
        left = max((self.next_attempt_at - now).total_seconds(), 0.0)
        return f"{self.what}{since}, next attempt in {left:.0f} s"


def _moment(moment: datetime, now: datetime) -> str:
    local = moment.astimezone()
    is_today = local.date() == now.astimezone().date()
    return f"{local:%H:%M}" if is_today else f"{local:%Y-%m-%d %H:%M}"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    status: str
    run_sequence: int = 1
    trigger: str = ""
    created_at: str = ""
    updated_at: str = ""
    stats: Stats = Stats()
    pause_state: str = "active"
    failure_reason: str | None = None
    failure_detail: str | None = None
    ingest_status: str | None = None
    ingest_errors: int = 0  # rows of the list that are no tasks
    ingest_error: str | None = None
    waiting: Waiting | None = None
    inherited_tasks: int = 0  # done in earlier runs, and counted in `stats`

    @property
    def is_growing(self) -> bool:
        """Whether its list is still read, so that there may be more tasks than its total."""
        return self.ingest_status == "pending" and not self.has_ended

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def shown_status(self) -> str:
        """The status, and what holds the run up."""
        if self.is_paused:
            return f"{self.status} (paused)"
        return f"{self.status} (waiting {self.waiting.what})" if self.waiting else self.status

    @property
    def is_paused(self) -> bool:
        return self.pause_state == "paused" and not self.has_ended

    @property
    def elapsed(self) -> timedelta | None:
        """From its start to its end, by the service's clock; None while it is not over."""
        try:
            start, end = map(datetime.fromisoformat, (self.created_at, self.updated_at))
        except ValueError:
            return None
        return end - start if self.has_ended else None

    @property
    def done_here(self) -> int:
        """Tasks that this run has done itself, inherited ones left out."""
        return self.stats.completed - self.inherited_tasks

    @property
    def mean_rate(self) -> float | None:
        """Tasks done a second, from its start to its end."""
        return self.done_here / self.elapsed.total_seconds() if self.elapsed else None


NO_RUN = Run(run_id="", status="no run")  # all are deleted, or none has been yet


class Rate(msgspec.Struct, frozen=True):
    every: int = 0
    unit: str = ""


class Days(msgspec.Struct, frozen=True):
    days: list[str | int] = []


class Calendar(msgspec.Struct, frozen=True):
    times_of_day: list[str] = []
    cadence: dict[str, Days] = {}


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    at: str | None = None
    rate: Rate | None = None
    calendar: Calendar | None = None
    timezone: str | None = None

    def __str__(self) -> str:
        """In words, as far as it is known how."""
        place = f" {self.timezone}" if self.timezone else ""
        if self.rate:
            times = "" if self.rate.every == 1 else f"{self.rate.every} "
            return f"every {times}{self.rate.unit}{'s' if times else ''}"
        if self.at:
            return f"once, at {self.at}{place}"
        calendar = self.calendar or Calendar()
        named = (f"{name} {' '.join(map(str, of.days))}" for name, of in calendar.cadence.items())
        return f"{', '.join(named).strip()} at {' '.join(calendar.times_of_day)}{place}"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    status: str
    created_at: str
    name: str = ""
    latest_run: Run | None = None
    schedule: Schedule | None = None
    schedule_state: str = ""
    next_scheduled_run: str | None = None
    schedule_pause_reason: str = ""
    skipped_fires: int = 0
    last_skipped_at: str = ""

    @property
    def run(self) -> Run:
        return self.latest_run or NO_RUN


class Submitted(msgspec.Struct, frozen=True):
    job_id: str
    accepted_tasks: int
    latest_run: Run | None = None


class Added(msgspec.Struct, frozen=True):
    accepted_tasks: int


class Rerun(msgspec.Struct, frozen=True):
    job_id: str
    latest_run: Run
    retried_tasks: int
    inherited_tasks: int


class BadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a list that is no task."""

    line: int
    reason: str = ""
    value: str = ""


class Failure(msgspec.Struct, frozen=True):
    code: str = ""
    title: str = ""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    attempt: int
    started_at: str
    ended_at: str
    error: Failure | None = None


class History(msgspec.Struct, frozen=True):
    events: list[Attempt]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    run_id: str
    url: str
    status: str
    type: str = ""
    content_type: str | None = None
    result_url: str | None = None
    error: Failure | None = None


class Jobs(msgspec.Struct, frozen=True):
    """A page of jobs as they came; the rows are read one by one where they are shown."""

    jobs: list[msgspec.Raw]
    next_cursor: str | None = None


class Runs(msgspec.Struct, frozen=True):
    runs: list[msgspec.Raw]
    next_cursor: str | None = None


class Results(msgspec.Struct, frozen=True):
    results: list[msgspec.Raw]
    next_cursor: str | None = None
