"""The feed of runs that changed, from an index by the time of their commits.

Entries arrive late and in any order: the time is that of the process, a commit may take up to its
deadline, and the index lags. So a mark is the time of the last run that was listed, and every call
looks again at the entries of the time before it; the mark has digests of those that were listed.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import NamedTuple

from conveyor.adapters.aws.dynamodb.layout import GSI2, index_shards
from conveyor.adapters.aws.dynamodb.listings import IndexEntry, entries
from conveyor.adapters.aws.dynamodb.records import CHANGED, CONTENT, RUN, stamp
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.domain.run import Run
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import LISTING_BYTES

# Over the 10 s of a commit's deadline, the difference of clocks, and the lag of the index.
OVERLAP = timedelta(seconds=30)
DIGEST = 6  # bytes for each entry


class Mark(NamedTuple):
    at: datetime
    seen: frozenset[bytes]  # digests of listed entries of the time before

    @classmethod
    def parse(cls, text: str) -> "Mark":
        at, _, digests = text.partition("/")
        packed = urlsafe_b64decode(digests)
        seen = {packed[start : start + DIGEST] for start in range(0, len(packed), DIGEST)}
        return cls(datetime.fromisoformat(at), frozenset(seen))

    def __str__(self) -> str:
        return f"{stamp(self.at)}/{urlsafe_b64encode(b''.join(sorted(self.seen))).decode()}"


async def mark_of_now(table: DynamoTable, clock: Clock) -> Mark:
    mark = Mark(_now(clock), frozenset())
    passed = [entry async for entry in _entries(table, mark, want=None)]
    return Mark(mark.at, _digests(passed))


async def changed_since(
    table: DynamoTable, clock: Clock, mark: Mark, *, limit: int
) -> tuple[list[Run], Mark]:
    listed = _entries(table, mark, want=limit + len(mark.seen))
    runs, new, known = list[Run](), list[IndexEntry](), list[IndexEntry]()
    is_end = False
    while not (runs or is_end):
        block = list[IndexEntry]()
        is_end = True
        async for entry in listed:
            (known if _digest(entry) in mark.seen else block).append(entry)
            if len(block) == limit:
                is_end = False
                break
        taken, runs = await _read(table, block)
        new += taken
        is_end = is_end and len(taken) == len(block)
    # A clock that is ahead must not move the mark past the changes of other processes.
    at = min(max([mark.at, *map(_time, new)]), max(mark.at, _now(clock)))
    since = stamp(at - OVERLAP)
    digests = _digests([entry for entry in (*known, *new) if entry.sort >= since])
    return runs, Mark(at, digests if is_end else mark.seen | digests)


async def _read(
    table: DynamoTable, block: Sequence[IndexEntry]
) -> tuple[list[IndexEntry], list[Run]]:
    """The runs of entries, and those entries that fit into a page; some lead to no run any more.

    A run that changes meanwhile may be in the index twice. It is read once.
    """
    # Consistent, or the version before the change could be read and the change never be listed.
    items = await table.get_many([entry.key for entry in block], consistent=True) if block else {}
    runs, used = list[Run](), 0
    for number, entry in enumerate(block):
        item = items.pop(entry.key, None)
        if item is None:
            continue
        used += len(item[CONTENT]["S"].encode())
        if runs and used > LISTING_BYTES:
            return list(block[:number]), runs
        runs.append(RUN.of_item(item))
    return list(block), runs


def _entries(table: DynamoTable, mark: Mark, *, want: int | None) -> AsyncIterator[IndexEntry]:
    first = stamp(mark.at - OVERLAP)
    return entries(table, index_shards(CHANGED), index=GSI2, first=first, want=want)


def _time(entry: IndexEntry) -> datetime:
    return datetime.fromisoformat(entry.sort.partition("#")[0])


def _now(clock: Clock) -> datetime:
    return clock.now().replace(tzinfo=None)


def _digests(passed: Iterable[IndexEntry]) -> frozenset[bytes]:
    return frozenset(map(_digest, passed))


def _digest(entry: IndexEntry) -> bytes:
    return blake2b(entry.sort.encode(), digest_size=DIGEST).digest()
