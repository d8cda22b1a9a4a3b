"""Task lists in files: lines of URLs, NDJSON with tasks, or CSV with a `url` column.

A `ListFile` is read as far as needed to tell whether the list fits into one call. What was read of
a stream, such as standard input, is held in memory; a file is opened again.
"""

import csv
import io
import stat
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO

import msgspec

from conveyor.cli.output import plain
from conveyor.client.uploads import COMPRESSED, KINDS, kind_by_name
from conveyor.errors import ConveyorError, RefusedToStart

STDIN = "-"
ENCODING = "utf-8-sig"  # spreadsheets put a byte order mark before their first column
LF = "\n"  # ends a line, also after CR: tools that cut a list count no other line ends
CHUNK = 256 * 1024
MOST_TASKS = 100_000  # of a call that submits
MOST_LINES = MOST_TASKS + 1  # CSV has a header
# A call of 64 MiB, less the JSON around every task.
MOST_BYTES = 56 * 1024 * 1024
MAGIC = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # of gzip and zstd
MOST_NAMED = 1_000  # bad lines
NOT_A_TASK = 'must be a task such as {"url": "https://…"}'
LONE_CR = "a carriage return stands alone: lines must end with LF or CRLF"
SKIP = "  to submit the others, repeat the command with --on-invalid skip"
SEE_COLUMNS = "  see --url-column, --id-column, --delimiter and --no-header"


class ListedTask(msgspec.Struct, frozen=True):
    """A task, and its line in the file."""

    line: int  # the first, of a row of CSV with line ends inside quotes
    task: dict[str, object]
    lines: int = 1


class BadLine(NamedTuple):
    """A line that is not a task, and why."""

    line: int
    why: str


