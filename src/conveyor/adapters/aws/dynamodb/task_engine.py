"""Tasks and claims on one table, as a process opens them."""

from datetime import timedelta
from random import Random, SystemRandom
from typing import NamedTuple

from conveyor.adapters.aws.dynamodb.claims import DynamoClaims
from conveyor.adapters.aws.dynamodb.counters import RunCounters
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.adapters.aws.dynamodb.task_keys import RunDirectory
from conveyor.adapters.aws.dynamodb.task_writes import RowSizes, TaskWriter
from conveyor.adapters.aws.dynamodb.tasks import DynamoTasks
from conveyor.ports.clock import Clock

# Each settle writes the counter of its run, so finished tasks should wait to share one.
SETTLE_WAIT = timedelta(seconds=1)


class DynamoTaskRows(NamedTuple):
    tasks: DynamoTasks
    claims: DynamoClaims
    sizes: RowSizes


def open_task_rows(
    table: DynamoTable,
    clock: Clock,
    *,
    lease: timedelta,
    holder: str,
    random: Random | None = None,
) -> DynamoTaskRows:
    """`holder` is the name of the process."""
    random = random or SystemRandom()
    directory = RunDirectory(table)
    # The name of a process may be used again, by a restart or a test; counters must not be.
    counters = RunCounters(table, incarnation=f"{random.getrandbits(64):016x}")
    writer = TaskWriter(table, counters, random=random)
    return DynamoTaskRows(
        DynamoTasks(table, clock, directory=directory, counters=counters, writer=writer),
        DynamoClaims(table, clock, lease=lease, holder=holder, directory=directory, writer=writer),
        writer.sizes,
    )
