"""How much a step does at once: `Sizes` bounds rows and bytes, `Turn` bounds time."""

from dataclasses import dataclass
from datetime import timedelta

from conveyor.domain.task_list.decompress import ANY_RATIO
from conveyor.domain.task_list.reader import LIMITS
from conveyor.domain.task_list.rows import ReaderLimits
from conveyor.ports.clock import Clock

MIB = 1024 * 1024
TURN = timedelta(seconds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of chunks and small files. Tests choose small ones, so that ten rows are many."""

    chunk_rows: int = 2_000  # written, copied or removed between two watermarks
    reader: ReaderLimits = LIMITS  # of file inputs
    small_file_bytes: int = 4 * MIB  # a file up to this size is read before its submit is answered
    # How much of a larger file is read then, to refuse at once what is wrong as a whole. A
    # decompression bomb is detected within this many bytes.
    probed_file_bytes: int = 4 * MIB + ANY_RATIO


DEFAULT_SIZES = Sizes()


class Turn:
    """The time for which one control message is handled before the next; endless without a clock."""

    def __init__(self, clock: Clock | None = None, lasting: timedelta = TURN) -> None:
        self._clock = clock
        self._lasting = lasting.total_seconds()
        self._began = clock.monotonic() if clock else 0.0
        self._until = self._began + self._lasting
        self._has_begun_work = False

    @property
    def is_over(self) -> bool:
        return self._clock is not None and self._clock.monotonic() >= self._until

    def begin(self) -> None:
        """Start the actual work, after finding the position to continue from.

        The turn then lasts at least as long as finding the position took. So over all turns
        together, seeking takes at most as long as working, however short turns are.
        """
        if self._clock and not self._has_begun_work:
            self._has_begun_work = True
            now = self._clock.monotonic()
            self._until = now + max(self._lasting, now - self._began)


ENDLESS = Turn()
