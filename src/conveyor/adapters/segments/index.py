"""The index of the segments: a SQLite file that says which body is where, and so which are live.

| Invariant | Why |
|---|---|
| A body is in the index only after its record was synced | what the index leads to is there |
| `covered` is written in the transaction of the entries | after a power cut the index may lag: the records beyond `covered` are read again |
| A removal is synced before it is answered, and all earlier transactions with it | a removed body does not return |
| `covered - live` of a segment is what compaction would free; `unerased` is the part still readable | both survive a restart |
"""

import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import msgspec

from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.errors import RefusedToStart
from conveyor.ports.bodies import BodyName

VERSION = 2  # 1, written by Conveyor 0.1.0, calls the column `unerased` `untidy`


class Place(msgspec.Struct, frozen=True, gc=False):
    """The place of a record."""

    segment: int
    at: int
    size: int


class Segment(msgspec.Struct, frozen=True, gc=False):
    no: int
    covered: int
    live: int
    unerased: int


Entry = tuple[BodyName, Place]


class Index:
    """One thread writes. Any thread may read, by a second connection that a lock guards."""

    def __init__(self, connection: apsw.Connection, near: apsw.Connection, *, sync: bool) -> None:
        self._connection = connection
        self._near = near
        self._lock = threading.Lock()
        self._sync = sync

    def close(self) -> None:
        self._near.close()
        self._connection.close()

    def add(
        self, entries: Sequence[Entry], *, segment: int, covered: int, unerased: int = 0
    ) -> None:
        """Enter records of a segment, how far it is covered, and bytes found dead in it.

        If a body is already there, the new record replaces it, and the old record is dead.
        """
        with self._transaction():
            live = sum(place.size for _, place in entries)
            self._connection.execute(COVER, (segment, covered, live, unerased))
            if not entries:
                return
            rows = self._rows(entries)
            try:
                self._connection.execute(INSERT_ALL, (msgspec.json.encode(rows).decode(),))
            except apsw.ConstraintError:
                # A body is already there, after a crash or as the copy of a compaction. The statement
                # inserted nothing; one row at a time counts the old record as dead.
                for row in rows:
                    self._replace(row)

    def remove(self, names: Iterable[BodyName], *, open_segment: int) -> tuple[int, list[int]]:
        """Remove bodies. Returns how many there were, and the segments that have none left."""
        with self._transaction(sync=True):
            rows = [row for name in names if (row := self._key(name))]
            return self._remove(rows, open_segment)

    def remove_run(
        self, job_id: JobId, run_id: RunId, *, limit: int, open_segment: int
    ) -> tuple[int, list[int]]:
        """As `remove`, for up to `limit` bodies of a run."""
        with self._transaction(sync=True):
            found = self._connection.execute(OF_RUN, (job_id, run_id, limit)).fetchall()
            return self._remove(found, open_segment)

    def drop(self, segment: int) -> None:
        """Remove a segment that has no bodies."""
        with self._transaction(sync=True):
            self._connection.execute("DELETE FROM segment WHERE no = ? AND live <= 0", (segment,))

    def forget_beyond(self, segment: int, end: int) -> None:
        """Remove the bodies beyond the end of a segment that is shorter than its `covered`."""
        with self._transaction(sync=True):
            lost = self._connection.execute(
                "SELECT run, task_id, claim_no FROM body WHERE segment = ? AND at + size > ?",
                (segment, end),
            ).fetchall()
            self._remove(lost, segment)
            update = "UPDATE segment SET covered = ? WHERE no = ?"
            self._connection.execute(update, (end, segment))

    def erased(self, segment: int, size: int) -> None:
        """Count bytes of dead records as erased; those that died meanwhile are left."""
        with self._transaction():
            update = "UPDATE segment SET unerased = max(0, unerased - ?) WHERE no = ?"
            self._connection.execute(update, (size, segment))

    def places(self, names: Sequence[BodyName]) -> list[Place | None]:
        with self._lock:
            found = (self._near.execute(PLACE, _by_name(name)).fetchone() for name in names)
            return [Place(*row) if row else None for row in found]

    def segments(self) -> list[Segment]:
        with self._lock:
            rows = self._near.execute("SELECT no, covered, live, unerased FROM segment ORDER BY no")
            return [Segment(*row) for row in rows]

    def runs(self, after: str, limit: int) -> list[tuple[JobId, RunId]]:
        job_id, _, run_id = after.partition("/")
        query = (
            "SELECT job_id, run_id FROM run WHERE (job_id, run_id) > (?, ?)"
            " ORDER BY job_id, run_id LIMIT ?"
        )
        with self._lock:
            rows = self._near.execute(query, (job_id, run_id, limit)).fetchall()
        return [(JobId(str(job)), RunId(str(run))) for job, run in rows]

    def names(
        self, job_id: JobId, run_id: RunId, after: tuple[str, int], limit: int
    ) -> list[BodyName]:
        with self._lock:
            rows = self._near.execute(NAMES, (job_id, run_id, *after, limit)).fetchall()
        return [
            BodyName(job_id, run_id, TaskId(str(task)), int(claim or 0)) for task, claim in rows
        ]

    def _rows(self, entries: Sequence[Entry]) -> list[tuple[object, ...]]:
        runs: dict[tuple[str, str], int] = {}
        rows: list[tuple[object, ...]] = []
        for name, place in entries:
            key = (name.job_id, name.run_id)
            run = runs.get(key) or runs.setdefault(key, self._run(key))
            rows.append((run, name.task_id, name.claim_no, place.segment, place.at, place.size))
        return rows

    def _run(self, key: tuple[str, str]) -> int:
        if (known := self._connection.execute(RUN, key).fetchone()) is None:
            self._connection.execute("INSERT INTO run (job_id, run_id) VALUES (?, ?)", key)
            return self._connection.last_insert_rowid()
        return int(known[0])

    def _replace(self, row: tuple[object, ...]) -> None:
        self._count(Counter(dict(self._delete(row[:3]))))
        self._connection.execute(INSERT, row)

    def _key(self, name: BodyName) -> tuple[object, ...] | None:
        return self._connection.execute(FIND, _by_name(name)).fetchone()

    def _remove(
        self, keys: Iterable[tuple[object, ...]], open_segment: int
    ) -> tuple[int, list[int]]:
        removed, freed, runs = 0, Counter[int](), set[object]()
        for key in keys:
            for segment, change in self._delete(key):
                removed += 1
                freed[segment] += change
                runs.add(key[0])
        self._count(freed)
        self._connection.executemany(
            "DELETE FROM run WHERE no = ?1 AND NOT EXISTS (SELECT 1 FROM body WHERE run = ?1)",
            [(run,) for run in runs],
        )
        emptied = "DELETE FROM segment WHERE live <= 0 AND no <> ? RETURNING no"
        gone = self._connection.execute(emptied, (open_segment,)).fetchall() if removed else []
        return removed, [int(no or 0) for (no,) in gone]

    def _delete(self, key: tuple[object, ...]) -> list[tuple[int, int]]:
        """Delete a body. Returns its segment and the change of that segment's live bytes."""
        gone = self._connection.execute(DELETE, key).fetchall()
        return [(int(segment or 0), -int(size or 0)) for segment, size in gone]

    def _count(self, change: Counter[int]) -> None:
        self._connection.executemany(
            "UPDATE segment SET live = live + ?1, unerased = unerased - ?1 WHERE no = ?2",
            [(size, segment) for segment, size in change.items()],
        )

    @contextmanager
    def _transaction(self, *, sync: bool = False) -> Iterator[None]:
        connection = self._connection
        # Entries need no sync: after a power cut they are read from the segments again. A removal
        # needs one, because the record would bring the body back.
        synced = sync and self._sync
        if synced:
            connection.pragma("synchronous", "FULL")
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        finally:
            if synced:
                connection.pragma("synchronous", "NORMAL")


