"""How much a partition key takes in a second: 1,000 write units and 3,000 read units.

Adaptive capacity and bursts, which AWS promises to nobody, are left out.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from conveyor.ports.clock import Clock
from conveyor.testing.dynamodb.refusals import throttled

Kind = Literal["write", "read"]


@dataclass(slots=True)
class PartitionLimits:
    """A bucket for each partition key. A request is admitted while there is anything in it."""

    clock: Clock
    write: float | None = 1_000.0  # units a second; None: no limit
    read: float | None = 3_000.0
    _levels: dict[tuple[Kind, Hashable], tuple[float, float]] = field(default_factory=dict)

    def admit(self, kind: Kind, partition: Hashable) -> None:
        """Refuse a request for a partition that has used up its units."""
        if (limit := self._limit(kind)) and self._level(kind, partition, limit) <= 0:
            raise throttled(repr(partition))

    def charge(self, kind: Kind, partition: Hashable, units: float) -> None:
        if limit := self._limit(kind):
            level = self._level(kind, partition, limit) - units
            self._levels[kind, partition] = level, self.clock.monotonic()

    def _limit(self, kind: Kind) -> float | None:
        return self.write if kind == "write" else self.read

    def _level(self, kind: Kind, partition: Hashable, limit: float) -> float:
        level, at = self._levels.get((kind, partition), (limit, 0.0))
        return min(limit, level + (self.clock.monotonic() - at) * limit)
