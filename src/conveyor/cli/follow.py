"""Following a run to its end, with a live board where there is a terminal."""

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec
from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from conveyor.cli.bars import Bar
from conveyor.cli.remote import Refused, Remote, Unreachable, read
from conveyor.cli.shapes import History, Job, Result, Results, Run, Stats
from conveyor.cli.show import duration, plain
from conveyor.errors import ConveyorError

POLL = 0.5  # seconds
PATIENCE = 60.0  # seconds without a service: long enough for a restart of it
STANDSTILL = 3.0  # seconds without a task done, from which it is asked why, as often again
SAMPLE = 100  # unfinished tasks that are looked at for it


class Gone(ConveyorError):
    """There is no run to follow, or there is none any more."""


class Ended(msgspec.Struct, frozen=True):
    """The run at its end, and the document that tells of it."""

    run: Run
    raw: bytes
    job: Job | None  # what the document is of, unless the job has another run by now


def follow(remote: Remote, job_id: str, run_id: str | None, *, quiet: bool) -> Ended:
    """Ask until that run is over, or the job's latest where none is named; `Gone` if it is deleted.

    One that is named comes from a service that was reached, which may be away for a while; else
    the first call tells at once that the URL is a wrong one.
    """
    run_id = run_id or latest(remote, job_id)
    parts = ("jobs", job_id, "runs", run_id)
    with _Board(hidden=quiet) as board:
        standstill = _Standstill(remote, parts)
        while True:
            raw = _of_run(remote, *parts, trouble=board.warn)
            run = read(raw, Run)
            board.show(run, _held_up(run) or ("" if board.disable else standstill.cause(run)))
            if run.has_ended:
                break
            time.sleep(POLL)
    return _told(remote, job_id, raw)


def _held_up(run: Run) -> str:
    """What the service itself says about a run that makes no progress, or that is over."""
    if run.is_paused:
        return "Paused: nothing new is started until the run is resumed"
    if run.waiting:
        detail = f" ({plain(run.waiting.detail)})" if run.waiting.detail else ""
        return f"Waiting {plain(run.waiting.told(datetime.now(UTC)))}{detail}"
    if run.elapsed is None:
        return ""
    rate = f", {run.mean_rate:.1f}/s on average" if run.mean_rate else ""
    return f"{run.done_here} tasks in {duration(run.elapsed)}{rate}"


class _Standstill:
    """Finds out why a run that is neither paused nor waiting gets no further.

    A run does not tell how many of its tasks wait for a retry. So when nothing was done for a
    while, some unfinished tasks are looked at: if none is in flight and the first has failed
    before, the run waits for retries.
    """

    def __init__(self, remote: Remote, parts: tuple[str, ...]) -> None:
        self._remote, self._parts = remote, parts
        self._completed = -1
        self._asked = 0.0
        self._cause = ""

    def cause(self, run: Run) -> str:
        now = time.monotonic()
        if run.stats.completed != self._completed:
            self._completed, self._asked, self._cause = run.stats.completed, now, ""
        elif now - self._asked >= STANDSTILL and run.status == "running":
            self._asked = now
            self._cause = self._look()
        return self._cause

    def _look(self) -> str:
        results, history = (*self._parts, "results"), (*self._parts, "tasks")
        try:
            page = read(self._remote.get(*results, status="processing", limit=SAMPLE), Results)
            rows = [read(bytes(raw), Result) for raw in page.results]
            if not rows or any(row.status != "pending" for row in rows):
                return ""
            told = self._remote.get(*history, rows[0].task_id, "history")
            attempts = read(told, History).events
        except (Refused, Unreachable):
            return ""  # the next question about the run tells
        if not attempts or attempts[-1].error is None:
            return ""
        number = f"{len(rows)}{' or more' if page.next_cursor else ''}"
        code = plain(attempts[-1].error.code)
        return f"Waiting for retries: {number} tasks, the first one failed last with {code}"


