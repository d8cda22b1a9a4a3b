"""No call of a port without a scenario that dies at it."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TypeVar

import pytest

from conveyor import steps
from tests.crash.deaths import Crossing
from tests.crash.every_scenario import SCENARIOS
from tests.crash.life import PORTS
from tests.crash.questions import Forker

T = TypeVar("T", str, tuple[str, str])
STEPS = Path(next(iter(steps.__path__)))

ONLY_READ = "nothing is written on the way there or after it: whoever asked asks again"
TIMER = "only a timer of 20 seconds calls it, and an extension lost is a lease that lapses"
FOR_PEOPLE = "it says when a key was last used, to people; the next use says it again"
FOR_THE_RECORD = "only an attempt is put on record after it; the event is owed and sent either way"
READ_AGAIN = "a row that moved on meanwhile is read again, as jobs and own keys are in a scenario"
# Calls of steps that no scenario comes by, and why that is no loss.
NOT_CROSSED: dict[tuple[str, str], str] = {
    ("control.py", "control_queue.extend"): TIMER,
    ("audit.py", "bodies.names"): ONLY_READ,
    ("audit.py", "bodies.read"): ONLY_READ,
    ("audit.py", "metadata.page(Batch)"): ONLY_READ,
    ("audit.py", "metadata.get(Run)"): ONLY_READ,
    ("audit.py", "tasks.counts"): ONLY_READ,
    ("audit.py", "tasks.get"): ONLY_READ,
    ("audit.py", "tasks.history"): ONLY_READ,
    ("audit.py", "tasks.page"): ONLY_READ,
    ("doctor.py", "blobs.length"): ONLY_READ,
    ("doctor.py", "metadata.get(Export)"): ONLY_READ,
    ("doctor.py", "metadata.page(Export)"): ONLY_READ,
    ("doctor.py", "metadata.get(FileInput)"): ONLY_READ,
    ("doctor.py", "metadata.page(FileInput)"): ONLY_READ,
    ("doctor.py", "metadata.page(Batch)"): ONLY_READ,
    ("doctor.py", "metadata.get(Job)"): ONLY_READ,
    ("doctor.py", "metadata.get(Run)"): ONLY_READ,
    ("doctor.py", "metadata.runs"): ONLY_READ,
    ("doctor.py", "tasks.runs_held"): ONLY_READ,
    ("export.py", "blobs.read"): ONLY_READ,
    ("notify.py", "metadata.get(OutboxEvent)"): FOR_THE_RECORD,
    ("quotas.py", "tasks.counts"): ONLY_READ,
    ("read.py", "blobs.keys"): ONLY_READ,
    ("read.py", "blobs.read"): ONLY_READ,
    ("read.py", "bodies.read"): ONLY_READ,
    ("read.py", "metadata.get(Job)"): ONLY_READ,
    ("read.py", "metadata.jobs"): ONLY_READ,
    ("read.py", "tasks.get"): ONLY_READ,
    ("read.py", "tasks.history"): ONLY_READ,
    ("read.py", "tasks.page"): ONLY_READ,
    ("standing.py", "gateway.fetch"): ONLY_READ,
    ("standing.py", "encryption.decrypt"): ONLY_READ,
    ("rotate_encryption.py", "metadata.get(Run)"): READ_AGAIN,
    ("rotate_encryption.py", "metadata.get(OutboxEvent)"): READ_AGAIN,
    ("rotate_encryption.py", "metadata.get(SigningKeys)"): READ_AGAIN,
    ("auth.py", "metadata.commit"): FOR_PEOPLE,
    ("auth.py", "encryption.decrypt"): ONLY_READ,
    ("progress.py", "metadata.get(Run)"): ONLY_READ,
    ("progress.py", "tasks.counts"): ONLY_READ,
}
# Methods of ports that no scenario comes by.
NOT_CALLED: dict[str, str] = {
    "bodies.names": ONLY_READ,
    "coordination.held": ONLY_READ,
    "coordination.take": "a token that is lost with its process comes back by itself",
    "control_queue.extend": TIMER,
    "gateway.check": ONLY_READ,
    "tasks.get": ONLY_READ,
    "tasks.history": ONLY_READ,
    "work.open": "no step calls it",
}


@pytest.fixture(scope="module")
def crossed(forker: Forker) -> set[Crossing]:
    reports = [forker.ask("record", name) for name in SCENARIOS]
    assert not [failure for report in reports for failure in report.failures]
    return {crossing for report in reports for crossing in report.crossed}


def test_every_call_that_a_step_makes_is_a_point_of_a_scenario(crossed: set[Crossing]) -> None:
    made = {(path.name, call) for path in STEPS.rglob("*.py") for call in _calls(path)}
    _compare(made - {(one.step, one.call) for one in crossed}, NOT_CROSSED.keys())


def test_every_method_of_every_port_is_a_point_of_a_scenario(crossed: set[Crossing]) -> None:
    _compare(_methods() - {one.call for one in crossed}, NOT_CALLED.keys())


def _compare(missed: AbstractSet[T], excused: AbstractSet[T]) -> None:
    new = ", ".join(map(str, sorted(missed - excused)))
    assert not new, f"no scenario dies at {new}: write one"
    stale = ", ".join(map(str, sorted(excused - missed)))
    assert not stale, f"there is no more excuse for {stale}: take it off the list"


def _methods() -> set[str]:
    """Every method of a watched port, as its protocol has them."""
    return {
        f"{port}.{name}"
        for port in PORTS
        for name, _ in inspect.getmembers(_protocol(port), inspect.isfunction)
        if not name.startswith("_")
    }


def _protocol(port: str) -> type:
    module = importlib.import_module(f"conveyor.ports.{port}")
    name = {"encryption": "KeyRing"}.get(port, port.title().replace("_", ""))
    found: type = getattr(module, name)
    return found


def _calls(path: Path) -> Iterator[str]:
    """Methods of ports that a step names, by `self.port.method` or `port.method`."""
    methods = _methods()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            call = ast.unparse(node).removeprefix("self.")
            if call in methods:
                yield call
