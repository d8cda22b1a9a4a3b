"""Lists too long for a call: sent to a slot of the service as they are, then submitted by its id.

Nothing of a list is read here but its first line, and no more than a chunk of it is held.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping
from http.client import HTTPException

import msgspec
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from conveyor.cli.bars import Bar
from conveyor.cli.remote import Remote, Unreachable, read
from conveyor.cli.show import plain
from conveyor.cli.sources import Source
from conveyor.domain.task_list.spec import Column, ListFormat
from conveyor.errors import RefusedToStart

TIMES_SENT = 2
TAB = {"tab", "\\t"}


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """What was said about a list; what was not, is told by its name and its first line."""

    kind: ListFormat | None = None
    url_column: str | None = None
    id_column: str | None = None
    delimiter: str | None = None
    no_header: bool = False

    @property
    def is_given(self) -> bool:
        return self != NOTHING_SAID


NOTHING_SAID = Form()


class Upload(msgspec.Struct, frozen=True):
    url: str
    method: str = "PUT"
    headers: dict[str, str] = {}


class Slot(msgspec.Struct, frozen=True):
    file_input_id: str
    upload: Upload


class Broken(Exception):
    """The connection broke while the list was on its way."""


def upload(remote: Remote, source: Source, form: Form, *, quiet: bool) -> str:
    """Send a list to a slot; the slot's id. A file is sent once more when the connection breaks."""
    wanted = spec(source, form)
    times = TIMES_SENT if source.is_repeatable else 1
    for _ in range(times):
        slot = read(remote.post("job_inputs", body=wanted), Slot)
        try:
            with _Bar(source, hidden=quiet) as bar:
                _send(remote, slot.upload, source, bar.sent)
        except Broken as error:
            reason = str(error)
        else:
            return slot.file_input_id
    raise Unreachable(
        f"{source.name}: the upload broke off: {plain(reason)}\n"
        "  nothing was submitted; run the command again. A list packed by gzip or zstd is shorter "
        "on its way"
    )


def spec(source: Source, form: Form) -> dict[str, object]:
    """What the service is told about the list. A column that is not there is told at once."""
    kind = form.kind or source.kind
    if kind is ListFormat.CSV:
        return {"type": kind, "csv": _csv(source, form)}
    if form != Form(kind=form.kind):
        raise RefusedToStart(
            f"{source.name}: is taken for {kind}, and only CSV has columns; --type csv says it is"
        )
    return {"type": kind}


def _csv(source: Source, form: Form) -> dict[str, object]:
    delimiter = "\t" if form.delimiter in TAB else form.delimiter or ","
    if len(delimiter) != 1 or delimiter in '\r\n"':
        raise RefusedToStart("--delimiter is one character, or `tab`")
    if form.no_header:
        fields = {"url": _place("--url-column", form.url_column or "0")}
        if form.id_column is not None:
            fields["external_id"] = _place("--id-column", form.id_column)
        return {"header": False, "delimiter": delimiter, "fields": fields}
    return {"header": True, "delimiter": delimiter, "fields": _named(source, form, delimiter)}


def _place(option: str, text: str) -> Column:
    if not (text.isascii() and text.isdigit()):
        raise RefusedToStart(f"{option} with --no-header is the place of a column, from 0 on")
    return int(text)


def _named(source: Source, form: Form, delimiter: str) -> dict[str, Column]:
    """Columns by their names; an `external_id` is taken where there is one."""
    names = source.columns(delimiter)
    fields: dict[str, Column] = {"url": form.url_column or "url"}
    if form.id_column is not None or (names and "external_id" in names):
        fields["external_id"] = form.id_column or "external_id"
    missing = [name for name in fields.values() if names is not None and name not in names]
    if missing:
        raise RefusedToStart(
            f"{source.name}: no column is named `{missing[0]}`, only {plain(', '.join(names or []))}\n"
            "  see --url-column, --id-column, --delimiter and --no-header"
        )
    return fields


def _send(remote: Remote, to: Upload, source: Source, sent: Callable[[int], None]) -> None:
    headers: Mapping[str, str] = to.headers
    if source.length is not None:
        headers = {**headers, "Content-Length": str(source.length)}
    with contextlib.closing(_measured(source, sent)) as chunks:
        try:
            remote.send(to.method, to.url, chunks, headers)
        except (OSError, HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Broken(why) from None


def _measured(source: Source, sent: Callable[[int], None]) -> Generator[bytes, None, None]:
    """The bytes, counted; a file has as many as it had when its length was told."""
    length = 0
    try:
        for chunk in source.chunks():
            length += len(chunk)
            if source.length is not None and length > source.length:
                break
            yield chunk
            sent(len(chunk))
    except OSError as error:
        raise RefusedToStart(f"{source.name}: {error.strerror}; nothing was submitted") from None
    if source.length not in {None, length}:
        raise RefusedToStart(f"{source.name}: changed while it was sent; nothing was submitted")


class _Bar(Bar):
    """Bytes sent, their rate and the time left; of a stream there is no telling how many."""

    def __init__(self, source: Source, *, hidden: bool) -> None:
        left = () if source.length is None else (TextColumn("left:"), TimeRemainingColumn())
        super().__init__(
            TextColumn("uploading"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            *left,
            hidden=hidden,
        )
        self._sent = self.add_task("uploading", total=source.length)

    def sent(self, count: int) -> None:
        self.advance(self._sent, count)
