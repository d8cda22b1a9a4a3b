"""Which URLs may be told anything, and when a delivery is tried again."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.domain.webhook import JITTER, LONGEST_WAIT, WAITS, Target, WebhookRules, next_wait
from conveyor.errors import CallbackUrlMustBeHttps, InvalidArgument

HOUR = timedelta(hours=1)


def test_ten_attempts_are_made_over_three_days() -> None:
    waits = [next_wait(tries, 0.5) for tries in range(11)]
    assert waits == [*WAITS, None]
    assert sum(WAITS, timedelta()) == timedelta(hours=75, minutes=35, seconds=5)


@given(st.integers(1, 9), st.floats(0, 1))
def test_a_wait_is_at_most_a_tenth_off(tries: int, chance: float) -> None:
    wait = next_wait(tries, chance)
    assert wait is not None
    assert abs(wait - WAITS[tries]) <= WAITS[tries] * JITTER + timedelta(microseconds=1)


def test_what_failed_together_is_spread() -> None:
    assert next_wait(1, 0.0) == timedelta(seconds=4.5)
    assert next_wait(1, 1.0) == timedelta(seconds=5.5)


@pytest.mark.parametrize(
    ("asked", "wait"),
    [(timedelta(seconds=2), timedelta(seconds=5)), (HOUR, HOUR), (90 * HOUR, LONGEST_WAIT)],
)
def test_the_longer_of_both_waits_counts_up_to_a_day(asked: timedelta, wait: timedelta) -> None:
    assert next_wait(1, 0.5, asked) == wait


def test_nobody_can_ask_for_more_attempts() -> None:
    assert next_wait(len(WAITS), 0.5, HOUR) is None


def test_a_target_has_what_a_request_needs() -> None:
    target = WebhookRules().target("https://Hooks.Example/in/../a b?c=d#e")
    assert target == Target("hooks.example", 443, "hooks.example", is_safe=True, path="/a%20b?c=d")


@pytest.mark.parametrize(
    "url", ["http://hooks.example/", "ftp://hooks.example/", "javascript:1", "HTTP://a.example"]
)
def test_only_https_is_told_anything(url: str) -> None:
    with pytest.raises(CallbackUrlMustBeHttps) as refused:
        WebhookRules().target(url)
    assert refused.value.extras == {"field": "webhook.url"}


@pytest.mark.parametrize(
    "url",
    [
        "", "hooks.example", "https://", "https://a.example:99999/",
        "https://user@hooks.example/", "https://:word@hooks.example/", "https://hooks.example:8443/",
        "https://hooks.example:80/", "https://a.example/" + "a" * 2048,
    ],
)  # fmt: skip
def test_a_url_that_is_none_or_not_allowed_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        WebhookRules().target(url)
    assert refused.value.code == "invalid_argument"
    assert "user@" not in refused.value.detail


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f.1", "0177.0.0.1", "127.1", "127。0。0。1", "①②⑦.0.0.1"]
)
def test_an_address_in_any_spelling_is_the_address(host: str) -> None:
    assert WebhookRules().target(f"https://{host}/").host == "127.0.0.1"


def test_http_and_other_ports_can_be_allowed() -> None:
    rules = WebhookRules(ports=(8080,), allow_http=True)
    assert rules.target("http://[::1]:8080/x") == Target("::1", 8080, "[::1]:8080", False, "/x")


def test_receivers_on_two_ports_of_a_host_are_two() -> None:
    rules = WebhookRules(ports=(443, 8443))
    origins = [rules.target(f"https://{name}/").origin for name in ("a.example", "a.example:8443")]
    assert origins == ["a.example:443", "a.example:8443"]
