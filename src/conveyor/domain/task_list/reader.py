"""Readers of task lists of any length: bytes in, chunks of checked tasks out, in bounded memory.

Reading is resumable. Every chunk has the position after it, and a reader that starts there returns
exactly the chunks that would have followed. For this, chunks must depend on the list alone, never
on how its bytes arrived. So a process that resumes after a crash writes the same rows with the same
indexes, and the same error reports under the same keys, which changes nothing.
"""

import math
from collections.abc import Iterator, Sequence

import msgspec

from conveyor.domain.ids import JobId, RunId
from conveyor.domain.params import Params
from conveyor.domain.submission import Limits, sift
from conveyor.domain.task import TaskSpec
from conveyor.domain.task_list.decompress import ListDecompressor
from conveyor.domain.task_list.rows import (
    READ_LINES,
    CsvParser,
    LineBuffer,
    Position,
    ReaderLimits,
    RowCollector,
    RowError,
)
from conveyor.domain.task_list.spec import ListFormat, ListSpec, SourceList
from conveyor.errors import IllegalMove, InvalidArgument, TooLarge

MOST_REPORTED = 100_000  # bad rows of a list that are reported one by one; all are counted
# Blank lines and comments take time too, and would make a list of no rows endless. A list may have a
# tenth as many of them as it may have rows, plus ten for each row that it has.
BLANK_SHARE = 10
BLANK_PER_ROW = 10
UTF16 = (b"\xff\xfe", b"\xfe\xff")
START = Position()
LIMITS = ReaderLimits()
TASK_LIMITS = Limits()


class ListChunk(msgspec.Struct, frozen=True):
    """Rows of a list: tasks with their ordinals, errors for the other rows, and the next position.

    A chunk of blank lines has neither, and only states how far the reader got.
    """

    tasks: list[tuple[int, TaskSpec]]
    errors: list[RowError]
    position: Position


class ListReader:
    """Turns a list's decompressed bytes, from a position on, into chunks.

    It holds one chunk in memory, and as much again for a row that continues beyond it. Tasks are
    checked as those of a submit, with the parameters of their job.
    """

    def __init__(
        self,
        spec: ListSpec,
        params: Params,
        position: Position = START,
        *,
        limits: ReaderLimits = LIMITS,
        task_limits: Limits = TASK_LIMITS,
    ) -> None:
        self.position = position
        self._spec = spec
        self._params = params
        self._task_limits = task_limits
        self._buffer = LineBuffer(limits)

    def feed(self, content: bytes) -> Iterator[ListChunk]:
        """The chunks that these bytes complete. Exhaust it before the next call.

        Raises `InvalidArgument` when not single rows but the whole list is at fault.
        """
        step = self._buffer.limits.split_bytes
        for at in range(0, len(content), step):
            if self._buffer.add(content[at : at + step]):
                yield from self._chunks(is_last=False)

    def finish(self) -> Iterator[ListChunk]:
        """What is left at the end of the list; raises as `feed` does."""
        self._buffer.finish()
        yield from self._chunks(is_last=True)
        if self._spec.header and self.position.columns is None:
            raise InvalidArgument("The list must begin with its header, and is empty")

    def _chunks(self, *, is_last: bool) -> Iterator[ListChunk]:
        while count := self._buffer.chunk() or (is_last and len(self._buffer.lines)):
            chunk = self._chunk(count, is_last=is_last)
            if chunk is None:
                return
            yield chunk

    def _chunk(self, count: int, *, is_last: bool) -> ListChunk | None:
        if self.position.line == 1:
            self._check_beginning(self._buffer.lines[0])
        rows = RowCollector(self._buffer, self.position)
        if self._spec.format is ListFormat.CSV:
            parser = CsvParser(rows, self._buffer, self._spec, self.position)
            if not parser.read(count, is_last=is_last):
                return None
            self._move_on(rows, parser.used, parser)
        else:
            READ_LINES[self._spec.format](rows, count)
            self._move_on(rows, count)
        return self._checked(rows)

    def _check_beginning(self, line: bytes) -> None:
        if line.startswith(UTF16):
            raise InvalidArgument("The list must be text in UTF-8, got UTF-16")
        is_json = self._spec.format is ListFormat.NDJSON
        if is_json and line.lstrip(b"\xef\xbb\xbf \t\r")[:1] == b"[":
            raise InvalidArgument("The list must have one task a line (NDJSON), got a JSON array")

    def _move_on(self, rows: RowCollector, used: int, parser: CsvParser | None = None) -> None:
        self.position = Position(
            offset=self.position.offset + self._buffer.drop(used),
            line=self.position.line + used,
            ordinal=rows.ordinal,
            columns=parser.columns if parser and self._spec.header else None,
            single_line_until=parser.single_line_until if parser else 0,
            blank_lines=rows.blank_lines,
        )

    def _checked(self, rows: RowCollector) -> ListChunk:
        tasks, bad = sift(rows.tasks, self._params, self._task_limits)
        first = self.position.ordinal - len(rows.begins)
        errors = rows.errors + [
            RowError(rows.begins[one.index - first], one.index, one.reason, one.value)
            for one in bad
        ]
        return ListChunk(tasks, sorted(errors, key=lambda error: error.ordinal), self.position)


