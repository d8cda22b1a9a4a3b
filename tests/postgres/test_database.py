"""The border to the server: its schema, its errors, and connections that must stay free."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from conveyor.adapters.postgres import database as database_module
from conveyor.adapters.postgres.address import PostgresAddress
from conveyor.adapters.postgres.database import (
    Connection,
    Pool,
    PostgresDatabase,
    _tls,
    open_database,
    transaction,
)
from conveyor.adapters.postgres.schema import (
    LATEST,
    LOCK,
    check_schema,
    migrate,
    migrate_at,
    migrations,
    missing_migrations,
)
from conveyor.adapters.postgres.tasks import PostgresTasks
from conveyor.errors import RefusedToStart, StorageFull, Unavailable
from conveyor.testing.factories import OTHER_RUN, RUN, add_rows, new_tasks
from conveyor.testing.local.ports import free_port
from tests.certificates import Authority
from tests.harness.postgres import Proxy, TestDatabases, a_postgres, address_at, connected

DOCUMENTED = Path(__file__).parents[2] / "docs" / "storage" / "postgres.md"
RELEASED = 1  # the schema of the release before, which also runs on the next
COLUMNS = """
SELECT table_name, column_name, data_type, collation_name, is_nullable, column_default
  FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2
"""
OPTIONS = """
SELECT relname, relpersistence, reloptions FROM pg_class
 WHERE relnamespace = 'public'::regnamespace
