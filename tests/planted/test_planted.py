"""Each planted bug is caught by its suite, which passes without it."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.planted.bugs import BUGS
from tests.planted.plant import VARIABLE

ROOT = Path(__file__).parents[2]
FAILED = 1  # the exit code of pytest if tests failed


@pytest.mark.parametrize("name", BUGS)
def test_the_text_of_a_bug_stands_once_in_its_module(name: str) -> None:
    bug = BUGS[name]
    compile(bug.planted_in(bug.path.read_text()), str(bug.path), "exec")
    assert (ROOT / bug.suite).exists()


def test_there_are_enough_bugs() -> None:
    assert len(BUGS) >= 25


@pytest.mark.long
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught_by_its_suite(name: str) -> None:
    suite = BUGS[name].suite
    code, output = _sound(suite)
    assert code == 0, f"{suite} fails without the bug: {output}"
    code, output = _run(suite, name)
    assert code == FAILED, f"{suite} does not catch {name}: {output}"


@cache
def _sound(suite: str) -> tuple[int, str]:
    return _run(suite, "")


def _run(suite: str, bug: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-m", "not long"]
    environ = {**os.environ, VARIABLE: bug}
    environ.pop("COLD_STARTS", None)
    environ = {key: value for key, value in environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, "-p", "tests.planted.plant", "-p", "no:cacheprovider", suite],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout[-2_000:]
