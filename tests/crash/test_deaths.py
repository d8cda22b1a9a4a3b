"""Die at a call of a port, start again, and come to the same end."""

from collections.abc import Callable

import pytest

from tests.crash.every_scenario import SCENARIOS
from tests.crash.questions import Forker
from tests.seed import REPEAT, run_seed

Told = Callable[[str, object], None]


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


def _check(forker: Forker, scenario: str, seed: str, tell: Told) -> None:
    report = forker.ask("deaths", scenario, seed=seed)
    tell("crash points", 3 * report.calls)
    tell("deaths", report.deaths)
    repeat = f"\n{REPEAT.format(seed)}" if seed else ""
    assert report.failures == [], "\n".join(report.failures) + repeat
    assert report.deaths
