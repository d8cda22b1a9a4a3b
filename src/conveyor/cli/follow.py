"""Follow a run to its end, with a live progress bar on a terminal."""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import typer
from rich.console import RenderableType
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from conveyor.cli import output
from conveyor.cli.bars import Bar
from conveyor.cli.connect import OUTAGE, Endpoint, why_no_run
from conveyor.cli.output import plain
from conveyor.client import (
    ApiError,
    ClientError,
    Conveyor,
    Job,
    NotFoundError,
    Outage,
    Progress,
    Run,
    Stats,
    TaskResult,
)
from conveyor.client.models import ResultRows
from conveyor.client.transport import Query, decoded
from conveyor.errors import ConveyorError

POLL = 0.5  # seconds, with a service that has no events
STANDSTILL = 3.0  # seconds without a finished task after which the command looks for a reason
SAMPLE = 100  # unfinished tasks that it looks at for that
TOO_MANY_FAILED = 4


class Gone(ConveyorError):
    """There is no run to follow, or there is none any more."""


class FinishedRun(msgspec.Struct, frozen=True):
    """The run at its end, and the document that shows it."""

    run: Run
    raw: bytes
    job: Job | None  # what the document is of, unless the job has another run by now


def follow_and_exit(
    service: Endpoint,
    job_id: str,
    run: Run | None,
    *,
    as_json: bool,
    allowed: Callable[[Run], bool] | None = None,
) -> None:
    """Follow that run, or the job's latest; print it at its end, and exit by its status.

    `allowed` tells whether few enough tasks failed.
    """
    try:
        ended = follow(service, job_id, run.run_id if run else None, quiet=as_json)
    except Gone as error:
        output.complain(str(error))
        raise typer.Exit(output.ENDED_OTHERWISE) from None
    if as_json:
        output.json_line(ended.raw)
    else:
        of_job = output.job_facts(ended.job) if ended.job else []
        output.facts([("job", job_id), *of_job, *output.run_facts(ended.run)])
        output.point_at_errors(job_id, ended.run)
    output.exit_as(ended.run)
    if allowed and not allowed(ended.run):
        failed, total = ended.run.stats.failed, ended.run.stats.total
        output.complain(
            f"{failed:,} of {total:,} tasks failed, more than --max-failed allows\n"
            f"  `conveyor failures {plain(job_id)}` groups them"
        )
        raise typer.Exit(TOO_MANY_FAILED)


def how_to_follow(job_id: str) -> str:
    return f"The run goes on. Follow it again with: conveyor status {plain(job_id)} --follow"


def follow(service: Endpoint, job_id: str, run_id: str | None, *, quiet: bool) -> FinishedRun:
    """Wait for the end of that run, or of the job's latest; `Gone` if it is deleted.

    The first call reports a service that cannot be reached: the URL may be wrong. Later outages are
    waited out.
    """
    with service.client() as first:
        run_id = run_id or latest_run_id(first, job_id)
        with (
            _Board(hidden=quiet) as board,
            service.patient_client(board.show_outage) as client,
            _Standstill(first, board, job_id, run_id),
        ):
            try:
                for state in client.progress(job_id, run_id=run_id, poll_every=POLL):
                    board.show(state)
                raw = client.request("GET", "jobs", job_id, "runs", run_id)
            except NotFoundError:
                raise Gone(
                    f"run {plain(run_id)} was deleted before its end was seen\n"
                    f"  `conveyor runs {plain(job_id)}` lists the runs that are left"
                ) from None
            board.show_end(decoded(raw, Run))
            return _with_job(client, job_id, raw)


def latest_run_id(client: Conveyor, job_id: str) -> str:
    job = client.job(job_id)
    if job.latest_run is None:
        raise Gone(why_no_run(job))
    return job.latest_run.run_id


def _with_job(client: Conveyor, job_id: str, raw: bytes) -> FinishedRun:
    """Prefer the job's document while its latest run is this one: it has more to show."""
    run = decoded(raw, Run)
    try:
        of_job = client.request("GET", "jobs", job_id)
    except ApiError:
        return FinishedRun(run, raw, None)
    job = decoded(of_job, Job)
    if job.latest_run and job.latest_run.run_id == run.run_id:
        return FinishedRun(job.latest_run, of_job, job)
    return FinishedRun(run, raw, None)


