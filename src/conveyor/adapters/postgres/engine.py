"""The engine on PostgreSQL: every kind of row in one database that processes share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec

from conveyor.adapters.postgres.address import PostgresAddress
from conveyor.adapters.postgres.control_queue import PostgresControlQueue
from conveyor.adapters.postgres.database import PostgresDatabase, open_database
from conveyor.adapters.postgres.metadata import PostgresMetadata
from conveyor.adapters.postgres.schema import check_schema
from conveyor.adapters.postgres.tasks import PostgresTasks
from conveyor.adapters.postgres.work import PostgresWork
from conveyor.ports.clock import Clock, Ids


class PostgresEngine(msgspec.Struct, frozen=True, kw_only=True):
    database: PostgresDatabase
    metadata: PostgresMetadata
    tasks: PostgresTasks
    work: PostgresWork
    control_queue: PostgresControlQueue


@asynccontextmanager
async def open_engine(
    address: PostgresAddress,
    *,
    ids: Ids,
    lease: timedelta,
    holder: str,
    clock: Clock | None = None,
    writable: bool = True,
) -> AsyncIterator[PostgresEngine]:
    """Open a database for one process, the holder of its claims; `RefusedToStart` by its schema.

    Without a clock, times are those of the server.
    """
    async with open_database(address, writable=writable) as database:
        await check_schema(database)
        yield PostgresEngine(
            database=database,
            metadata=PostgresMetadata(database, clock),
            tasks=PostgresTasks(database, clock),
            work=PostgresWork(database, lease=lease, holder=holder, clock=clock),
            control_queue=PostgresControlQueue(database, ids, clock),
        )