class ReadEnough(Exception):
    """The reader has read `most_bytes`, and the list is longer."""


class SourceListReader:
    """Turns a file input, as it was uploaded, into chunks, from a position on.

    The bytes to feed begin at `offset`, because a compressed list must be read from its start.
    """

    def __init__(
        self,
        source: SourceList,
        params: Params,
        position: Position = START,
        *,
        limits: ReaderLimits = LIMITS,
        task_limits: Limits,
        most_bytes: float = math.inf,
    ) -> None:
        if source.spec is None:
            raise IllegalMove(f"{source.blob} holds tasks in stored form")
        is_entered = not source.compressed and position.offset > 0
        self.offset = position.offset if is_entered else 0
        self._decompressor = (
            None if is_entered else ListDecompressor(source.encodings, offset=position.offset)
        )
        self._reader = ListReader(
            source.spec, params, position, limits=limits, task_limits=task_limits
        )
        self._most_rows = task_limits.list_rows
        self._bytes_left = most_bytes  # decompressed

    def feed(self, content: bytes) -> Iterator[ListChunk]:
        """The chunks that these bytes complete. Exhaust it before the next call.

        Raises `InvalidArgument` or `TooLarge` when the list as a whole is at fault, and
        `ReadEnough` after `most_bytes`.
        """
        for part in self._decompressor.decompress(content) if self._decompressor else (content,):
            yield from self._bounded(self._reader.feed(part))
            self._bytes_left -= len(part)
            if self._bytes_left < 0:
                raise ReadEnough

    def finish(self) -> Iterator[ListChunk]:
        """What is left at the end; raises as `feed` does."""
        for part in self._decompressor.finish() if self._decompressor else ():
            yield from self._bounded(self._reader.feed(part))
        yield from self._bounded(self._reader.finish())

    def _bounded(self, chunks: Iterator[ListChunk]) -> Iterator[ListChunk]:
        for chunk in chunks:
            rows, blank = chunk.position.ordinal, chunk.position.blank_lines
            if rows > self._most_rows:
                raise TooLarge(f"The list must have at most {self._most_rows} rows, got more")
            if blank > most_blank_lines(rows, self._most_rows):
                raise TooLarge(
                    f"The list has {blank} blank lines and comments and {rows} rows up to line "
                    f"{chunk.position.line - 1}; remove some of those lines and submit it again"
                )
            yield chunk


def most_blank_lines(rows: int, most_rows: int) -> int:
    """Blank lines and comments that a list may have when it has `rows` rows."""
    return most_rows // BLANK_SHARE + rows * BLANK_PER_ROW


def invalid_rows(errors: Sequence[RowError]) -> InvalidArgument:
    """One error that names all bad rows of a list."""
    first = errors[0]
    return InvalidArgument(
        f"{len(errors)} rows of the list cannot be accepted; the first is on line {first.line}: "
        f"{first.reason}. Nothing was created.",
        extras={"invalid_tasks": [_named(error) for error in errors]},
    )


def _named(error: RowError) -> dict[str, object]:
    named = {"index": error.ordinal, "line": error.line, "reason": error.reason}
    return named if error.value is None else {**named, "value": error.value}


def error_reports(job_id: JobId, run_id: RunId) -> str:
    """The prefix of a run's error reports: a blob for each chunk that has bad rows."""
    return f"reports/{job_id}/{run_id}/"


def error_report_key(job_id: JobId, run_id: RunId, chunk: ListChunk) -> str:
    """The key of a chunk's report: every process makes the same, and keys sort as the list does."""
    return f"{error_reports(job_id, run_id)}{chunk.position.offset:016x}.ndjson"


def error_report(errors: list[RowError], reported: int) -> bytes:
    """The bad rows as lines of JSON, as many as may still be reported."""
    return msgspec.json.Encoder().encode_lines(errors[: max(0, MOST_REPORTED - reported)])
