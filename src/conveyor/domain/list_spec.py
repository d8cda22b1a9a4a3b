"""What a caller says about a staged list: its kind, and for CSV where its fields stand."""

from collections.abc import Sequence

import msgspec

from conveyor.domain.list_shape import Column, ListKind, ListSpec, Places
from conveyor.domain.submission import UNREADABLE, nearest, plain
from conveyor.errors import InvalidArgument

MOST_COLUMNS_NAMED = 20  # of a header, in an error
LONGEST_COLUMN_NAMED = 80


class CsvFields(msgspec.Struct, forbid_unknown_fields=True):
    url: Column
    external_id: Column | None = None


class CsvForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    fields: CsvFields
    delimiter: str | None = None
    quote: str | None = None
    header: bool | None = None


class ListForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The spec as a caller writes it."""

    type: ListKind
    csv: CsvForm | None = None


def parse_spec(raw: bytes) -> ListSpec:
    """The spec in a body, checked; `InvalidArgument` names the field at fault."""
    try:
        form = msgspec.json.decode(raw, type=ListForm)
    except msgspec.ValidationError as error:
        raise InvalidArgument(plain(error) + nearest(str(error), ListForm)) from None
    except UNREADABLE as error:
        raise InvalidArgument(f"The body is not valid JSON: {plain(error)}") from None
    return _spec(form)


def places(spec: ListSpec, header: Sequence[str]) -> Places:
    """Where the columns stand under this header; a column it lacks is a fault of the whole list."""
    names = [name.strip() for name in header]
    url = _place("url", spec.url, names, spec.delimiter)
    if spec.external_id is None:
        return url, None
    return url, _place("external_id", spec.external_id, names, spec.delimiter)


def places_without_header(spec: ListSpec) -> Places:
    assert isinstance(spec.url, int)
    assert not isinstance(spec.external_id, str)
    return spec.url, spec.external_id


def _spec(form: ListForm) -> ListSpec:
    if form.type is not ListKind.CSV:
        if form.csv is not None:
            raise _at("csv", f"does not go with `type: {form.type}`")
        return ListSpec(kind=form.type)
    if form.csv is None:
        raise _at("csv", "is required: its `fields` say which column holds the URL")
    spec = ListSpec(
        kind=form.type,
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
            raise _at(field, "is one character, and no line end")
    if spec.delimiter == spec.quote:
        raise _at("csv.quote", "differs from the delimiter")


def _check_column(field: str, column: Column, spec: ListSpec) -> None:
    if isinstance(column, int):
        if column < 0:
            raise _at(field, "is counted from 0")
    elif not column.strip():
        raise _at(field, "is the name of a column, or its place from 0 on")
    elif not spec.header:
        raise _at(field, "is a name, which takes `header: true`; without one, give its place")


def _place(field: str, column: Column, names: Sequence[str], delimiter: str) -> int:
    found = (
        [place for place, name in enumerate(names) if name == column.strip()]
        if isinstance(column, str)
        else [column] * (column < len(names))
    )
    if len(found) == 1:
        return found[0]
    trouble = "more than one column" if found else "no column"
    raise InvalidArgument(
        f"The header of the list has {trouble} {_called(column)}: split at {delimiter!r} it reads "
        f"{_shown(names)}.",
        extras={"field": f"csv.fields.{field}"},
    )


def _called(column: Column) -> str:
    return f"`{column[:LONGEST_COLUMN_NAMED]}`" if isinstance(column, str) else f"number {column}"


def _shown(names: Sequence[str]) -> str:
    shown = [f"`{name[:LONGEST_COLUMN_NAMED]}`" for name in names[:MOST_COLUMNS_NAMED]]
    return ", ".join(shown) + (", …" if len(names) > len(shown) else "")


def _at(field: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"`{field}` {what}", extras={"field": field})
