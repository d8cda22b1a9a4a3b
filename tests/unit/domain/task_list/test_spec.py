"""How a caller describes a list: what the official client sends is taken, the rest is named."""

import json

import pytest
from zenrows.batch.models import CreateJobInputRequest

from conveyor.domain.task_list.spec import ListFormat, ListSpec, parse_declaration
from conveyor.errors import InvalidArgument


def test_what_the_official_client_sends_is_taken() -> None:
    request = CreateJobInputRequest.model_validate(
        {"type": "csv", "csv": {"header": True, "fields": {"url": "link", "external_id": 2}}}
    )
    assert parse_declaration(request.model_dump_json().encode()) == (
        ListSpec(format=ListFormat.CSV, header=True, url="link", external_id=2),
        None,
    )


@pytest.mark.parametrize("kind", ["ndjson", "txt"])
def test_other_kinds_need_nothing_more(kind: str) -> None:
    spec = ListSpec(format=ListFormat(kind))
    assert parse_declaration(json.dumps({"type": kind}).encode()) == (spec, None)
    assert parse_declaration(json.dumps({"type": kind, "size": 7}).encode()) == (spec, 7)


URL = {"url": 0}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "type"),
        ({"type": "xml"}, "xml"),
        ({"type": "csv"}, "csv"),
        ({"type": "txt", "csv": {"fields": URL}}, "`csv` must be absent with"),
        ({"type": "csv", "csv": {}}, "fields"),
        ({"type": "csv", "csv": {"fields": {}}}, "url"),
        ({"type": "csv", "csv": {"fields": {"url": -1}}}, "`csv.fields.url`"),
        ({"type": "csv", "csv": {"fields": {"url": True}}}, "csv.fields.url"),
        ({"type": "csv", "csv": {"fields": {"url": "link"}}}, "`header: true`"),
        ({"type": "csv", "csv": {"fields": {"url": " "}, "header": True}}, "`csv.fields.url`"),
        ({"type": "csv", "csv": {"fields": {"url": 0, "external_id": "x"}}}, "external_id"),
        ({"type": "csv", "csv": {"fields": URL, "delimiter": ""}}, "`csv.delimiter`"),
        ({"type": "csv", "csv": {"fields": URL, "delimiter": ";;"}}, "`csv.delimiter`"),
        ({"type": "csv", "csv": {"fields": URL, "delimiter": "\n"}}, "`csv.delimiter`"),
        ({"type": "csv", "csv": {"fields": URL, "quote": "\0"}}, "`csv.quote`"),
        ({"type": "csv", "csv": {"fields": URL, "quote": ","}}, "must differ from the delimiter"),
        ({"type": "csv", "csv": {"fields": URL, "delimeter": ";"}}, "did you mean `delimiter`"),
        ({"type": "csv", "csv": {"fields": URL, "header": "yes"}}, "csv.header"),
    ],
)
def test_what_is_wrong_is_named(spec: object, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_declaration(json.dumps(spec).encode())


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidArgument):
        parse_declaration(raw)


@pytest.mark.parametrize(
    "body",
    [
        {"type": "csv", "delimiter": ";", "csv": {"fields": {"url": 0}}},
        {"type": "csv", "csv": {"fields": {"url": 0, "header": True}}},
        {"type": "csv", "csv": {"fields": {"url": 0}, "url": 0}},
    ],
)
def test_a_field_in_the_wrong_place_is_not_suggested_to_itself(body: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_declaration(json.dumps(body).encode())
    assert "unknown field" in refused.value.detail
    assert "did you mean" not in refused.value.detail
