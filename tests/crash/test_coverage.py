"""No call of a port without a scenario that dies at it."""

import ast
import inspect
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TypeVar

import pytest

from conveyor import steps
from conveyor.app.engines import ports
from tests.crash.deaths import PAGING, Crossing
from tests.crash.every_scenario import SCENARIOS
from tests.crash.life import PORTS
from tests.crash.questions import EMBEDDED, SHARED, Engine, Forker
from tests.crash.shared import EMBEDDED_ONLY

T = TypeVar("T", str, tuple[str, str])
STEPS = Path(next(iter(steps.__path__)))

ONLY_READ = "nothing is written before or after it: the caller asks again"
TIMER = "only a timer of 20 seconds calls it, and an extension lost is a lease that lapses"
FOR_PEOPLE = "it says when a key was last used, to people; the next use says it again"
FOR_THE_RECORD = "only an attempt is put on record after it; the event is owed and sent either way"
NOTHING_YET = "the step has written nothing by then: it dies as at the read before it"
OF_OPERATORS = "it is one write that an operator asked for, and asks for again without an answer"
NO_STEP = "no step calls it"
UNSWEPT = "only storage that is not swept calls for it, and the embedded engines are"
EXPIRES = "it concerns other processes, of which these engines have none; what it leaves expires"
NO_QUEUES = "the embedded engine has no queues beside its rows"
SHARED_KEYS = "of keys that processes share: tests/simulation/test_key_rotation.py dies there"
SIGNING = "it writes nothing, and the embedded engines cannot"
# Calls of steps that no scenario comes by, and why that is no loss.
NOT_CROSSED: dict[tuple[str, str], str] = {
    ("api_keys.py", "metadata.page(ApiKey)"): ONLY_READ,
    ("audit.py", "bodies.names"): ONLY_READ,
    ("audit.py", "bodies.read"): ONLY_READ,
    ("audit.py", "metadata.get(Run)"): ONLY_READ,
    ("audit.py", "metadata.of_run(Batch)"): ONLY_READ,
    ("audit.py", "tasks.counts"): ONLY_READ,
    ("audit.py", "tasks.failure_groups"): ONLY_READ,
    ("audit.py", "tasks.get"): ONLY_READ,
    ("audit.py", "tasks.histories"): ONLY_READ,
    ("audit.py", "tasks.history"): ONLY_READ,
    ("audit.py", "tasks.page"): ONLY_READ,
    ("auth.py", "encryption.decrypt"): ONLY_READ,
    ("auth.py", "metadata.commit"): FOR_PEOPLE,
    ("auth.py", "metadata.get(ApiKey)"): ONLY_READ,
    ("backlog.py", "metadata.get(Job)"): ONLY_READ,
    ("backlog.py", "metadata.live_runs"): ONLY_READ,
    ("backlog.py", "tasks.counts"): ONLY_READ,
    ("control.py", "control_queue.extend"): TIMER,
    ("doctor.py", "blobs.length"): ONLY_READ,
    ("doctor.py", "control_queue.dead_letters"): ONLY_READ,
    ("doctor.py", "encryption.decrypt"): ONLY_READ,
    ("doctor.py", "metadata.get(Batch)"): ONLY_READ,
    ("doctor.py", "metadata.get(Export)"): ONLY_READ,
    ("doctor.py", "metadata.get(FileInput)"): ONLY_READ,
    ("doctor.py", "metadata.get(Job)"): ONLY_READ,
    ("doctor.py", "metadata.get(Run)"): ONLY_READ,
    ("doctor.py", "metadata.page(Batch)"): ONLY_READ,
    ("doctor.py", "metadata.page(Export)"): ONLY_READ,
    ("doctor.py", "metadata.page(FileInput)"): ONLY_READ,
    ("doctor.py", "metadata.page(Job)"): ONLY_READ,
    ("doctor.py", "metadata.page(Run)"): ONLY_READ,
    ("doctor.py", "metadata.runs"): ONLY_READ,
    ("doctor.py", "tasks.runs_held"): ONLY_READ,
    ("export.py", "blobs.read"): ONLY_READ,
    ("members.py", "coordination.announce"): EXPIRES,
    ("members.py", "coordination.members"): ONLY_READ,
    ("notifier.py", "coordination.notifications"): ONLY_READ,
    ("notifier.py", "coordination.notify"): EXPIRES,
    ("lost_messages.py", "metadata.get(Run)"): NO_QUEUES,
    ("lost_messages.py", "metadata.live_runs"): NO_QUEUES,
    ("lost_messages.py", "tasks.counts"): NO_QUEUES,
    ("lost_messages.py", "tasks.page"): NO_QUEUES,
    ("lost_messages.py", "work.close"): NO_QUEUES,
    ("lost_messages.py", "work.enqueue"): NO_QUEUES,
    ("operators.py", "control_queue.dead_letters"): ONLY_READ,
    ("operators.py", "control_queue.redrive"): OF_OPERATORS,
    ("operators.py", "coordination.members"): ONLY_READ,
    ("operators.py", "metadata.get(Job)"): ONLY_READ,
    ("operators.py", "metadata.live_runs"): ONLY_READ,
    ("operators.py", "metadata.page(ApiKey)"): ONLY_READ,
    ("operators.py", "metadata.usage"): ONLY_READ,
    ("operators.py", "tasks.counts"): ONLY_READ,
    ("orphans.py", "metadata.page(Run)"): UNSWEPT,
    ("shared_limits.py", "coordination.held"): ONLY_READ,
    ("shared_limits.py", "coordination.notifications"): ONLY_READ,
    ("shared_limits.py", "coordination.notify"): EXPIRES,
    ("shared_limits.py", "coordination.recall"): ONLY_READ,
    ("shared_limits.py", "coordination.remember"): EXPIRES,
    ("permit.py", "coordination.release"): EXPIRES,
    ("permit.py", "coordination.renew"): EXPIRES,
    ("permit.py", "coordination.reserve"): EXPIRES,
    ("rotate_encryption.py", "encryption.drop_expired_keys"): SHARED_KEYS,
    ("rotate_encryption.py", "encryption.fingerprints"): SHARED_KEYS,
    ("rotate_encryption.py", "encryption.has_expired_keys"): SHARED_KEYS,
    ("saved_cursors.py", "coordination.recall"): ONLY_READ,
    ("saved_cursors.py", "coordination.remember"): EXPIRES,
    ("schedules.py", "metadata.get(ApiKey)"): NOTHING_YET,
    ("sender.py", "metadata.get(OutboxEvent)"): FOR_THE_RECORD,
    ("progress.py", "metadata.get(Run)"): ONLY_READ,
    ("progress.py", "tasks.counts"): ONLY_READ,
    ("quotas.py", "tasks.counts"): ONLY_READ,
    ("read.py", "blobs.keys"): ONLY_READ,
    ("read.py", "blobs.read"): ONLY_READ,
    ("read.py", "bodies.read"): ONLY_READ,
    ("read.py", "bodies.sign_get"): SIGNING,
    ("read.py", "metadata.get(Job)"): ONLY_READ,
    ("read.py", "metadata.jobs"): ONLY_READ,
    ("failure_reads.py", "tasks.failure_groups"): ONLY_READ,
    ("timeline_reads.py", "tasks.counts"): ONLY_READ,
    ("timeline_reads.py", "tasks.page"): ONLY_READ,
    ("read.py", "tasks.get"): ONLY_READ,
    ("read.py", "tasks.history"): ONLY_READ,
    ("read.py", "tasks.page"): ONLY_READ,
    ("gateway_key_check.py", "encryption.decrypt"): ONLY_READ,
    ("gateway_key_check.py", "gateway.fetch"): ONLY_READ,
    ("rerun.py", "tasks.page"): ONLY_READ,
    ("sweeper.py", "tasks.page"): ONLY_READ,
    ("task_reads.py", "tasks.get"): ONLY_READ,
}
# Methods of ports that no scenario comes by.
NOT_CALLED: dict[str, str] = {
    "bodies.names": ONLY_READ,
    "bodies.sign_get": SIGNING,
    "control_queue.dead_letters": ONLY_READ,
    "control_queue.drop": OF_OPERATORS,
    "control_queue.extend": TIMER,
    "control_queue.find_dead_letter": ONLY_READ,
    "control_queue.redrive": OF_OPERATORS,
    "coordination.announce": EXPIRES,
    "coordination.held": ONLY_READ,
    "coordination.members": ONLY_READ,
    "coordination.notifications": ONLY_READ,
    "coordination.notify": EXPIRES,
    "coordination.take": "a token that is lost with its process comes back by itself",
    "encryption.drop_expired_keys": SHARED_KEYS,
    "encryption.fingerprints": SHARED_KEYS,
    "encryption.has_expired_keys": SHARED_KEYS,
    "gateway.check_health": ONLY_READ,
    "tasks.histories": ONLY_READ,
    "tasks.history": ONLY_READ,
}

