"""A PostgreSQL database: pools of connections, and the border at which its errors end.

Errors of the driver and of the server become `Unavailable` or `StorageFull` here, and nowhere else;
a value that cannot be stored is a `ValueError`.
Deadlocks and serialisation failures are retried here: the server has rolled their transaction back.

| pool | for | why of its own |
|---|---|---|
| general | records, messages, reads and adds of tasks | |
| work | claims and settles | pages of a slow reader must not hold them up |
| reserved | renewals | must not wait behind the others: a lease would end |
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, TypeVar

import asyncpg

from conveyor.adapters.postgres.address import PostgresAddress
from conveyor.errors import RefusedToStart, StorageFull, Unavailable

T = TypeVar("T")
Connection = Any  # of asyncpg, which has no types
Operation = Callable[[Connection], Awaitable[T]]

ACQUIRED_WITHIN = 10.0  # seconds to wait for a free connection, and to connect
ANSWERED_WITHIN = 30.0  # seconds for one statement
# Seconds for a renewal. A process has one connection for them: if its server is gone, the next renewal
# must have another one before the leases end.
RENEWED_WITHIN = 5.0
IDLE = 300.0  # seconds after which a connection that nothing uses is closed
TRIES = 5  # of a transaction that the server rolls back for the sake of others
CLOSED_WITHIN = 10.0
# A connection whose statement was cancelled is free once the server has ended the statement.
RELEASED_WITHIN = 2.0
SESSION = {  # in the form in which the server shows values
    "application_name": "conveyor",
    "timezone": "UTC",
    "default_transaction_isolation": "read committed",  # what a statement sees after a lock
    "jit": "off",  # compiling takes longer than any of our statements
    "statement_timeout": "25s",  # before the client gives up, so that nothing runs on unseen
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "1min",
    # Statements over many keys join a list of unknown length with a table. The planner guesses that
    # length, and may read a whole table instead of the rows by their keys.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "max_parallel_workers_per_gather": "0",  # starting them takes longer than any of our statements
}
ROLLED_BACK = {"40001", "40P01"}  # for the sake of another transaction
DISK_FULL = "53100"
# Values that no later try could store: a wrong one, one that breaks a constraint, a too large one.
UNSTORABLE = ("22", "23", "54")
NO_TABLE = "42P01"
FAILURES = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


def same_key(one: str, other: str, names: Iterable[str]) -> str:
    """The condition of a join by key that leaves the planner only look-ups by that key.

    An equality also lets it read the whole table by its index, once for each given key, and it does
    while statistics say that the table is empty. Autovacuum says so of `held` whenever all tasks
    happen to be settled. For the same reason reads of one row stand behind `OFFSET 0`, which keeps
    them what they are: a subquery for each row.
    """
    names = tuple(names)
    left, right = (f"({', '.join(f'{table}.{name}' for name in names)})" for table in (one, other))
    return f"{left} >= {right} AND {left} <= {right}"


class Pool(Enum):
    GENERAL = "general"
    WORK = "work"
    RESERVED = "reserved"


class _Session(asyncpg.Connection):  # type: ignore[misc] # asyncpg has no types
    """A connection that needs no reset: no statement of ours changes the state of its session."""

    def get_reset_query(self) -> str:
        return ""


@dataclass(slots=True)
class Arrivals:
    """Tells that notifications have arrived."""

    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    is_lost: bool = False

    async def wait(self, at_most: timedelta) -> None:
        """Return at the next notification, or after `at_most`; raise once the connection is lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most.total_seconds()):
                await self.arrived.wait()
        self.arrived.clear()
        if self.is_lost:
            raise Unavailable("PostgreSQL: the connection for notifications is lost")

    def end(self) -> None:
        self.is_lost = True
        self.arrived.set()


