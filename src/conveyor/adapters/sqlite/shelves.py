"""The short names runs have in the task tables."""

from collections.abc import Callable
from functools import cache, partial

import apsw

from conveyor.domain.ids import RunId

FIND = "SELECT no FROM shelf WHERE run_id = ?"
MOST_KNOWN = 100_000


def find_shelf(connection: apsw.Connection, run_id: RunId) -> int | None:
    row = connection.execute(FIND, (run_id,)).fetchone()
    return row[0] if row else None


def finder(connection: apsw.Connection) -> Callable[[RunId], int | None]:
    """Shelves by run, each looked up once in a transaction."""
    return cache(partial(find_shelf, connection))


def make_shelf(connection: apsw.Connection, run_id: RunId) -> int:
    """The run's shelf, made if it has none."""
    known = find_shelf(connection, run_id)
    if known is not None:
        return known
    connection.execute("INSERT INTO shelf (run_id) VALUES (?)", (run_id,))
    return connection.last_insert_rowid()


class Shelves:
    """Shelf numbers that readers have seen. A number never changes and is never used again.

    For readers only: what a writer finds may yet be undone with its transaction.
    """

    def __init__(self) -> None:
        self._known: dict[RunId, int] = {}

    def find(self, connection: apsw.Connection, run_id: RunId) -> int | None:
        known = self._known.get(run_id)
        if known is None and (known := find_shelf(connection, run_id)) is not None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[run_id] = known
        return known
