"""Lists as bytes, before they are read: how long they are, how packed, what kind, what columns.

A list is looked at as far as it takes to tell whether it fits into one call. Of a stream, such as
standard input, what was looked at is held; a file is opened again.
"""

import csv
import stat
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from conveyor.cli.lists import STDIN, name_of
from conveyor.domain.submission import Limits
from conveyor.domain.task_list.decompress import Compression, ListDecompressor, detect_compression
from conveyor.domain.task_list.spec import ListFormat
from conveyor.errors import ConveyorError, RefusedToStart

CHUNK = 256 * 1024
MOST_LINES = Limits().inline_tasks + 1  # CSV has a line more than tasks
# A call has more bytes than its list: there is JSON around every task.
MOST_BYTES = Limits().inline_bytes - 8 * 1024 * 1024
PACKED = {".gz", ".gzip", ".zst", ".zstd"}
KINDS = {".csv": ListFormat.CSV, ".ndjson": ListFormat.NDJSON, ".jsonl": ListFormat.NDJSON}


class Source:
    """A file, or a stream that can be read once; its bytes as they are, packed or not."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.name = name_of(file)
        self.length: int | None = None  # of a stream nobody knows
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
    def is_packed(self) -> bool:
        by_name = Path(self.file).suffix.lower() in PACKED
        return by_name or detect_compression(self.beginning) is not Compression.NONE

    @property
    def kind(self) -> ListFormat:
        """By its name; but where the first line is an object they all are, as `-` has no name."""
        path = Path(self.file)
        inner = Path(path.stem) if path.suffix.lower() in PACKED else path
        if found := KINDS.get(inner.suffix.lower()):
            return found
        return ListFormat.NDJSON if self.first_text().lstrip().startswith("{") else ListFormat.TXT

    def fits_a_call(self) -> bool:
        """Whether it is short enough to be handed in by one call. May look at all that a call has."""
        if self.length is not None and self.length > MOST_BYTES:
            return False
        lines = size = 0
        for chunk in self._looked_at():
            lines, size = lines + chunk.count(b"\n"), size + len(chunk)
            if lines > MOST_LINES or size > MOST_BYTES:
                return False
        return True

    def chunks(self) -> Iterator[bytes]:
        """The whole list from its start; of a stream once."""
        while self._held:
            yield self._held.popleft()
        yield from self._fresh()

    def held(self) -> bytes | None:
        """What is held of a stream, all of it once it was found to fit; of a file nothing."""
        return None if self.is_repeatable else b"".join(self._held)

    def columns(self, delimiter: str) -> list[str] | None:
        """What the first line of CSV names; None where that cannot be told from its beginning."""
        first, _, _ = self.first_text().partition("\n")
        try:
            [names] = csv.reader([first.rstrip("\r")], delimiter=delimiter, strict=True)
        except (csv.Error, ValueError):  # a name in quotes may run over the line's end
            return None
        return [name.strip() for name in names]

    def first_text(self) -> str:
        """The beginning, unpacked. What cannot be unpacked or read is for the service to tell."""
        unpacked, unpacking = b"", ListDecompressor()
        with suppress(ConveyorError):  # it is cut short, if nothing else
            for piece in chain(unpacking.decompress(self.beginning), unpacking.finish()):
                unpacked += piece
                if len(unpacked) > CHUNK:
                    break
        return unpacked.decode("utf-8-sig", errors="replace")

    def _looked_at(self) -> Iterator[bytes]:
        """From the start; what comes of a stream is held."""
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


def _read(content: BinaryIO) -> Iterator[bytes]:
    while chunk := content.read(CHUNK):
        yield chunk
