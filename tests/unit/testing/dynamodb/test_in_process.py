"""Throttled partitions in simulated time."""

import asyncio
from datetime import timedelta

from conveyor.adapters.aws.dynamodb.batches import DynamoDbBatches
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.in_process import client_in_process
from tests.harness import time_lapse
from tests.harness.dynamodb_tables import TABLE, key, table_request

ROWS, RATE = 1_000, 100.0  # rows of 1 unit, and units a second for each partition key
LONG = timedelta(minutes=10)


async def write(shards: int) -> float:
    """The seconds that rows over so many partitions take, with four writers for each."""
    engine = DynamoDbEngine(time_lapse.LapseClock(), Knobs(writes_per_second=RATE))
    engine.execute("CreateTable", table_request())
    batches = DynamoDbBatches(client_in_process(engine))
    loop = asyncio.get_running_loop()
    started = loop.time()

    async def writer(shard: int, first: int) -> None:
        rows = range(shard + shards * first, ROWS, shards * 4)
        puts = [{"PutRequest": {"Item": key(f"p{shard}", str(n))}} for n in rows]
        for start in range(0, len(puts), 25):
            await batches.write(TABLE, puts[start : start + 25], deadline=LONG)

    async with asyncio.TaskGroup() as tasks:
        for shard in range(shards):
            for first in range(4):
                tasks.create_task(writer(shard, first))
    assert sum(1 for _ in engine.tables[TABLE].items()) == ROWS
    assert engine.meter.units.written == ROWS
    return loop.time() - started


def test_rows_over_eight_partitions_are_written_six_times_as_fast() -> None:
    alone, spread = time_lapse.run(write(1)), time_lapse.run(write(8))
    # The first second's units are there from the start.
    assert (ROWS - RATE) / RATE * 0.9 < alone < ROWS / RATE * 2
    assert alone / spread > 6
