"""Options of calls: known by name, so that a slip is not ignored."""

import pytest

from conveyor.client import Conveyor


def test_an_unknown_option_is_refused_at_run_time_too() -> None:
    with Conveyor("http://127.0.0.1:1/v1") as conveyor:
        with pytest.raises(TypeError, match=r"must be among external_id.* got 'retires'"):
            conveyor.submit(["https://a.example"], retires=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="got 'column'"):
            conveyor.upload("list.csv", column="link")  # type: ignore[call-arg]