# Over the shared store, the scenarios that rotate keys are left out, and others come by more.
OF_ROTATION = (
    "encryption.promote",
    "encryption.publish",
    "encryption.reencrypted",
    "encryption.reload",
    "encryption.retire",
)
NOT_CROSSED_IF_SHARED: dict[tuple[str, str], str] = {
    **{("rotate_encryption.py", call): SHARED_KEYS for call in OF_ROTATION},
    ("rotate_encryption.py", "encryption.writing"): SHARED_KEYS,
    ("rotate_encryption.py", "metadata.commit"): SHARED_KEYS,
    ("rotate_encryption.py", "metadata.live_runs"): SHARED_KEYS,
    ("rotate_encryption.py", "metadata.page(ApiKey)"): SHARED_KEYS,
    ("rotate_encryption.py", "metadata.page(Job)"): SHARED_KEYS,
    ("rotate_encryption.py", "metadata.page(OutboxEvent)"): SHARED_KEYS,
    ("rotate_encryption.py", "metadata.page(SigningKeys)"): SHARED_KEYS,
}
CROSSED_IF_SHARED = {
    ("gateway_key_check.py", "encryption.decrypt"),
    ("lost_messages.py", "metadata.get(Run)"),
    ("lost_messages.py", "metadata.live_runs"),
    ("lost_messages.py", "tasks.counts"),
    ("lost_messages.py", "tasks.page"),
    ("lost_messages.py", "work.close"),
    ("lost_messages.py", "work.enqueue"),
    ("permit.py", "coordination.reserve"),
    ("saved_cursors.py", "coordination.recall"),
    ("saved_cursors.py", "coordination.remember"),
    ("shared_limits.py", "coordination.recall"),
}


