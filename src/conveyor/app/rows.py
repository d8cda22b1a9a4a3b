"""Engines of rows and of the queues beside them: metadata, tasks with their claims, control queue."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from random import SystemRandom
from typing import TYPE_CHECKING, NamedTuple

from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.adapters.memory.queues import MemoryQueues
from conveyor.adapters.queued.grouping import GroupedQueues
from conveyor.adapters.queued.work import QueuedWork
from conveyor.adapters.sqlite.database import Durability, missing_schema, open_database, owner_of
from conveyor.adapters.sqlite.engine import SqliteEngine, open_engine, visit_engine
from conveyor.app.aws import in_dynamodb
from conveyor.app.postgres import on_postgres, postgres_engine
from conveyor.app.schemes import Opening, QueueEngine, Scheme
from conveyor.app.sqs import SQS_CONTROL_QUEUE, SQS_QUEUES
from conveyor.ports.claims import Claims
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.metadata import Metadata
from conveyor.ports.queues import Queues
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Held, Work
from conveyor.settings import Settings
from conveyor.telemetry.process import TableHealth
from conveyor.timekeeping import DueTimes

if TYPE_CHECKING:
    from conveyor.adapters.aws.dynamodb.table import DynamoTable


class TaskEngine(NamedTuple):
    """What a task engine provides: tasks and their claims are rows of one database."""

    tasks: Tasks
    work: Work | None  # None if the rows are no queue: then `queues` must name one
    due_times: DueTimes | None
    # Claims whose holders are dead. None if the engine cannot prove that this process is alone: then
    # nothing may be released at the start, because a claim may be that of a live process.
    dead_claims: Sequence[Held] | None
    claims: Claims | None = None  # for a queue beside the rows; None if the engine takes none
    shards: int = 1  # over which it spreads the rows of a run of a new job
    settle_wait: timedelta = timedelta()  # for which finished tasks wait to share a settle
    # How many rows it wrote that are larger, and so cost more, than they should; None: it has no limit.
    large_rows: Callable[[], int] | None = None
    table_health: Callable[[], Awaitable[TableHealth]] | None = None  # None: it has no such tables


def _sqlite(opening: Opening, _address: str) -> AbstractAsyncContextManager[SqliteEngine]:
    clock, ids = opening.clock, opening.ids
    if opening.is_offline:
        return visit_engine(opening.folder, clock=clock, ids=ids, writable=opening.writable)
    settings = opening.settings
    durability = Durability(settings.durability)
    return open_engine(
        opening.folder, clock=clock, ids=ids, lease=settings.lease, durability=durability
    )


async def _sqlite_metadata(opening: Opening, address: str) -> Metadata:
    return (await opening.once(_sqlite, address)).metadata


async def _sqlite_tasks(opening: Opening, address: str) -> TaskEngine:
    rows = await opening.once(_sqlite, address)
    return TaskEngine(rows.tasks, rows.work, rows.due_times, rows.dead_claims)


async def _sqlite_control_queue(opening: Opening, address: str) -> ControlQueue:
    return (await opening.once(_sqlite, address)).control_queue


async def _migrate_sqlite(
    settings: Settings, _address: str, _kinds: Sequence[str]
) -> Sequence[str]:
    if owner := owner_of(settings.folder):
        return [f"{settings.folder} is in use by process {owner}, whose start upgraded its schema"]
    async with open_database(settings.folder):  # which upgrades it
        return [f"{settings.folder} has the latest schema"]


async def _memory_control_queue(opening: Opening, _address: str) -> ControlQueue:
    """Open an empty queue. The sweeper sends the messages of a dead process again."""
    return MemoryControlQueue(opening.clock)


async def _missing_in_sqlite(settings: Settings, _address: str) -> Sequence[str]:
    return [
        f"{settings.folder} lacks schema {number}" for number in missing_schema(settings.folder)
    ]


async def _postgres_metadata(opening: Opening, address: str) -> Metadata:
    return (await opening.once(postgres_engine, address)).metadata


async def _postgres_tasks(opening: Opening, address: str) -> TaskEngine:
    rows = await opening.once(postgres_engine, address)
    # Due times are compared with the clock of the server; other processes may hold the claims.
    from conveyor.adapters.postgres.table_health import table_health  # noqa: PLC0415 - an extra

    async def health() -> TableHealth:
        return TableHealth(*await table_health(rows.database))

    return TaskEngine(
        rows.tasks,
        rows.work,
        due_times=None,
        dead_claims=None,
        table_health=health,
    )


async def _postgres_control_queue(opening: Opening, address: str) -> ControlQueue:
    return (await opening.once(postgres_engine, address)).control_queue


async def _memory_queues(opening: Opening, _address: str) -> QueueEngine:
    visibility = opening.settings.lease
    queues = MemoryQueues(opening.clock, visibility=visibility, random=SystemRandom())
    return QueueEngine(queues, visibility)


def _dynamodb_metadata(opening: Opening, table: "DynamoTable") -> Metadata:
    from conveyor.adapters.aws.dynamodb.metadata import DynamoMetadata  # noqa: PLC0415 - an extra

    return DynamoMetadata(table, opening.clock)


def _dynamodb_tasks(opening: Opening, table: "DynamoTable") -> TaskEngine:
    from conveyor.adapters.aws.dynamodb.task_engine import (  # noqa: PLC0415 - an extra
        SETTLE_WAIT,
        open_task_rows,
    )

    settings = opening.settings
    rows = open_task_rows(table, opening.clock, lease=settings.lease, holder=opening.incarnation)
    return TaskEngine(
        rows.tasks,
        work=None,
        due_times=None,
        dead_claims=None,
        claims=rows.claims,
        shards=settings.task_shard_count,
        settle_wait=SETTLE_WAIT,
        large_rows=lambda: rows.sizes.large,
    )


METADATA: Mapping[str, Scheme[Metadata]] = {
    "sqlite": Scheme(open=_sqlite_metadata, migrate=_migrate_sqlite, missing=_missing_in_sqlite),
    "postgresql": on_postgres(_postgres_metadata),
    "dynamodb": in_dynamodb(_dynamodb_metadata),
}
TASKS: Mapping[str, Scheme[TaskEngine]] = {
    "sqlite": Scheme(open=_sqlite_tasks, migrate=_migrate_sqlite, missing=_missing_in_sqlite),
    "postgresql": on_postgres(_postgres_tasks),
    "dynamodb": in_dynamodb(_dynamodb_tasks),
}
CONTROL_QUEUE: Mapping[str, Scheme[ControlQueue]] = {
    "sqlite": Scheme(
        open=_sqlite_control_queue, migrate=_migrate_sqlite, missing=_missing_in_sqlite
    ),
    "postgresql": on_postgres(_postgres_control_queue),
    "memory": Scheme(open=_memory_control_queue, in_memory=True),
    "sqs": SQS_CONTROL_QUEUE,
}
QUEUES: Mapping[str, Scheme[QueueEngine]] = {
    "memory": Scheme(open=_memory_queues, is_offline=False, in_memory=True),
    "sqs": SQS_QUEUES,
}


async def open_work(opening: Opening, engine: TaskEngine) -> tuple[Work, Queues | None]:
    """Return the work of a task engine, over the queue that the setting names, if it names one."""
    if not opening.settings.queues:
        assert engine.work, "checked by `check_engines`"
        return engine.work, None
    assert engine.claims, "checked by `check_engines`"
    scheme, _, address = opening.settings.queues.partition(":")
    opened = await QUEUES[scheme].open(opening, address)
    queues = opened.queues
    if opened.is_billed:
        queues = grouped = GroupedQueues(queues, opening.clock, visibility=opened.visibility)
        opening.stack.push_async_callback(grouped.flush)
    work = QueuedWork(
        engine.claims,
        queues,
        clock=opening.clock,
        lease=opening.settings.lease,
        visibility=opened.visibility,
        holder=opening.incarnation,
    )
    return work, opened.queues
