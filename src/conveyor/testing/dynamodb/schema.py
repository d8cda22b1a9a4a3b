"""The keys of a table and of its indexes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from conveyor.adapters.aws.item_size import AttributeValue, Item


class Projection(StrEnum):
    ALL = "ALL"
    KEYS_ONLY = "KEYS_ONLY"
    INCLUDE = "INCLUDE"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySchema:
    """The partition key and, where there is one, the sort key."""

    partition: str
    sort: str | None = None

    @classmethod
    def parse(cls, elements: Sequence[Mapping[str, str]]) -> Self:
        """From `KeySchema` of a request."""
        names = {element["KeyType"]: element["AttributeName"] for element in elements}
        return cls(partition=names["HASH"], sort=names.get("RANGE"))

    def __iter__(self) -> Iterator[str]:
        yield self.partition
        if self.sort is not None:
            yield self.sort


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSchema:
    """A global secondary index."""

    name: str
    keys: KeySchema
    projection: Projection = Projection.ALL
    included: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, described: Mapping[str, Any]) -> Self:
        projected = described["Projection"]
        return cls(
            name=described["IndexName"],
            keys=KeySchema.parse(described["KeySchema"]),
            projection=Projection(projected.get("ProjectionType", "ALL")),
            included=frozenset(projected.get("NonKeyAttributes", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    name: str
    keys: KeySchema
    types: Mapping[str, str]  # of the attributes that are keys: S, N or B
    indexes: Mapping[str, IndexSchema]

    @classmethod
    def parse(cls, described: Mapping[str, Any]) -> Self:
        """From a CreateTable request, or from what DescribeTable returns."""
        indexes = [IndexSchema.parse(one) for one in described.get("GlobalSecondaryIndexes") or ()]
        return cls(
            name=described["TableName"],
            keys=KeySchema.parse(described["KeySchema"]),
            types={
                one["AttributeName"]: one["AttributeType"]
                for one in described["AttributeDefinitions"]
            },
            indexes={index.name: index for index in indexes},
        )

    def key_of(self, item: Item) -> dict[str, AttributeValue]:
        return {name: item[name] for name in self.keys}

    def entry(self, index: IndexSchema, item: Item | None) -> Item | None:
        """What the index has of an item; None if the item lacks one of the index's keys."""
        if item is None or not all(name in item for name in index.keys):
            return None
        if index.projection is Projection.ALL:
            return item
        kept = {*self.keys, *index.keys, *index.included}
        return {name: value for name, value in item.items() if name in kept}
