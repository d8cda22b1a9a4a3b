"""The gateway's refusals, read into what they mean for a task and its run."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.adapters.http import direct_wire
from conveyor.adapters.http.zenrows_errors import BY_CODE, BY_STATUS, is_gateway_problem, rule_for
from conveyor.app.engines import CODES
from conveyor.domain.failure import AccountReason, FailureReason, Handling


@pytest.mark.parametrize("code", sorted(BY_CODE))
@pytest.mark.parametrize("status", [200, 401, 402, 404, 429, 500, 503])
def test_a_known_code_decides_whatever_the_status(code: str, status: int) -> None:
    assert rule_for(status, code) == BY_CODE[code]


@pytest.mark.parametrize("status", sorted(BY_STATUS))
def test_an_unknown_code_leaves_it_to_the_status(status: int) -> None:
    assert rule_for(status, "NEW0001") == rule_for(status, "") == BY_STATUS[status]


@given(status=st.integers(500, 999).filter(lambda status: status not in BY_STATUS))
def test_the_gateways_own_trouble_is_worth_another_try(status: int) -> None:
    rule = rule_for(status, "")
    assert (rule.handling, rule.reason) == (Handling.RETRY, FailureReason.GATEWAY_ERROR)


@given(status=st.integers(100, 499).filter(lambda status: status not in BY_STATUS))
def test_any_other_refusal_is_final(status: int) -> None:
    rule = rule_for(status, "")
    assert (rule.handling, rule.reason) == (Handling.FAIL, FailureReason.OTHER)


@given(status=st.integers(100, 999), code=st.sampled_from([*BY_CODE, "", "NEW0001"]))
def test_only_account_refusals_name_an_account_reason(status: int, code: str) -> None:
    rule = rule_for(status, code)
    assert (rule.account is not None) == (rule.handling is Handling.ACCOUNT)


@pytest.mark.parametrize("kind", ["about:blank", "https://elsewhere.example/", None, 7])
@pytest.mark.parametrize(("status", "code"), [(403, "REQS007"), (422, "no_data_extracted")])
def test_refusals_of_extract_are_final_whatever_their_type(
    status: int, code: str, kind: object
) -> None:
    assert is_gateway_problem({"code": code, "type": kind, "status": status})
    rule = rule_for(status, code)
    assert (rule.handling, rule.reason) == (Handling.FAIL, FailureReason.BAD_TARGET)


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (401, "", AccountReason.SUBSCRIPTION_INACTIVE),
        (401, "AUTH002", AccountReason.SUBSCRIPTION_INACTIVE),
        (402, "", AccountReason.INSUFFICIENT_CREDITS),
        (402, "AUTH004", AccountReason.INSUFFICIENT_CREDITS),
        (402, "AUTH012", AccountReason.INSUFFICIENT_CREDITS),
        (402, "payment_required", AccountReason.INSUFFICIENT_CREDITS),
        (402, "api_key_cap_reached", AccountReason.API_KEY_CAP_REACHED),
        (401, "subscription_inactive", AccountReason.SUBSCRIPTION_INACTIVE),
    ],
)
def test_an_account_that_cannot_scrape_ends_the_run(
    status: int, code: str, reason: AccountReason
) -> None:
    rule = rule_for(status, code)
    assert (rule.handling, rule.account) == (Handling.ACCOUNT, reason)


def test_a_feature_outside_the_plan_fails_its_task_only() -> None:
    rule = rule_for(402, "AUTH010")
    assert (rule.handling, rule.reason) == (Handling.FAIL, FailureReason.AUTH_FAILED)


@pytest.mark.parametrize(
    ("status", "code"), [(429, ""), (429, "AUTH006"), (429, "AUTH008"), (403, "BLK0001")]
)
def test_being_told_to_slow_down_is_waited_out(status: int, code: str) -> None:
    assert rule_for(status, code).handling is Handling.WAIT


@pytest.mark.parametrize("code", sorted(direct_wire.BY_CODE))
def test_what_a_site_says_is_never_about_the_key_or_the_account(code: str) -> None:
    assert direct_wire.BY_CODE[code].handling not in {Handling.ACCOUNT, Handling.WAIT}
    assert not is_gateway_problem({"code": code})


def test_every_public_reason_can_end_a_task() -> None:
    rules = [*CODES.values(), *BY_STATUS.values(), rule_for(418, ""), rule_for(500, "")]
    ending = {one.reason for one in rules if one.handling in {Handling.RETRY, Handling.FAIL}}
    assert ending == set(FailureReason)


@pytest.mark.parametrize(
    ("document", "whose"),
    [
        ({"code": "RESP001"}, True),
        ({"code": "ZZZ9999"}, True),
        ({"code": "api_key_cap_reached"}, True),
        ({"type": "https://docs.zenrows.com/api-error-codes#RESP001"}, True),
        ({"code": 5, "type": "https://docs.zenrows.com/api-error-codes"}, True),
        ({"code": "out_of_stock"}, False),
        ({"code": "RESP001x"}, False),
        ({"code": "xRESP001"}, False),
        ({"code": "RESP001\n"}, False),
        ({"code": 404}, False),
        ({"code": ["RESP001"], "type": {}}, False),
        ({"type": "https://shop.example/errors"}, False),
        ({}, False),
        ([{"code": "RESP001"}], False),
        ("RESP001", False),
        (None, False),
    ],
)
def test_the_gateways_problem_is_told_from_a_page_that_is_json(
    document: object, whose: bool
) -> None:
    assert is_gateway_problem(document) is whose


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["code", "type", "x"]), inner),
    max_leaves=10,
)


@given(document=json_values)
def test_no_document_is_too_odd_to_be_judged(document: object) -> None:
    again = msgspec.json.decode(msgspec.json.encode(document))
    assert is_gateway_problem(again) is is_gateway_problem(document)