class UnusableList(RefusedToStart):
    """The list has bad lines, or no column with URLs; `advice` is for a command that uploads."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what)
        self.advice = advice


def list_name(file: str) -> str:
    return "standard input" if file == STDIN else file


class ListFile:
    """A file, or a stream that can be read once; its bytes as they are, compressed or not."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.name = list_name(file)
        self.length: int | None = None  # unknown for a stream
        self._stream: BinaryIO | None = None
        self._held: deque[bytes] = deque()
        try:
            if file == STDIN:
                self._stream = sys.stdin.buffer
            elif not stat.S_ISREG((about := Path(file).stat()).st_mode):
                self._stream = Path(file).open("rb")  # noqa: SIM115 - a pipe: open to the end
            else:
                self.length = about.st_size
            self.beginning = next(self._looked_at(), b"")
        except OSError as error:
            raise RefusedToStart(f"{self.name}: {error.strerror}") from None

    @property
    def is_repeatable(self) -> bool:
        return self._stream is None

    @property
    def is_compressed(self) -> bool:
        return Path(self.file).suffix.lower() in COMPRESSED or self.beginning.startswith(MAGIC)

    @property
    def kind(self) -> str:
        """The format by the file's name, else NDJSON if the first line is an object."""
        if found := kind_by_name(Path(self.file)):
            return found
        return "ndjson" if self.first_text().lstrip().startswith("{") else "txt"

    def fits_a_call(self) -> bool:
        """Whether it is short enough for one call. May look at as much as a call takes."""
        if self.length is not None and self.length > MOST_BYTES:
            return False
        lines = size = 0
        for chunk in self._looked_at():
            lines, size = lines + chunk.count(b"\n"), size + len(chunk)
            if lines > MOST_LINES or size > MOST_BYTES:
                return False
        return True

    def stream(self) -> "_Rest":
        """The whole list from its start, for an upload. It can be called once."""
        return _Rest(self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        while self._held:
            yield self._held.popleft()
        yield from self._fresh()

    def held(self) -> bytes | None:
        """What is held of a stream: all of it, once it was found to fit. None for a file."""
        return None if self.is_repeatable else b"".join(self._held)

    def columns(self, delimiter: str) -> list[str] | None:
        """The names in the first line of CSV; None where its beginning does not show them."""
        first, _, _ = self.first_text().partition("\n")
        try:
            [names] = csv.reader([first.rstrip("\r")], delimiter=delimiter, strict=True)
        except (csv.Error, ValueError):  # a name in quotes may run over the line's end
            return None
        return [name.strip() for name in names]

    def first_text(self) -> str:
        """The beginning, decompressed. The service reports what cannot be decompressed or read."""
        text = _decompressed(self.beginning) if self.is_compressed else self.beginning
        return text.decode(ENCODING, errors="replace")

    def _looked_at(self) -> Iterator[bytes]:
        """The list from its start. What is read of a stream is held."""
        yield from list(self._held)
        for chunk in self._fresh():
            if self._stream:
                self._held.append(chunk)
            yield chunk

    def _fresh(self) -> Iterator[bytes]:
        if self._stream:
            yield from _read(self._stream)
            return
        with Path(self.file).open("rb") as content:
            yield from _read(content)


class _Rest(io.RawIOBase):
    """Chunks as a file that can be read once; a read gives one chunk."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks

    def readable(self) -> bool:
        return True

    def read(self, _size: int = -1) -> bytes:
        return next(self._chunks, b"")


def _read(content: BinaryIO) -> Iterator[bytes]:
    while chunk := content.read(CHUNK):
        yield chunk


def _decompressed(beginning: bytes) -> bytes:
    from conveyor.domain.task_list.decompress import ListDecompressor  # noqa: PLC0415 - for few lists only

    text, decompressor = b"", ListDecompressor()
    with suppress(ConveyorError):  # it is cut short, if nothing else
        for chunk in chain(decompressor.decompress(beginning), decompressor.finish()):
            text += chunk
            if len(text) > CHUNK:
                break
    return text


@contextmanager
def open_list(file: str, held: bytes | None = None) -> Iterator[Iterator[ListedTask]]:
    """The tasks of a file one by one, up to a bad line, which ends the command.

    All bad lines are named then: the rest of a file is read for them, but not of a pipe, which may
    have no end. `held` is the whole list, where it was read before.
    """
    name = list_name(file)
    try:
        with _opened(file, held) as source:
            has_end = held is not None or file != STDIN
            tasks = _tasks(source, name, Path(file).suffix.lower())
            yield _checked(tasks, name, has_end=has_end)
    except OSError as error:
        raise RefusedToStart(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RefusedToStart(f"{name}: must be text in UTF-8") from None


def _opened(file: str, held: bytes | None) -> TextIO:
    if held is not None:
        return io.TextIOWrapper(io.BytesIO(held), encoding=ENCODING, newline=LF)
    if file == STDIN:
        return io.TextIOWrapper(sys.stdin.buffer, encoding=ENCODING, newline=LF)
    return Path(file).open(encoding=ENCODING, newline=LF)


def _checked(
    lines: Iterator[ListedTask | BadLine], name: str, *, has_end: bool
) -> Iterator[ListedTask]:
    for one in lines:
        if isinstance(one, BadLine):
            raise _unusable(chain([one], lines if has_end else []), name)
        yield one


def _unusable(rest: Iterator[ListedTask | BadLine], name: str) -> UnusableList:
    bad = (one for one in rest if isinstance(one, BadLine))
    named = [plain(f"  {name}, line {one.line}: {one.why}") for one in islice(bad, MOST_NAMED)]
    count = len(named) + (more := sum(1 for _ in bad))
    head = f"{name}: {count:,} bad {'line' if count == 1 else 'lines'}"
    return UnusableList(
        "\n".join([head, *named, *([f"  and {more:,} more"] if more else [])]), SKIP
    )


def _tasks(source: TextIO, name: str, suffix: str) -> Iterator[ListedTask | BadLine]:
    if suffix == ".csv":
        return _of_csv(source, name)
    if KINDS.get(suffix) == "ndjson":
        return _of_ndjson(source)
    return _of_lines(source)


def _of_lines(source: TextIO) -> Iterator[ListedTask | BadLine]:
    """Lines of URLs, or NDJSON if the first line is an object: a pipe has no name to tell by."""
    first = list(islice(source, 1))
    lines = chain(first, source)
    if first and first[0].lstrip().startswith("{"):
        return _of_ndjson(lines)
    return (
        BadLine(number, LONE_CR) if "\r" in url else ListedTask(number, {"url": url})
        for number, line in enumerate(lines, 1)
        if (url := line.strip()) and not url.startswith("#")
    )


def _of_ndjson(lines: Iterable[str]) -> Iterator[ListedTask | BadLine]:
    return (_task(line, number) for number, line in enumerate(lines, 1) if line.strip())


def _task(line: str, number: int) -> ListedTask | BadLine:
    try:
        task: dict[str, object] = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):  # it is nested too deeply
        return BadLine(number, NOT_A_TASK)
    return ListedTask(number, task) if task.get("url") else BadLine(number, "must have a `url`")


def _of_csv(source: TextIO, name: str) -> Iterator[ListedTask | BadLine]:
    """The rows of CSV, which may contain line ends inside quotes; each has its first line."""
    # Strict: else a quote that is never closed would take the rows after it for its text.
    rows, line, advice = csv.reader(source, strict=True), 1, SEE_COLUMNS
    try:
        url_at, id_at = _columns(next(filter(None, rows), None), name)
        line, advice = rows.line_num + 1, SKIP
        for row in rows:
            if row:
                yield _listed(row, url_at, id_at, line, rows.line_num + 1 - line)
            line = rows.line_num + 1
    except csv.Error as error:
        why = str(error).replace("unexpected end of data", "a quote is never closed")
        if why.startswith("new-line character"):
            why = LONE_CR
        raise UnusableList(f"{name}, line {line}: {why}", advice) from None


def _columns(header: Iterable[str] | None, name: str) -> tuple[int, int | None]:
    """Where the URL and the external id are, by the names that the service looks for."""
    if header is None:
        raise RefusedToStart(f"{name}: is empty; its first line must name the columns")
    names = [column.strip() for column in header]
    for wanted in ("url", "external_id"):
        if names.count(wanted) > 1:
            what = f"{name}: more than one column is named `{wanted}`"
            raise UnusableList(what, SEE_COLUMNS)
    if "url" not in names:
        what = f"{name}: no column is named `url`, only {plain(', '.join(names))}"
        raise UnusableList(what, SEE_COLUMNS)
    return names.index("url"), names.index("external_id") if "external_id" in names else None


def _listed(
    row: list[str], url_at: int, id_at: int | None, line: int, lines: int
) -> ListedTask | BadLine:
    url = _cell(row, url_at)
    if not url:
        return BadLine(line, "the `url` must not be empty")
    task: dict[str, object] = {"url": url}
    if id_at is not None and (external_id := _cell(row, id_at)):
        task["external_id"] = external_id
    return ListedTask(line, task, lines)


def _cell(row: list[str], at: int) -> str:
    return row[at].strip() if at < len(row) else ""
