"""A shared store whose records, rows and control messages are in a PostgreSQL database."""

from contextlib import AsyncExitStack
from datetime import timedelta

from conveyor.adapters.memory.queues import Habits
from conveyor.adapters.postgres.address import PostgresAddress
from conveyor.adapters.postgres.control_queue import PostgresControlQueue
from conveyor.adapters.postgres.database import PostgresDatabase, open_database
from conveyor.adapters.postgres.metadata import PostgresMetadata
from conveyor.adapters.postgres.tasks import PostgresTasks
from conveyor.adapters.postgres.work import PostgresWork
from conveyor.ports.clock import Clock
from conveyor.testing.clock import FakeIds
from conveyor.testing.shared.faults import FaultInjector, FaultyPort
from conveyor.testing.shared.store import SharedPorts, SharedStore

DELETE_ALL = """
DO $$ BEGIN
    EXECUTE (SELECT string_agg(format('DELETE FROM %I', tablename), ';') FROM pg_tables
              WHERE schemaname = 'public' AND tablename <> 'schema_version');
END $$
"""


class PostgresStore(SharedStore):
    """Calls are throttled and answers lost. All services go by the clock of the server."""

    def __init__(
        self,
        clock: Clock,
        *,
        lease: timedelta,
        injector: FaultInjector,
        habits: Habits,
        address: PostgresAddress,
    ) -> None:
        super().__init__(clock, lease=lease, injector=injector, habits=habits)
        self.injector, self.address = injector, address
        self.ids, self.stack = FakeIds(), AsyncExitStack()
        self.database: PostgresDatabase | None = None

    async def connect(self) -> None:
        """Open the database, and empty it."""
        if self.database is None:
            self.database = await self.stack.enter_async_context(open_database(self.address))
            await self.database.run(lambda connection: connection.execute(DELETE_ALL))

    async def close(self) -> None:
        await self.stack.aclose()

    def open(
        self, *, clock: Clock | None = None, holder: str = "", faulty: bool = True
    ) -> SharedPorts:
        del clock
        assert self.database, "it is not connected"
        others = super().open(holder=holder, faulty=False)
        ports = {
            "metadata": PostgresMetadata(self.database, self.clock),
            "tasks": PostgresTasks(self.database, self.clock),
            "work": PostgresWork(self.database, lease=self.lease, holder=holder, clock=self.clock),
            "claims": others.claims,  # not used, nor the queues: the rows are the queue
            "queues": others.queues,
            "control_queue": PostgresControlQueue(self.database, self.ids, self.clock),
        }
        if faulty:
            ports = {name: FaultyPort(port, self.injector) for name, port in ports.items()}
        return SharedPorts(**ports)  # type: ignore[arg-type]
