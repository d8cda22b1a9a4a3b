"""Lives in processes of their own: each is forked, dies for real, and is followed by another."""

import asyncio
import gc
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Self

import msgspec
import structlog

from conveyor.steps import (
    export,
    purge,
    rotate_encryption,
    zip_export,
)
from conveyor.steps.deliver import sender
from conveyor.steps.shared import pagination
from conveyor.steps.sweep import orphans, sweeper
from tests.crash.deaths import ASTRAY, DEAD, Crossing, Deaths, Point, When
from tests.crash.every_scenario import SCENARIOS
from tests.crash.life import Outcome, a_life
from tests.crash.questions import EMBEDDED, Engine
from tests.crash.scenarios import Scenario
from tests.crash.shared import outlived
from tests.crash.snapshot import differences

# The way back can differ: which of two writes at once came before the first death is chance.
MAY_END = {DEAD, ASTRAY, 0}
IN_MEMORY = Path("/dev/shm")
SAMPLED = 0.04  # share of the points of a scenario that `make test` dies at
LEAST_SAMPLE = 2


class Failure(msgspec.Struct, frozen=True):
    deaths: list[str]
    wrong: list[str]

    def __str__(self) -> str:
        return f"died {', then '.join(self.deaths)}:\n    " + "\n    ".join(self.wrong)


