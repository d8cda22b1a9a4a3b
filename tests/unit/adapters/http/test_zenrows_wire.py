"""The pure half of the ZenRows adapter, by table."""

import json
from datetime import timedelta

import pytest

from conveyor.adapters.http import page_wire, zenrows_wire
from conveyor.adapters.http.retry_after import retry_after
from conveyor.domain.counts import NOTHING, Spend
from conveyor.ports.gateway import PageRequest

NOON = "Thu, 01 Jan 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("cost", "nanos"),
    [
        ("0.0001", 100_000),
        ("0.1", 100_000_000),
        ("0.000000001", 1),
        ("1.234567891", 1_234_567_891),
        ("2.5E-5", 25_000),
        ("0.0000000004", 0),
        ("0", 0),
        ("-1", 0),
        ("NaN", 0),
        ("sNaN", 0),
        ("Infinity", 0),
        ("1e30", 0),
        ("free", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_a_cost_is_read_to_the_nano_dollar_or_is_nothing(cost: str | None, nanos: int) -> None:
    assert zenrows_wire.spend(None, cost) == Spend(0, nanos)


@pytest.mark.parametrize(
    ("said", "credit"),
    [("25", 25), ("0", 0), ("-5", 0), ("1.5", 0), ("many", 0), ("9" * 40, 0), ("٣", 0), (None, 0)],
)
def test_credits_are_a_sensible_whole_number_or_nothing(said: str | None, credit: int) -> None:
    assert zenrows_wire.spend(said, None) == Spend(credit, 0)


def test_nothing_spent_is_one_value() -> None:
    assert zenrows_wire.spend("0", "0.0") is NOTHING


@pytest.mark.parametrize(
    ("text", "date", "seconds"),
    [
        ("30", None, 30),
        ("1.5", None, 1.5),
        ("0", None, 0),
        ("-1", None, 0),
        ("1000000000", None, 3600),
        ("1e9", None, 3600),
        ("inf", None, 3600),
        ("Thu, 01 Jan 2026 12:00:30 GMT", NOON, 30),
        ("Thu, 01 Jan 2026 11:00:00 GMT", NOON, 0),
        ("Thu, 01 Jan 2027 12:00:00 -0000", NOON, 3600),
    ],
)
def test_a_wait_is_between_nothing_and_an_hour(text: str, date: str | None, seconds: float) -> None:
    assert retry_after(text, date) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "date"),
    [
        (None, NOON),
        ("", NOON),
        ("soon", NOON),
        ("nan", NOON),
        ("Thu, 99 Jan 2026 12:00:00 GMT", NOON),
        (NOON, None),
        (NOON, "yesterday"),
    ],
)
def test_a_wait_that_makes_no_sense_is_none(text: str | None, date: str | None) -> None:
    assert retry_after(text, date) is None


@pytest.mark.parametrize(
    ("params", "status", "allowed"),
    [
        ({}, 404, False),
        ({"original_status": "true"}, 404, True),
        ({"original_status": "false"}, 404, False),
        ({"allowed_status_codes": "404,500"}, 500, True),
        ({"allowed_status_codes": "[404, 500]"}, 404, True),
        ({"allowed_status_codes": "404"}, 503, False),
        ({"original_status": "true", "allowed_status_codes": "302"}, 302, False),
    ],
)
def test_a_status_is_content_when_the_caller_takes_it(
    params: dict[str, str], status: int, allowed: bool
) -> None:
    assert page_wire.is_allowed(params, status) is allowed


def test_an_address_holds_its_parts_quoted_and_marks_that_headers_follow() -> None:
    params = {"custom_headers": '{"X-A":"b"}', "wait_for": "#a > b"}
    request = PageRequest(url="https://a/?b=c d", gateway_key="k/&", params=params)
    base = zenrows_wire.base_query("http://gateway/v1/")
    assert zenrows_wire.address(base, request, page_wire.forwarded(request)) == (
        "http://gateway/v1/?apikey=k%2F%26&url=https%3A%2F%2Fa%2F%3Fb%3Dc%20d"
        "&wait_for=%23a%20%3E%20b&custom_headers=true"
    )


@pytest.mark.parametrize(
    "told", ["a/b c&d", "a%2Fb%20c%26d", "a%2fb%20c%26d", "a/b%20c%26d", "a\\/b c&d"]
)
def test_the_key_is_hidden_in_each_of_its_spellings(told: str) -> None:
    refusal = page_wire.without_problem(f"<b>{told}</b>".encode(), 500, "a/b c&d")
    assert 'document: ***"' in refusal.problem


def test_the_key_is_hidden_before_the_text_is_cut() -> None:
    body = b"x" * (page_wire.EXCERPT - 3) + b"abcdefgh"
    assert "xabc" not in page_wire.without_problem(body, 500, "abcdefgh").problem


@pytest.mark.parametrize("key", ["", "e", "code", "1"])
def test_odd_keys_leave_problems_whole(key: str) -> None:
    refusal = zenrows_wire.refusal({"code": "RESP001", "status": 422, "title": "No"}, 422, key)
    assert refusal.problem.startswith("{")
    for member in ("type", "title", "status", "code"):
        assert f'"{member}":' in refusal.problem


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"code":"other"}', b"\xff", b"[" * 9999]
)
def test_what_is_no_problem_of_the_gateway_is_none(body: bytes) -> None:
    assert zenrows_wire.gateway_problem(body) is None


def test_a_problem_without_a_code_goes_by_its_status() -> None:
    kind = "https://docs.zenrows.com/api-error-codes"
    assert zenrows_wire.refusal({"type": kind}, 418, "k").code == "http_418"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            b"<!DOCTYPE html><html><head><title>502 Bad\n Gateway</title></head><p>nginx</p>",
            "The gateway answered 502 with no problem document: 502 Bad Gateway",
        ),
        (
            b"<html><style>p {}</style><script>let a = 1</script><!-- x --><h1>Too <b>busy</b></h1>",
            "The gateway answered 502 with no problem document: Too busy",
        ),
        (
            b"<title></title><p>&lt;b&gt;sorry",
            "The gateway answered 502 with no problem document: sorry",
        ),
        (b"<html><script>let a = '", "The gateway answered 502 with no problem document"),
        (
            b"upstream connect error",
            "The gateway answered 502 with no problem document: upstream connect error",
        ),
        (b" ", "The gateway answered 502 with an empty body"),
    ],
)
def test_the_detail_of_an_error_page_is_a_sentence_without_markup(body: bytes, told: str) -> None:
    refusal = page_wire.without_problem(body, 502, "abcdefgh")
    assert json.loads(refusal.problem)["detail"] == told


def test_the_words_of_an_error_page_are_bounded_and_without_the_key() -> None:
    page = f"<title>abc&#100;efgh {'<' * 9}{'word ' * 500}</title>".encode()
    detail = json.loads(page_wire.without_problem(page, 502, "abcdefgh").problem)["detail"]
    assert "abcdefgh" not in detail
    assert "<" not in detail
    assert len(detail) < 300
