"""The compose files: their names exist, and containers start, find each other and are confined."""

import inspect
import re
import shutil
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from conveyor.app.roles import Role, check_role
from conveyor.cli import keys
from conveyor.settings import Settings
from conveyor.settings_loader import load_settings

FILE = Path(__file__).parents[2] / "deploy" / "compose.postgres.yaml"
VARIABLE = re.compile(r"\$\{(\w+)(?::([?-])([^}]*))?\}")
GIVEN = {
    "POSTGRES_PASSWORD": "secret",
    "CONVEYOR_ENCRYPTION_KEY": b64encode(bytes(32)).decode(),
    "CONVEYOR_GATEWAY_KEY": "a-gateway-key",
}
OWN = ("migrate", "api", "worker")
# Of the Compose Specification: the names that the files use.
TOP = {"name", "services", "volumes", "x-conveyor"}
OF_SERVICE = {
    "build", "cap_drop", "command", "depends_on", "environment", "healthcheck", "image", "init",
    "mem_limit", "ports", "read_only", "restart", "security_opt", "shm_size", "stop_grace_period",
    "ulimits", "volumes",
}  # fmt: skip
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}


@pytest.mark.parametrize("name", ["compose.embedded.yaml", "compose.postgres.yaml"])
def test_names_are_those_of_the_compose_specification_and_refer_to_what_exists(name: str) -> None:
    compose = yaml.safe_load(FILE.with_name(name).read_text())
    assert compose.keys() <= TOP
    for service in compose["services"].values():
        assert service.keys() <= OF_SERVICE
        for other, how in service.get("depends_on", {}).items():
            assert other in compose["services"]
            assert how["condition"] in CONDITIONS
        for mount in service.get("volumes", ()):
            assert mount.partition(":")[0] in compose["volumes"]


def test_each_variable_has_a_default_or_is_in_the_example_of_the_environment() -> None:
    example = FILE.with_name(".env.example").read_text()
    named = set(re.findall(r"^(\w+)=", example, re.MULTILINE))
    assert named == GIVEN.keys()
    required = {name for name, how, _ in VARIABLE.findall(FILE.read_text()) if how != "-"}
    assert required == named


def test_the_example_says_how_to_make_a_password_that_can_stand_in_a_url() -> None:
    example = FILE.with_name(".env.example").read_text()
    about, _, _ = example.partition("POSTGRES_PASSWORD=")
    [command] = re.findall(r"`(openssl rand [^`]*)`", about)
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    made = subprocess.run(command.split(), capture_output=True, text=True, check=True).stdout
    assert quote(made.strip(), safe="") == made.strip()
    assert len(made.strip()) >= 32


def test_the_commands_that_start_it_exist() -> None:
    head, _, _ = FILE.read_text().partition("name: conveyor")
    [created] = re.findall(r"run --rm api keys create(.*)", head)
    known = inspect.signature(keys.create).parameters
    assert {word[2:] for word in created.split() if word.startswith("--")} <= known.keys()


@pytest.mark.parametrize("role", [Role.API, Role.WORKER])
def test_a_process_starts_with_the_settings_of_its_container(role: Role) -> None:
    settings = _settings(role)
    check_role(role, settings)
    kinds = {settings.metadata, settings.tasks, settings.control_queue, settings.coordination}
    assert kinds == {"postgresql://conveyor:secret@postgres/conveyor"}
    assert settings.gateway_key == "a-gateway-key"
    service = _services()[role]
    seconds = int(service["stop_grace_period"].removesuffix("s"))
    assert settings.grace.total_seconds() <= seconds - 10


def test_own_containers_run_the_image_of_the_dockerfile_without_rights() -> None:
    for name in OWN:
        service = _services()[name]
        assert service["command"][0] == name
        assert service["build"] == {"context": ".."}
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]


def test_the_schema_is_there_before_the_processes_start() -> None:
    services = _services()
    for role in ("api", "worker"):
        wait = services[role]["depends_on"]["migrate"]
        assert wait == {"condition": "service_completed_successfully"}
    assert services["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}


def test_only_the_api_is_published_and_on_loopback_alone() -> None:
    published = {name: one["ports"] for name, one in _services().items() if "ports" in one}
    assert published == {"api": ["127.0.0.1:8080:8080"]}


def test_the_server_has_connections_for_some_workers() -> None:
    [most] = re.findall(r"max_connections=(\d+)", FILE.read_text())
    assert int(most) >= 10 * 11 + 10  # ten processes


def _services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]
    return services


def _settings(role: Role) -> Settings:
    service = _services()[role]
    environ = {
        name: VARIABLE.sub(lambda found: GIVEN.get(found[1], found[3]), str(value))
        for name, value in service["environment"].items()
    }
    pairs = zip(service["command"][1::2], service["command"][2::2], strict=True)
    flags = {name.removeprefix("--").replace("-", "_"): value for name, value in pairs}
    return load_settings(flags, environ=environ)
