"""Histories of two and three services over one store whose indexes lag and whose calls fail."""

import asyncio
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from random import SystemRandom
from zlib import crc32

import pytest
import uvloop
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.harness.postgres import TestDatabases
from tests.seed import run_seed
from tests.simulation.postgres import PostgresStore
from tests.simulation.shared import ALL_FAULTS, ON_DYNAMODB, Conditions, SharedMachine
from tests.simulation.test_histories import CHOSEN, STEPS

# Not shrunk: each of the shorter histories would meet other faults.
UNSHRUNK = settings(CHOSEN, phases=[Phase.generate])
FEW = settings(UNSHRUNK, max_examples=3)
HISTORIES = 2  # of full length, from each first seed
MANY_HISTORIES = 50


@pytest.mark.parametrize("services", [2, 3])
def test_histories_of_several_services_keep_what_callers_were_told(
    tmp_path: Path, services: int
) -> None:
    """Others with each commit."""
    first = crc32(f"{run_seed()} {services}".encode())
    make_shared_histories(tmp_path, HISTORIES, services=services, first_seed=first)


@pytest.mark.long
@pytest.mark.parametrize("services", [2, 3])
@pytest.mark.parametrize("number", range(10))
def test_many_histories_of_several_services_keep_what_callers_were_told(
    tmp_path: Path, services: int, number: int
) -> None:
    """New ones each time."""
    first = SystemRandom().randrange(2**32)
    make_shared_histories(tmp_path, MANY_HISTORIES, services=services, first_seed=first)


def test_histories_on_dynamodb_keep_what_callers_were_told(tmp_path: Path) -> None:
    """Others with each commit."""
    first = crc32(f"{run_seed()} dynamodb".encode())
    make_shared_histories(
        tmp_path, 1, services=2, first_seed=first, conditions=ON_DYNAMODB, chosen=FEW
    )


@pytest.mark.long
@pytest.mark.parametrize("number", range(10))
def test_many_histories_on_dynamodb_keep_what_callers_were_told(
    tmp_path: Path, number: int
) -> None:
    """New ones each time."""
    first = SystemRandom().randrange(2**32)
    wanted = MANY_HISTORIES // 5
    make_shared_histories(tmp_path, wanted, services=2, first_seed=first, conditions=ON_DYNAMODB)


def test_histories_on_postgresql_keep_what_callers_were_told(
    tmp_path: Path, postgres_18: TestDatabases
) -> None:
    """Others with each commit."""
    first = crc32(f"{run_seed()} postgresql".encode())
    conditions = _on(postgres_18)
    make_shared_histories(
        tmp_path, 1, services=2, first_seed=first, conditions=conditions, chosen=FEW
    )


@pytest.mark.long
@pytest.mark.parametrize("number", range(4))
def test_many_histories_on_postgresql_keep_what_callers_were_told(
    tmp_path: Path, postgres_18: TestDatabases, number: int
) -> None:
    """New ones each time."""
    first, conditions = SystemRandom().randrange(2**32), _on(postgres_18)
    wanted, services = MANY_HISTORIES // 5, 2 + number % 2
    make_shared_histories(
        tmp_path, wanted, services=services, first_seed=first, conditions=conditions
    )


def _on(databases: TestDatabases) -> Conditions:
    address = asyncio.run(databases.empty())
    return replace(ALL_FAULTS, store=partial(PostgresStore, address=address), queued=False)


def make_shared_histories(
    folder: Path,
    wanted: int,
    *,
    services: int,
    first_seed: int,
    conditions: Conditions = ALL_FAULTS,
    chosen: settings = UNSHRUNK,
) -> None:
    numbers, whole = count(first_seed), 0
    last: SharedMachine | None = None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        while whole < wanted:
            number = next(numbers)

            def begin(number: int = number) -> SharedMachine:
                nonlocal whole, last
                whole += last is not None and last.steps >= STEPS
                last = SharedMachine(
                    runner, folder / "data", count=services, seed=number, conditions=conditions
                )
                return last

            try:
                run_state_machine_as_test(seed(number)(begin), settings=chosen)  # type: ignore[arg-type]
            except Exception as error:
                error.add_note(f"It is repeated by `{services=}, first_seed={number}`.")
                raise
