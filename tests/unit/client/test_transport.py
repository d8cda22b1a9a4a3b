"""Waits between attempts, paths, and what a client refuses before it sends anything."""

import pytest

from conveyor.client import AsyncConveyor, Patience
from conveyor.client.transport import path_of


def test_rests_grow_to_a_bound_and_follow_what_the_service_asks() -> None:
    patience = Patience(first=1, longest=8, longest_asked=60)
    for attempt, most in enumerate((1, 2, 4, 8, 8, 8), 1):
        assert most / 2 <= patience.delay(attempt) <= most
    assert patience.delay(1, 5) == 5
    assert patience.delay(1, 0) == 0
    assert patience.delay(1, 10_000) == 60


def test_ids_cannot_reach_beyond_their_place_in_the_path() -> None:
    assert path_of("jobs", "../x?a b", query={"limit": 1, "cursor": None}) == (
        "/jobs/..%2Fx%3Fa%20b?limit=1"
    )


@pytest.mark.parametrize("url", ["", "ftp://a/v1", "127.0.0.1:8080/v1", "http://"])
def test_a_base_url_is_checked(url: str) -> None:
    with pytest.raises(ValueError, match="base URL"):
        AsyncConveyor(url, "key")


def test_a_key_that_cannot_be_sent_is_not_repeated_in_the_complaint() -> None:
    with pytest.raises(ValueError, match="printable") as complaint:
        AsyncConveyor("http://a/v1", "secret\n")
    assert "secret" not in str(complaint.value)


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="context"):
        await AsyncConveyor().job("x")
