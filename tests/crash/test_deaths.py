"""Die at a call of a port, start again or leave the rest to another, and come to the same end."""

from collections.abc import Callable
from random import Random

import pytest

from tests.crash.every_scenario import SCENARIOS
from tests.crash.questions import EMBEDDED, SHARED, Engine, Forker
from tests.crash.shared import EMBEDDED_ONLY
from tests.seed import REPEAT, run_seed

Told = Callable[[str, object], None]
OUTLIVED = [(name, engine) for name in SCENARIOS if name not in EMBEDDED_ONLY for engine in SHARED]
FEW = Random(f"{run_seed()} outlived").sample(OUTLIVED, 10)  # in `make test`


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_death_at_a_sampled_call_changes_nothing_in_the_outcome(
    scenario: str, forker: Forker, record_property: Told
) -> None:
    _check(forker, scenario, run_seed(), record_property)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_death_at_any_moment_of_any_call_changes_nothing_in_the_outcome(
    scenario: str, forker: Forker, record_property: Told
) -> None:
    _check(forker, scenario, "", record_property)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("scenario", "engine"), FEW)
def test_a_service_finishes_what_another_began_that_died_at_a_sampled_call(
    scenario: str, engine: Engine, forker: Forker, record_property: Told
) -> None:
    _check(forker, scenario, run_seed(), record_property, engine)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("scenario", "engine"), OUTLIVED)
def test_a_service_finishes_what_another_began_that_died_at_any_call(
    scenario: str, engine: Engine, forker: Forker, record_property: Told
) -> None:
    _check(forker, scenario, "", record_property, engine)


def _check(forker: Forker, scenario: str, seed: str, tell: Told, engine: Engine = EMBEDDED) -> None:
    report = forker.ask("deaths", scenario, seed=seed, engine=engine)
    tell("crash points", 3 * report.calls)
    tell("deaths", report.deaths)
    repeat = f"\n{REPEAT.format(seed)}" if seed else ""
    assert report.failures == [], "\n".join(report.failures) + repeat
    assert report.deaths
