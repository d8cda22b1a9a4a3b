"""The schema of a PostgreSQL database, and its upgrades while processes of two releases run.

Scripts are numbered. A release knows the schema of its last script, n, and also runs on n + 1: its
successor upgrades the schema first and replaces the processes then. So a release adds at most one
script, which only adds what the release before it can ignore (expand), and what a release no longer
uses is removed by the script of the release after it (contract).
"""

from collections.abc import Sequence
from importlib.resources import files

from conveyor.adapters.postgres.address import PostgresAddress
from conveyor.adapters.postgres.database import Connection, PostgresDatabase, open_database
from conveyor.errors import RefusedToStart, Unavailable

LOCK = 0x636F6E76  # of the advisory lock that one migration at a time holds
WITHIN = 24 * 3600.0  # seconds for one script, or for another migration to end
HAS_VERSIONS = "SELECT to_regclass('schema_version') IS NOT NULL"
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
        lock_timeout = await connection.fetchval("SHOW lock_timeout")
        await connection.execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK, timeout=WITHIN)
        # A script that waits for a table keeps everybody else from it.
        await connection.execute(f"SET LOCAL lock_timeout = '{lock_timeout}'")
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
    """Raise `RefusedToStart` unless this release can use the schema.

    A database that does not answer is no reason to refuse: it may be back in a moment. Then its
    first connection is checked, and calls raise `Unavailable` while the schema is a wrong one.
    """
    try:
        wrong = _wrong(await database.transact(_version), database)
    except Unavailable:

        async def check(connection: Connection) -> None:
            if wrong := _wrong(await _version(connection), database):
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


async def _version(connection: Connection) -> int:
    if not await connection.fetchval(HAS_VERSIONS):
        return 0
    return int(await connection.fetchval(VERSION))