class PostgresDatabase:
    """`open_database` makes it. It connects when it is first used."""

    def __init__(
        self, address: PostgresAddress, pools: dict[Pool, Any], tls: ssl.SSLContext | str
    ) -> None:
        self.address = address
        self._pools = pools
        self._tls = tls
        # A check that the first connection must pass, if the server was unavailable at the start.
        self.check_first: Operation[None] | None = None

    async def fetch(self, statement: str, *values: Any, pool: Pool = Pool.GENERAL) -> Sequence[Any]:
        """Run one statement, which is a transaction by itself, and return its rows."""
        return await self.run(lambda connection: connection.fetch(statement, *values), pool=pool)

    async def first(self, statement: str, *values: Any, pool: Pool = Pool.GENERAL) -> Any:
        """Run one statement and return its first row, or None."""
        return await self.run(lambda connection: connection.fetchrow(statement, *values), pool=pool)

    async def transact(self, operation: Operation[T], *, pool: Pool = Pool.GENERAL) -> T:
        """Run an operation in a transaction.

        The operation may run several times, of which one takes effect, so it must have no effect
        besides its statements.
        """

        async def inside(connection: Connection) -> T:
            async with transaction(connection):
                return await operation(connection)

        return await self.run(inside, pool=pool)

    async def run(self, operation: Operation[T], *, pool: Pool = Pool.GENERAL) -> T:
        """Run an operation on a connection. Each of its statements is a transaction by itself."""
        for left in reversed(range(TRIES)):
            try:
                async with self._own_errors(), self._connection(pool) as connection:
                    if self.check_first:
                        await self.check_first(connection)
                        self.check_first = None
                    return await operation(connection)
            except Unavailable as error:
                if not left or _code(error.__cause__) not in ROLLED_BACK:
                    raise
        raise AssertionError("the last try returns or raises")

    @asynccontextmanager
    async def _connection(self, pool: Pool) -> AsyncIterator[Connection]:
        connections = self._pools[pool]
        try:
            connection = await connections.acquire(timeout=ACQUIRED_WITHIN)
        except TimeoutError as error:
            used, most = connections.get_size(), connections.get_max_size()
            if used < most or connections.get_idle_size():
                raise  # it did not connect in time
            raise Unavailable(
                f"PostgreSQL at {self.address}: all {most} connections for {pool.value} were in use "
                f"for {ACQUIRED_WITHIN:.0f} s: raise `connections` in the address"
            ) from error
        try:
            yield connection
        finally:
            with suppress(*FAILURES):  # the pool closes it then; what was done with it counts
                await connections.release(connection, timeout=RELEASED_WITHIN)

    @asynccontextmanager
    async def listening(self, channel: str) -> AsyncIterator["Arrivals"]:
        """Listen to the notifications of a channel, on a connection of its own.

        With a pooler nothing arrives: it has no sessions that could listen.
        """
        arrivals = Arrivals()
        if self.address.pooled:
            yield arrivals
            return
        async with self._own_errors():
            connection = await asyncpg.connect(
                **_connecting(self.address, self._tls),
                server_settings={"application_name": "conveyor"},
            )
        try:
            connection.add_termination_listener(lambda _: arrivals.end())
            async with self._own_errors():
                await connection.add_listener(channel, lambda *_: arrivals.arrived.set())
            yield arrivals
        finally:
            connection.terminate()

    @asynccontextmanager
    async def _own_errors(self) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task
        before = task.cancelling()
        try:
            yield
        except FAILURES as error:
            # A failure of what the driver does after a cancellation, such as a rollback, replaces
            # it. A loop that goes on after `Unavailable` would then outlive its cancellation.
            if task.cancelling() > before:
                raise asyncio.CancelledError from error
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> Exception:
        code = _code(error)
        if code and code.startswith(UNSTORABLE):
            return ValueError(
                f"PostgreSQL at {self.address} cannot store a value: {error} ({code})"
            )
        kind = StorageFull if code == DISK_FULL else Unavailable
        why = str(error) or "no answer in time"
        if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
            why = "it is a standby, and only the primary is used"
        hint = ": run `conveyor migrate`" if code == NO_TABLE else ""
        return kind(f"PostgreSQL at {self.address}: {why}{f' ({code})' if code else ''}{hint}")


