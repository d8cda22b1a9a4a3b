"""Rows of a task list: bytes become lines, and lines become tasks or row errors.

Everything here works on one chunk of lines, which `LineBuffer` holds. `reader.py` drives it.
"""

import csv
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import accumulate

import msgspec

from conveyor.domain.json_bodies import UNREADABLE
from conveyor.domain.submission import TaskInput, task_fault
from conveyor.domain.task_list.spec import ColumnIndexes, ListSpec, column_indexes
from conveyor.errors import InvalidArgument

LONGEST_SHOWN = 200  # characters of a bad line that are reported
HEAD = 4 * LONGEST_SHOWN  # bytes kept of a line that is too long
SPLIT_BYTES = 64 * 1024  # split into lines at once
BOM = "\ufeff"
TASKS = msgspec.json.Decoder(TaskInput)


class ReaderLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a list is held at once. To resume a list, a reader must have the same limits."""

    line_bytes: int = 1024 * 1024
    chunk_bytes: int = 1024 * 1024
    chunk_lines: int = 2_000

    @property
    def split_bytes(self) -> int:
        """Bytes that are split at once: too few to contain a whole line that is too long."""
        return min(SPLIT_BYTES, self.line_bytes)


class RowReason(StrEnum):
    """Why a row of a list is not a task, in addition to `submission.Reason`."""

    LINE_TOO_LONG = "line_too_long"
    INVALID_UTF8 = "invalid_utf8"
    NUL_BYTE = "nul_byte"
    STRAY_RETURN = "stray_return"
    MALFORMED_JSON = "malformed_json"
    MISSING_COLUMN = "missing_column"
    UNTERMINATED_QUOTE = "unterminated_quote"
    STRAY_QUOTE = "stray_quote"
    FIELD_TOO_LONG = "field_too_long"


class Position(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a reader resumes: everything it must know about the part that was read."""

    offset: int = 0  # bytes of the list, decompressed
    line: int = 1
    ordinal: int = 0
    columns: ColumnIndexes | None = None  # once the header was read
    single_line_until: int = 0  # before this line, a CSV row ends with its line
    blank_lines: int = 0  # that are not part of a row; comments count as blank


