"""The format of a task list, as its caller declares it. A format is never guessed.

`SourceList` is the list that a job was made from, with everything that is needed to read it again.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import msgspec

from conveyor.domain.ids import InputId
from conveyor.domain.json_bodies import decode_body, field_error
from conveyor.errors import InvalidArgument

MOST_COLUMNS_SHOWN = 20  # of a header, in an error
LONGEST_COLUMN_SHOWN = 80

Column = str | int  # its name in the header, or its index from 0
ColumnIndexes = tuple[int, int | None]  # of the URL and of the external id


class ListFormat(StrEnum):
    CSV = "csv"
    NDJSON = "ndjson"
    TXT = "txt"


class ListSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a list is read. All fields but the format apply to CSV alone."""

    format: ListFormat
    delimiter: str = ","
    quote: str = '"'
    header: bool = False
    url: Column = 0
    external_id: Column | None = None


class SourceList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The list that a job was made from. It is kept unchanged for as long as the job.

    A list without a spec has `count` tasks in stored form. A list with a spec is a file input, as
    the caller uploaded it: how many tasks it has is known once it was read.
    """

    blob: str
    count: int = 0
    spec: ListSpec | None = None
    encodings: tuple[str, ...] = ()  # the values of `Content-Encoding` it was sent with
    compressed: bool = False
    file_input_id: InputId | None = None
    strict: bool = False  # if one row is bad, no task of the list is scraped


class CsvFields(msgspec.Struct, forbid_unknown_fields=True):
    url: Column
    external_id: Column | None = None


class CsvForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    fields: CsvFields
    delimiter: str | None = None
    quote: str | None = None
    header: bool | None = None


class ListForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body in which a caller declares a list."""

    type: ListFormat
    csv: CsvForm | None = None
    size: Annotated[int, msgspec.Meta(ge=0)] | None = None  # bytes of the file, as it will be sent


def parse_declaration(raw: bytes) -> tuple[ListSpec, int | None]:
    """The spec in a body, checked, and the size; `InvalidArgument` names the field at fault."""
    form = decode_body(raw, ListForm)
    return _spec(form), form.size


def column_indexes(spec: ListSpec, header: Sequence[str] | None) -> ColumnIndexes:
    """The indexes of the columns. A header that lacks one of them makes the whole list invalid."""
    if header is None:
        assert isinstance(spec.url, int)
        assert not isinstance(spec.external_id, str)
        return spec.url, spec.external_id
    names = [name.strip() for name in header]
    url = _index("url", spec.url, names, spec.delimiter)
    if spec.external_id is None:
        return url, None
    return url, _index("external_id", spec.external_id, names, spec.delimiter)


def _spec(form: ListForm) -> ListSpec:
    if form.type is not ListFormat.CSV:
        if form.csv is not None:
            raise field_error("csv", f"must be absent with `type: {form.type}`")
        return ListSpec(format=form.type)
    if form.csv is None:
        raise field_error("csv", "is required: its `fields` say which column holds the URL")
    spec = ListSpec(
        format=form.type,
        delimiter="," if form.csv.delimiter is None else form.csv.delimiter,
        quote='"' if form.csv.quote is None else form.csv.quote,
        header=bool(form.csv.header),
        url=form.csv.fields.url,
        external_id=form.csv.fields.external_id,
    )
    _check_marks(spec)
    _check_column("csv.fields.url", spec.url, spec)
    if spec.external_id is not None:
        _check_column("csv.fields.external_id", spec.external_id, spec)
    return spec


def _check_marks(spec: ListSpec) -> None:
    for field, mark in (("csv.delimiter", spec.delimiter), ("csv.quote", spec.quote)):
        if len(mark) != 1 or mark in "\r\n\0\ufeff":
            shown = mark[:LONGEST_COLUMN_SHOWN]
            raise field_error(field, f"must be one character, not a line end, got {shown!r}")
    if spec.delimiter == spec.quote:
        raise field_error("csv.quote", f"must differ from the delimiter, got {spec.quote!r} twice")


def _check_column(field: str, column: Column, spec: ListSpec) -> None:
    if isinstance(column, int):
        if column < 0:
            raise field_error(field, f"must be 0 or more: columns count from 0, got {column}")
    elif not column.strip():
        raise field_error(field, "must be the name of a column or its index from 0, got a blank")
    elif not spec.header:
        raise field_error(field, "must be an index from 0: a name requires `header: true`")


def _index(field: str, column: Column, names: Sequence[str], delimiter: str) -> int:
    found = (
        [index for index, name in enumerate(names) if name == column.strip()]
        if isinstance(column, str)
        else [column] * (column < len(names))
    )
    if len(found) == 1:
        return found[0]
    fault = "more than one column" if found else "no column"
    called = f"`{column[:LONGEST_COLUMN_SHOWN]}`" if isinstance(column, str) else f"number {column}"
    raise InvalidArgument(
        f"The header of the list has {fault} {called}: split at {delimiter!r} it reads "
        f"{_shown(names)}.",
        extras={"field": f"csv.fields.{field}"},
    )


def _shown(names: Sequence[str]) -> str:
    shown = [f"`{name[:LONGEST_COLUMN_SHOWN]}`" for name in names[:MOST_COLUMNS_SHOWN]]
    return ", ".join(shown) + (", …" if len(names) > len(shown) else "")
