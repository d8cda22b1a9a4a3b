"""The image runs as a user without rights, writes to one folder, and gets signals itself."""

import re
import subprocess
import tomllib
from pathlib import Path

from tests.deploy.templates import SERVICES, resources
from tests.emulators import PROGRAMS, missing

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"


def test_the_dockerfile_has_no_findings_of_the_linter() -> None:
    program = PROGRAMS / "hadolint"
    if not program.exists():
        missing("there is no hadolint: `make setup` brings it with the emulators of AWS")
    done = subprocess.run([program, DOCKERFILE], capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""


def test_the_program_runs_as_a_user_without_rights_and_gets_signals_itself() -> None:
    lines = _instructions()
    [user] = [given for name, given in lines if name == "USER"]
    assert int(user) >= 1000
    # A shell in between would not pass SIGTERM on.
    assert ("ENTRYPOINT", '["conveyor"]') in lines


def test_the_image_has_a_python_that_conveyor_supports_and_every_engine() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bases = {given.split()[0] for name, given in _instructions() if name == "FROM"}
    assert bases == {"python:3.11-slim-bookworm"}
    assert project["requires-python"].startswith(">=3.11")
    [extras] = re.findall(r"'\.\[(.*)\]'", DOCKERFILE.read_text(encoding="utf-8"))
    assert set(extras.split(",")) == project["optional-dependencies"].keys() - {"demo", "dev"}


def test_the_only_folder_that_is_written_to_is_the_volume_of_the_template() -> None:
    lines = _instructions()
    [volume] = re.findall(r'"(.*?)"', dict(lines)["VOLUME"])
    assert f"TMPDIR={volume}" in dict(lines)["ENV"].split()
    for task in resources(SERVICES, "AWS::ECS::TaskDefinition").values():
        [container] = task["Properties"]["ContainerDefinitions"]
        assert [mount["ContainerPath"] for mount in container["MountPoints"]] == [volume]


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        source
        for name, given in _instructions()
        if name == "COPY" and not given.startswith("--from")
        for source in given.split()[:-1]
    }
    assert "*" in lines
    assert sent == copied
    assert all((ROOT / name).exists() for name in sent)


def _instructions() -> list[tuple[str, str]]:
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]
