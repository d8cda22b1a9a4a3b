"""Bodies in slices: read as if they were decoded at once, and refused early where that pays."""

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.domain import json_bodies, task_bodies
from conveyor.domain.json_bodies import (
    OverlongElement,
    SlicedBody,
    cut,
    decode_body,
    fault_within,
    finish,
)
from conveyor.domain.submission import Addition, Limits, RejectedTask, Submission
from conveyor.domain.task import TaskSpec
from conveyor.errors import InvalidArgument
from tests.seed import examples

MOST = 1024 * 1024
URL = "https://a.example/"
TEXTS = st.text(st.sampled_from('ab"\\{}[],: \n\tüé€😀\u2028'), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
LAYOUTS = st.sampled_from([
    {"separators": (",", ":")},
    {"indent": 2},
    {"separators": (" ,\t", "\r\n: "), "ensure_ascii": False},
])  # fmt: skip


@pytest.fixture(autouse=True)
def tiny_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_bodies, "SLICE_BYTES", 12)


def cut_up(raw: bytes, most: int = MOST) -> SlicedBody:
    return finish(cut(raw, "tasks", most=most))


def whole(raw: bytes, pieces: SlicedBody) -> list[Any]:
    """The elements of all slices."""
    return [one for a, b in pieces.slices for one in json.loads(b"[%b]" % raw[a:b])]


@settings(max_examples=examples(400))
@given(
    before=st.dictionaries(TEXTS, VALUES, max_size=3),
    tasks=st.lists(VALUES, max_size=12),
    after=st.dictionaries(TEXTS, VALUES, max_size=3),
    layout=LAYOUTS,
    blanks=st.sampled_from(["", " \r\n\t"]),
)
def test_the_pieces_are_the_body(
    before: dict[str, Any], tasks: list[Any], after: dict[str, Any], layout: Any, blanks: str
) -> None:
    body = {**before, "tasks": tasks, **after}
    raw = (blanks + json.dumps(body, **layout) + blanks).encode()
    pieces = cut_up(raw)
    assert json.loads(pieces.frame) == {**body, "tasks": []}
    assert pieces.names == tuple(name[:81] for name in body)
    assert whole(raw, pieces) == tasks


TASKS = st.lists(
    st.sampled_from([
        b'{"url":"https://a.example/"}',
        b'{"url":"https://a.example/","metadata":{"a":"}],["}}',
        b'{"url":"https://a.example/","method":"POST","body":{"a":[1,{"b":"\\\\\\"]"}]}}',
        b'{"url":5}', b"{}", b"1", b'"x,y"', b"[[]]", b"null", b'{"url":"ftp://a.example"}',
    ]),
    max_size=8,
)  # fmt: skip
NOISE = st.sampled_from([
    b"", b" ", b",", b"]", b"[", b"{", b"}", b'"', b"\\", b":", b"0", b'"tasks":', b"null",
])  # fmt: skip


@settings(max_examples=examples(1_000))
@given(tasks=TASKS, noise=st.lists(st.tuples(st.integers(0, 400), NOISE), max_size=2))
def test_a_body_is_read_as_if_it_were_decoded_at_once(
    tasks: list[bytes], noise: list[tuple[int, bytes]]
) -> None:
    raw = b'{"last_batch":false,"tasks":[' + b",".join(tasks) + b"]}"
    for at, what in noise:
        raw = raw[:at] + what + raw[at:]
    if raw.count(b'"tasks"') > 1:
        return  # the one thing that is read otherwise
    assert in_slices(raw) == at_once(raw)


def in_slices(raw: bytes) -> object:
    try:
        return finish(task_bodies.read_addition(raw, {}, Limits())).specs
    except InvalidArgument as error:
        return error.extras.get("invalid_tasks", "refused")


def at_once(raw: bytes) -> object:
    """What the body means, by two whole decodes."""
    try:
        loose = msgspec.json.decode(raw, type=dict[str, Any])
        each = msgspec.json.decode(raw, type=Loose).tasks
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "refused"
    judged = [_judged(index, one) for index, one in enumerate(each)]
    bad = [one for one in judged if isinstance(one, RejectedTask)]
    if not bad and (not each or loose.keys() - {"tasks", "last_batch"}):
        return "refused"
    try:
        bad or msgspec.json.decode(raw, type=Addition)
    except msgspec.DecodeError:
        return "refused"
    return bad or judged


class Loose(msgspec.Struct):
    tasks: list[msgspec.Raw]


def _judged(index: int, raw: msgspec.Raw) -> RejectedTask | TaskSpec:
    good, bad = task_bodies._judged_one_by_one([raw], index, {}, Limits())
    [one] = good or bad
    return one


def test_a_list_given_twice_is_refused() -> None:
    raw = b'{"tasks":[{"url":"https://a.example/"}],"t\\u0061sks":[]}'
    with pytest.raises(InvalidArgument, match="must be given once"):
        cut_up(raw)


@pytest.mark.parametrize("raw", [b'{"tasks":[1,]}', b'{"tasks":[,1]}', b'{"tasks":[ , ]}'])
def test_a_comma_without_a_task_is_refused_though_it_ends_a_slice(raw: bytes) -> None:
    with pytest.raises(InvalidArgument):
        finish(task_bodies.read_addition(raw, {}, Limits()))