def prepare() -> None:
    """Make ten rows many, so that they come and go in several pieces; have everything at hand that
    the children would otherwise each load anew; be quiet.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    purge.CHUNK = sweeper.CHUNK = orphans.CHUNK = 4
    pagination.PAGE = purge.PAGE = sweeper.PAGE = 2
    export.PAGE = zip_export.PAGE = sender.PAGE = rotate_encryption.PAGE = 2
    zip_export.LARGE = 30  # bytes: those of a page from large.example
    zip_export.READ_AHEAD = (
        0  # one call after another, so that each has the same number in every life
    )
    with _folder() as folder:
        folder.live(SCENARIOS["settle_every_kind_of_answer"], Deaths())
    gc.collect()
    gc.disable()  # lives are short, and a collection would copy every page they share
    gc.freeze()


@cache
def record(name: str, engine: Engine = EMBEDDED) -> Outcome:
    """The scenario in a single life, with nothing gone wrong."""
    with _folder() as folder:
        outcome = folder.lives(SCENARIOS[name], [], engine)
    if outcome.complaints:
        raise AssertionError(f"{name} is wrong without any death: {outcome.complaints}")
    return outcome


def points(crossed: Sequence[Crossing], *, thorough: bool) -> list[Point]:
    """Every call at its moments, but for those that are the same death: after an answer is before
    the next call, unless somebody outside hears something in between.

    Where nobody does, what follows the effect and what follows the answer find the same on disk:
    they take turns, as the first and second deaths of pairs do, unless all is to be `thorough`.
    """
    return [
        Point(number, crossing.call, when)
        for number, crossing in enumerate(crossed)
        for when in _moments(crossed, number, thorough=thorough)
    ]


def _moments(crossed: Sequence[Crossing], number: int, *, thorough: bool) -> list[When]:
    begins = [When.BEFORE] if crossed[number].first else []
    is_heard = number + 1 == len(crossed) or crossed[number + 1].first
    if thorough or is_heard:
        return [*begins, When.EFFECT, When.ANSWER]
    return [*begins, When.ANSWER if number % 2 else When.EFFECT]


def sample(deaths: Sequence[Point], seed: str) -> list[Point]:
    """A share of the points, and at least three, in the order of the calls."""
    size = min(len(deaths), max(LEAST_SAMPLE, round(len(deaths) * SAMPLED)))
    chosen = Random(seed).sample(range(len(deaths)), size)
    return [deaths[number] for number in sorted(chosen)]


def check(
    name: str, want: Outcome, deaths: Sequence[Point], engine: Engine = EMBEDDED
) -> tuple[Outcome, Failure | None]:
    """Die at the points one life after another, and compare what the last life comes to."""
    scenario = SCENARIOS[name]
    with _folder() as folder:
        got = folder.lives(scenario, deaths, engine)
    wrong = list(got.complaints)
    if got.picture:
        wrong += differences(scenario.told(want.picture), scenario.told(got.picture))
    return got, Failure([str(point) for point in deaths], wrong) if wrong else None


def check_deaths(
    name: str, *, seed: str, engine: Engine = EMBEDDED
) -> tuple[int, int, list[Failure]]:
    """Die at a sample of a scenario's points, or at all of them without a seed.

    Returns the number of calls, the number of deaths and the failures.
    """
    want = record(name, engine)
    # A survivor has nothing of the dead process to read: all that matters is what was written.
    deaths = points(want.crossed, thorough=engine == EMBEDDED)
    if seed:
        deaths = sample(deaths, f"{seed} {name} {engine}")
    failures = (check(name, want, [point], engine)[1] for point in deaths)
    return len(want.crossed), len(deaths), [one for one in failures if one]


def check_pairs(name: str, at: str, *, seed: str) -> tuple[int, list[Failure]]:
    """Die at every point of a scenario, or at one call's only, and again at every point of the way
    back from there, or at a sample of them with a seed.
    """
    want, pairs, failures = record(name), 0, list[Failure]()
    for first in points(want.crossed, thorough=False):
        if at in ("", first.call):
            recovered, _ = check(name, want, [first])
            seconds = points(recovered.crossed, thorough=False)
            for second in sample(seconds, f"{seed} {name} {first}") if seed else seconds:
                pairs += 1
                if failure := check(name, want, [first, second])[1]:
                    failures.append(failure)
    return pairs, failures


class _folder:  # noqa: N801 - reads as a function
    """A fresh folder, in memory where there is room for it."""

    def __enter__(self) -> Self:
        parent = IN_MEMORY if IN_MEMORY.is_dir() else None
        self.path = Path(mkdtemp(prefix="conveyor-crash-", dir=parent))
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def lives(
        self, scenario: Scenario, deaths: Sequence[Point], engine: Engine = EMBEDDED
    ) -> Outcome:
        if engine != EMBEDDED:
            return self._outlived(scenario, deaths[0] if deaths else None, engine)
        for number, point in enumerate(deaths):
            mortal = Deaths(point, counting=number > 0)
            ended = _forked(partial(self.live, scenario, mortal))
            if ended not in (MAY_END if number else {DEAD}):
                return Outcome([f"the process ended with {ended} and not {point}"], {}, [])
        last = Deaths(counting=bool(deaths))
        if ended := _forked(partial(self.live, scenario, last)):
            return Outcome([f"the last life ended with {ended}"], {}, [])
        return self._read()

    def live(self, scenario: Scenario, deaths: Deaths) -> None:
        self._write(asyncio.run(self._to_the_end(scenario, deaths)))

    def _outlived(self, scenario: Scenario, point: Point | None, engine: Engine) -> Outcome:
        story = partial(outlived, self.path, scenario, point, queued=engine == "queues")
        if ended := _forked(lambda: self._write(asyncio.run(story()))):
            return Outcome([f"the process of both services ended with {ended}"], {}, [])
        return self._read()

    def _write(self, outcome: Outcome) -> None:
        (self.path / "outcome").write_bytes(msgspec.json.encode(outcome))

    def _read(self) -> Outcome:
        return msgspec.json.decode((self.path / "outcome").read_bytes(), type=Outcome)

    async def _to_the_end(self, scenario: Scenario, deaths: Deaths) -> Outcome:
        async with a_life(self.path, deaths) as life:
            await scenario.script(life)
            deaths.end()
            await life.rest()
            return Outcome(await life.complaints(), life.stored.picture(), deaths.crossed)


def _forked(live: Callable[[], None]) -> int:
    """Run a life in a child process, and say how it ended."""
    sys.stderr.flush()
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        live()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a child must not go on as its parent
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
