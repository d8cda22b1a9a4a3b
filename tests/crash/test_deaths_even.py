"""Die at every call of a port, start anew, and come to the same end: every other scenario.

The others are in a file of their own, so that two workers share them.
"""

from collections.abc import Callable

import pytest

from tests.crash.every_scenario import SCENARIOS
from tests.crash.questions import Forker


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", list(SCENARIOS)[0::2])
def test_a_death_at_any_call_changes_nothing_in_the_outcome(
    scenario: str, forker: Forker, record_property: Callable[[str, object], None]
) -> None:
    report = forker.ask("deaths", scenario)
    record_property("crash points", 3 * report.calls)
    record_property("deaths", report.deaths)
    assert report.failures == [], "\n".join(report.failures)
    assert report.deaths