def open_index(path: Path, *, sync: bool) -> Index:
    """Open an index. One that is missing or cannot be read is replaced by an empty one, which the
    caller fills from the segments.
    """
    try:
        connection = _connect(path, sync=sync)
    except (apsw.CorruptError, apsw.NotADBError):
        for part in ("", "-wal", "-shm"):
            Path(f"{path}{part}").unlink(missing_ok=True)
        connection = _connect(path, sync=sync)
    near = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    near.set_busy_timeout(5000)
    return Index(connection, near, sync=sync)


@contextmanager
def visit_index(path: Path) -> Iterator[Index]:
    """A temporary copy of an index: even a reader of a database that was not closed would write
    beside it.
    """
    with TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        for part in ("", "-wal"):
            if Path(f"{path}{part}").exists():
                shutil.copyfile(f"{path}{part}", f"{copy}{part}")
        yield open_index(copy, sync=False)


def _connect(path: Path, *, sync: bool) -> apsw.Connection:
    # Created here for its mode, which SQLite also gives to `-wal` and `-shm`.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = apsw.Connection(str(path), statementcachesize=50)
    try:
        connection.set_busy_timeout(5000)
        connection.pragma("journal_mode", "WAL")
        connection.pragma("synchronous", "NORMAL" if sync else "OFF")
        connection.pragma("wal_autocheckpoint", 4000)
        connection.pragma("cache_size", -16_000)
        _make(connection)
    except apsw.Error:
        connection.close()
        raise
    return connection


