"""The schema of a PostgreSQL database, and its upgrades while processes of two releases run.

Scripts are numbered. A release knows the schema of its last script, n, and also runs on n + 1: its
successor upgrades the schema first and replaces the processes then. So a release adds at most one
script, which only adds what the release before it can ignore (expand), and what a release no longer
uses is removed by the script of the release after it (contract).
"""

from collections.abc import Sequence
from importlib.resources import files

from conveyor.adapters.postgres.address import PostgresAddress
from conveyor.adapters.postgres.database import (
    SESSION,
    Connection,
    PostgresDatabase,
    open_database,
)
from conveyor.errors import RefusedToStart, Unavailable

LOCK = 0x636F6E76  # of the advisory lock that one migration at a time holds
WITHIN = 24 * 3600.0  # seconds for one script, or for another migration to end
HAS_VERSIONS = "SELECT to_regclass('schema_version') IS NOT NULL"
SETTINGS = "SELECT name, current_setting(name) FROM unnest($1::text[]) AS given (name)"
VERSION = "SELECT coalesce(max(version), 0) FROM schema_version"


def migrations() -> list[tuple[int, str]]:
    """(version, script) of each schema change, in order."""
    folder = files("conveyor.adapters.postgres") / "migrations"
    scripts = sorted(
        (item for item in folder.iterdir() if item.name.endswith(".sql")),
        key=lambda item: item.name,
    )
    return [(int(item.name[:4]), item.read_text()) for item in scripts]


LATEST = migrations()[-1][0]


async def migrate_at(address: PostgresAddress) -> Sequence[int]:
    """Upgrade the schema of the database at an address, as `migrate` does."""
    async with open_database(address) as database:
        return await migrate(database)


async def missing_at(address: PostgresAddress) -> Sequence[int]:
    """Return what the database at an address lacks, as `missing_migrations` does."""
    async with open_database(address, writable=False) as database:
        return await missing_migrations(database)


async def migrate(database: PostgresDatabase) -> Sequence[int]:
    """Run the scripts that the database lacks, in one transaction; return their versions."""

    async def operation(connection: Connection) -> list[int]:
        encoding = await connection.fetchval("SHOW server_encoding")
        if encoding != "UTF8":
            raise RefusedToStart(
                f"the database {database.address} must have the encoding UTF8, got {encoding}: "
                "create another with `CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0`"
            )
        await connection.execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK, timeout=WITHIN)
        # A script that waits for a table keeps everybody else from it.
        await connection.execute(f"SET LOCAL lock_timeout = '{SESSION['lock_timeout']}'")
        have = await _version(connection)
        missing = [(version, script) for version, script in migrations() if version > have]
        for version, script in missing:
            await connection.execute(script, timeout=WITHIN)
            await connection.execute("INSERT INTO schema_version (version) VALUES ($1)", version)
        return [version for version, _ in missing]

    return await database.transact(operation)


async def missing_migrations(database: PostgresDatabase) -> Sequence[int]:
    """Return the versions that `migrate` would add; `RefusedToStart` if the schema is too new."""
    have = await database.transact(_version)
    if wrong := _too_new(have, database):
        raise RefusedToStart(wrong)
    return [version for version, _ in migrations() if version > have]


async def check_schema(database: PostgresDatabase) -> None:
    """Raise `RefusedToStart` unless this release can use the schema, under safe settings.

    A database that does not answer is no reason to refuse: it may be back in a moment. Then its
    first connection is checked, and calls raise `Unavailable` while something is wrong.
    """

    async def find_wrong(connection: Connection) -> str | None:
        have = await _version(connection)
        return _wrong(have, database) or await _unsafe(connection, database)

    try:
        wrong = await database.transact(find_wrong)
    except Unavailable:

        async def check(connection: Connection) -> None:
            if wrong := await find_wrong(connection):
                raise Unavailable(wrong)

        database.check_first = check
        return
    if wrong:
        raise RefusedToStart(wrong)


def _wrong(have: int, database: PostgresDatabase) -> str | None:
    """Why this release cannot use a schema, and what to do."""
    if have < LATEST:
        return (
            f"the database {database.address} has schema {have}, and this release needs {LATEST}: "
            "run `conveyor migrate`"
        )
    return _too_new(have, database)


def _too_new(have: int, database: PostgresDatabase) -> str | None:
    if have <= LATEST + 1:
        return None
    return (
        f"the database {database.address} has schema {have}, and this release knows those up to "
        f"{LATEST + 1}: upgrade Conveyor"
    )


async def _unsafe(connection: Connection, database: PostgresDatabase) -> str | None:
    """Which setting of the database or of the role makes it unsafe to use, and what to do."""
    if await connection.fetchval("SHOW synchronous_commit") == "off":
        return (
            f"the database {database.address} has synchronous_commit = off, so a crash of the "
            "server would lose claims and settles that it has confirmed: remove that setting where "
            "it was made (ALTER ROLE, ALTER DATABASE or the configuration of the server)"
        )
    # Also where no pooler is named: one that is told to ignore settings drops them silently.
    wanted = {name: value for name, value in SESSION.items() if name != "application_name"}
    found = dict(map(tuple, await connection.fetch(SETTINGS, list(wanted))))
    missing = [f"{name} = '{value}'" for name, value in wanted.items() if found[name] != value]
    if not missing:
        return None
    return (
        f"sessions of {database.address} must have the settings {', '.join(missing)}, which cannot "
        "be made through a pooler: make them with ALTER ROLE, reconnect the pooler, and name it in "
        "the address (`pooler=transaction`), as docs/storage/postgres.md has it"
    )


async def _version(connection: Connection) -> int:
    if not await connection.fetchval(HAS_VERSIONS):
        return 0
    return int(await connection.fetchval(VERSION))
