"""How much the steps take on at once. Tests choose small sizes, so that ten rows are many."""

from dataclasses import dataclass

from conveyor.domain.task_list.decompress import ANY_RATIO
from conveyor.domain.task_list.reader import LIMITS
from conveyor.domain.task_list.rows import ReaderLimits

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    chunk_rows: int = 2_000  # written, copied or removed between two watermarks
    reader: ReaderLimits = LIMITS  # of file inputs
    small_file_bytes: int = 4 * MIB  # a file up to here is read before its submit is answered
    # Read of a larger one, to refuse at once what is wrong as a whole: a bomb shows by then.
    probed_file_bytes: int = 4 * MIB + ANY_RATIO


DEFAULT_SIZES = Sizes()
