"""Run numbers: the task tables refer to a run by a short integer instead of its id."""

from collections.abc import Callable
from functools import cache, partial

import apsw

from conveyor.domain.ids import RunId

FIND = "SELECT no FROM run_no WHERE run_id = ?"
MOST_KNOWN = 100_000


def find_run_no(connection: apsw.Connection, run_id: RunId) -> int | None:
    row = connection.execute(FIND, (run_id,)).fetchone()
    return row[0] if row else None


def finder(connection: apsw.Connection) -> Callable[[RunId], int | None]:
    """A lookup of run numbers that asks the database once for each run."""
    return cache(partial(find_run_no, connection))


def make_run_no(connection: apsw.Connection, run_id: RunId) -> int:
    """The number of a run, assigned if it has none yet."""
    known = find_run_no(connection, run_id)
    if known is not None:
        return known
    connection.execute("INSERT INTO run_no (run_id) VALUES (?)", (run_id,))
    return connection.last_insert_rowid()


class RunNumbers:
    """A cache of the numbers that readers have seen. A number never changes and is never reused.

    For readers only: a number that a writer sees may still be rolled back.
    """

    def __init__(self) -> None:
        self._known: dict[RunId, int] = {}

    def find(self, connection: apsw.Connection, run_id: RunId) -> int | None:
        known = self._known.get(run_id)
        if known is None and (known := find_run_no(connection, run_id)) is not None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[run_id] = known
        return known
