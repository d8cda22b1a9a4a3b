"""Pagination: cursors and limits of listings. A cursor is opaque to callers."""

from conveyor.domain.api_key import CALLER
from conveyor.domain.ids import TaskId, is_ulid, task_index
from conveyor.domain.json_bodies import field_error
from conveyor.errors import InvalidArgument

DEFAULT_LIMIT = 50
MOST_LISTED = 100
DEFAULT_PAGE = 100
LARGEST_PAGE = 1000


def after_id(cursor: str | None) -> str | None:
    """The ULID after which a listing of jobs or runs continues; None for the first page."""
    if not cursor:
        return None
    if not is_ulid(cursor):
        raise _odd_cursor(cursor)
    return cursor


def after_caller(cursor: str | None) -> str:
    """The name after which a listing of callers continues; "" for the first page."""
    if cursor and not CALLER.fullmatch(cursor):
        raise _odd_cursor(cursor)
    return cursor or ""


def _odd_cursor(cursor: str) -> InvalidArgument:
    what = f"must be the `next_cursor` of an earlier page, got {cursor[:40]!r}"
    return field_error("cursor", what)


def after_index(cursor: str | None) -> int:
    """The index after which a listing of results continues; -1 for the first page."""
    if not cursor:
        return -1
    index = task_index(cursor)
    if index is None:
        raise _odd_cursor(cursor)
    return index


def at_task(task_id: TaskId) -> str:
    """The cursor of the page after a task: the id of the task, in which its index comes first."""
    return task_id


def at_index(index: int) -> str:
    """The cursor of the page after an index, whether there is a task or not."""
    return f"{index:08x}-{0:024x}"


def limit(text: str | None, *, default: int, most: int) -> int:
    """The query parameter `limit`, checked."""
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        what = f"must be a whole number from 1 to {most}, got {text[:40]!r}"
        raise field_error("limit", what)
    return int(text)
