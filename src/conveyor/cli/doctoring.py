"""What `conveyor doctor` prints: findings as they come, a bar while rows are read, a summary."""

from contextlib import ExitStack

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from conveyor.cli import show
from conveyor.cli.bars import Bar
from conveyor.domain import finding
from conveyor.domain.finding import Checked, Event, Finding, Severity, Surroundings

STYLES = {Severity.WRONG: "bold red", Severity.REPAIR: "yellow", Severity.NOTE: "cyan"}


class Report(ExitStack):
    """Tells events in the form that is asked for; afterwards it knows how many were bad."""

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

    def tell(self, event: Event) -> None:
        if isinstance(event, finding.Progress):
            self._move(event)
            return
        self.ended = isinstance(event, Checked)
        self.wrong += isinstance(event, Finding) and event.severity is Severity.WRONG
        if self._as_json:
            show.raw(msgspec.json.encode(event))
            return
        self._bar.stop()  # it would run into the text
        _print(event)
        self._bar.start()

    def _move(self, event: finding.Progress) -> None:
        if not self._bar.tasks:
            self._bar.add_task("")
        self._bar.update(
            self._bar.tasks[0].id,
            description=f"run {event.run_id}",
            completed=event.rows,
            total=max(event.total, event.rows),
        )


def _print(event: Surroundings | Finding | Checked) -> None:
    match event:
        case Surroundings():
            _tell_surroundings(event)
        case Finding():
            _tell_finding(event)
        case Checked():
            _tell_summary(event)


def _tell_surroundings(about: Surroundings) -> None:
    where = "of a running service" if about.running else "at rest"
    room = f"{about.free / 2**30:,.1f} of {about.size / 2**30:,.1f} GiB free"
    pairs = [("version", about.version), ("data", f"{about.folder} ({where}), {room}")]
    settings = [(f"setting {name}", value) for name, value in about.settings.items()]
    show.facts([*pairs, *settings])


def _tell_finding(found: Finding) -> None:
    if not show.on_terminal():
        place = (found.job_id or "-", found.run_id or "-", found.task_id or "-")
        show.tabbed([(found.severity, found.code, *place, found.what, found.advice)])
        return
    text = Text()
    text.append(f"{found.severity} ", STYLES[found.severity])
    text.append(f"{found.code}  {show.plain(_place(found))}\n", "bold")
    text.append(f"  {show.plain(found.what)}\n  {show.plain(found.advice)}")
    Console().print(text)


def _place(found: Finding) -> str:
    named = (("job", found.job_id), ("run", found.run_id), ("task", found.task_id))
    return " ".join(f"{kind} {name}" for kind, name in named if name)


def _tell_summary(checked: Checked) -> None:
    show.facts(list(msgspec.structs.asdict(checked).items()))
