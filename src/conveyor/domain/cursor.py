"""Positions in a listing, as text that callers hand back unread."""

from conveyor.domain.ids import TaskId, is_ulid, task_index
from conveyor.errors import InvalidArgument

DEFAULT_LIMIT = 50
MOST_LISTED = 100
DEFAULT_PAGE = 100
LARGEST_PAGE = 1000


def after_id(cursor: str | None) -> str | None:
    """The ULID a listing of jobs or runs goes on from."""
    if not cursor:
        return None
    if not is_ulid(cursor):
        raise _odd_cursor(cursor)
    return cursor


def _odd_cursor(cursor: str) -> InvalidArgument:
    return InvalidArgument(
        f"`cursor` must be the `next_cursor` of an earlier page, got {cursor[:40]!r}",
        extras={"field": "cursor"},
    )


def after_index(cursor: str | None) -> int:
    """The index a listing of results goes on from; before the first: -1."""
    if not cursor:
        return -1
    index = task_index(cursor)
    if index is None:
        raise _odd_cursor(cursor)
    return index


def at_task(task_id: TaskId) -> str:
    """The cursor that goes on after a task: its id, which sorts as tasks do."""
    return task_id


def limit(text: str | None, *, default: int, most: int) -> int:
    """How many to list, from a query parameter."""
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise InvalidArgument(
            f"`limit` must be a whole number from 1 to {most}, got {text[:40]!r}",
            extras={"field": "limit"},
        )
    return int(text)
