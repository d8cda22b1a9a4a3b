"""Where the rows of tasks are: their keys, and the directory that tells how a run is spread.

| item | pk | sk |
|---|---|---|
| directory | `Run#<run>` | `D` |
| task of a run in one partition | `Job#<job>` | `T#<run>#<task>` |
| task of a run over N shards | `Job#<job>#TS<k>` | the same |
| part of a task beside its row | that of the task | `P#<run>#<task>#<name>.<chunk>` |
| counter | `Job#<job>` | `C#<run>#<incarnation>.<number>` |
| more failure groups of a counter | `Job#<job>` | `G#<run>#<incarnation>.<number>.<page>` |

The shard k of a task is the FNV-1a hash of its id modulo N. The id begins with the index, so sort keys
grow, and DynamoDB cannot relieve a partition by splitting it: only N does.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

from conveyor.adapters.aws.dynamodb.layout import (
    GSI3,
    INDEX_KEYS,
    TTL,
    ItemKey,
    index_shard,
    moment,
)
from conveyor.adapters.aws.dynamodb.table import IS_NEW, DynamoTable
from conveyor.adapters.aws.faults import ConditionFailed
from conveyor.adapters.aws.item_size import Item
from conveyor.domain.ids import JobId, RunId
from conveyor.domain.job import ROW_VERSION, RunPlace

# Listings of entries: of runs that have rows, and of those whose rows were removed.
ROWS, CLOSED = "rows", "closed"
LISTING, POSITION = INDEX_KEYS[GSI3]
CLOSED_LIFE = timedelta(days=2)  # of a closed entry, in which a sweeper must look at it
MOST_PLACES = 10_000  # that a process remembers
END = "~"  # sorts after every id


def fnv32a(text: str) -> int:
    """The FNV-1a hash of a text, 32 bits."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def shard_of(place: RunPlace, task_id: str) -> int:
    return fnv32a(task_id) % place.shards if place.shards > 1 else 0


def job_partition(place: RunPlace) -> str:
    return f"Job#{place.job_id}"


def shard_partition(place: RunPlace, shard: int) -> str:
    return f"{job_partition(place)}#TS{shard}" if place.shards > 1 else job_partition(place)


def shard_partitions(place: RunPlace) -> Sequence[str]:
    return [shard_partition(place, shard) for shard in range(max(place.shards, 1))]


def row_key(place: RunPlace, run_id: RunId, task_id: str) -> ItemKey:
    partition = shard_partition(place, shard_of(place, task_id))
    return ItemKey(partition, f"T#{run_id}#{task_id}")


def row_sort(run_id: RunId, index: int) -> str:
    """The lowest sort key of the row with an index."""
    return f"T#{run_id}#{index:08x}"


def part_key(row: ItemKey, name: str, chunk: int = 0) -> ItemKey:
    return ItemKey(row.pk, f"P{row.sk[1:]}#{name}.{chunk}")


def part_sort(row_sort: str) -> str:
    """The lowest sort key of the parts of a row."""
    return f"P{row_sort[1:]}"


def failed_partition(run_id: RunId, shard: int) -> str:
    """The partition of GSI1 that has the failed tasks of a shard."""
    return f"F#{run_id}#{shard}"


def stamp_of(place: RunPlace) -> str:
    """What messages of a run carry. Rows in a newer format have its version at the end."""
    return place.stamp if place.v == ROW_VERSION else f"{place.stamp}/{place.v}"


def place_in(stamp: str) -> RunPlace | None:
    """The place that a message names; None if it names none."""
    job_id, *numbers = stamp.split("/")
    if not 1 <= len(numbers) <= 2 or not all(map(str.isdecimal, numbers)):
        return None
    return RunPlace(JobId(job_id), *map(int, numbers))


class RunDirectory:
    """The place of each run. It never changes, so a process reads it once.

    The entry of a run whose rows were removed is closed. It still tells the place, and leads to rows
    that come late, until it expires.
    """

    def __init__(self, table: DynamoTable) -> None:
        self._table = table
        self._places: dict[RunId, RunPlace] = {}

    async def lay_out(self, run_id: RunId, place: RunPlace) -> None:
        known = self._places.get(run_id) or await self._enter(run_id, place)
        if known != place:
            raise ValueError(f"run {run_id} has another place: {known}, got {place}")

    async def find(self, run_id: RunId) -> RunPlace | None:
        if known := self._places.get(run_id):
            return known
        item = await self._table.get(_key(run_id))
        return self._remember(run_id, _place(item)) if item else None

    async def restore(self, run_id: RunId, place: RunPlace) -> None:
        """Open the entry of a run again that was closed or removed while its rows were written."""
        entry = await self._table.get(_key(run_id))
        if entry is None or entry[LISTING]["S"] != index_shard(ROWS, run_id):
            await self._table.put(_entry(run_id, place))

    async def close(self, run_id: RunId, place: RunPlace, now: datetime) -> None:
        """List a run among those whose rows were removed, and let the entry expire."""
        closed = {
            LISTING: {"S": index_shard(CLOSED, run_id)},
            POSITION: {"S": f"{moment(now)}#{run_id}"},
            TTL: {"N": str(math.ceil((now + CLOSED_LIFE).timestamp()))},
        }
        await self._table.put({**_entry(run_id, place), **closed})

    async def _enter(self, run_id: RunId, place: RunPlace) -> RunPlace:
        try:
            await self._table.put(_entry(run_id, place), IS_NEW)
        except ConditionFailed as failed:
            stored = failed.item or await self._table.get(_key(run_id))
            return self._remember(run_id, _place(stored) if stored else place)
        return self._remember(run_id, place)

    def _remember(self, run_id: RunId, place: RunPlace) -> RunPlace:
        self._places[run_id] = place
        if len(self._places) > MOST_PLACES:
            del self._places[next(iter(self._places))]
        return place


def _key(run_id: RunId) -> ItemKey:
    return ItemKey(f"Run#{run_id}", "D")


def _entry(run_id: RunId, place: RunPlace) -> Item:
    return {
        **_key(run_id).fields,
        "j": {"S": place.job_id},
        "n": {"N": str(place.shards)},
        "v": {"N": str(place.v)},
        LISTING: {"S": index_shard(ROWS, run_id)},
        POSITION: {"S": run_id},
    }


def _place(item: Item) -> RunPlace:
    return RunPlace(JobId(item["j"]["S"]), int(item["n"]["N"]), int(item["v"]["N"]))
