"""Whatever callers, workers, clocks and deaths do in whatever order, every promise is kept.

Hypothesis makes up histories of the whole program on the embedded engine, and the book of what
callers were told judges them. A failure prints the shortest history that shows it.
"""

import asyncio
from itertools import count
from pathlib import Path
from random import SystemRandom
from zlib import crc32

import pytest
import uvloop
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.seed import run_seed
from tests.simulation.machine import Machine

HISTORIES = 4  # of full length, from each first seed
MANY_HISTORIES = 100
STEPS = 50
CHOSEN = settings(
    max_examples=25,
    stateful_step_count=STEPS,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("number", range(2))  # so that they can be divided between workers
def test_every_history_keeps_what_callers_were_told(tmp_path: Path, number: int) -> None:
    """Others with each commit."""
    make_histories(tmp_path, HISTORIES, first_seed=crc32(f"{run_seed()} {number}".encode()))


@pytest.mark.long
@pytest.mark.parametrize("number", range(10))
def test_many_histories_keep_what_callers_were_told(tmp_path: Path, number: int) -> None:
    """New ones each time."""
    make_histories(tmp_path, MANY_HISTORIES, first_seed=SystemRandom().randrange(2**32))


def make_histories(folder: Path, wanted: int, *, first_seed: int) -> None:
    """So many of full length: those that Hypothesis cuts short do not count."""
    numbers, whole = count(first_seed), 0
    last: Machine | None = None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        def begin() -> Machine:
            nonlocal whole, last
            whole += last is not None and last.steps >= STEPS
            last = Machine(runner, folder / "data")
            return last

        while whole < wanted:
            number = next(numbers)
            try:
                run_state_machine_as_test(seed(number)(begin), settings=CHOSEN)  # type: ignore[arg-type]
            except Exception as error:
                error.add_note(f"It is repeated by `first_seed={number}`.")
                raise
