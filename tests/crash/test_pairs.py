"""Die, and once more on the way back."""

from collections.abc import Callable

import pytest

from tests.crash.questions import Forker
from tests.seed import run_seed

SCENARIOS = [
    "submit_large",
    "settle_every_kind_of_answer",
    "settle_the_last_of_two_runs_at_once",
    "close_a_job_that_is_done",
]
Told = Callable[[str, object], None]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_second_death_on_the_way_back_changes_nothing_either(
    scenario: str, forker: Forker, record_property: Told
) -> None:
    _check_pairs(forker, scenario, record_property)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", ["sampled", pytest.param("", marks=pytest.mark.long, id="all")])
def test_a_body_without_its_row_outlives_no_number_of_starts(
    forker: Forker, record_property: Told, seed: str
) -> None:
    scenario, call = "settle_one_page_at_a_time", "bodies.put_many"
    _check_pairs(forker, scenario, record_property, at=call, seed=seed and run_seed())


def _check_pairs(
    forker: Forker, scenario: str, tell: Told, *, at: str = "", seed: str = ""
) -> None:
    report = forker.ask("pairs", scenario, at=at, seed=seed)
    tell("pairs of deaths", report.deaths)
    assert report.failures == [], "\n".join(report.failures)
    assert report.deaths
