"""A job's list, kept unchanged for as long as the job."""

import msgspec

from conveyor.domain.ids import InputId
from conveyor.domain.list_shape import ListSpec


class PinnedList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where it is and what it is.

    Without a spec it holds tasks in stored form, and `count` says how many. With one it is a
    caller's, as it was sent: how many tasks it holds shows when it has been read.
    """

    blob: str
    count: int = 0
    spec: ListSpec | None = None
    encodings: tuple[str, ...] = ()
    packed: bool = False
    input_id: InputId | None = None
    strict: bool = False  # one bad line, and nothing of it is scraped
