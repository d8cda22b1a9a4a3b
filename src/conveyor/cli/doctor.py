"""`conveyor doctor`: findings as they come, a bar while rows are read, a summary."""

import sys
from contextlib import ExitStack

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from conveyor.cli import output
from conveyor.cli.admin import Admin, OutOfReach
from conveyor.cli.bars import Bar
from conveyor.domain.audit import (
    AuditProgress,
    AuditSummary,
    DoctorEvent,
    DoctorScope,
    Environment,
    Finding,
    Severity,
)
from conveyor.domain.ids import JobId, RunId

STYLES = {Severity.WRONG: "bold red", Severity.REPAIR: "yellow", Severity.NOTE: "cyan"}


GATEWAY = {True: "yes", False: "no", None: "not tried"}
SAID_OF_GATEWAY = {
    True: ".",
    False: ". The gateway does not respond: no page can be fetched.",
    None: "; the gateway was not tried.",
}


def print_report(
    admin: Admin, job: str | None, run: str | None, *, bodies: bool, as_json: bool
) -> bool:
    """Examine the stores and print what is found; return whether something is wrong."""
    scope = DoctorScope(
        job_id=JobId(job) if job else None, run_id=RunId(run) if run else None, bodies=bodies
    )
    with Report(as_json=as_json) as report:
        admin.examine(scope, report.show)
    if not report.ended:
        raise OutOfReach("the doctor was stopped before the end: repeat the command")
    return report.wrong > 0


class Report(ExitStack):
    """Prints events in the form that is asked for, and counts what is wrong."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self.wrong = 0
        self.ended = False
        self._as_json = as_json
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            hidden=as_json,
            transient=True,
        )
        self.enter_context(self._bar)

    def show(self, event: DoctorEvent) -> None:
        if isinstance(event, AuditProgress):
            self._move(event)
            return
        self.ended = isinstance(event, AuditSummary)
        self.wrong += isinstance(event, Finding) and event.severity is Severity.WRONG
        if self._as_json:
            output.json_line(msgspec.json.encode(event))
            if isinstance(event, AuditSummary):
                print(in_a_sentence(event), file=sys.stderr)
            return
        self._bar.stop()  # it would run into the text
        _print(event)
        self._bar.start()

    def _move(self, event: AuditProgress) -> None:
        if not self._bar.tasks:
            self._bar.add_task("")
        self._bar.update(
            self._bar.tasks[0].id,
            description=f"run {event.run_id}",
            completed=event.rows,
            total=max(event.total, event.rows),
        )


def _print(event: Environment | Finding | AuditSummary) -> None:
    match event:
        case Environment():
            _print_environment(event)
        case Finding():
            _print_finding(event)
        case AuditSummary():
            _print_summary(event)


def _print_environment(about: Environment) -> None:
    where = "of a running service" if about.running else "offline"
    data = f"on shared engines ({where})"
    if about.folder is not None and about.free is not None and about.size is not None:
        room = f"{about.free / 2**30:,.1f} of {about.size / 2**30:,.1f} GiB free"
        data = f"{about.folder} ({where}), {room}"
    pairs = [("version", about.version), ("data", data)]
    settings = [(f"setting {name}", value) for name, value in about.settings.items()]
    output.facts([*pairs, *settings])


def _print_finding(found: Finding) -> None:
    if not output.on_terminal():
        place = (found.job_id or "-", found.run_id or "-", found.task_id or "-")
        output.tabbed([(found.severity, found.code, *place, found.what, found.advice)])
        return
    text = Text()
    text.append(f"{found.severity} ", STYLES[found.severity])
    text.append(f"{found.code}  {output.plain(_place(found))}\n", "bold")
    text.append(f"  {output.plain(found.what)}\n  {output.plain(found.advice)}")
    Console().print(text)


def _place(found: Finding) -> str:
    named = (("job", found.job_id), ("run", found.run_id), ("task", found.task_id))
    return " ".join(f"{kind} {name}" for kind, name in named if name)


def _print_summary(checked: AuditSummary) -> None:
    counts = msgspec.structs.asdict(checked)
    counts["gateway_responds"] = GATEWAY[checked.gateway_responds]
    sentence = in_a_sentence(checked)
    if output.on_terminal():
        output.facts(list(counts.items()))
        print(sentence)
    else:
        output.facts([*counts.items(), ("result", sentence)])


def in_a_sentence(checked: AuditSummary) -> str:
    """What the findings mean as a whole."""
    if checked.wrong:
        things = "thing is" if checked.wrong == 1 else "things are"
        said = f"{checked.wrong:,} {things} wrong, listed above with what to do"
    elif checked.repairs:
        things = "thing" if checked.repairs == 1 else "things"
        said = f"Nothing is wrong: the sweeper will repair {checked.repairs:,} {things} by itself"
    else:
        said = "All is well, apart from the notes above" if checked.notes else "All is well"
    return said + SAID_OF_GATEWAY[checked.gateway_responds]
