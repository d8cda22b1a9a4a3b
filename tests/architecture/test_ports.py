"""The fields of `Engines` are the one list of ports: everything else follows it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

from conveyor import ports as package
from conveyor.app.engines import SCHEMES, Engines, ports
from conveyor.app.services import measured
from conveyor.ports.blobs import Blobs
from conveyor.settings import Settings
from conveyor.telemetry.metrics import Metrics
from conveyor.testing.memory.blobs import MemoryBlobs
from tests.crash.life import PORTS as CRASH_POINTS

ROOT = Path(__file__).parents[2]
MOST_PORTS = 14
# Ports that only an engine with a queue beside its rows has: `QueuedWork` is made of them.
BEHIND_WORK = {"claims", "queues"}
# What these promise is tested against the outside they talk to.
WITHOUT_CONTRACT = {"clock", "encryption", "gateway", "webhooks"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreEngines(Engines):
    more: Blobs


def test_every_port_is_a_field_of_the_engines() -> None:
    of_engines = {port.__module__.rpartition(".")[2] for port in ports().values()}
    assert of_engines | BEHIND_WORK == set(_modules())
    assert len(_modules()) <= MOST_PORTS


def test_the_table_of_ports_names_each_of_them() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    assert sorted(re.findall(r"^\| `ports/(\w+)\.py` \|", page, re.MULTILINE)) == _modules()


def test_the_table_of_ports_names_the_engines_that_settings_select() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    rows = dict(re.findall(r"^\| `ports/(\w+)\.py` \|.*\| ([^|]+) \|$", page, re.MULTILINE))
    for kind, schemes in SCHEMES.items():
        engines = set(re.findall(r"\w+", rows[kind].lower()))
        assert {scheme.replace("rediss", "redis") for scheme in schemes} <= engines, kind


def test_every_port_has_a_contract_that_runs_over_its_engines() -> None:
    for name in sorted(set(_modules()) - WITHOUT_CONTRACT):
        contract = import_module(f"conveyor.testing.contracts.{name}")
        assert any(part.endswith("Contract") for part in vars(contract)), name
        assert (ROOT / "tests" / "contracts" / f"test_{name}.py").exists(), name


def test_a_new_port_is_timed_and_is_a_crash_point() -> None:
    assert ports(MoreEngines) == {**ports(), "more": Blobs}
    given = {field.name: Mock() for field in fields(MoreEngines)}
    blobs = MemoryBlobs()
    engines = MoreEngines(**given | {"more": blobs})  # type: ignore[arg-type]

    seen = measured(engines, Metrics(), Settings().slow_call)

    assert isinstance(seen, MoreEngines)
    assert seen.more is not blobs
    assert ports().keys() - {"clock", "ids"} == CRASH_POINTS


def _modules() -> Sequence[str]:
    folder = Path(next(iter(package.__path__)))
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
