"""All that engines hold, told without ids and times, so that two of them can be compared."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import apsw
import msgspec

from conveyor.domain.counts import COUNT_COLUMNS
from conveyor.domain.ids import TASK_ID, ULID, RunId, task_ids
from tests.kept import every_body

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
ID = re.compile(rf"{ULID.pattern}|{TASK_ID.pattern}")  # of what is no longer there
# Not told: versions and encrypts differ by the way there; a lost worker leaves numbers and a line.
UNTOLD = {"version", "encrypted_key", "encrypted_secret"}
ENCRYPTED = {"encrypted_token"}  # whether there is one is told
MOST_TASKS = 64

Picture = dict[str, Any]
Bodies = dict[str, bytes | None]


class Stored(Protocol):
    """What the engines of a life hold, as no step can look at it."""

    def has_messages(self) -> bool:
        """Whether a control message waits or is held."""
        ...

    def has_open_tasks(self) -> bool:
        """Whether a live run that is not paused has tasks to do."""
        ...

    def owes_events(self) -> bool:
        """Whether events are to be sent. Heartbeats of live runs do not count: they never end."""
        ...

    def tried(self, url: str) -> tuple[int, int]:
        """How many attempts at a URL are on record, and how many claims."""
        ...

    def told(self, event_id: str) -> int:
        """How many deliveries of an event are on record."""
        ...

    def picture(self) -> Picture:
        """Every row and file, with ids by their place: the same for every way that led there."""
        ...


class EmbeddedState:
    def __init__(self, data: Path) -> None:
        self._data = data

    def has_messages(self) -> bool:
        return self._find("SELECT 1 FROM control_message WHERE due_at IS NOT NULL") is not None

    def has_open_tasks(self) -> bool:
        return self._find(OPEN_TASKS) is not None

    def owes_events(self) -> bool:
        return self._find(OWED) is not None

    def tried(self, url: str) -> tuple[int, int]:
        query = "SELECT attempts, claim_no FROM task WHERE url = ? ORDER BY run_no DESC LIMIT 1"
        attempts, claims = self._find(query, url) or (0, 0)
        return int(str(attempts)), int(str(claims))

    def told(self, event_id: str) -> int:
        query = "SELECT json_array_length(doc, '$.deliveries') FROM outbox_event WHERE id = ?"
        [deliveries] = self._find(query, event_id) or (0,)
        return int(str(deliveries))

    def picture(self) -> Picture:
        with closing(self._open()) as connection:
            bodies = every_body(self._data)
            held = _rows(connection, bodies) | _files(connection, bodies, self._data)
            jobs = [str(job) for (job,) in connection.execute("SELECT id FROM job ORDER BY id")]
            runs = connection.execute("SELECT id, job_id, doc ->> 'sequence' FROM run ORDER BY id")
            return without_ids(held, names(jobs, runs))

    def _find(self, query: str, *values: str) -> Any:
        with closing(self._open()) as connection:
            return connection.execute(query, values).fetchone()

    def _open(self) -> apsw.Connection:
        return apsw.Connection(str(self._data / "conveyor.db"), flags=apsw.SQLITE_OPEN_READONLY)


def without_ids(held: Picture, named: Iterable[tuple[str, str]]) -> Picture:
    text = msgspec.json.encode(held).decode()
    for known, name in named:
        text = text.replace(known, name)
    told: Picture = msgspec.json.decode(ID.sub("<gone>", TIME.sub("<time>", text)))
    return {kind: sorted(rows, key=str) for kind, rows in told.items()}


def differences(want: Picture, got: Picture) -> list[str]:
    return [
        f"{kind}: {sign} {row}"
        for kind in want
        for sign, some, others in (
            ("missing", want[kind], got[kind]),
            ("too much", got[kind], want[kind]),
        )
        for row in some
        if some.count(row) > others.count(row)
    ]


def _rows(connection: apsw.Connection, bodies: Bodies) -> Picture:
    tables = {
        kind: [told_row(str(doc)) for (doc,) in connection.execute(f"SELECT doc FROM {kind}")]
        for kind in (
            "job",
            "run",
            "batch",
            "deletion",
            "file_input",
            "export",
            "outbox_event",
            "signing_keys",
        )
    }
    return tables | {
        "task": [with_body(row, bodies) for row in _dicts(connection, TASKS)],
        "history": [
            row for row in _dicts(connection, LINES) if "worker_lost" not in (row["problem"] or "")
        ],
        "counts": list(_dicts(connection, COUNTS)),
        "failure group": list(_dicts(connection, FAILURES)),
        "control_message": list(
            _dicts(connection, "SELECT kind, payload, reason FROM control_message")
        ),
        "answer": [
            row | {"body": bytes(row["body"]).decode()}
            for row in _dicts(connection, "SELECT key, status, body FROM idempotency_record")
        ],
        "run_no": list(_dicts(connection, "SELECT run_id FROM run_no")),
    }


def told_row(text: str) -> Picture:
    doc: Picture = msgspec.json.decode(text)
    told = {name: value for name, value in doc.items() if name not in UNTOLD}
    return told | {name: bool(doc[name]) for name in ENCRYPTED & doc.keys()}


def with_body(row: Picture, bodies: Bodies) -> Picture:
    """With the body that a reader would get for it."""
    locator = row.pop("locator")
    body = None if locator is None else (bodies.get(locator) or b"gone").decode()
    return row | {"body": body}


def _files(connection: apsw.Connection, bodies: Bodies, data: Path) -> Picture:
    """What no row refers to."""
    rows = connection.execute("SELECT locator FROM task WHERE locator IS NOT NULL")
    wanted = {str(locator) for (locator,) in rows}
    return {
        "orphan body": [locator for locator in bodies if locator not in wanted],
        "spooled page": list(files_below(data / "bodies" / "spool")),
        "list": list(files_below(data / "blobs")),
    }


def files_below(folder: Path) -> Iterator[str]:
    return (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def names(jobs: Sequence[str], runs: Iterable[Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """Names for ids: jobs in the order they came to be, their runs by number, tasks by index."""
    for number, job in enumerate(jobs):
        yield job, f"job {number}"
    for run, job, sequence in runs:
        name = f"{jobs.index(str(job))}.{sequence or 1}"
        yield str(run), f"run {name}"
        task_id = task_ids(RunId(str(run)))
        yield from ((task_id(index), f"task {name}.{index}") for index in range(MOST_TASKS))


def _dicts(connection: apsw.Connection, query: str) -> Iterator[Picture]:
    cursor = connection.execute(query)
    for row in cursor:
        yield dict(zip((column[0] for column in cursor.description), row, strict=True))


OPEN_TASKS = """
SELECT 1 FROM task JOIN run_no ON run_no.no = task.run_no JOIN run ON run.id = run_no.run_id
 WHERE run_no.open = 1 AND run.live = 1 AND task.due_at IS NOT NULL
   AND coalesce(run.doc ->> 'pause_state', 'active') = 'active' LIMIT 1
"""
OWED = """
SELECT 1 FROM outbox_event LEFT JOIN run ON run.id = outbox_event.doc ->> 'run_id'
 WHERE due_at IS NOT NULL AND (channel <> 'heartbeat' OR run.live IS NOT 1) LIMIT 1
"""
TASKS = """
SELECT run_id, idx, id, status, phase, due_at IS NOT NULL AS waits, attempts, url, method, locator,
       length, checksum, format, problem, reason, source_run_id
  FROM task LEFT JOIN run_no ON no = run_no
"""
LINES = """
SELECT run_id, idx, attempt, problem, credits, nanos FROM attempt LEFT JOIN run_no ON no = run_no
"""
FAILURES = """
SELECT run_id, host, reason, code, count, failure_groups
  FROM failure_group LEFT JOIN run_no ON no = run_no
"""
COUNTS = f"""
SELECT run_id, {", ".join(f"sum({name}) AS {name}" for name in COUNT_COLUMNS)}
  FROM counter LEFT JOIN run_no ON no = run_no GROUP BY run_no
"""
