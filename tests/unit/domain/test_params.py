"""Scraper parameters: which are accepted, how they are stored, merged and judged together."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.domain import params
from conveyor.domain.params import BOOLEANS, CHOICES, KNOWN, NUMBERS, TEXTS, BadParam

ACCEPTED = (
    "mode js_render js_instructions custom_headers premium_proxy proxy_country session_id "
    "original_status allowed_status_codes wait_for wait block_resources json_response "
    "css_extractor autoparse response_type outputs extract extract_fields"
)


def refusal(given_params: dict[str, object]) -> tuple[str, str]:
    with pytest.raises(BadParam) as bad:
        params.canonical(given_params)
    return bad.value.reason, bad.value.key


def test_the_known_parameters_are_those_of_the_batch_api() -> None:
    assert set(ACCEPTED.split()) == KNOWN


def test_every_known_parameter_is_of_one_kind() -> None:
    kinds = [BOOLEANS, NUMBERS.keys(), CHOICES.keys(), TEXTS, {params.HEADERS}]
    assert sum(len(kind) for kind in kinds) == len(KNOWN)


@pytest.mark.parametrize("key", ["screenshot", "Wait", "wait ", "", "apikey", "url"])
def test_any_other_parameter_is_unknown(key: str) -> None:
    assert refusal({key: "x"}) == ("unknown_param", key)


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("js_render", True, "true"),
        ("js_render", False, "false"),
        ("js_render", "true", "true"),
        ("autoparse", "false", "false"),
        ("js_render", "True", "true"),
        ("premium_proxy", "FALSE", "false"),
        ("json_response", "tRuE", "true"),
        ("wait", 0, "0"),
        ("wait", 30_000, "30000"),
        ("wait", "250", "250"),
        ("session_id", 99_999, "99999"),
        ("mode", "auto", "auto"),
        ("response_type", "markdown", "markdown"),
        ("response_type", "plaintext", "plaintext"),
        ("response_type", "pdf", "pdf"),
        ("extract", "auto", "auto"),
        ("proxy_country", "de", "de"),
        ("wait_for", ".price", ".price"),
        ("css_extractor", '{"a":"b"}', '{"a":"b"}'),
        ("allowed_status_codes", 404, "404"),
        ("outputs", "", ""),
        ("outputs", 1.5, "1.5"),
        ("outputs", True, "true"),
        ("custom_headers", {"Accept": "a"}, '{"Accept":"a"}'),
        ("custom_headers", {}, "{}"),
        ("custom_headers", '{ "Accept": "a" }', '{"Accept":"a"}'),
        ("custom_headers", "{}", "{}"),
        ("extract_fields", "title,price", "title,price"),
        ("custom_headers", {"X": ""}, '{"X":""}'),
        ("custom_headers", {"X": "a\tb é"}, '{"X":"a\\tb é"}'),
    ],
)
def test_good_values_are_stored_as_strings(key: str, value: object, stored: str) -> None:
    assert params.canonical({key: value}) == {key: stored}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            (key, value)
            for key in sorted(BOOLEANS)
            for value in (1, 0, "1", "yes", "on", "true ", "", None)
        ),
        *(
            (key, value)
            for key in sorted(NUMBERS)
            for value in (-1, 1.0, "1e3", "", " 1", "٣", True, None)
        ),
        ("wait", 30_001),
        ("session_id", 100_000),
        ("wait", "9" * 5000),
        ("mode", "manual"),
        ("mode", True),
        ("response_type", "html"),
        ("extract", "true"),
        *(
            (key, value)
            for key in sorted(TEXTS)
            for value in (None, [], {}, ["a"], {"a": "b"}, "a\x00b")
        ),
        ("custom_headers", "true"),
        ("custom_headers", ""),
        ("custom_headers", "{"),
        ("custom_headers", "[]"),
        ("custom_headers", '"{}"'),
        ("custom_headers", '{"A": 1}'),
        ("custom_headers", '{"A": "a\\r\\nB: b"}'),
        ("custom_headers", "[" * 40_000),
        ("custom_headers", " " * 65_536 + "{}"),
        ("custom_headers", True),
        ("custom_headers", ["Accept"]),
        ("custom_headers", None),
        ("custom_headers", {"Accept": 1}),
        ("custom_headers", {"Accept": None}),
        ("custom_headers", {"": "a"}),
        ("custom_headers", {"A B": "a"}),
        ("custom_headers", {"A:": "a"}),
        ("custom_headers", {"Añ": "a"}),
        ("custom_headers", {"A\n": "a"}),
        ("custom_headers", {"A": "a\r\nB: b"}),
        ("custom_headers", {"A": "a\x00"}),
        ("custom_headers", {"A": "a\x7f"}),
    ],
)
def test_bad_values_are_refused_by_name(key: str, value: object) -> None:
    assert refusal({key: value}) == ("invalid_param_value", key)


def test_custom_headers_are_at_most_32() -> None:
    many: dict[str, object] = {f"X-{n}": "a" for n in range(32)}
    assert params.headers(params.canonical({"custom_headers": many})) == many
    assert refusal({"custom_headers": {**many, "X-32": "a"}})[0] == "invalid_param_value"


@pytest.mark.parametrize(("letter", "size"), [("a", 1), ("é", 2), ("→", 3)])
def test_custom_headers_take_at_most_8_kilobytes(letter: str, size: int) -> None:
    room = (params.MOST_HEADER_BYTES - len('{"X":""}')) // size
    assert params.canonical({"custom_headers": {"X": letter * room}})
    assert refusal({"custom_headers": {"X": letter * (room + 1)}})[1] == "custom_headers"


def test_custom_headers_as_text_have_the_same_limits_as_the_object() -> None:
    room = params.MOST_HEADER_BYTES - len('{"X":""}')
    assert params.canonical({"custom_headers": msgspec.json.encode({"X": "a" * room}).decode()})
    longer = msgspec.json.encode({"X": "a" * (room + 1)}).decode()
    assert refusal({"custom_headers": longer})[1] == "custom_headers"


def test_the_first_bad_parameter_by_name_is_told() -> None:
    assert refusal({"wait": "x", "autoparse": "x"}) == ("invalid_param_value", "autoparse")


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_what_a_gateway_cannot_honour_is_refused_unless_it_is_left_off(value: str) -> None:
    honoured = frozenset({"custom_headers"})
    params.check_honoured({"custom_headers": "{}", "js_render": value}, honoured)
    params.check_honoured({"js_render": "true"}, params.KNOWN)
    with pytest.raises(BadParam) as bad:
        params.check_honoured({"js_render": "true"}, honoured)
    assert (bad.value.reason, bad.value.key) == ("unsupported_param", "js_render")


# Together.


@pytest.mark.parametrize("other", ["js_render", "premium_proxy"])
@pytest.mark.parametrize("value", ["true", "false"])
def test_automatic_mode_does_not_go_with_explicit_means(other: str, value: str) -> None:
    with pytest.raises(BadParam) as bad:
        params.check_together({"mode": "auto", other: value}, "GET")
    assert (bad.value.reason, bad.value.key) == ("invalid_param_value", "mode")


@pytest.mark.parametrize(
    ("key", "value"),
    [("js_render", "true"), ("js_instructions", "[]"), ("json_response", "true")],
)
def test_a_post_does_not_go_with_a_browser(key: str, value: str) -> None:
    params.check_together({key: value}, "GET")
    with pytest.raises(BadParam) as bad:
        params.check_together({key: value}, "POST")
    assert (bad.value.reason, bad.value.key) == ("method_param_conflict", key)


@pytest.mark.parametrize(
    "together",
    [
        {},
        {"mode": "auto", "proxy_country": "de"},
        {"js_render": "true", "premium_proxy": "true"},
        {"js_render": "false", "json_response": "false"},
    ],
)
def test_what_goes_together_passes(together: dict[str, str]) -> None:
    params.check_together(together, "GET")
    if together.get("js_render") != "true":
        params.check_together(together, "POST")


def test_a_task_wins_over_its_job_key_by_key_and_replaces_headers_whole() -> None:
    job = params.canonical({"wait": 1, "js_render": True, "custom_headers": {"A": "1", "B": "2"}})
    task = params.canonical({"wait": 2, "custom_headers": {"C": "3"}})
    merged = params.merged(job, task)
    assert (merged["wait"], merged["js_render"]) == ("2", "true")
    assert params.headers(merged) == {"C": "3"}


@pytest.mark.parametrize(
    ("given_params", "result"),
    [
        ({}, "html"),
        ({"js_render": "true"}, "html"),
        ({"response_type": "markdown"}, "markdown"),
        ({"response_type": "plaintext"}, "plaintext"),
        ({"response_type": "pdf", "autoparse": "true", "extract": "auto"}, "pdf"),
        ({"autoparse": "true"}, "json"),
        ({"autoparse": "false"}, "html"),
        ({"json_response": "true"}, "json"),
        ({"json_response": "false"}, "html"),
        ({"css_extractor": "{}"}, "json"),
        ({"css_extractor": ""}, "html"),
        ({"extract": "auto"}, "json"),
    ],
)
def test_the_format_follows_from_the_parameters(given_params: dict[str, str], result: str) -> None:
    assert params.result_format(given_params) == result


# Stored form.


scalars = st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
anything = scalars | st.none() | st.dictionaries(st.text(max_size=5), scalars, max_size=3)


@given(key=st.sampled_from(sorted(KNOWN)), value=anything)
def test_the_stored_form_is_strings_and_stays_as_it_is(key: str, value: object) -> None:
    try:
        stored = params.canonical({key: value})
    except BadParam:
        assert refusal({key: value}) == ("invalid_param_value", key)
        return
    assert params.load(params.dump(stored)) == stored
    assert isinstance(stored[key], str)
    if key != params.HEADERS:
        assert params.canonical(stored) == stored


def test_stored_keys_are_sorted() -> None:
    text = params.dump(params.canonical({"wait": 1, "autoparse": True, "outputs": "x"}))
    assert text is not None
    assert list(msgspec.json.decode(text)) == ["autoparse", "outputs", "wait"]


def test_no_parameters_are_stored_as_nothing() -> None:
    assert params.dump({}) is None
    assert params.load(None) == params.load("") == {}
    assert params.headers({}) == {}


def test_every_parameter_has_values_and_a_sentence() -> None:
    assert set(params.MEANINGS) == params.KNOWN
    for key, meaning in params.MEANINGS.items():
        assert meaning.endswith(".")
        assert params.values_of(key)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"js_render": "maybe"}, "must be true or false, got 'maybe'"),
        ({"js_render": "ture"}, "must be true or false, got 'ture'; did you mean `true`?"),
        ({"wait": 31_000}, "must be 0 to 30,000, got '31000'"),
        ({"wait": None}, "must be 0 to 30,000, got 'null'"),
        ({"mode": "Auto"}, "must be auto, got 'Auto'; did you mean `auto`?"),
        ({"response_type": "markdwon"}, "got 'markdwon'; did you mean `markdown`?"),
        ({"wait": "9" * 200}, f"got '{'9' * 80}'"),
        ({"mode": "auto", "js_render": True}, "must be given without js_render and premium_proxy"),
        ({"wiat": 5}, "did you mean `wait`?"),
        ({"custom_headers": {"A": "b\r\nC: d"}}, "texts without control characters"),
    ],
)
def test_a_refusal_tells_what_was_given_and_what_is_allowed(
    asked: dict[str, object], told: str
) -> None:
    with pytest.raises(BadParam) as bad:
        params.check_together(params.canonical(asked), "GET")
    assert params.explained(bad.value).startswith(bad.value.reason)
    assert params.explained(bad.value).endswith(told)


@pytest.mark.parametrize("asked", [{"wait_for": "hunter2\x00"}, {"custom_headers": ["hunter2"]}])
def test_a_refusal_shows_no_text_that_may_be_a_secret(asked: dict[str, object]) -> None:
    with pytest.raises(BadParam) as bad:
        params.canonical(asked)
    assert "must be" in params.explained(bad.value)
    assert "hunter2" not in params.explained(bad.value)
