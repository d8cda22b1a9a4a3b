"""More of the same histories, for another worker to make."""

from pathlib import Path

import pytest

from tests.simulation.test_histories import HISTORIES, make_histories


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [2, 3])
def test_every_history_keeps_what_callers_were_told(tmp_path: Path, number: int) -> None:
    make_histories(tmp_path, HISTORIES, first_seed=number * 1_000)