"""
INDEXES = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
RAISED = "DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{}'; END $$"


async def test_the_schema_is_what_the_migrations_replay_to(postgres_18: TestDatabases) -> None:
    replayed, written = await postgres_18.create(), await postgres_18.create()
    async with open_database(replayed) as database:
        await migrate(database)
    async with connected(written) as connection:
        await connection.execute((files("conveyor.adapters.postgres") / "schema.sql").read_text())

    assert await _schema(replayed) == await _schema(written)


def test_a_release_adds_at_most_one_script() -> None:
    assert [version for version, _ in migrations()] == list(range(1, LATEST + 1))
    assert LATEST <= RELEASED + 1


async def test_migrations_at_the_same_time_run_each_script_once(
    postgres_18: TestDatabases,
) -> None:
    address = await postgres_18.create()
    async with open_database(address) as database:
        assert await missing_migrations(database) == [version for version, _ in migrations()]

        done = await asyncio.gather(*[migrate(database) for _ in range(4)])

        assert sorted(map(list, done)) == [[], [], [], [version for version, _ in migrations()]]
        assert await missing_migrations(database) == []


async def test_a_database_of_another_encoding_is_refused(postgres_18: TestDatabases) -> None:
    address = await postgres_18.create("ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    async with open_database(address) as database:
        with pytest.raises(RefusedToStart, match="UTF8, got SQL_ASCII"):
            await migrate(database)


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        (None, "conveyor migrate"),
        (LATEST - 1, "conveyor migrate"),
        (LATEST, None),
        (LATEST + 1, None),
        (LATEST + 2, "upgrade"),
    ],
)
async def test_a_release_runs_on_its_schema_and_on_the_next(
    postgres_18: TestDatabases, version: int | None, remedy: str | None
) -> None:
    address = await postgres_18.create()
    if version is not None:
        async with connected(address) as connection:
            await connection.execute("CREATE TABLE schema_version (version integer)")
            await connection.execute("INSERT INTO schema_version VALUES ($1)", version)
    async with open_database(address) as database:
        if remedy is None:
            await check_schema(database)
            return
        with pytest.raises(RefusedToStart, match=remedy):
            await check_schema(database)


async def test_a_server_that_does_not_answer_is_no_reason_to_refuse_the_start() -> None:
    async with open_database(address_at(free_port(), "nowhere")) as database:
        await check_schema(database)


async def test_the_schema_is_checked_once_a_server_that_did_not_answer_does(
    postgres_18: TestDatabases,
) -> None:
    away = replace(await postgres_18.create(), port=free_port())
    async with open_database(replace(away, port=postgres_18.port)) as database:
        pools = database._pools
        async with open_database(away) as silent:
            database._pools = silent._pools
            await check_schema(database)
        database._pools = pools
        for _ in range(2):  # as long as it is wrong
            with pytest.raises(Unavailable, match=r"needs .* run `conveyor migrate`"):
                await database.fetch("SELECT 1")
        await migrate_at(database.address)

        assert await database.first("SELECT 1")


async def test_a_migration_waits_for_another_as_long_as_it_takes(
    postgres_18: TestDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database_module.SESSION, "lock_timeout", "10ms")
    address = await postgres_18.create()
    async with open_database(address) as database, connected(address) as beside:
        await beside.execute("SELECT pg_advisory_lock($1)", LOCK)
        migrating = asyncio.ensure_future(migrate(database))
        waiting = """
            SELECT EXISTS (SELECT 1 FROM pg_stat_activity
                            WHERE wait_event = 'advisory' AND now() - query_start > '50ms')
        """
        while not (migrating.done() or await beside.fetchval(waiting)):
            pass  # each look is a round trip: nothing tells when a session begins to wait
        await beside.execute("SELECT pg_advisory_unlock($1)", LOCK)

        assert await migrating == [version for version, _ in migrations()]


async def test_a_migration_through_a_pooler_waits_for_no_lock_of_others_for_long(
    postgres_18: TestDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database_module.SESSION, "lock_timeout", "10ms")
    address = replace(await postgres_18.create(), pooled=True)  # so no session has it
    async with (
        open_database(address) as database,
        connected(address) as beside,
        beside.transaction(),
    ):
        await beside.execute("CREATE TABLE job (id text)")
        async with asyncio.timeout(60):
            with pytest.raises(Unavailable, match="55P03"):
                await migrate(database)


async def test_a_server_that_confirms_what_a_crash_would_lose_is_refused(
    postgres_18: TestDatabases,
) -> None:
    address = await postgres_18.create()
    await migrate_at(address)
    async with connected(address) as connection:
        await connection.execute(
            f"ALTER DATABASE {address.database} SET synchronous_commit = 'off'"
        )
    async with open_database(address) as database:
        with pytest.raises(RefusedToStart, match="synchronous_commit"):
            await check_schema(database)


@pytest.mark.parametrize("named", [True, False])
async def test_sessions_of_a_pooler_must_have_the_settings(
    postgres_18: TestDatabases, named: bool
) -> None:
    address = replace(await postgres_18.create(), pooled=True)
    await migrate_at(address)
    async with connected(address) as connection:
        setting = "default_transaction_isolation = 'repeatable read'"
        await connection.execute(f"ALTER DATABASE {address.database} SET {setting}")
    async with open_database(address) as database:
        database.address = replace(address, pooled=named)
        with pytest.raises(RefusedToStart) as raised:
            await check_schema(database)
    for name, value in database_module.SESSION.items():
        assert (f"{name} = '{value}'" in str(raised.value)) == (
            name not in {"application_name", "timezone"}
        )


async def test_a_run_takes_no_number_of_another(postgres_18: TestDatabases) -> None:
    """A logical replica has the rows, and a sequence that begins anew."""
    async with postgres_18.opened() as database:
        tasks = PostgresTasks(database)
        await add_rows(tasks, RUN, new_tasks(RUN, 1))
        await database.fetch("ALTER TABLE run_no ALTER COLUMN no RESTART WITH 1")
        [row] = await database.fetch("UPDATE run_no SET no = DEFAULT RETURNING no")
        await database.fetch(f"ALTER TABLE run_no ALTER COLUMN no RESTART WITH {row['no']}")

        with pytest.raises(ValueError, match="run_no_pkey"):
            await add_rows(tasks, OTHER_RUN, new_tasks(OTHER_RUN, 1))

        [remedy] = re.findall(r"```sql\n(SELECT setval.*?)```", DOCUMENTED.read_text(), re.DOTALL)
        async with connected(database.address) as connection:
            await connection.execute(remedy)
        await add_rows(tasks, OTHER_RUN, new_tasks(OTHER_RUN, 1))


async def test_a_schema_that_is_too_new_is_refused_by_the_check_of_migrations(
    postgres_18: TestDatabases,
) -> None:
    address = await postgres_18.create()
    async with connected(address) as connection:
        await connection.execute("CREATE TABLE schema_version (version integer)")
        await connection.execute("INSERT INTO schema_version VALUES ($1)", LATEST + 2)
    async with open_database(address) as database:
        with pytest.raises(RefusedToStart, match="upgrade Conveyor"):
            await missing_migrations(database)


async def test_a_standby_is_not_used_until_it_is_promoted() -> None:
    """A name may lead to one after a failover: its connections must not stay in a pool."""
    with a_postgres(18) as server:
        address = server.address("postgres")
        await migrate_at(address)
        async with open_database(address) as database:
            await database.fetch("SELECT 1")
            server.restart_as_standby()
            with suppress(Unavailable):
                await database.fetch("SELECT 1")  # on the connection that the restart has ended
            with pytest.raises(Unavailable, match="it is a standby"):
                await database.fetch("SELECT 1")
            async with connected(address) as connection:
                await connection.execute("SELECT pg_promote()")
            assert await database.first("SELECT pg_is_in_recovery()") == (False,)


async def test_transactions_that_deadlock_are_retried(postgres_18: TestDatabases) -> None:
    async with _with_counter(postgres_18, "a", "b") as database:
        both = asyncio.Barrier(2)

        def crossing(first: str, second: str) -> Any:
            tries = 0

            async def operation(connection: Connection) -> int:
                nonlocal tries
                tries += 1
                await connection.execute("UPDATE one SET n = n + 1 WHERE name = $1", first)
                if tries == 1:
                    await both.wait()
                await connection.execute("UPDATE one SET n = n + 1 WHERE name = $1", second)
                return tries

            return database.transact(operation)

        tries = await asyncio.gather(crossing("a", "b"), crossing("b", "a"))

        # On a busy machine a second try may meet the other transaction once more.
        assert max(tries) > 1
        assert [row["n"] for row in await database.fetch("SELECT n FROM one")] == [2, 2]


async def test_statements_that_cannot_be_serialised_are_retried(
    postgres_18: TestDatabases,
) -> None:
    async with _with_counter(postgres_18, "a") as database:
        both = asyncio.Barrier(2)

        def adding() -> Any:
            tries = 0

            async def operation(connection: Connection) -> None:
                nonlocal tries
                tries += 1
                await connection.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
                [n] = await connection.fetchrow("SELECT n FROM one")
                if tries == 1:
                    await both.wait()
                await connection.execute("UPDATE one SET n = $1", n + 1)

            return database.transact(operation)

        await asyncio.gather(adding(), adding())

        assert (await database.first("SELECT n FROM one"))["n"] == 2


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("53100", StorageFull),
        ("53300", Unavailable),
        ("57P01", Unavailable),
        ("08006", Unavailable),
        ("55P03", Unavailable),
        ("25006", Unavailable),
        ("40P01", Unavailable),
        ("22021", ValueError),
        ("23505", ValueError),
        ("54000", ValueError),
        ("42703", Unavailable),
    ],
)
async def test_errors_of_the_server_become_ours(
    postgres_18: TestDatabases, code: str, kind: type[Exception]
) -> None:
    async with postgres_18.opened() as database:
        with pytest.raises(kind) as raised:
            await database.fetch(RAISED.format(code))
        assert type(raised.value) is kind
        assert code in str(raised.value)
        assert await database.first("SELECT 1")


async def test_a_database_without_tables_names_the_remedy(postgres_18: TestDatabases) -> None:
    async with open_database(await postgres_18.create()) as database:
        with pytest.raises(Unavailable, match="conveyor migrate"):
            await database.fetch("SELECT 1 FROM job")


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_a_file_without_authorities_is_refused_by_name(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if content:
        file.write_text(content)
    address = replace(address_at(free_port(), "nowhere"), tls="verify-full", ca=str(file))
    with pytest.raises(RefusedToStart, match=f"sslrootcert.*{file}"):
        async with open_database(address):
            pass


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_given_authorities_must_vouch_for_the_server(tmp_path: Path, mode: str) -> None:
    authority = Authority(tmp_path)
    address = replace(address_at(1, "nowhere"), tls=mode, ca=str(authority.trusted))
    context = _tls(address)
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname == (mode == "verify-full")


async def test_a_failure_to_connect_shows_no_password() -> None:
    address = replace(address_at(free_port(), "nowhere"), password="S3CRET")
    async with open_database(address) as database:
        with pytest.raises(Unavailable) as raised:
            await database.fetch("SELECT 1")
    assert "S3CRET" not in f"{raised.value} {raised.value.__cause__!r}"


async def test_renewals_need_not_wait_for_other_connections(postgres_18: TestDatabases) -> None:
    async with postgres_18.opened() as database:
        lock = "SELECT pg_advisory_lock(7)"
        async with connected(database.address) as connection:
            await connection.execute(lock)
            waiting = [
                asyncio.ensure_future(database.fetch(f"{lock}, pg_advisory_unlock(7)", pool=pool))
                for pool in (Pool.GENERAL, Pool.WORK)
                for _ in range(20)
            ]
            await _all_connected(connection, 9)
            assert await database.first("SELECT 1", pool=Pool.RESERVED)
            assert not any(each.done() for each in waiting)
            await connection.execute("SELECT pg_advisory_unlock(7)")
        await asyncio.gather(*waiting)


async def test_a_call_that_finds_no_free_connection_is_refused_in_time(
    postgres_18: TestDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "ACQUIRED_WITHIN", 0.2)
    async with (
        open_database(replace(await postgres_18.empty(), connections=4)) as database,
        connected(database.address) as connection,
    ):
        await connection.execute("SELECT pg_advisory_lock(7)")
        lock = "SELECT pg_advisory_lock(7), pg_advisory_unlock(7)"
        waiting = [asyncio.ensure_future(database.fetch(lock)) for _ in range(2)]
        await _all_connected(connection, 2)

        with pytest.raises(Unavailable, match="all 2 connections for general were in use"):
            await database.fetch("SELECT 1")

        await connection.execute("SELECT pg_advisory_unlock(7)")
        await asyncio.gather(*waiting)


@asynccontextmanager
async def _behind_a_proxy(server: TestDatabases) -> AsyncIterator[tuple[Proxy, PostgresDatabase]]:
    address = await server.empty()
    async with (
        Proxy(address.port).running() as proxy,
        open_database(replace(address, port=proxy.port)) as database,
    ):
        yield proxy, database


async def _call(database: PostgresDatabase, proxy: Proxy, *, transacts: bool) -> None:
    """Run a statement to which the server does not answer any more."""

    async def operation(connection: Connection) -> None:
        await connection.execute("SELECT 1")
        proxy.fall_silent()
        await connection.execute("SELECT 2")

    await (database.transact if transacts else database.run)(operation)


@pytest.mark.parametrize("transacts", [False, True])
async def test_a_call_that_is_cancelled_ends_so_although_the_server_is_silent(
    postgres_18: TestDatabases, monkeypatch: pytest.MonkeyPatch, transacts: bool
) -> None:
    monkeypatch.setattr(database_module, "RELEASED_WITHIN", 0.1)
    async with _behind_a_proxy(postgres_18) as (proxy, database):
        calling = asyncio.ensure_future(_call(database, proxy, transacts=transacts))
        await proxy.withheld.wait()

        calling.cancel()

        ended, _ = await asyncio.wait([calling], timeout=database_module.ANSWERED_WITHIN / 2)
        assert ended
        assert calling.cancelled()


@pytest.mark.parametrize("transacts", [False, True])
async def test_a_call_that_is_given_too_little_time_times_out_although_the_server_is_silent(
    postgres_18: TestDatabases, monkeypatch: pytest.MonkeyPatch, transacts: bool
) -> None:
    monkeypatch.setattr(database_module, "RELEASED_WITHIN", 0.1)
    async with _behind_a_proxy(postgres_18) as (proxy, database):
        deadline = asyncio.timeout(None)

        async def call() -> None:
            async with deadline:
                await _call(database, proxy, transacts=transacts)

        calling = asyncio.create_task(call())
        await proxy.withheld.wait()
        deadline.reschedule(0)

        with pytest.raises(TimeoutError):
            await calling


async def test_a_failure_of_the_driver_after_a_cancellation_does_not_replace_it(
    postgres_18: TestDatabases,
) -> None:
    began = asyncio.Event()

    async def operation(_connection: Connection) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise TimeoutError

    async with postgres_18.opened() as database:
        calling = asyncio.ensure_future(database.run(operation))
        await began.wait()
        calling.cancel()

        with pytest.raises(asyncio.CancelledError):
            await calling


async def test_a_transaction_that_is_cancelled_as_it_begins_logs_no_error(
    postgres_18: TestDatabases,
) -> None:
    errors, loop = list[object](), asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, error: errors.append(error))

    async def operation(connection: Connection) -> None:
        loop.call_soon(calling.cancel)  # before the answer to BEGIN is read
        async with transaction(connection):
            raise AssertionError("it has begun")

    async with postgres_18.opened() as database:
        calling = asyncio.ensure_future(database.run(operation))
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert await database.first("SELECT 1")
    assert errors == []


async def test_a_renewal_gives_a_silent_server_up_early(
    postgres_18: TestDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "RELEASED_WITHIN", 0.1)
    monkeypatch.setattr(database_module, "RENEWED_WITHIN", 1.0)
    async with _behind_a_proxy(postgres_18) as (proxy, database):
        async with asyncio.timeout(database_module.ANSWERED_WITHIN / 2):
            await database.first("SELECT 1", pool=Pool.RESERVED)
            proxy.fall_silent()
            with pytest.raises(Unavailable):
                await database.first("SELECT 1", pool=Pool.RESERVED)


@pytest.mark.long
async def test_calls_succeed_again_after_the_server_has_crashed() -> None:
    with a_postgres(18) as server:
        async with open_database(server.address("postgres")) as database:
            await asyncio.gather(*[database.first("SELECT 1") for _ in range(5)])
            server.kill()
            with pytest.raises(Unavailable):
                await database.first("SELECT 1")
            server.start()
            for _ in range(10):
                assert await database.first("SELECT 1")


async def _schema(address: PostgresAddress) -> list[Any]:
    async with connected(address) as connection:
        return [
            sorted(map(repr, await connection.fetch(query)))
            for query in (COLUMNS, OPTIONS, INDEXES)
        ]


async def _all_connected(connection: Any, count: int) -> None:
    """Wait until so many sessions wait for a lock."""
    waiting = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND wait_event = 'advisory'
    """
    while await connection.fetchval(waiting) < count:
        pass  # each look is a round trip: nothing tells when a session begins to wait


@asynccontextmanager
async def _with_counter(server: TestDatabases, *names: str) -> AsyncIterator[PostgresDatabase]:
    async with open_database(await server.create()) as database:
        await database.fetch("CREATE TABLE one (name text, n integer)")
        for name in names:
            await database.fetch("INSERT INTO one VALUES ($1, 0)", name)
        yield database