class _Standstill(threading.Thread):
    """Finds out why a run that is neither paused nor waiting makes no progress.

    A run does not say why its tasks wait and, where the service does not count them (DynamoDB,
    other services), not how many wait for a retry. So when no task was finished for a while, this
    looks at some unfinished ones: if none is in flight and the first has failed before, the run
    waits for retries. In a thread, as the command waits for events meanwhile.
    """

    def __init__(self, client: Conveyor, board: "_Board", job_id: str, run_id: str) -> None:
        super().__init__(daemon=True)
        self._client, self._board = client, board
        self._job_id, self._run_id = job_id, run_id
        self._stopping = threading.Event()

    def __enter__(self) -> None:
        if not self._board.disable:
            self.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()

    def run(self) -> None:
        completed, since = -1, 0.0
        while not self._stopping.wait(POLL):
            state, now = self._board.state, time.monotonic()
            if state is None or state.stats.completed != completed:
                completed, since = (state.stats.completed if state else -1), now
                self._board.cause = ""
            elif now - since >= STANDSTILL and state.status == "running":
                since = now
                # The service may be away, or the command about to end.
                with suppress(ClientError, RuntimeError):
                    self._board.cause = self._cause()

    def _cause(self) -> str:
        query: Query = {"status": "processing", "limit": SAMPLE}
        parts = ("jobs", self._job_id, "runs", self._run_id, "results")
        page = decoded(self._client.request("GET", *parts, query=query), ResultRows)
        rows = [decoded(raw, TaskResult) for raw in page.results]
        if not rows or any(row.status != "pending" for row in rows):
            return ""
        attempts = self._client.history(self._job_id, rows[0].task_id, run_id=self._run_id)
        number = f"{len(rows)}{' or more' if page.next_cursor else ''}"
        if not attempts or attempts[-1].error is None:
            why = "no worker has a free place, or the gateway has put them off"
            return f"Waiting: {number} tasks: {why}"
        code = plain(attempts[-1].error.code)
        return f"Waiting for retries: {number} tasks, the first one failed last with {code}"


class _Done(ProgressColumn):
    """Tasks done, of the total; while the list is read, of the total so far."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text(f"{int(task.completed)} of {task.fields['so_far']} so far")
        return Text(f"{int(task.completed)}/{int(task.total)}", style="progress.download")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        rate = task.fields["rate"]
        return Text(f"{rate:.0f}/s" if rate else "", style="cyan")


class _Left(ProgressColumn):
    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text()
        eta = task.fields["eta"]
        left = "-:--:--" if eta is None else str(timedelta(seconds=round(eta)))
        return Text.assemble("left: ", (left, "progress.remaining"))


class _Board(Bar):
    """A bar with rate, elapsed time and time left; below it the outcomes of the tasks so far, and
    why the run makes no progress.

    While the service is still reading the list, the bar has no total. The last line is formatted at
    every refresh, not at every event: it counts seconds, and events come only with changes.
    """

    def __init__(self, *, hidden: bool) -> None:
        self.state: Progress | None = None
        self.cause = ""
        self._run: Run | None = None
        self._outage: Outage | None = None
        self._outage_seen = 0.0
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Done(),
            _Rate(),
            TimeElapsedColumn(),
            _Left(),
            hidden=hidden,
        )

    def show(self, state: Progress) -> None:
        self.state = state
        status = output.shown_status(_as_run(state))
        self._move(status, state.stats, growing=output.is_growing(_as_run(state)))

    def show_end(self, run: Run) -> None:
        self._run = run
        self._move(run.status, run.stats, growing=False)

    def show_outage(self, outage: Outage | None) -> None:
        self._outage, self._outage_seen = outage, time.monotonic()

    def _move(self, status: str, stats: Stats, *, growing: bool) -> None:
        shown: dict[str, Any] = {
            "description": f"{status}, list coming in" if growing else status,
            "total": None if growing else stats.total,
            "completed": stats.completed,
            "so_far": stats.total,
            "rate": self.state.rate if self.state else None,
            "eta": self.state.eta_seconds if self.state and not self._run else 0,
        }
        if not self.tasks:
            self.add_task(**shown)
        self.update(self.tasks[0].id, **shown)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.state:
            yield _tally(self.state.stats)
        if note := self._note():
            yield Text(note, style="" if self._run else "yellow")

    def _note(self) -> str:
        if self._outage:
            away = self._outage.seconds + time.monotonic() - self._outage_seen
            reason = plain(self._outage.error)
            return f"Service unreachable for {away:.0f} s, {OUTAGE:.0f} s at most: {reason}"
        if self._run:
            return _summary(self._run)
        if self.state is None:
            return ""
        if self.state.pause_state == "paused" and not self.state.has_ended:
            return "Paused: nothing new is started until the run is resumed"
        if waiting := self.state.waiting:
            detail = f" ({plain(waiting.detail)})" if waiting.detail else ""
            return f"Waiting {plain(output.waiting_in_words(waiting))}{detail}"
        return self.cause


def _summary(run: Run) -> str:
    taken = output.elapsed(run)
    if taken is None:
        return ""
    rate = f", {output.mean_rate(run, taken):.1f}/s on average" if taken else ""
    return f"{output.done_here(run)} tasks in {output.duration(taken)}{rate}"


def _as_run(state: Progress) -> Run:
    return Run(
        run_id=state.run_id,
        status=state.status,
        pause_state=state.pause_state,
        waiting=state.waiting,
        ingest_status=state.ingest_status,
    )


def _tally(stats: Stats) -> Text:
    failed = f"{stats.failed} failed"
    if stats.failure_reasons:
        by_number = sorted(stats.failure_reasons.items(), key=lambda pair: -pair[1])
        failed += ": " + ", ".join(f"{plain(reason)} {number}" for reason, number in by_number)
    return Text.assemble((f"{stats.successful} successful", "green"), "  ", (failed, "red"))
