"""How a caller's list is read, and how its bad lines are told."""

import math
from collections.abc import Iterator

import msgspec

from conveyor.domain.ids import JobId, RunId
from conveyor.domain.list_lines import ListLimits
from conveyor.domain.list_packing import ListUnpacking
from conveyor.domain.list_rows import LineError, Position
from conveyor.domain.listing import BEGINNING, ListReader, Piece
from conveyor.domain.params import Params
from conveyor.domain.pinned import PinnedList
from conveyor.domain.submission import Limits
from conveyor.errors import IllegalMove, TooLarge

LIMITS = ListLimits()
MOST_REPORTED = 100_000  # bad lines of a list that are told one by one; all are counted
BLANK_SHARE = 10  # blank lines and comments may be a tenth of the rows that a list may have,
BLANK_PER_ROW = 10  # and ten for each row that it has


class LongList(Exception):
    """More has been unpacked than was to be looked at, and there is more."""


class PinnedReader:
    """Takes a caller's list as it was sent, from a position on, and gives its pieces.

    What to read for it begins at `offset`: a packed list has to be read from its start.
    """

    def __init__(
        self,
        pinned: PinnedList,
        params: Params,
        position: Position = BEGINNING,
        *,
        task_limits: Limits,
        most_rows: int,
        enough: float = math.inf,
    ) -> None:
        if pinned.spec is None:
            raise IllegalMove(f"{pinned.blob} is not read by a spec")
        is_entered = not pinned.packed and position.offset > 0
        self.offset = position.offset if is_entered else 0
        self._unpacking = (
            None if is_entered else ListUnpacking(pinned.encodings, offset=position.offset)
        )
        self._reader = ListReader(
            pinned.spec, params, position, limits=LIMITS, task_limits=task_limits
        )
        self._most_rows = most_rows
        self._left = enough  # unpacked bytes to be looked at

    def feed(self, chunk: bytes) -> Iterator[Piece]:
        """The pieces that are whole with these bytes. Take all of them before giving more.

        Raises `InvalidArgument` or `TooLarge` when the list as a whole is at fault, and `LongList`
        when so much was `enough`.
        """
        for part in self._unpacking.pieces(chunk) if self._unpacking else (chunk,):
            yield from self._counted(self._reader.feed(part))
            self._left -= len(part)
            if self._left < 0:
                raise LongList

    def finish(self) -> Iterator[Piece]:
        """What is left at the end; raises as `feed` does."""
        for part in self._unpacking.finish() if self._unpacking else ():
            yield from self._counted(self._reader.feed(part))
        yield from self._counted(self._reader.finish())

    def _counted(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            if piece.read.ordinal > self._most_rows:
                raise TooLarge(f"The list has more than {self._most_rows} rows")
            if piece.read.blank > most_blank(piece.read.ordinal, self._most_rows):
                raise TooLarge(
                    f"The list has {piece.read.blank} blank lines and comments, and "
                    f"{piece.read.ordinal} rows, up to line {piece.read.line - 1}; remove some of "
                    "those lines and submit it again"
                )
            yield piece


def most_blank(rows: int, most_rows: int) -> int:
    """Lines that are no part of a row, of a list of so many rows: reading them costs time too."""
    return most_rows // BLANK_SHARE + rows * BLANK_PER_ROW


def reports_of(job_id: JobId, run_id: RunId) -> str:
    """Where the bad lines of a run's list are told, a blob for each piece that has some."""
    return f"reports/{job_id}/{run_id}/"


def report_key(job_id: JobId, run_id: RunId, piece: Piece) -> str:
    """A piece has the same key whoever reads it, and keys are in the order of the list."""
    return f"{reports_of(job_id, run_id)}{piece.read.offset:016x}.ndjson"


def report(errors: list[LineError], told: int) -> bytes:
    """As many of the bad lines as are still to be told, one to a line."""
    return msgspec.json.Encoder().encode_lines(errors[: max(0, MOST_REPORTED - told)])
