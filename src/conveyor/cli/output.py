"""The output of commands: tables on a terminal, tab-separated text on a pipe, JSON on request.

rich is imported only where something is drawn: it would double the start time of `conveyor jobs`.
"""

import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from conveyor.client import Job, Run, Stats, Waiting
from conveyor.client.transport import decoded
from conveyor.domain.counts import MOST_OPEN
from conveyor.wire import NO_RUN

INTERRUPTED = 130
ENDED_OTHERWISE = 3
COMPLETED = "completed"
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
COLOURS = {"completed": "green", "successful": "green", "failed": "red", "stopped": "yellow"}
# What a run waits for, by the reason that the service gives.
WAITS_FOR = {
    "gateway_unavailable": "for the gateway",
    "storage_full": "for disk space",
    "api_key_refused": "for the gateway key to be accepted",
    "key_unreadable": "for the encryption key of the service",
}
# What a write to a broken standard output fails with.
BROKEN_OUTPUT = {errno.EPIPE, errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

Row = Sequence[object]
Facts = list[tuple[str, object]]


def on_terminal() -> bool:
    return sys.stdout.isatty()


def json_line(content: bytes) -> None:
    """The API's own JSON, on a line."""
    sys.stdout.write(content.decode() + "\n")
    sys.stdout.flush()


def table(heads: Sequence[str], rows: Iterable[Row]) -> None:
    if not on_terminal():
        tabbed(rows)
        return
    from rich.console import Console  # noqa: PLC0415 - see the module's docstring
    from rich.table import Table  # noqa: PLC0415

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for number, head in enumerate(heads):
        # The first column is an id, to be copied in one piece.
        drawn.add_column(head, overflow="fold", no_wrap=not number)
    for row in rows:
        drawn.add_row(*map(_cell, row))
    Console().print(drawn)


def tabbed(rows: Iterable[Row]) -> None:
    for row in rows:
        print("\t".join(map(plain, row)))


def facts(pairs: Facts) -> None:
    """Names and values. On a pipe the names are printed too: they tell which value a line has."""
    if not on_terminal():
        tabbed(pairs)
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(box=None, show_header=False, pad_edge=False)
    drawn.add_column(style="bold")
    drawn.add_column(overflow="fold")
    for name, value in pairs:
        drawn.add_row(Text(name), _cell(value))
    Console().print(drawn)


def _cell(value: object) -> Any:
    from rich.text import Text  # noqa: PLC0415

    text = plain(value)
    return Text(text, style=COLOURS.get(text, ""))


def note(text: str) -> None:
    """A hint for people, on stderr if that is a terminal; scripts do not get it."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def complain(text: str) -> None:
    """An error on stderr, if stderr can be written."""
    with suppress(OSError):
        print(f"conveyor: {text}", file=sys.stderr, flush=True)


@contextmanager
def interruptible(hint: str) -> Iterator[None]:
    """Ends the command on Ctrl-C, and says how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\n{hint}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def plain(value: object) -> str:
    """A value on one line and in one column, without terminal control sequences."""
    return CONTROL.sub(" ", str(value))


def in_pairs(values: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def moment(at: datetime | None) -> str:
    return at.isoformat().replace("+00:00", "Z") if at else ""


def seconds_of(at: datetime | None) -> str:
    return moment(at.replace(microsecond=0) if at else None)


def duration(taken: timedelta) -> str:
    seconds = taken.total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


# Standard streams that are closed or cannot be written.


def open_standard_streams() -> None:
    """Replace standard streams that the shell closed, so that no socket gets their number.

    A closed stdout cannot be written: a command that prints must fail, not lose its output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDONLY if number < 2 else os.O_WRONLY)  # the lowest free one
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def is_broken_output(error: OSError) -> bool:
    return error.errno in BROKEN_OUTPUT and error.filename is None


def finish(code: int) -> int:
    """Flush stdout, which may fail only now; return the exit code."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return broken_output(error)
    return code


def broken_output(error: OSError) -> int:
    """Report that stdout cannot be written, unless its reader closed the pipe; return 1."""
    if error.errno != errno.EPIPE:
        complain(f"cannot write to standard output: {error.strerror}")
    # What is still buffered would fail again, with a traceback, when the interpreter exits.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 1


# Jobs and runs.


def print_job(raw: bytes, *, as_json: bool) -> Run | None:
    job = decoded(raw, Job)
    if as_json:
        json_line(raw)
    else:
        facts([("job", job.job_id), *job_facts(job), *run_facts(job.latest_run)])
        point_at_errors(job.job_id, job.latest_run)
    return job.latest_run


def print_run(raw: bytes, *, as_json: bool) -> None:
    if as_json:
        json_line(raw)
    else:
        facts(run_facts(decoded(raw, Run)))


def exit_as(run: Run | None) -> None:
    """Exit with 3 if the run was stopped or failed."""
    if run and run.has_ended and run.status != COMPLETED:
        raise typer.Exit(ENDED_OTHERWISE)


def job_facts(job: Job) -> Facts:
    """The status of a job, and of its schedule."""
    named: Facts = [("name", job.name)] if job.name else []
    return [*named, ("job_status", job.status), *schedule_facts(job)]


def schedule_facts(job: Job) -> Facts:
    if job.schedule is None:
        return []
    shown: Facts = [
        ("schedule", schedule_in_words(job.schedule)),
        ("schedule_state", job.schedule_state or ""),
        ("next_scheduled_run", moment(job.next_scheduled_run) or "none"),
    ]
    if job.schedule_pause_reason:
        shown += [("schedule_pause_reason", job.schedule_pause_reason)]
    shown += [("skipped_fires", job.skipped_fires)] if job.skipped_fires else []
    shown += [("last_skipped_at", moment(job.last_skipped_at))] if job.last_skipped_at else []
    return shown


def schedule_in_words(schedule: Mapping[str, Any]) -> str:
    place = f" {schedule['timezone']}" if schedule.get("timezone") else ""
    if rate := schedule.get("rate"):
        every = rate.get("every", 0)
        return f"every {'' if every == 1 else f'{every} '}{rate.get('unit', '')}" + (
            "" if every == 1 else "s"
        )
    if at := schedule.get("at"):
        return f"once, at {at}{place}"
    if cron := schedule.get("cron"):
        return f"cron {cron}{place}"
    calendar = schedule.get("calendar") or {}
    cadence = (calendar.get("cadence") or {}).items()
    named = (f"{name} {' '.join(map(str, of.get('days', [])))}" for name, of in cadence)
    times = " ".join(calendar.get("times_of_day", []))
    return f"{', '.join(named).strip()} at {times}{place}"


def run_facts(run: Run | None) -> Facts:
    run = run or NO_RUN  # all are deleted, or none has been yet
    stats = run.stats
    shown: Facts = [
        ("run", run.run_id),
        ("run_status", shown_status(run)),
        ("total", stats.total),
        *([("ingest_status", run.ingest_status)] if is_growing(run) else []),
        *_open_facts(stats),
        ("completed", stats.completed),
        ("successful", stats.successful),
        ("failed", stats.failed),
    ]
    if run.waiting:
        shown.append(("waiting", waiting_in_words(run.waiting)))
        shown += [("waiting.detail", run.waiting.detail)] if run.waiting.detail else []
    shown += _times(run)
    if spend := stats.spend.cost:
        shown.append(("cost", f"${spend:.4f}"))
    shown += [(f"failed.{reason}", times) for reason, times in stats.failure_reasons.items()]
    shown += [("failure_reason", run.failure_reason)] if run.failure_reason else []
    shown += [("failure_detail", run.failure_detail)] if run.failure_detail else []
    shown += [("ingest_errors", run.ingest_errors)] if run.ingest_errors else []
    shown += [("ingest_error", run.ingest_error)] if run.ingest_error else []
    return shown


def _open_facts(stats: Stats) -> Facts:
    """Where the open tasks of a live run are, where the service can tell."""
    figures = [("in_flight", stats.in_flight), ("waiting_for_retry", stats.waiting_for_retry)]
    return [(name, f"{n} or more" if n >= MOST_OPEN else n) for name, n in figures if n is not None]


def _times(run: Run) -> Facts:
    """When a run began and ended, how long it took, and its mean rate so far."""
    shown: Facts = [("created", seconds_of(run.created_at))] if run.created_at else []
    if taken := elapsed(run):
        shown += [("ended", seconds_of(run.updated_at)), ("elapsed", duration(taken))]
    elif run.created_at and not run.has_ended:
        taken = datetime.now(UTC) - run.created_at
    if taken and done_here(run):
        shown.append(("mean_rate", f"{mean_rate(run, taken):.1f}/s"))
    return shown


def point_at_errors(job_id: str, run: Run | None) -> None:
    if run and run.ingest_errors:
        note(f"The bad lines of its list: conveyor errors {plain(job_id)}")


def shown_status(run: Run | None) -> str:
    """The status, and why the run makes no progress."""
    run = run or NO_RUN
    if run.pause_state == "paused" and not run.has_ended:
        return f"{run.status} (paused)"
    return f"{run.status} (waiting {_reason(run.waiting)})" if run.waiting else run.status


def is_growing(run: Run) -> bool:
    """Whether the service still reads its list, so that its total will grow."""
    return run.ingest_status == "pending" and not run.has_ended


def waiting_in_words(waiting: Waiting) -> str:
    """What a run waits for, since when in local time, and how long until the next attempt."""
    now = datetime.now(UTC)
    words = _reason(waiting) + (f" since {_local(waiting.since, now)}" if waiting.since else "")
    if waiting.next_attempt_at is None:
        return words
    left = max((waiting.next_attempt_at - now).total_seconds(), 0.0)
    return f"{words}, next attempt in {left:.0f} s"


def _reason(waiting: Waiting) -> str:
    return WAITS_FOR.get(waiting.reason, f"({waiting.reason})")


def _local(at: datetime, now: datetime) -> str:
    local = at.astimezone()
    is_today = local.date() == now.astimezone().date()
    return f"{local:%H:%M}" if is_today else f"{local:%Y-%m-%d %H:%M}"


def elapsed(run: Run) -> timedelta | None:
    """From the start of a run to its end, by the service's clock; None while it is live."""
    if not (run.has_ended and run.created_at and run.updated_at):
        return None
    return run.updated_at - run.created_at


def done_here(run: Run) -> int:
    """Tasks that this run has done: without inherited ones."""
    return run.stats.completed - run.inherited_tasks


def mean_rate(run: Run, taken: timedelta) -> float:
    """Tasks done per second, from the start of the run to its end."""
    return done_here(run) / taken.total_seconds() if taken else 0.0
