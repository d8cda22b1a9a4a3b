"""Lines of a list become rows: tasks as they were handed in, or the reason why there is none."""

import csv
from collections.abc import Callable, Iterator, Sequence

import msgspec

from conveyor.domain.list_lines import LineReason, Lines, Text, shown
from conveyor.domain.list_shape import ListSpec, Places
from conveyor.domain.list_spec import places, places_without_header
from conveyor.domain.submission import UNREADABLE, TaskInput, name_fault
from conveyor.errors import InvalidArgument

BOM = "\ufeff"
TASKS = msgspec.json.Decoder(TaskInput)


class Position(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a reader goes on: all it has to know of what lies before."""

    offset: int = 0  # bytes of the list, unpacked
    line: int = 1
    ordinal: int = 0
    places: Places | None = None  # of the columns, once a header told them
    flat_until: int = 0  # before this line a CSV row ends with its line
    blank: int = 0  # lines that are no part of a row: blank ones and comments


class LineError(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row that is no task: the line it begins on, and why."""

    line: int
    ordinal: int
    reason: str
    value: str | None = None


def invalid_rows(errors: Sequence[LineError]) -> InvalidArgument:
    """One error that names all rows of a list that are no tasks."""
    first = errors[0]
    return InvalidArgument(
        f"{len(errors)} rows of the list cannot be accepted; the first is on line {first.line}: "
        f"{first.reason}. Nothing was created.",
        extras={"invalid_tasks": [_named(error) for error in errors]},
    )


def _named(error: LineError) -> dict[str, object]:
    named = {"index": error.ordinal, "line": error.line, "reason": error.reason}
    return named if error.value is None else {**named, "value": error.value}


class Rows:
    """What was gathered of a piece. Each row has an ordinal, the bad ones too."""

    def __init__(self, lines: Lines, position: Position) -> None:
        self.tasks: list[tuple[int, TaskInput]] = []
        self.errors: list[LineError] = []
        self.begins: list[int] = []  # the line of each row, by its ordinal less the first
        self.blank = position.blank
        self._lines = lines
        self._line, self._ordinal = position.line, position.ordinal

    @property
    def ordinal(self) -> int:
        """Of the next row."""
        return self._ordinal + len(self.begins)

    def text(self, end: int) -> Text:
        """The first lines as text; the mark that some programs put before it all is no part of it."""
        text = self._lines.text(0, end)
        if self._line == 1:
            text.lines[0] = text.lines[0].removeprefix(BOM)
        return text

    def add(self, place: int, task: TaskInput) -> None:
        begins = self.begins
        self.tasks.append((self._ordinal + len(begins), task))
        begins.append(self._line + place)

    def refuse(self, place: int, reason: str) -> None:
        """Refuse a line for what it is as a whole."""
        self.refuse_for(place, reason, shown(self._lines.ready[place]))

    def refuse_for(self, place: int, reason: str, value: str | None) -> None:
        line = self._line + place
        self.errors.append(LineError(line, self.ordinal, reason, value))
        self.begins.append(line)


def read_txt(rows: Rows, count: int) -> None:
    """A URL a line; blank lines and those that begin with # are none."""
    text = rows.text(count)
    for place, line in enumerate(text.lines):
        url = line.strip()
        if not url:
            if place in text.faults:
                rows.refuse(place, text.faults[place])
            else:
                rows.blank += 1
        elif "\r" in url:
            # A URL is read without the line ends in it: two would become one.
            rows.refuse(place, LineReason.STRAY_RETURN)
        elif url[0] == "#":
            rows.blank += 1
        else:
            rows.add(place, TaskInput(url))


def read_ndjson(rows: Rows, count: int) -> None:
    """A task a line, as in the `tasks` of a submit; blank lines are none."""
    text = rows.text(count)
    for place, line in enumerate(text.lines):
        try:
            task = TASKS.decode(line)
        except msgspec.ValidationError as error:
            rows.refuse_for(place, *name_fault(str(error)))
        except UNREADABLE:
            if place in text.faults or (line and not line.isspace()):
                rows.refuse(place, text.faults.get(place, LineReason.MALFORMED_JSON))
            else:
                rows.blank += 1
        else:
            rows.add(place, task)


class CsvRows:
    """Rows of CSV, which may run over line ends inside quotes.

    A quote that is never closed would swallow what follows. So of a row that went wrong only the
    first line is refused. What it had swallowed is read again, but this time every row ends with
    its line, so that the work stays in proportion to the list, whatever it holds.
    """

    def __init__(self, rows: Rows, lines: Lines, spec: ListSpec, position: Position) -> None:
        self.used = 0  # lines
        self.places = position.places if spec.header else places_without_header(spec)
        self.flat_until = position.flat_until
        self._rows = rows
        self._lines = lines
        self._most_bytes = lines.limits.line_bytes
        self._spec = spec
        self._first = position.line
        self._count = 0
        self._text = Text([], {})
        self._is_dry = False  # the parser asked for more lines than it was given

    def read(self, count: int, *, is_last: bool) -> bool:
        """Read the rows that begin in so many lines.

        False when the last of them ends in a line that has not come yet. Then nothing here
        counts, and it is all to be read once more when there are more lines.
        """
        self._count = count
        self._text = self._rows.text(count)
        while self.used < count:
            if self.used in self._text.faults:
                self._refuse(self._text.faults[self.used])
            elif not self._go_on(is_last=is_last):
                return False
        return True

    def _go_on(self, *, is_last: bool) -> bool:
        """Read rows up to one that goes wrong."""
        start = self.used
        is_flat = self._first + start < self.flat_until
        rows = csv.reader(
            self._given(start, start + 1 if is_flat else None),
            delimiter=self._spec.delimiter,
            quotechar=self._spec.quote,
            strict=True,
        )
        try:
            for row in rows:
                end = start + rows.line_num
                if end - self.used > 1 and self._size(self.used, end) > self._most_bytes:
                    self._give_up(end)
                    return True
                self._take(row, end)
                if end >= self._count:
                    break
        except csv.Error as error:
            end = start + rows.line_num
            if not self._is_dry:
                self._refuse_malformed(str(error), end)
            elif is_flat or end in self._text.faults:
                self._give_up(end)
            elif not self._is_given_more():
                if not (is_last or self._size(self._count, end) > self._most_bytes):
                    return False
                self._give_up(end)
        return True

    def _given(self, start: int, end: int | None) -> Iterator[str]:
        self._is_dry = False
        lines, faults = self._text.lines, self._text.faults
        for place in range(start, len(lines) if end is None else end):
            if place in faults:
                break
            yield lines[place] + "\n"
        self._is_dry = True

    def _is_given_more(self) -> bool:
        """Let the last row have the lines after its piece, within what a row may have."""
        had = end = len(self._text.lines)
        size = self._size(self._count, end)
        while end < len(self._lines.ready) and size <= self._most_bytes:
            size += len(self._lines.ready[end]) + 1
            end += 1
        if end > had:
            self._text = self._rows.text(end)
        return end > had

    def _size(self, start: int, end: int) -> int:
        return sum(map(len, self._lines.ready[start:end])) + end - start

    def _take(self, row: list[str], end: int) -> None:
        place, self.used = self.used, end
        if not row or (len(row) == 1 and self._text.lines[place].isspace()):
            self._rows.blank += end - place
            return
        if self.places is None:
            self.places = places(self._spec, row)
            return
        url_at, id_at = self.places
        try:
            task = TaskInput(row[url_at], None if id_at is None else row[id_at].strip() or None)
        except IndexError:
            self._rows.refuse(place, LineReason.MISSING_COLUMN)
        else:
            self._rows.add(place, task)

    def _refuse_malformed(self, message: str, end: int) -> None:
        if end - self.used > 1:
            self._give_up(end - 1)
        elif message.startswith("new-line"):
            self._refuse(LineReason.STRAY_RETURN)
        elif message.startswith("field larger"):
            self._refuse(LineReason.FIELD_TOO_LONG)
        else:
            self._refuse(LineReason.STRAY_QUOTE)

    def _give_up(self, end: int) -> None:
        """The row is at fault in its first line, and not to be trusted up to its last."""
        self.flat_until = max(self.flat_until, self._first + end)
        self._refuse(LineReason.UNTERMINATED_QUOTE)

    def _refuse(self, reason: LineReason) -> None:
        if self.places is None:
            raise InvalidArgument(f"The header of the list cannot be read: {reason}")
        self._rows.refuse(self.used, reason)
        self.used += 1


READ_LINES: dict[str, Callable[[Rows, int], None]] = {"txt": read_txt, "ndjson": read_ndjson}
