"""Staged lists as callers send them, read as a stream: rows in, checked tasks out.

A list of any length is read in pieces of bounded size. The pieces are the same however its bytes
are cut into chunks, and whoever has the position after one goes on with the next.
"""

from collections.abc import Iterable, Iterator

import msgspec

from conveyor.domain.list_lines import Lines, ListLimits
from conveyor.domain.list_rows import READ_LINES, CsvRows, LineError, Position, Rows
from conveyor.domain.list_shape import ListKind, ListSpec
from conveyor.domain.params import Params
from conveyor.domain.submission import Limits, sift
from conveyor.domain.task import TaskSpec
from conveyor.errors import InvalidArgument

UTF16 = (b"\xff\xfe", b"\xfe\xff")
BEGINNING = Position()
LIMITS = ListLimits()
TASK_LIMITS = Limits()


class Piece(msgspec.Struct, frozen=True):
    """Rows of a list: tasks under their ordinals, errors for the others, and where to go on.

    Where all lines were blank it holds neither, and only says how far the reader got.
    """

    tasks: list[tuple[int, TaskSpec]]
    errors: list[LineError]
    read: Position


class ListReader:
    """Takes a list's unpacked bytes from a position on, and gives its pieces.

    It holds a piece, and as much again for a row that runs on beyond it. Tasks are judged as
    those of a submit are, with the parameters of their job.
    """

    def __init__(
        self,
        spec: ListSpec,
        params: Params,
        position: Position = BEGINNING,
        *,
        limits: ListLimits = LIMITS,
        task_limits: Limits = TASK_LIMITS,
    ) -> None:
        self.position = position
        self._spec = spec
        self._params = params
        self._task_limits = task_limits
        self._lines = Lines(limits)

    def feed(self, chunk: bytes) -> Iterator[Piece]:
        """The pieces that are whole with these bytes. Take all of them before giving more.

        Raises `InvalidArgument` when it is not some rows but the whole list that is at fault.
        """
        step = self._lines.limits.morsel
        for at in range(0, len(chunk), step):
            if self._lines.add(chunk[at : at + step]):
                yield from self._pieces(is_last=False)

    def finish(self) -> Iterator[Piece]:
        """What is left at the end of the list; raises as `feed` does."""
        self._lines.finish()
        yield from self._pieces(is_last=True)
        if self._spec.header and self.position.places is None:
            raise InvalidArgument("The list is empty: not even its header is there")

    def _pieces(self, *, is_last: bool) -> Iterator[Piece]:
        while count := self._lines.count() or (is_last and len(self._lines.ready)):
            piece = self._piece(count, is_last=is_last)
            if piece is None:
                return
            yield piece

    def _piece(self, count: int, *, is_last: bool) -> Piece | None:
        if self.position.line == 1:
            self._check_beginning(self._lines.ready[0])
        rows = Rows(self._lines, self.position)
        if self._spec.kind is ListKind.CSV:
            table = CsvRows(rows, self._lines, self._spec, self.position)
            if not table.read(count, is_last=is_last):
                return None
            self._go_to(rows, table.used, table)
        else:
            READ_LINES[self._spec.kind](rows, count)
            self._go_to(rows, count)
        return self._judged(rows)

    def _check_beginning(self, line: bytes) -> None:
        if line.startswith(UTF16):
            raise InvalidArgument("The list is text in UTF-16; it has to be UTF-8")
        if self._spec.kind is ListKind.NDJSON and line.lstrip(b"\xef\xbb\xbf \t\r")[:1] == b"[":
            raise InvalidArgument("The list is a JSON array; NDJSON has one task a line")

    def _go_to(self, rows: Rows, used: int, table: CsvRows | None = None) -> None:
        self.position = Position(
            offset=self.position.offset + self._lines.drop(used),
            line=self.position.line + used,
            ordinal=rows.ordinal,
            places=table.places if table and self._spec.header else None,
            flat_until=table.flat_until if table else 0,
            blank=rows.blank,
        )

    def _judged(self, rows: Rows) -> Piece:
        tasks, bad = sift(rows.tasks, self._params, self._task_limits)
        first = self.position.ordinal - len(rows.begins)
        errors = rows.errors + [
            LineError(rows.begins[one.index - first], one.index, one.reason, one.value)
            for one in bad
        ]
        return Piece(tasks, sorted(errors, key=_ordinal), self.position)


def read_list(
    chunks: Iterable[bytes],
    spec: ListSpec,
    params: Params,
    position: Position = BEGINNING,
    *,
    limits: ListLimits = LIMITS,
) -> Iterator[Piece]:
    """All pieces of a list whose chunks are at hand."""
    reader = ListReader(spec, params, position, limits=limits)
    for chunk in chunks:
        yield from reader.feed(chunk)
    yield from reader.finish()


def _ordinal(error: LineError) -> int:
    return error.ordinal