def test_the_byte_at_fault_is_counted_from_the_start_of_the_body() -> None:
    raw = b'{"tasks":[' + b'{"url":"https://a.example/"},' * 50 + b'{"url":x}]}'
    with pytest.raises(InvalidArgument, match=rf"\(byte {raw.index(b'x}')}\)"):
        finish(task_bodies.read_addition(raw, {}, Limits()))


TINY = b'"a":"b",' * 400_000  # members, 3 MB
HOSTILE = {
    "members of the body": (b"{" + TINY + b'"a":1}', "at most 100 members"),
    "members of metadata": (b'{"metadata":{' + TINY + b'"a":"b"},"tasks":[]}', "`metadata` must"),
    "a value that never ends": (b'{"name":"' + b"x" * 3_000_000, "`name` must have at most"),
    "a name that never ends": (b'{"' + b"x" * 3_000_000, "at most 1048576 bytes beside `tasks`"),
    "a long name": (b'{"' + b"x" * 3_000_000 + b'":1}', "at most 1048576 bytes beside `tasks`"),
    "depth": (b'{"tasks":[' + b"[" * 3_000_000, "at most 32 levels"),
    "depth outside": (b'{"x":' + b'{"a":' * 600_000, "at most 32 levels"),
    "depth between": (b'{"tasks":[' + b"[[[]" * 800_000, "at most 32 levels"),
    "no object": (b"[" + b"1," * 1_500_000 + b"1]", "must be an object"),
    "a string full of quotes": (b'{"tasks":["' + b'\\"' * 1_500_000, None),
    "metadata of a task": (b'{"tasks":[1,2,{"metadata":{' + TINY, None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_good_is_refused_before_it_is_decoded(name: str) -> None:
    raw, said = HOSTILE[name]
    began = time.process_time()
    with pytest.raises((InvalidArgument, OverlongElement)) as refused:
        cut_up(raw)
    assert time.process_time() - began < 1.0
    if said is None:
        assert refused.type is OverlongElement
    else:
        assert said in str(refused.value)


def test_a_task_too_long_to_be_decoded_is_refused_by_its_index() -> None:
    raw = b'{"tasks":[{"url":"x"},2,{"url":"' + b"x" * 2_000_000 + b'"},4]}'
    with pytest.raises(InvalidArgument) as refused:
        finish(task_bodies.read_addition(raw, {}, Limits()))
    [bad] = refused.value.extras["invalid_tasks"]  # type: ignore[misc]
    assert (bad.index, bad.reason) == (2, "task_too_large")  # type: ignore[has-type]


def test_long_blanks_around_a_body_do_not_matter() -> None:
    raw = b" " * 2_000_000 + b'{"tasks":[{"url":"https://a.example/"}]}' + b"\n" * 2_000_000
    assert finish(task_bodies.read_addition(raw, {}, Limits())).specs == [TaskSpec(url=URL)]


def test_every_slice_is_a_step_of_its_own() -> None:
    raw = msgspec.json.encode({"tasks": [{"url": f"{URL}{number}"} for number in range(100)]})
    steps = task_bodies.read_addition(raw, {}, Limits())
    assert sum(1 for _ in steps) == 199  # found and decoded


@pytest.mark.parametrize("depth", [1, 31, 32, 33, 34, 35, 100, 1_000])
def test_depth_is_told_exactly(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    assert json_bodies.is_deeper(deep, 32) is (depth > 32)
    assert json_bodies.is_deeper(b'{"a":' * depth + b"1" + b"}" * depth, 32) is (depth > 32)


@pytest.mark.parametrize(
    ("body", "field", "detail"),
    [
        ({"retries": "x"}, "retries", "`retries` must be an integer, got a string"),
        ({"retries": 1.5}, "retries", "`retries` must be an integer, got a decimal number"),
        ({"async": []}, "async", "`async` must be a boolean, got an array"),
        ({"type": 1}, "type", "`type` must be one of regular, scheduled, got an integer"),
        ({"status": "deleted"}, "status", "`status` must be one of open, closed, got 'deleted'"),
        (
            {"metadata": {"a": None}},
            "metadata",
            "`metadata` is not valid: a value must be a string, got null",
        ),
        (
            {"status": "opne"},
            "status",
            "`status` must be one of open, closed, got 'opne'; did you mean `open`?",
        ),
        ({"webhook": []}, "webhook", "`webhook` must be an object, got an array"),
        ({"webhook": {}}, "webhook.url", "`webhook.url` is required"),
        ({"webhook": {"url": 1}}, "webhook.url", "`webhook.url` must be a string, got an integer"),
        (
            {"webhook": {"ulr": 1}},
            "webhook.ulr",
            "`webhook.ulr` is an unknown field; did you mean `url`?",
        ),
        ([], None, "The body must be an object, got an array"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_by_its_path(
    body: object, field: str | None, detail: str
) -> None:
    raw = msgspec.json.encode(body)
    with pytest.raises(InvalidArgument) as refused:
        decode_body(raw, Submission)
    assert refused.value.detail == detail
    assert refused.value.extras.get("field") == field
    with pytest.raises(InvalidArgument) as refused:
        decode_body(raw, Submission, fault_within("a"))
    assert refused.value.extras == {"field": f"a.{field}" if field else "a"}


def test_a_number_that_no_machine_holds_is_named_by_its_path() -> None:
    with pytest.raises(InvalidArgument, match="`retries` cannot be read") as refused:
        decode_body(b'{"retries":1e400}', Submission)
    assert refused.value.extras == {"field": "retries"}