def _make(connection: apsw.Connection) -> None:
    have = connection.pragma("user_version")
    if have > VERSION:
        raise RefusedToStart(
            f"the bodies were indexed by a newer Conveyor (index {have}, newest known {VERSION}): "
            "upgrade, or choose another folder with --data"
        )
    if have == VERSION:
        return
    if have == 1:
        connection.execute(f"BEGIN; {FROM_1}; PRAGMA user_version = {VERSION}; COMMIT")
        return
    script = (files("conveyor.adapters.segments") / "schema.sql").read_text()
    connection.execute(f"BEGIN; {script}; PRAGMA user_version = {VERSION}; COMMIT")


def _by_name(name: BodyName) -> tuple[object, ...]:
    return (name.job_id, name.run_id, name.task_id, name.claim_no)


FROM_1 = "ALTER TABLE segment RENAME COLUMN untidy TO unerased"
RUN = "SELECT no FROM run WHERE job_id = ? AND run_id = ?"
OF_RUN = """
SELECT run, task_id, claim_no FROM body
 WHERE run = (SELECT no FROM run WHERE job_id = ? AND run_id = ?) LIMIT ?
"""
NAMES = """
SELECT task_id, claim_no FROM body
 WHERE run = (SELECT no FROM run WHERE job_id = ? AND run_id = ?)
   AND (task_id, claim_no) > (?, ?) ORDER BY task_id, claim_no LIMIT ?
"""
FIND = """
SELECT run, task_id, claim_no FROM body
 WHERE run = (SELECT no FROM run WHERE job_id = ? AND run_id = ?) AND task_id = ? AND claim_no = ?
"""
PLACE = """
SELECT segment, at, size FROM body
 WHERE run = (SELECT no FROM run WHERE job_id = ? AND run_id = ?) AND task_id = ? AND claim_no = ?
"""
DELETE = "DELETE FROM body WHERE run = ? AND task_id = ? AND claim_no = ? RETURNING segment, size"
COVER = """
INSERT INTO segment (no, covered, live, unerased) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
covered = excluded.covered, live = live + excluded.live, unerased = unerased + excluded.unerased
"""
INSERT = "INSERT INTO body (run, task_id, claim_no, segment, at, size) VALUES (?, ?, ?, ?, ?, ?)"
# Many rows are bound as one JSON value: rows bound one by one would each wait for the interpreter lock.
INSERT_ALL = """
INSERT INTO body (run, task_id, claim_no, segment, at, size)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
  FROM jsonb_each(?)
"""