@pytest.fixture(scope="module")
def crossed(forker: Forker) -> set[Crossing]:
    return _crossed(forker, SCENARIOS, EMBEDDED)


@pytest.fixture(scope="module")
def crossed_if_shared(forker: Forker) -> set[Crossing]:
    names = [name for name in SCENARIOS if name not in EMBEDDED_ONLY]
    return set[Crossing]().union(*(_crossed(forker, names, engine) for engine in SHARED))


def _crossed(forker: Forker, names: Iterable[str], engine: Engine) -> set[Crossing]:
    reports = [forker.ask("record", name, engine=engine) for name in names]
    assert not [failure for report in reports for failure in report.failures]
    return {crossing for report in reports for crossing in report.crossed}


def test_every_call_that_a_step_makes_is_a_point_of_a_scenario(crossed: set[Crossing]) -> None:
    _compare(_made() - {(one.step, one.call) for one in crossed}, NOT_CROSSED.keys())


def test_every_method_of_every_port_is_a_point_of_a_scenario(crossed: set[Crossing]) -> None:
    _compare(_methods() - {one.call.partition("(")[0] for one in crossed}, NOT_CALLED.keys())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_call_that_a_step_makes_is_a_point_that_another_service_survives(
    crossed_if_shared: set[Crossing],
) -> None:
    excused = NOT_CROSSED.keys() - CROSSED_IF_SHARED | NOT_CROSSED_IF_SHARED.keys()
    _compare(_made() - {(one.step, one.call) for one in crossed_if_shared}, excused)
    called = {one.call.partition("(")[0] for one in crossed_if_shared}
    _compare(_methods() - called, NOT_CALLED.keys() | set(OF_ROTATION))


def _made() -> set[tuple[str, str]]:
    """Calls of ports that steps make, with the files that make them."""
    paths = [path for path in STEPS.rglob("*.py") if not str(path).endswith(PAGING)]
    return {(path.name, call) for path in paths for call in _calls(path)}


def _compare(missed: AbstractSet[T], excused: AbstractSet[T]) -> None:
    new = ", ".join(map(str, sorted(missed - excused)))
    assert not new, f"no scenario dies at {new}: write one"
    stale = ", ".join(map(str, sorted(excused - missed)))
    assert not stale, f"there is no more excuse for {stale}: take it off the list"


def _methods() -> set[str]:
    """Every method of a watched port, as its protocol has them."""
    return {
        f"{port}.{name}"
        for port, protocol in ports().items()
        if port in PORTS
        for name, _ in inspect.getmembers(protocol, inspect.isfunction)
        if not name.startswith("_")
    }


def _calls(path: Path) -> Iterator[str]:
    """Calls of ports that a step makes, by `self.port.method` or `port.method`, with the kind of
    row where a call names one: `metadata.get(Job)`.
    """
    tree = ast.parse(path.read_text())
    methods = _methods()
    names = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    kinds = {"metadata.get", "metadata.page", "metadata.due", "metadata.of_run"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).removeprefix("self.")
            first = [names.get(ast.unparse(one), "") for one in node.args[:2]]
            if called in kinds and first[0]:
                yield f"{called}({first[0]})"
            if called == "runs_of":
                yield "metadata.runs"
            if called in {"every", "every_of_run"}:
                yield f"metadata.{'page' if called == 'every' else 'of_run'}({first[1]})"
        if isinstance(node, ast.Attribute):
            call = ast.unparse(node).removeprefix("self.")
            if call in methods - kinds:
                yield call