def latest(remote: Remote, job_id: str) -> str:
    job = read(remote.get("jobs", job_id), Job)
    if job.latest_run is None:
        why = (
            f"it runs next at {plain(job.next_scheduled_run)}"
            if job.schedule
            else "all are deleted"
        )
        raise Gone(f"job {plain(job_id)} has no run: {why}, and there is nothing to follow")
    return job.latest_run.run_id


def _of_run(remote: Remote, *parts: str, trouble: Callable[[str], None]) -> bytes:
    try:
        return ask_patiently(remote, *parts, trouble=trouble)
    except Refused as error:
        if error.problem.status != 404:
            raise
        raise Gone(
            f"run {plain(parts[-1])} was deleted before it was seen to end\n"
            f"  `conveyor runs {plain(parts[1])}` lists the runs that are left"
        ) from None


def _told(remote: Remote, job_id: str, raw: bytes) -> Ended:
    """By the job's own document while its latest run is this one."""
    run = read(raw, Run)
    try:
        of_job = ask_patiently(remote, "jobs", job_id)
    except Refused:
        return Ended(run, raw, None)
    job = read(of_job, Job)
    return Ended(job.run, of_job, job) if job.run.run_id == run.run_id else Ended(run, raw, None)


def ask_patiently(
    remote: Remote, *parts: str, trouble: Callable[[str], None] = lambda _: None
) -> bytes:
    """Ask through an outage of up to `PATIENCE`; `trouble` is told how it stands, each time."""
    began = time.monotonic()
    while True:
        try:
            return remote.get(*parts)
        except (Unreachable, Refused) as error:
            lasting = isinstance(error, Refused) and error.problem.status < 500
            away = time.monotonic() - began
            if lasting or away > PATIENCE:
                raise
            reason = str(error).partition("\n")[0]
            trouble(f"Service unreachable for {away:.0f} s, {PATIENCE:.0f} s at most: {reason}")
        time.sleep(POLL)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.0f}/s" if task.speed else "", style="cyan")


class _Done(ProgressColumn):
    """Of how many; while the list is read there is no telling, only how many have come in."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text(f"{int(task.completed)} of {task.fields['so_far']} so far")
        return Text(f"{int(task.completed)}/{int(task.total)}", style="progress.download")


class _Left(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        return Text() if task.total is None else Text("left: ") + super().render(task)


class _Board(Bar):
    """A bar with rate, time gone and time left; under it what has come of the tasks so far, and
    what holds the run up.

    While the list is still read, the bar has no end.
    """

    def __init__(self, *, hidden: bool) -> None:
        self._tally, self._note = Text(), Text()
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Done(),
            _Rate(),
            TimeElapsedColumn(),
            _Left(),
            hidden=hidden,
        )

    def warn(self, trouble: str) -> None:
        self._note = Text(trouble, style="yellow")

    def show(self, run: Run, note: str) -> None:
        stats = run.stats
        self._tally = _tally(stats)
        self._note = Text(note, style="" if run.has_ended else "yellow")
        total, so_far = (None, stats.total) if run.is_growing else (stats.total, 0)
        said = f"{run.shown_status}, list coming in" if run.is_growing else run.shown_status
        if not self.tasks:
            self.add_task(said, total=total, completed=stats.completed, so_far=so_far)
        self.update(
            self.tasks[0].id,
            description=said,
            total=total,
            completed=stats.completed,
            so_far=so_far,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield self._tally
        if self._note:
            yield self._note


def _tally(stats: Stats) -> Text:
    failed = f"{stats.failed} failed"
    if stats.failure_reasons:
        failed += ": " + reasons(stats)
    return Text.assemble((f"{stats.successful} successful", "green"), "  ", (failed, "red"))


def reasons(stats: Stats) -> str:
    """Failures by reason, the most frequent first."""
    by_number = sorted(stats.failure_reasons.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{reason} {number}" for reason, number in by_number)