class RowError(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row that is not a task: its first line, its ordinal, and the reason."""

    line: int
    ordinal: int
    reason: str
    value: str | None = None


class DecodedLines(msgspec.Struct, frozen=True):
    """Lines as text. A line that cannot be decoded is empty, and its fault is stored by index."""

    lines: list[str]
    faults: dict[int, RowReason]


class LineBuffer:
    """Complete lines that wait to be read. Of a line that is too long, only the head is kept."""

    def __init__(self, limits: ReaderLimits) -> None:
        self.limits = limits
        self.lines: list[bytes] = []
        self._held = 0  # bytes of `lines`, line ends included
        self._overlong: dict[int, int] = {}  # full length of lines that were cut, by their place
        self._parts: list[bytes] = []  # of the line that is still arriving
        self._size = 0  # bytes of those
        self._is_unended = False

    def add(self, content: bytes) -> bool:
        """Add at most `split_bytes`; return whether they end a line."""
        first, *others = content.split(b"\n")
        self._extend(first)
        if not others:
            return False
        self._end_line()
        *whole, rest = others
        self.lines += whole
        self._held += sum(map(len, whole)) + len(whole)
        self._extend(rest)
        return True

    def finish(self) -> None:
        """Record the end of the list: the last line may lack a line end."""
        if self._size:
            self._is_unended = True
            self._end_line()

    def chunk(self) -> int:
        """How many lines make the next chunk; 0 when there are not enough yet.

        The result depends on the bytes of the list alone, not on how they arrived: a reader that
        resumes after a chunk must cut the next chunks exactly as the first reader would have.
        """
        most, full_at = self.limits.chunk_lines, self.limits.chunk_bytes
        if self._held >= full_at:
            sizes = accumulate(len(line) + 1 for line in self.lines[:most])
            if full := next((n for n, size in enumerate(sizes, 1) if size >= full_at), 0):
                return full
        return most if len(self.lines) >= most else 0

    def decoded(self, end: int) -> DecodedLines:
        """The first lines as text, up to `end`."""
        lines = self.lines[:end]
        joined = b"\n".join(lines)
        # One decode for the whole chunk is several times faster than one for each line. Only a
        # chunk that has a bad line pays for finding it.
        if b"\0" not in joined and not self._overlong:
            try:
                return DecodedLines(joined.decode().split("\n"), {})
            except UnicodeDecodeError:
                pass
        return self._decoded_one_by_one(lines)

    def drop(self, count: int) -> int:
        """Remove lines that were read, and return how many bytes of the list they had."""
        gone = self.lines[:count]
        del self.lines[:count]
        held = sum(map(len, gone)) + count
        self._held -= held
        # Positions count the bytes of the list, so the parts that were not kept count too.
        for place, size in self._overlong.items():
            held += size - len(gone[place]) if place < count else 0
        self._overlong = {at - count: size for at, size in self._overlong.items() if at >= count}
        # The last line of a list may lack the line end that was counted for it.
        return held - (self._is_unended and not self.lines)

    def _decoded_one_by_one(self, lines: list[bytes]) -> DecodedLines:
        texts, faults = list[str](), dict[int, RowReason]()
        for place, line in enumerate(lines):
            text, fault = _decoded(line)
            if place in self._overlong:
                fault = RowReason.LINE_TOO_LONG
            if fault:
                faults[place] = fault
            texts.append("" if fault else text)
        return DecodedLines(texts, faults)

    def _extend(self, part: bytes) -> None:
        was, self._size = self._size, self._size + len(part)
        if self._size <= self.limits.line_bytes:
            self._parts.append(part)
        elif was <= self.limits.line_bytes:
            kept = min(HEAD, self.limits.line_bytes)
            self._parts = [b"".join((*self._parts, part))[:kept]]

    def _end_line(self) -> None:
        if self._size > self.limits.line_bytes:
            self._overlong[len(self.lines)] = self._size
        line = b"".join(self._parts)
        self.lines.append(line)
        self._held += len(line) + 1
        self._parts, self._size = [], 0


class RowCollector:
    """Collects the rows of a chunk. Every row has an ordinal, also a bad one."""

    def __init__(self, buffer: LineBuffer, position: Position) -> None:
        self.tasks: list[tuple[int, TaskInput]] = []
        self.errors: list[RowError] = []
        self.begins: list[int] = []  # the line of each row, by its ordinal less the first
        self.blank_lines = position.blank_lines
        self._buffer = buffer
        self._line, self._ordinal = position.line, position.ordinal

    @property
    def ordinal(self) -> int:
        """The ordinal of the next row."""
        return self._ordinal + len(self.begins)

    def decoded(self, end: int) -> DecodedLines:
        """The first `end` lines as text, without the byte order mark that some programs write."""
        decoded = self._buffer.decoded(end)
        if self._line == 1:
            decoded.lines[0] = decoded.lines[0].removeprefix(BOM)
        return decoded

    def add(self, place: int, task: TaskInput) -> None:
        begins = self.begins
        self.tasks.append((self._ordinal + len(begins), task))
        begins.append(self._line + place)

    def refuse_line(self, place: int, reason: str) -> None:
        """Report the row that begins on a line as bad, with the beginning of the line."""
        line = self._buffer.lines[place]
        shown = line[:HEAD].decode(errors="replace")[:LONGEST_SHOWN].rstrip("\r")
        self.refuse(place, reason, shown)

    def refuse(self, place: int, reason: str, value: str | None) -> None:
        line = self._line + place
        self.errors.append(RowError(line, self.ordinal, reason, value))
        self.begins.append(line)


def read_txt(rows: RowCollector, count: int) -> None:
    """One URL a line. Blank lines and lines that begin with # are not rows."""
    decoded = rows.decoded(count)
    for place, line in enumerate(decoded.lines):
        url = line.strip()
        if not url:
            if place in decoded.faults:
                rows.refuse_line(place, decoded.faults[place])
            else:
                rows.blank_lines += 1
        elif "\r" in url:
            # URL parsers drop line ends inside a URL: two URLs would silently become one.
            rows.refuse_line(place, RowReason.STRAY_RETURN)
        elif url[0] == "#":
            rows.blank_lines += 1
        else:
            rows.add(place, TaskInput(url))


def read_ndjson(rows: RowCollector, count: int) -> None:
    """One task a line, as in the `tasks` of a submit. Blank lines are not rows."""
    decoded = rows.decoded(count)
    for place, line in enumerate(decoded.lines):
        try:
            task = TASKS.decode(line)
        except msgspec.ValidationError as error:
            rows.refuse(place, *task_fault(str(error)))
        except UNREADABLE:
            if place in decoded.faults or (line and not line.isspace()):
                rows.refuse_line(place, decoded.faults.get(place, RowReason.MALFORMED_JSON))
            else:
                rows.blank_lines += 1
        else:
            rows.add(place, task)


READ_LINES: dict[str, Callable[[RowCollector, int], None]] = {
    "txt": read_txt,
    "ndjson": read_ndjson,
}


class CsvParser:
    """Parses rows of CSV, which may contain line ends inside quotes.

    Recovery from a bad row. A quote that is never closed makes all following lines part of its row,
    and so hides every good row among them. Therefore only the first line of a bad row is refused,
    and its other lines are parsed again. In that second pass each row must end with its line
    (`single_line_until`). Otherwise every further stray quote would capture the rest again, and a
    hostile list would take time that grows with the square of its length. So no line is parsed more
    than twice. The bound is part of the position, because those lines may belong to later chunks.
    """

    def __init__(
        self, rows: RowCollector, buffer: LineBuffer, spec: ListSpec, position: Position
    ) -> None:
        self.used = 0  # lines
        self.columns = position.columns if spec.header else column_indexes(spec, None)
        self.single_line_until = position.single_line_until
        self._rows = rows
        self._buffer = buffer
        self._most_bytes = buffer.limits.line_bytes
        self._spec = spec
        self._first_line = position.line
        self._count = 0
        self._decoded = DecodedLines([], {})
        self._is_exhausted = False  # the parser asked for more lines than it was given

    def read(self, count: int, *, is_last: bool) -> bool:
        """Read the rows that begin within `count` lines.

        False when the last row continues in a line that has not arrived. Then nothing read here
        counts, and the chunk is read again when more lines have arrived.
        """
        self._count = count
        self._decoded = self._rows.decoded(count)
        while self.used < count:
            if self.used in self._decoded.faults:
                self._refuse(self._decoded.faults[self.used])
            elif not self._parse(is_last=is_last):
                return False
        return True

    def _parse(self, *, is_last: bool) -> bool:
        """Parse rows up to one that goes wrong; False when more lines are needed."""
        start = self.used
        is_single = self._first_line + start < self.single_line_until
        parser = csv.reader(
            self._lines(start, start + 1 if is_single else None),
            delimiter=self._spec.delimiter,
            quotechar=self._spec.quote,
            strict=True,
        )
        try:
            for row in parser:
                end = start + parser.line_num
                if end - self.used > 1 and self._size(self.used, end) > self._most_bytes:
                    self._give_up(end)
                    return True
                self._take(row, end)
                if end >= self._count:
                    break
        except csv.Error as error:
            end = start + parser.line_num
            if not self._is_exhausted:
                self._refuse_malformed(str(error), end)
            elif is_single or end in self._decoded.faults:
                self._give_up(end)
            # The row is still inside quotes after the last line that the parser was given. It may
            # use lines after its chunk. If none have arrived, the reader must wait for them, unless
            # the list has ended or the row is already longer than the limit.
            elif not self._is_given_more():
                if not (is_last or self._size(self._count, end) > self._most_bytes):
                    return False
                self._give_up(end)
        return True

    def _lines(self, start: int, end: int | None) -> Iterator[str]:
        self._is_exhausted = False
        lines, faults = self._decoded.lines, self._decoded.faults
        for place in range(start, len(lines) if end is None else end):
            if place in faults:
                break
            yield lines[place] + "\n"
        self._is_exhausted = True

    def _is_given_more(self) -> bool:
        """Give the last row the lines after its chunk, up to the longest row that is allowed."""
        had = end = len(self._decoded.lines)
        size = self._size(self._count, end)
        while end < len(self._buffer.lines) and size <= self._most_bytes:
            size += len(self._buffer.lines[end]) + 1
            end += 1
        if end > had:
            self._decoded = self._rows.decoded(end)
        return end > had

    def _size(self, start: int, end: int) -> int:
        return sum(map(len, self._buffer.lines[start:end])) + end - start

    def _take(self, row: list[str], end: int) -> None:
        place, self.used = self.used, end
        if not row or (len(row) == 1 and self._decoded.lines[place].isspace()):
            self._rows.blank_lines += end - place
            return
        if self.columns is None:
            self.columns = column_indexes(self._spec, row)
            return
        url_at, id_at = self.columns
        try:
            task = TaskInput(row[url_at], None if id_at is None else row[id_at].strip() or None)
        except IndexError:
            self._rows.refuse_line(place, RowReason.MISSING_COLUMN)
        else:
            self._rows.add(place, task)

    def _refuse_malformed(self, message: str, end: int) -> None:
        """Refuse a row that the parser rejected. `csv` states the reason in its message only."""
        if end - self.used > 1:
            self._give_up(end - 1)
        elif message.startswith("new-line"):
            self._refuse(RowReason.STRAY_RETURN)
        elif message.startswith("field larger"):
            self._refuse(RowReason.FIELD_TOO_LONG)
        else:
            self._refuse(RowReason.STRAY_QUOTE)

    def _give_up(self, end: int) -> None:
        """Refuse the first line of a row, and parse its other lines again, one row a line."""
        self.single_line_until = max(self.single_line_until, self._first_line + end)
        self._refuse(RowReason.UNTERMINATED_QUOTE)

    def _refuse(self, reason: RowReason) -> None:
        if self.columns is None:
            raise InvalidArgument(f"The header of the list cannot be read: {reason}")
        self._rows.refuse_line(self.used, reason)
        self.used += 1


def _decoded(line: bytes) -> tuple[str, RowReason | None]:
    if b"\0" in line:
        return "", RowReason.NUL_BYTE
    try:
        return line.decode(), None
    except UnicodeDecodeError:
        return "", RowReason.INVALID_UTF8
