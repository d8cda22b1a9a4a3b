"""The table: names of its keys, attributes and indexes. docs/storage/dynamodb.md describes them.

Names are short because every item is billed with the names of its attributes.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from zlib import crc32

PK, SK = "pk", "sk"
TTL = "t"  # when DynamoDB may remove the item, in seconds since 1970

# The keys of each index. An item is in an index if it has both.
GSI1, GSI2, GSI3 = "gsi1", "gsi2", "gsi3"
INDEX_KEYS: Mapping[str, tuple[str, str]] = {
    GSI1: ("g1p", "g1s"),
    GSI2: ("g2p", "g2s"),
    GSI3: ("g3p", "g3s"),
}
# Attributes that an index has beside the keys: the status of a job, and what a failed task shows.
INCLUDED: Mapping[str, Sequence[str]] = {GSI1: ("st", "a", "c", "f", "h", "p", "u")}

# Partitions of an index over which the entries of one listing are spread. A partition takes 1,000
# write units a second. Never change it: entries would be looked for in the wrong partitions.
INDEX_SHARDS = 4


class ItemKey(NamedTuple):
    pk: str
    sk: str

    @property
    def fields(self) -> dict[str, dict[str, str]]:
        return {PK: {"S": self.pk}, SK: {"S": self.sk}}


def index_shard(name: str, of: str) -> str:
    """The partition of a listing in which the entry of an id is."""
    return f"{name}#{crc32(of.encode()) % INDEX_SHARDS}"


def index_shards(name: str) -> list[str]:
    """All partitions of a listing."""
    return [f"{name}#{number}" for number in range(INDEX_SHARDS)]


def moment(time: datetime) -> str:
    """A time as sort keys have it, in order."""
    return f"{math.floor(time.timestamp() * 1_000_000):016}"


def table_definition(name: str) -> dict[str, Any]:
    """The CreateTable request."""
    attributes = [PK, SK, *(key for keys in INDEX_KEYS.values() for key in keys)]
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": attribute, "AttributeType": "S"} for attribute in attributes
        ],
        "KeySchema": _key_schema(PK, SK),
        "GlobalSecondaryIndexes": [
            {
                "IndexName": index,
                "KeySchema": _key_schema(*keys),
                "Projection": _projection(INCLUDED.get(index, ())),
            }
            for index, keys in INDEX_KEYS.items()
        ],
    }


def _key_schema(partition: str, sort: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": partition, "KeyType": "HASH"},
        {"AttributeName": sort, "KeyType": "RANGE"},
    ]


def _projection(included: Sequence[str]) -> dict[str, Any]:
    if not included:
        return {"ProjectionType": "KEYS_ONLY"}
    return {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(included)}
