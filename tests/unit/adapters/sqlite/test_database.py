"""One SQLite file: owned by one process, written in groups, whole whatever fails."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from conveyor.adapters.shared.disk import own_errors
from conveyor.adapters.sqlite import database as database_module
from conveyor.adapters.sqlite import metadata
from conveyor.adapters.sqlite.database import (
    Database,
    Durability,
    migrations,
    open_database,
)
from conveyor.adapters.sqlite.engine import SqliteEngine, open_engine
from conveyor.adapters.sqlite.metadata import TABLES, Kind
from conveyor.adapters.sqlite.rows import within
from conveyor.domain.batch import Batch
from conveyor.domain.export import Export
from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import FailureGroup, FailureKey, with_failure
from conveyor.domain.job import RunPlace
from conveyor.domain.task import Task, TaskStatus, failure_of
from conveyor.errors import RefusedToStart, Stale, StorageFull, Unavailable
from conveyor.testing.clock import FakeClock, FakeIds
from conveyor.testing.contracts.control_queue import a_message
from conveyor.testing.factories import (
    JOB,
    RUN,
    a_job,
    a_problem,
    a_run,
    a_task,
    a_task_spec,
    add_rows,
    held,
    new_tasks,
    refused,
    scraped,
    settlement,
)

LEASE = timedelta(seconds=60)
SETTLES_WITHIN = 60.0  # seconds


def test_the_schema_is_what_the_migrations_replay_to() -> None:
    replayed, written = apsw.Connection(":memory:"), apsw.Connection(":memory:")
    for _, script in migrations():
        replayed.execute(script)
    written.execute((files("conveyor.adapters.sqlite") / "schema.sql").read_text())

    assert _schema(replayed) == _schema(written)


def test_failures_of_existing_runs_are_counted_by_group() -> None:
    """As the domain would have counted them, in the order of their indexes."""
    connection = apsw.Connection(":memory:")
    scripts = dict(migrations())
    for number in range(1, 10):
        connection.execute(scripts[number])
    before = [_failed_task(*failed) for failed in FAILED_BEFORE]
    connection.execute("INSERT INTO run_no (run_id) VALUES ('one'), ('two'), ('three')")
    for run_no, tasks in ((1, before), (3, before[:3])):
        connection.executemany(
            """
            INSERT INTO task (run_no, idx, id, status, phase, claim_no, attempts, lost, created_at,
                              updated_at, url, method, problem, reason)
            VALUES (?, ?, ?, 3, 3, 1, 1, 0, 0, 0, ?, 'GET', ?, ?)
            """,
            [
                (run_no, index, task.id, task.spec.url, task.problem, task.reason)
                for index, task in enumerate(tasks)
            ],
        )

    connection.execute(scripts[10])

    for run_no, tasks in ((1, before), (2, []), (3, before[:3])):
        groups: dict[FailureKey, FailureGroup] = {}
        for task in tasks:
            group = with_failure(groups, failure_of(task), task.id)
            groups[group.key] = group
        counted = connection.execute(
            "SELECT host, reason, code, count FROM failure_group WHERE run_no = ?", (run_no,)
        )
        assert sorted(counted) == sorted(
            (group.host, group.reason, group.code, group.count) for group in groups.values()
        )
        own = sum(not key.is_other for key in groups)
        query = "SELECT failure_groups FROM run_no WHERE no = ?"
        assert connection.execute(query, (run_no,)).get == own


FAILED_BEFORE: list[tuple[str, str | None, FailureReason | None]] = [
    ("https://a.example/", a_problem("RESP001"), FailureReason.BLOCKED),
    ("http://me:secret@a.example:8080/x?y=@z", a_problem("RESP001"), FailureReason.BLOCKED),
    ("http://[::1]:81/", '{"code":7}', None),
    ("https://a.example/b/c", a_problem("RESP001"), FailureReason.BLOCKED),
    ("https://a.example/", a_problem("x" * 99), FailureReason.OTHER),
    ("https://a.example/", None, FailureReason.TIMEOUT),
    (f"https://{'b' * 300}/", '"a text"', FailureReason.TIMEOUT),
    *((f"https://{n}.example/", a_problem("RESP001"), FailureReason.BLOCKED) for n in range(1100)),
    ("https://1.example/again", a_problem("RESP001"), FailureReason.BLOCKED),
    ("https://1099.example/again", a_problem("RESP001"), FailureReason.BLOCKED),
    ("https://other.example/", a_problem("RESP001"), FailureReason.TIMEOUT),
]


def _failed_task(url: str, problem: str | None, reason: FailureReason | None) -> Task:
    spec = a_task_spec(url=url)
    return a_task(spec=spec, status=TaskStatus.FAILED, problem=problem, reason=reason)


def test_migrations_are_numbered_from_one_without_a_gap() -> None:
    assert [version for version, _ in migrations()] == list(range(1, len(migrations()) + 1))


def test_messages_of_an_old_folder_get_their_subject_and_caller_and_doubles_go() -> None:
    connection = apsw.Connection(":memory:")
    scripts = [script for _, script in migrations()]
    for script in scripts[:6]:
        connection.execute(script)
    connection.execute("INSERT INTO job VALUES ('j', 'c1', '', '', '', 1, '{}', NULL)")
    connection.execute("""INSERT INTO run VALUES ('r', 'j', 1, 1, '{"caller":"c2"}')""")
    connection.execute("""INSERT INTO export VALUES ('e', 1, '{"caller":"c3"}')""")
    old = [
        ("1", "ingest", '{"run_id":"r","first":"0"}', 5),
        ("2", "ingest", '{"run_id":"r","first":"0"}', 6),
        ("3", "ingest", '{"run_id":"r","first":"0"}', None),
        ("4", "scrub", '{"id":"j"}', 5),
        ("5", "scrub", '{"id":"r"}', 5),
        ("6", "export", '{"id":"e"}', 5),
        ("7", "export", '{"id":"gone"}', 5),
        ("8", "odd", "{}", 5),
        ("9", "odd", "{}", 5),
    ]
    connection.executemany("INSERT INTO duty (id, kind, about, due_at) VALUES (?, ?, ?, ?)", old)

    connection.execute(scripts[6])

    kept = connection.execute("SELECT id, subject, caller FROM duty ORDER BY id").fetchall()
    assert kept == [
        ("2", "r/0", "c2"),
        ("3", "r/0", "c2"),
        ("4", "j", "c1"),
        ("5", "r", "c2"),
        ("6", "e", "c3"),
        ("7", "gone", ""),
        ("8", "8", ""),
        ("9", "9", ""),
    ]


def test_stored_credentials_of_an_old_folder_get_their_new_names() -> None:
    connection = apsw.Connection(":memory:")
    scripts = [script for _, script in migrations()]
    for script in scripts[:7]:
        connection.execute(script)
    connection.execute(
        """INSERT INTO job VALUES ('j', 'c', '', '', '', 1, '{"sealed_key":"k","n":1.0}', NULL)"""
    )
    connection.execute("""INSERT INTO run VALUES ('r', 'j', 1, 1, '{"sealed_token":"t"}')""")
    connection.execute("""INSERT INTO run VALUES ('none', 'j', 1, 1, '{"id":"none"}')""")
    connection.execute("""INSERT INTO event VALUES ('e', 'j', '', 1, 1, '{"sealed_token":""}')""")
    connection.execute("""INSERT INTO api_key VALUES ('a', 1, '{"sealed_gateway_key":"g"}')""")
    connection.execute("""INSERT INTO api_key VALUES ('b', 1, '{"sealed_gateway_key":null}')""")
    pair = '{"active":{"kid":"1","sealed_secret":"s"},"candidate":{"sealed_secret":"u"}}'
    connection.execute("INSERT INTO signing_keys VALUES ('c', 1, ?)", (pair,))
    connection.execute("""INSERT INTO signing_keys VALUES ('d', 1, '{"active":null}')""")

    for script in scripts[7:]:
        connection.execute(script)

    def docs(table: str) -> list[object]:
        rows = connection.execute(f"SELECT doc FROM {table} ORDER BY id")
        return [msgspec.json.decode(doc) for (doc,) in rows]

    assert docs("job") == [{"encrypted_key": "k", "n": 1.0}]
    assert docs("run") == [{"id": "none"}, {"encrypted_token": "t"}]
    assert docs("outbox_event") == [{"encrypted_token": ""}]
    assert docs("api_key") == [{"encrypted_gateway_key": "g"}, {"encrypted_gateway_key": None}]
    assert docs("signing_keys") == [
        {
            "active": {"kid": "1", "encrypted_secret": "s"},
            "candidate": {"encrypted_secret": "u"},
        },
        {"active": None},
    ]


def test_events_for_task_tokens_of_an_old_folder_are_on_the_channel_of_step_functions() -> None:
    connection = apsw.Connection(":memory:")
    scripts = [script for _, script in migrations()]
    for script in scripts[:7]:
        connection.execute(script)
    for name, channel, due_at in (
        ("a", "task_token", 7),
        ("b", "task_token", None),
        ("c", "webhook", 7),
    ):
        doc = msgspec.json.encode({"channel": channel, "sealed_token": "t"}).decode()
        connection.execute(
            "INSERT INTO event VALUES (?, 'j', ?, ?, 1, ?)", (name, channel, due_at, doc)
        )

    for script in scripts[7:]:
        connection.execute(script)

    stored = connection.execute("SELECT id, channel, due_at, doc FROM outbox_event ORDER BY id")
    assert [(*row, msgspec.json.decode(doc)) for *row, doc in stored] == [
        ("a", "step_functions", 7, {"channel": "step_functions", "encrypted_token": "t"}),
        ("b", "step_functions", None, {"channel": "step_functions"}),
        ("c", "webhook", 7, {"channel": "webhook", "encrypted_token": "t"}),
    ]


async def test_a_new_folder_gets_the_newest_schema_and_keeps_what_is_written(
    tmp_path: Path,
) -> None:
    for expected in (0, 1):
        async with open_database(tmp_path / "new") as database:
            assert await database.read(lambda c: c.pragma("user_version")) == len(migrations())
            assert await database.read(_count) == expected
            await database.write(_insert(f"run-{expected}"))


async def test_a_folder_written_by_a_newer_conveyor_is_refused_and_left_as_it_is(
    tmp_path: Path,
) -> None:
    async with open_database(tmp_path) as database:
        await database.write(lambda c: c.execute("PRAGMA user_version = 99"))
    before = (tmp_path / "conveyor.db").read_bytes()

    with pytest.raises(RefusedToStart, match="newer Conveyor"):
        await _open_and_close(tmp_path)

    assert (tmp_path / "conveyor.db").read_bytes() == before


async def test_a_migration_that_fails_leaves_the_schema_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _open_and_close(tmp_path)
    broken = [*migrations(), (99, "CREATE TABLE extra (x); CREATE TABLE task (x)")]
    with monkeypatch.context() as patched:
        patched.setattr(database_module, "migrations", lambda: broken)
        with pytest.raises(apsw.SQLError):
            await _open_and_close(tmp_path)

    async with open_database(tmp_path) as database:
        tables = await database.read(_schema)
        assert not any(name == "extra" for name, *_ in tables)


async def test_a_folder_in_use_is_refused_with_the_name_of_its_owner(tmp_path: Path) -> None:
    async with open_database(tmp_path):
        with pytest.raises(RefusedToStart, match=r"in use by process \d+"):
            await _open_and_close(tmp_path)
    await _open_and_close(tmp_path)


async def test_the_lock_of_a_dead_owner_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "conveyor.lock").write_text("12345 and more of a longer text\n")

    await _open_and_close(tmp_path)

    assert "more" not in (tmp_path / "conveyor.lock").read_text()


async def test_a_sqlite_with_the_corruption_bug_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "OLDEST_SAFE", apsw.SQLITE_VERSION_NUMBER + 1)
    with pytest.raises(RefusedToStart, match="too old"):
        await _open_and_close(tmp_path)


async def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "conveyor.db").mkdir()
    with pytest.raises(Unavailable):
        await _open_and_close(tmp_path)


@pytest.mark.parametrize(
    ("durability", "synchronous"), [(Durability.POWER, 2), (Durability.PROCESS, 1)]
)
async def test_every_commit_is_as_durable_as_was_asked_for(
    tmp_path: Path, durability: Durability, synchronous: int
) -> None:
    async with open_database(tmp_path, durability=durability) as database:
        assert await database.write(lambda c: c.pragma("synchronous")) == synchronous
        assert await database.write(lambda c: c.pragma("journal_mode")) == "wal"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (apsw.FullError, StorageFull),
        (apsw.IOError, Unavailable),
        (apsw.BusyError, Unavailable),
        (apsw.CantOpenError, Unavailable),
        (apsw.LockedError, Unavailable),
    ],
)
def test_errors_of_the_driver_become_ours(
    theirs: type[apsw.Error], ours: type[Unavailable]
) -> None:
    with pytest.raises(ours), own_errors("sqlite"):
        raise theirs("sqlite says no")


async def test_operations_that_wait_together_are_committed_together(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        commits: list[int] = []

        def note() -> bool:
            commits.append(1)
            return False

        await database.write(lambda c: c.set_commit_hook(note))

        await _together(database, [_insert(f"run-{number}") for number in range(50)])

        assert len(commits) <= 3
        assert await database.read(_count) == 50
        await database.write(lambda c: c.set_commit_hook(None))


async def test_a_group_has_a_largest_size_and_the_rest_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "MOST_GROUPED", 2)
    async with open_database(tmp_path) as database:
        await _together(database, [_insert(f"run-{number}") for number in range(5)])
        assert await database.read(_count) == 5


def _fail_with(error: Exception) -> Callable[[apsw.Connection], None]:
    def operation(connection: apsw.Connection) -> None:
        _insert("half-done")(connection)
        raise error

    return operation


def _break_a_rule(connection: apsw.Connection) -> None:
    _insert("half-done")(connection)
    connection.execute("INSERT INTO run_no (run_id) VALUES (NULL)")


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (_fail_with(Stale("moved on")), Stale),
        (_break_a_rule, apsw.ConstraintError),
        (_fail_with(ZeroDivisionError("a bug")), ZeroDivisionError),
        (_fail_with(OverflowError("too large for a column")), OverflowError),
    ],
    ids=["ours", "driver", "bug", "value"],
)
@pytest.mark.parametrize("place", [0, 2, 4])
async def test_one_failing_operation_of_a_group_does_not_take_the_others_with_it(
    tmp_path: Path,
    place: int,
    failing: Callable[[apsw.Connection], None],
    error: type[Exception],
) -> None:
    async with open_database(tmp_path) as database:
        operations = [_insert(f"run-{number}") for number in range(4)]
        operations.insert(place, failing)

        results = await _together(database, operations)

        assert [type(result) for result in results if result is not None] == [error]
        assert isinstance(results[place], error)
        assert await database.read(_runs) == [f"run-{number}" for number in range(4)]
        await database.write(_insert("later"))


async def test_a_single_failing_operation_is_undone(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        for failing in (_fail_with(Stale("moved on")), _fail_with(ZeroDivisionError())):
            with pytest.raises((Stale, ZeroDivisionError)):
                await database.write(failing)
        assert await database.read(_count) == 0


async def test_an_operation_over_which_sqlite_undoes_the_whole_group_fails_alone(
    tmp_path: Path,
) -> None:
    def undo_everything(connection: apsw.Connection) -> None:
        connection.execute("INSERT OR ROLLBACK INTO run_no (run_id) VALUES ('there')")

    async with open_database(tmp_path) as database:
        await database.write(_insert("there"))

        results = await _together(database, [_insert("a"), undo_everything, _insert("b")])

        assert [type(result) for result in results if result] == [apsw.ConstraintError]
        assert await database.read(_runs) == ["a", "b", "there"]


async def test_a_commit_that_fails_is_told_to_each_caller(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        assert database._writer
        database._writer.connection.set_commit_hook(lambda: True)

        results = await _together(database, [_insert("a"), _insert("b")])

        assert all(isinstance(result, apsw.ConstraintError) for result in results)
        with pytest.raises(apsw.ConstraintError):
            await database.write(_insert("c"))
        assert await database.read(_count) == 0


def _deny(action: int, what: str) -> Callable[..., int]:
    """An authorizer with which SQLite refuses one kind of statement."""

    def rule(given: int, first: str | None, *_: object) -> int:
        is_denied = given == action and (first or "").upper() == what
        return apsw.SQLITE_DENY if is_denied else apsw.SQLITE_OK

    return rule


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(_deny(apsw.SQLITE_PRAGMA, "SYNCHRONOUS"), id="the pragma before a commit"),
        pytest.param(_deny(apsw.SQLITE_TRANSACTION, "ROLLBACK"), id="the rollback after one"),
    ],
)
async def test_an_error_outside_an_operation_fails_writes_and_the_writer_goes_on(
    tmp_path: Path, rule: Callable[..., int]
) -> None:
    async with open_database(tmp_path) as database:
        assert database._writer
        connection = database._writer.connection

        def break_it(connection: apsw.Connection) -> None:
            connection.authorizer = rule
            raise Stale("so that it is rolled back")

        # Lazy, so that the write after it must set the pragma first.
        with pytest.raises(Stale):
            await database.write(break_it, lazy=True)
        results = await _failures(database, [_insert("a"), _insert("b")])
        assert [type(result) for result in results] == [Unavailable, Unavailable]
        with pytest.raises(Unavailable):
            await asyncio.wait_for(database.write(_insert("c")), SETTLES_WITHIN)

        connection.authorizer = None
        await asyncio.wait_for(database.write(_insert("d")), SETTLES_WITHIN)
        assert await database.read(_runs) == ["d"]


async def test_a_bug_in_the_writer_itself_fails_a_group_and_the_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_database(tmp_path) as database:
        with monkeypatch.context() as patched:
            patched.setattr(database._writer, "_commit", lambda _: 1 / 0)
            with pytest.raises(Unavailable, match="ZeroDivisionError"):
                await asyncio.wait_for(database.write(_insert("a")), SETTLES_WITHIN)
        await asyncio.wait_for(database.write(_insert("b")), SETTLES_WITHIN)
        assert await database.read(_runs) == ["b"]


async def test_what_follows_a_commit_comes_before_the_next_operation(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        order: list[str] = []
        with _writer_held_up(database):
            writes = [
                asyncio.ensure_future(database.write(lambda _: order.append("before"))),
                asyncio.ensure_future(
                    database.write(
                        lambda _: order.append("with it"), then=lambda: order.append("then")
                    )
                ),
                asyncio.ensure_future(database.write(lambda _: order.append("after"))),
            ]
            await asyncio.sleep(0)
        await asyncio.wait(writes, timeout=SETTLES_WITHIN)
        assert order == ["before", "with it", "then", "after"]


async def test_nothing_follows_a_commit_that_fails(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        assert database._writer
        database._writer.connection.set_commit_hook(lambda: True)
        with pytest.raises(apsw.ConstraintError):
            await database.write(_insert("a"), then=lambda: pytest.fail("it was not committed"))


def test_a_listing_is_bounded_in_bytes_not_in_characters() -> None:
    rows = [("\N{SNOWMAN}" * 100, None), ("x" * 100, "\N{SNOWMAN}" * 100), ("x",)]
    assert list(within(rows, 300)) == rows[:1]
    assert list(within(rows, 700)) == rows[:2]
    assert list(within(rows, 701)) == rows


async def test_a_caller_that_is_cancelled_does_not_disturb_its_neighbours(tmp_path: Path) -> None:
    async with open_database(tmp_path) as database:
        with _writer_held_up(database):
            doomed = asyncio.ensure_future(database.write(_insert("cancelled")))
            others = [asyncio.ensure_future(database.write(_insert(name))) for name in "ab"]
            await asyncio.sleep(0)
            doomed.cancel()
        for other in others:
            await asyncio.wait_for(other, SETTLES_WITHIN)

        assert doomed.cancelled()
        # Its statements were on their way: whether they took effect is for the caller to find.
        assert await database.read(_runs) == ["a", "b", "cancelled"]


async def test_what_was_waiting_when_the_database_is_closed_is_still_written(
    tmp_path: Path,
) -> None:
    async with open_database(tmp_path) as database:
        with _writer_held_up(database):
            waiting = [asyncio.ensure_future(database.write(_insert(name))) for name in "ab"]
            await asyncio.sleep(0)
            assert database._writer
            closing = threading.Thread(target=database._writer.close)
            closing.start()
        await asyncio.to_thread(closing.join)
        for one in waiting:
            await asyncio.wait_for(one, SETTLES_WITHIN)
        assert await database.read(_count) == 2
        database._writer.close = lambda: None  # type: ignore[method-assign]


async def test_a_full_disk_is_told_corrupts_nothing_and_passes(tmp_path: Path) -> None:
    async with _engine(tmp_path) as engine:
        await engine.metadata.commit(a_job(), a_run())
        await add_rows(engine.tasks, RUN, new_tasks(n=10))
        await _limit_pages(engine.database, more=2)

        with pytest.raises(StorageFull):
            await add_rows(engine.tasks, RUN, new_tasks(n=5_000, first=10))

        assert len((await engine.tasks.page(RUN, limit=100)).tasks) == 10
        assert await engine.database.read(lambda c: c.pragma("integrity_check")) == "ok"
        await _limit_pages(engine.database, more=100_000)
        assert await add_rows(engine.tasks, RUN, new_tasks(n=5_000, first=10)) == 5_000
        assert await engine.database.read(lambda c: c.pragma("integrity_check")) == "ok"


async def test_what_fits_is_written_though_its_neighbour_finds_the_disk_full(
    tmp_path: Path,
) -> None:
    async with _engine(tmp_path) as engine:
        await add_rows(engine.tasks, RUN, new_tasks(n=10))
        tasks = await engine.work.claim({RUN: 10})
        await _limit_pages(engine.database, more=2)
        with _writer_held_up(engine.database):
            settling = [
                asyncio.ensure_future(engine.work.settle([settlement(task, scraped())]))
                for task in tasks[:2]
            ]
            adding = asyncio.ensure_future(
                add_rows(engine.tasks, RUN, new_tasks(n=5_000, first=10))
            )
            await asyncio.sleep(0)

        with pytest.raises(StorageFull):
            await adding
        assert [await one for one in settling] == [[True], [True]]
        assert (await engine.tasks.counts([RUN]))[RUN].successful == 2
        assert await engine.database.read(lambda c: c.pragma("integrity_check")) == "ok"


async def test_claims_of_a_dead_process_are_found_each_time_the_folder_is_opened(
    tmp_path: Path,
) -> None:
    async with _engine(tmp_path) as engine:
        await add_rows(engine.tasks, RUN, new_tasks(n=3))
        claimed = await engine.work.claim({RUN: 2})
        assert engine.dead_claims == []

    for _ in range(2):  # until they are released: whoever dies before finds them again
        async with _engine(tmp_path) as engine:
            assert set(engine.dead_claims) == {held(task) for task in claimed}

    async with _engine(tmp_path) as engine:
        await engine.work.release_lapsed(RUN, overdue=timedelta(days=-1), limit=9)
        tasks = (await engine.tasks.page(RUN, limit=9)).tasks
        assert [(task.status, task.lost) for task in tasks] == [
            (TaskStatus.PENDING, 1),
            (TaskStatus.PENDING, 1),
            (TaskStatus.PENDING, 0),
        ]
        assert await engine.work.settle([settlement(claimed[0], scraped())]) == [False]
        assert [task.claim_no for task in await engine.work.claim({RUN: 3})] == [2, 2, 1]
        assert engine.incarnation == 4


async def test_a_run_keeps_its_place_when_the_folder_is_opened_again(tmp_path: Path) -> None:
    async with _engine(tmp_path) as engine:
        await engine.tasks.lay_out(RUN, RunPlace(JOB, shards=4))
        await engine.tasks.add(RUN, new_tasks(n=1))

    async with _engine(tmp_path) as engine:
        with pytest.raises(ValueError, match="another place"):
            await engine.tasks.lay_out(RUN, RunPlace(JOB, shards=8))
        await engine.tasks.lay_out(RUN, RunPlace(JOB, shards=4))


async def test_a_run_of_an_earlier_release_gets_its_place_with_its_next_rows(
    tmp_path: Path,
) -> None:
    async with _engine(tmp_path) as engine:
        await add_rows(engine.tasks, RUN, new_tasks(n=1))
        forget = "UPDATE run_no SET job_id = NULL, shards = NULL, v = NULL"
        await engine.database.write(lambda connection: connection.execute(forget).fetchall())

    async with _engine(tmp_path) as engine:
        assert len(await engine.work.claim({RUN: 1})) == 1
        await engine.tasks.lay_out(RUN, RunPlace(JOB, shards=8))
        assert await engine.tasks.add(RUN, new_tasks(n=2)) == 1

    async with _engine(tmp_path) as engine:
        with pytest.raises(ValueError, match="another place"):
            await engine.tasks.lay_out(RUN, RunPlace(JOB, shards=1))


async def test_tasks_do_not_wait_for_a_clock_that_was_set_back(tmp_path: Path) -> None:
    ahead = FakeClock()
    ahead.advance(timedelta(hours=1))
    async with open_engine(tmp_path, clock=ahead, ids=FakeIds(), lease=LEASE) as engine:
        await add_rows(engine.tasks, RUN, new_tasks(n=2))

    async with _engine(tmp_path) as engine:
        assert len(await engine.work.claim({RUN: 9})) == 2


async def test_a_discarded_run_leaves_no_row_in_any_table(tmp_path: Path) -> None:
    async with _engine(tmp_path) as engine:
        empty = await engine.database.read(_lengths)
        await add_rows(engine.tasks, RUN, new_tasks(n=3))
        one, other, _ = await engine.work.claim({RUN: 3})
        await engine.work.settle([settlement(one, scraped()), settlement(other, refused())])
        full = await engine.database.read(_lengths)
        of_runs = {"run_no", "task", "attempt", "counter", "failure_group"}
        assert {name for name in full if full[name] != empty[name]} == of_runs

        while await engine.tasks.discard(RUN, limit=2):
            pass

        assert await engine.database.read(_lengths) == empty


async def test_messages_of_a_dead_process_are_due_when_the_folder_is_opened(tmp_path: Path) -> None:
    async with _engine(tmp_path) as engine:
        await engine.control_queue.send(a_message())
        [received] = await engine.control_queue.receive(1, lease=LEASE)

    async with _engine(tmp_path) as engine:
        [again] = await engine.control_queue.receive(1, lease=LEASE)
        assert (again.id, again.deliveries) == (received.id, 2)
        with pytest.raises(Stale):
            await engine.control_queue.ack(received)


@pytest.mark.parametrize("kind", TABLES.values(), ids=lambda kind: kind.table)
def test_rows_of_metadata_are_found_by_their_key(kind: Kind[Any]) -> None:
    for statement in (kind.select, kind.page, kind.update, kind.delete):
        [step] = _plan(statement)
        assert step.startswith(f"SEARCH {kind.table} USING ")
        assert "PRIMARY KEY" in step or step.endswith("event_by_job ((job_id,id)>(?,?))")


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (metadata.JOBS, "job_by_caller (caller=? AND id<?)"),
        (metadata.RUNS, "run_by_job (job_id=? AND id<?)"),
        (metadata.LIVE_RUNS, "run_live (id>?)"),
        (metadata.EVENTS, "event_by_job (job_id=? AND id<?)"),
        (metadata.OF_RUN[Batch][0], "PRIMARY KEY (run_id=? AND first>?)"),
        (metadata.OF_RUN[Export][0], "export_by_run (<expr>=? AND id>?)"),
        (metadata.DUE_JOBS, "job_by_fire (fires_at<?)"),
        (metadata.DUE_EVENTS, "event_due (channel=? AND due_at<?)"),
        (metadata.SCHEDULED_JOBS, "job_scheduled (caller=?)"),
        (metadata.UNUSED_INPUTS, "file_input_unused (<expr>=?)"),
        (metadata.OPEN_EXPORTS, "export_open (<expr>=?)"),
    ],
)
def test_listings_of_metadata_read_an_index_in_its_order(query: str, index: str) -> None:
    first, *rest = _plan(query)
    assert first.endswith(index)
    assert not any("SCAN" in step or "TEMP B-TREE" in step for step in rest)


def _plan(statement: str) -> list[str]:
    connection = apsw.Connection(":memory:")
    connection.execute((files("conveyor.adapters.sqlite") / "schema.sql").read_text())
    names = max(statement.count("?"), 1)
    numbered = [int(number) for number in re.findall(r"\?(\d+)", statement)]
    values = (None,) * (max(numbered) if numbered else names)
    return [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


async def test_a_change_of_an_unknown_kind_is_a_bug_that_stops_nothing_else(
    tmp_path: Path,
) -> None:
    async with _engine(tmp_path) as engine:
        with pytest.raises(TypeError):
            await engine.metadata.commit("no change")  # type: ignore[arg-type]
        await engine.metadata.commit(a_job(), a_run())


@asynccontextmanager
async def _engine(folder: Path) -> AsyncIterator[SqliteEngine]:
    async with open_engine(folder, clock=FakeClock(), ids=FakeIds(), lease=LEASE) as engine:
        yield engine


async def _open_and_close(folder: Path) -> None:
    async with open_database(folder):
        pass


def _lengths(connection: apsw.Connection) -> dict[str, int]:
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    return {
        str(name): int(connection.execute(f"SELECT count(*) FROM {name}").get)
        for (name,) in tables
        if name != "sqlite_sequence"
    }


def _insert(name: str) -> Callable[[apsw.Connection], None]:
    def operation(connection: apsw.Connection) -> None:
        connection.execute("INSERT INTO run_no (run_id) VALUES (?)", (name,))

    return operation


def _count(connection: apsw.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM run_no").get)


def _runs(connection: apsw.Connection) -> list[str]:
    return [run for (run,) in connection.execute("SELECT run_id FROM run_no ORDER BY run_id")]


def _schema(connection: apsw.Connection) -> list[tuple[object, ...]]:
    """Tables, columns and indexes. A column that was added stands in its own way in the text."""
    tables = list(
        connection.execute("SELECT name, wr, strict FROM pragma_table_list ORDER BY name")
    )
    columns = [
        (table, *column)
        for table, *_ in tables
        for column in connection.execute("SELECT * FROM pragma_table_xinfo(?)", (table,))
    ]
    wanted = "SELECT name, sql FROM sqlite_schema WHERE type <> 'table' ORDER BY name"
    return [*tables, *columns, *connection.execute(wanted)]


@contextmanager
def _writer_held_up(database: Database) -> Iterator[None]:
    """While it is, operations pile up; afterwards they go as one group."""
    go = threading.Event()
    holding = asyncio.ensure_future(database.write(lambda _: go.wait(SETTLES_WITHIN)))
    holding.add_done_callback(lambda done: done.result())
    try:
        yield
    finally:
        go.set()


async def _together(
    database: Database, operations: list[Callable[[apsw.Connection], None]]
) -> list[BaseException | None]:
    """What became of operations that one group holds."""
    with _writer_held_up(database):
        writing = [asyncio.ensure_future(database.write(one)) for one in operations]
        await asyncio.sleep(0)
    await asyncio.wait(writing, timeout=SETTLES_WITHIN)
    return [one.exception() for one in writing]


async def _failures(
    database: Database, operations: list[Callable[[apsw.Connection], None]]
) -> list[BaseException | None]:
    """What becomes of operations that are written side by side, in one group or in several."""
    writing = [asyncio.ensure_future(database.write(one)) for one in operations]
    done, _ = await asyncio.wait(writing, timeout=SETTLES_WITHIN)
    assert len(done) == len(operations)
    return [one.exception() for one in writing]


async def _limit_pages(database: Database, *, more: int) -> None:
    def limit(connection: apsw.Connection) -> None:
        pages = connection.pragma("page_count")
        connection.pragma("max_page_count", pages + more)

    await database.write(limit)
