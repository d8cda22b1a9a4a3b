"""The official Node client through all that it offers, once, where there is a Node."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.programs import Program

FLOW = Path(__file__).parent / "node"
NODE, NPM = shutil.which("node"), shutil.which("npm")
OLDEST = 20  # that the client runs on


def _major() -> int:
    if not (NODE and NPM):
        return 0
    told = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True)
    return int(told.stdout.strip().lstrip("v").split(".")[0])


@pytest.mark.skipif(_major() < OLDEST, reason=f"there is no Node of version {OLDEST} or above")
def test_the_node_client_is_answered_as_it_expects(
    telling: Program, receiver: str, tmp_path: Path
) -> None:
    shutil.copytree(FLOW, tmp_path / "flow")
    _install(tmp_path / "flow")
    told = subprocess.run(
        [str(NODE), "flow.mjs", telling.url, str(tmp_path), receiver],
        cwd=tmp_path / "flow",
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-2000:]
    assert "every call was answered" in told.stdout


def _install(folder: Path) -> None:
    quiet = ["--no-audit", "--no-fund", "--silent"]
    done = subprocess.run([str(NPM), "install", *quiet], cwd=folder, check=False)
    if done.returncode and not os.environ.get("CI"):
        pytest.skip("the Node client cannot be installed")
    assert not done.returncode, "the Node client cannot be installed"
