"""As `test_deaths_*`, at every moment of every call."""

from collections.abc import Callable

import pytest

from tests.crash.every_scenario import SCENARIOS
from tests.crash.questions import Forker


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_a_death_at_any_moment_of_any_call_changes_nothing_in_the_outcome(
    scenario: str, forker: Forker, record_property: Callable[[str, object], None]
) -> None:
    report = forker.ask("deaths", scenario, thorough=True)
    record_property("thorough deaths", report.deaths)
    assert report.failures == [], "\n".join(report.failures)
    assert report.deaths