@asynccontextmanager
async def transaction(connection: Connection) -> AsyncIterator[None]:
    """A transaction, which after an error or a cancellation ends within a bounded time.

    Not that of the driver: one whose BEGIN was cancelled cannot be rolled back. The pool would do
    it, and log an error each time.
    """
    try:
        await connection.execute("BEGIN")
        yield
        await connection.execute("COMMIT")
    except BaseException:
        try:
            async with asyncio.timeout(RELEASED_WITHIN):
                await connection.execute("ROLLBACK")
        except FAILURES:
            connection.terminate()  # with which the server rolls back
        raise


@asynccontextmanager
async def open_database(
    address: PostgresAddress, *, writable: bool = True
) -> AsyncIterator[PostgresDatabase]:
    """Open the pools of a database. Nothing is sent before the first call."""
    session = SESSION | {"default_transaction_read_only": "off" if writable else "on"}
    work = (address.connections - 1) // 2
    tls = _tls(address)
    # Through a pooler a renewal may wait for a connection of the server, like everything else.
    renewed_within = ANSWERED_WITHIN if address.pooled else RENEWED_WITHIN
    pools = {
        Pool.GENERAL: _pool(address, tls, address.connections - 1 - work, session),
        Pool.WORK: _pool(address, tls, work, session),
        Pool.RESERVED: _pool(address, tls, 1, session, answered_within=renewed_within),
    }
    for pool in pools.values():
        await pool  # which does not connect, because it may be empty
    try:
        yield PostgresDatabase(address, pools, tls)
    finally:
        await asyncio.gather(*map(_close, pools.values()))


def _pool(
    address: PostgresAddress,
    tls: ssl.SSLContext | str,
    size: int,
    session: Mapping[str, str],
    *,
    answered_within: float = ANSWERED_WITHIN,
) -> Any:
    return asyncpg.create_pool(
        **_connecting(address, tls, answered_within),
        min_size=0,
        max_size=size,
        max_inactive_connection_lifetime=IDLE,
        connection_class=_Session,
        # A pooler gives each transaction another connection, which does not know the statements that
        # were prepared on the one before, and refuses settings of a session.
        statement_cache_size=0 if address.pooled else 200,
        server_settings={} if address.pooled else session,
    )


def _connecting(
    address: PostgresAddress, tls: ssl.SSLContext | str, answered_within: float = ANSWERED_WITHIN
) -> dict[str, Any]:
    return {
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "password": address.password,
        "database": address.database,
        "ssl": tls,
        "command_timeout": answered_within,
        "timeout": ACQUIRED_WITHIN,
        # After a failover a name may lead to a standby for a while, whose connections would stay. A
        # pooler says of its first connection whether it is one, long after that server was promoted.
        "target_session_attrs": "any" if address.pooled else "primary",
    }


def _tls(address: PostgresAddress) -> ssl.SSLContext | str:
    is_verified = address.tls.startswith("verify") or (address.tls == "require" and address.ca)
    if not is_verified:
        return address.tls
    try:
        context = ssl.create_default_context(cafile=address.ca)
    except OSError as error:  # of `ssl` too
        raise RefusedToStart(
            f"settings: `sslrootcert` of the database {address} must be a file with certificates, "
            f"got {address.ca}: {error.strerror or error}"
        ) from error
    context.check_hostname = address.tls == "verify-full"
    return context


async def _close(pool: Any) -> None:
    try:
        async with asyncio.timeout(CLOSED_WITHIN):
            await pool.close()
    except FAILURES:
        pool.terminate()


def _code(error: BaseException | None) -> str | None:
    """The SQLSTATE of an error of the server."""
    return getattr(error, "sqlstate", None)
