"""Following a run to its end, with a live board where there is a terminal."""

import sys
import time
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from conveyor.cli.remote import Refused, Remote, Unreachable, read
from conveyor.cli.shapes import Job, Run, Stats

POLL = 0.5  # seconds
PATIENCE = 60.0  # seconds without a service: long enough for a restart of it


def follow(remote: Remote, job_id: str, *, quiet: bool, reached: bool) -> bytes:
    """Ask until the run is over; the job as it is then.

    A service that was `reached` before may be away for a while; else the first call tells at
    once that the URL is a wrong one.
    """
    raw = _ask_patiently(remote, job_id) if reached else remote.get("jobs", job_id)
    with _Board(hidden=quiet) as board:
        while not board.shows(read(raw, Job).run).has_ended:
            time.sleep(POLL)
            raw = _ask_patiently(remote, job_id)
    return raw


def _ask_patiently(remote: Remote, job_id: str) -> bytes:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return remote.get("jobs", job_id)
        except (Unreachable, Refused) as error:
            lasting = isinstance(error, Refused) and error.problem.status < 500
            if lasting or time.monotonic() > deadline:
                raise
        time.sleep(POLL)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.0f}/s" if task.speed else "", style="cyan")


class _Board(Progress):
    """A bar with rate and time left, and under it what has come of the tasks so far."""

    def __init__(self, *, hidden: bool) -> None:
        self._tally = Text()
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=hidden or not sys.stderr.isatty(),
        )

    def shows(self, run: Run) -> Run:
        stats = run.stats
        self._tally = _tally(stats)
        if not self.tasks:
            self.add_task(run.shown_status, total=stats.total, completed=stats.completed)
        self.update(
            self.tasks[0].id,
            description=run.shown_status,
            total=stats.total,
            completed=stats.completed,
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
