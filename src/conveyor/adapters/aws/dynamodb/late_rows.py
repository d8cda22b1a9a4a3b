"""Rows that came after the purge of their run: of an `add` or a purge that died beside the other.

A purge closes the entry of its run, then looks for rows once more. An `add` that ends later opens the
entry again. If either process dies before that, rows may stay to which only the closed entry leads.
So each closed entry is looked at once more, an hour later.
"""

from collections.abc import Collection
from datetime import timedelta
from functools import partial

from conveyor.adapters.aws.dynamodb.layout import GSI3, index_shards, moment
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.adapters.aws.dynamodb.task_keys import (
    CLOSED,
    END,
    POSITION,
    RunDirectory,
    shard_partitions,
)
from conveyor.adapters.aws.dynamodb.together import together
from conveyor.domain.ids import RunId
from conveyor.domain.job import RunPlace
from conveyor.ports.clock import Clock

# By then every `add` and settle that was under way during a purge has ended or died.
LOOK_AFTER = timedelta(hours=1)
MOST_AT_A_TIME = 250  # closed entries of each partition


class LateRows:
    """Only reads. A process looks at each closed entry once, and remembers where it found rows."""

    def __init__(self, table: DynamoTable, clock: Clock, directory: RunDirectory) -> None:
        self._table, self._clock, self._directory = table, clock, directory
        self._looked_at: dict[str, str] = {}  # partition -> the last position
        self._found: set[RunId] = set()

    async def runs(self) -> Collection[RunId]:
        """Look at some closed entries more; return all runs that had rows."""
        await together([partial(self._look, partition) for partition in index_shards(CLOSED)])
        return self._found

    def removed(self, run_id: RunId) -> None:
        """A run has no rows any more."""
        self._found.discard(run_id)

    async def _look(self, partition: str) -> None:
        after = self._looked_at.get(partition)
        page = await self._table.query_page(
            partition,
            index=GSI3,
            first=f"{after} " if after else None,
            last=moment(self._clock.now() - LOOK_AFTER),
            page=MOST_AT_A_TIME,
        )
        for item in page["Items"]:
            position = item[POSITION]["S"]
            run_id = RunId(position.partition("#")[2])
            place = await self._directory.find(run_id)
            if place and await self._has_items(place, run_id):
                self._found.add(run_id)
            self._looked_at[partition] = position

    async def _has_items(self, place: RunPlace, run_id: RunId) -> bool:
        async def has(partition: str, kind: str) -> bool:
            first, last = f"{kind}#{run_id}#", f"{kind}#{run_id}#{END}"
            page = await self._table.query_page(
                partition, first=first, last=last, consistent=True, page=1
            )
            return bool(page["Items"])

        # A row is written after the parts beside it.
        wanted = [(partition, kind) for partition in shard_partitions(place) for kind in "TP"]
        return any(await together([partial(has, *one) for one in wanted]))
