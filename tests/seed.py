"""The seed of a run of the tests: what `make test` samples changes with each commit.

A failure must be repeatable, so the seed is a fact of the commit and not of the moment. Workers
read it from the environment of the process that started them.
"""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from random import Random, SystemRandom
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")

VARIABLE = "TEST_SEED"  # without CONVEYOR_: the service refuses settings it does not know
REPEAT = f"To repeat the samples of this run: {VARIABLE}={{}}"


def choose_seed() -> str:
    """Keep the seed that was given, else derive one from the commit."""
    return os.environ.setdefault(VARIABLE, _commit()[:12] or f"{SystemRandom().getrandbits(48):x}")


def run_seed() -> str:
    return os.environ[VARIABLE]


def sampled(cases: Iterable[T], count: int, *, of: str) -> list[ParameterSet]:
    """All cases as parameters of a test: so many that the seed chooses, the others marked long."""
    everything = list(cases)
    chosen = Random(f"{run_seed()} {of}").sample(everything, count)
    return [
        pytest.param(one, marks=() if one in chosen else pytest.mark.long) for one in everything
    ]


def sample_items(items: Iterable[pytest.Item], count: int, *, of: str) -> None:
    """Mark tests long, but for so many that the seed chooses."""
    by_name = {item.nodeid: item for item in items}
    chosen = Random(f"{run_seed()} {of}").sample(sorted(by_name), min(count, len(by_name)))
    for name in by_name.keys() - set(chosen):
        by_name[name].add_marker(pytest.mark.long)


def drawn(cases: Iterable[T], count: int, *, of: str) -> list[T]:
    """Cases for a loop within one test: so many that the seed chooses, all in `make test-long`."""
    everything = list(cases)
    return everything if _is_long() else Random(f"{run_seed()} {of}").sample(everything, count)


def examples(count: int) -> int:
    """How many examples Hypothesis makes: `count` in `make test-long`, else a quarter of it.

    They are others in each run.
    """
    return count if _is_long() else count // 4


def _is_long() -> bool:
    return bool(os.environ.get("COLD_STARTS"))  # set by `make test-long`


def _commit() -> str:
    """The commit that is checked out; nothing where there is no git or no repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
