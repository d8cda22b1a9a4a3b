"""The files for one machine: units of systemd, a compose file and rules of Prometheus."""

import configparser
import inspect
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from conveyor.cli import serve as cli
from tests.docs import alarms

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
COMPOSE = ROOT / "deploy" / "compose.embedded.yaml"
TIMES_IN_MEMORY = 7  # how much of its size a body takes at most while it is decoded
LEAST_EXPOSED = 2.0  # of 10, by `systemd-analyze security`


def test_the_unit_accepts_only_keys_that_were_created() -> None:
    lines = (UNITS / "conveyor.service").read_text().splitlines()
    assert "Environment=CONVEYOR_AUTH=keys" in lines


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_finds_no_fault_with_the_units(tmp_path: Path) -> None:
    # It also looks for the program and the user, which are not on this machine.
    unit = (UNITS / "conveyor.service").read_text(encoding="utf-8")
    unit = unit.replace("/opt/conveyor/bin/conveyor", "/bin/true")
    (tmp_path / "conveyor.service").write_text(unit, encoding="utf-8")
    shutil.copy(UNITS / "conveyor.socket", tmp_path)
    files = [tmp_path / name for name in ("conveyor.service", "conveyor.socket")]
    done = subprocess.run(
        ["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "conveyor" in line]
    assert ours == []
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", files[0]],
        capture_output=True,
        text=True,
        check=False,
    )
    [exposed] = re.findall(r"Overall exposure level for conveyor.service: ([\d.]+)", done.stdout)
    assert float(exposed) <= LEAST_EXPOSED


def test_the_unit_passes_flags_that_exist_and_writes_to_its_own_folder() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNITS / "conveyor.service")
    command = unit["Service"]["ExecStart"].split()
    known = inspect.signature(cli.serve).parameters
    assert command[1] == "serve"
    assert {word[2:] for word in command if word.startswith("--")} <= known.keys()
    assert command[command.index("--data") + 1] == f"/var/lib/{unit['Service']['StateDirectory']}"
    assert unit["Service"]["Type"] == "notify"


def _container() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    container: dict[str, Any] = loaded["services"]["conveyor"]
    return container


def test_the_container_has_no_rights_and_writes_to_its_volume_only() -> None:
    container = _container()
    assert container["read_only"]
    assert container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]
    [volume] = container["volumes"]
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f'VOLUME ["{volume.partition(":")[2]}"]' in image
    # Docker publishes on all addresses unless one is named.
    assert all(port.startswith("127.0.0.1:") for port in container["ports"])


def test_the_container_runs_a_command_that_exists_with_the_version_of_the_image() -> None:
    container = _container()
    name, *rest = container["command"]
    known = inspect.signature(getattr(cli, name)).parameters
    assert {word[2:] for word in rest if word.startswith("--")} <= known.keys()
    [fallback] = re.findall(r"ARG VERSION=(.*)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert container["build"]["args"]["VERSION"] == f"${{VERSION:-{fallback}}}"


def test_the_bodies_in_flight_fit_into_the_memory_of_the_container() -> None:
    container = _container()
    bodies = int(container["environment"]["CONVEYOR_BODIES_IN_FLIGHT"])
    assert container["mem_limit"] == "1g"
    assert bodies * TIMES_IN_MEMORY <= 2**30 / 2
    guide = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert f"with 1 GB, set it to {bodies >> 20} MiB" in guide


@pytest.mark.skipif(shutil.which("docker") is None, reason="there is no docker")
def test_compose_takes_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVEYOR_GATEWAY_KEY", "a-key")
    command = ["docker", "compose", "-f", str(COMPOSE), "config", "--quiet"]
    if subprocess.run([*command[:2], "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker has no compose")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_rules_of_prometheus_are_the_alarms_of_the_guide() -> None:
    assert alarms.RULES.read_text(encoding="utf-8") == alarms.rules(), "run `make reference`"
    [group] = yaml.safe_load(alarms.RULES.read_text(encoding="utf-8"))["groups"]
    told = [(rule["expr"], rule["for"], rule["labels"]["severity"]) for rule in group["rules"]]
    assert told == [(one.expression, one.lasting, one.kind) for one in alarms.alarms()]
    assert len({rule["alert"] for rule in group["rules"]}) == len(told) > 20


def test_what_a_rule_of_prometheus_says_can_be_read_without_the_guide() -> None:
    [group] = yaml.safe_load(alarms.RULES.read_text(encoding="utf-8"))["groups"]
    told = {rule["alert"]: rule["annotations"]["description"] for rule in group["rules"]}
    of_the_guide = re.compile(r"\b(above|below|(next|last) alarm|what else)\b|\]\(", re.IGNORECASE)
    for name, text in told.items():
        assert not of_the_guide.search(text), name
        assert len(text.split()) >= 10, name
        for page in re.findall(r"docs/[\w/-]+\.md", text):
            assert (ROOT / page).is_file(), name
    assert "docs/storage/postgres.md#what-to-watch" in told["ConveyorDeadRows"]
