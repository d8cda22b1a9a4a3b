"""Following a run to its end, with a live board where there is a terminal."""

import time
from collections.abc import Iterable

import msgspec
from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from conveyor.cli.bars import Bar
from conveyor.cli.remote import Refused, Remote, Unreachable, read
from conveyor.cli.shapes import Job, Run, Stats
from conveyor.cli.show import plain
from conveyor.errors import ConveyorError

POLL = 0.5  # seconds
PATIENCE = 60.0  # seconds without a service: long enough for a restart of it


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
        while not board.shows(read(raw := _of_run(remote, *parts), Run)).has_ended:
            time.sleep(POLL)
    return _told(remote, job_id, raw)


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


def _of_run(remote: Remote, *parts: str) -> bytes:
    try:
        return ask_patiently(remote, *parts)
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


def ask_patiently(remote: Remote, *parts: str) -> bytes:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return remote.get(*parts)
        except (Unreachable, Refused) as error:
            lasting = isinstance(error, Refused) and error.problem.status < 500
            if lasting or time.monotonic() > deadline:
                raise
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
    """A bar with rate and time left, and under it what has come of the tasks so far.

    While the list is still read, the bar has no end.
    """

    def __init__(self, *, hidden: bool) -> None:
        self._tally = Text()
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Done(),
            _Rate(),
            _Left(),
            hidden=hidden,
        )

    def shows(self, run: Run) -> Run:
        stats = run.stats
        self._tally = _tally(stats)
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
        return run

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield self._tally


def _tally(stats: Stats) -> Text:
    failed = f"{stats.failed} failed"
    if stats.failure_reasons:
        failed += ": " + reasons(stats)
    return Text.assemble((f"{stats.successful} successful", "green"), "  ", (failed, "red"))


def reasons(stats: Stats) -> str:
    """Failures by reason, the most frequent first."""
    by_number = sorted(stats.failure_reasons.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{reason} {number}" for reason, number in by_number)
