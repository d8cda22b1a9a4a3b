"""Counts: exact figures of a run, how many tasks ended with which result, and their cost."""

from collections.abc import Iterable

import msgspec

from conveyor.domain.failure import FailureReason

NANO = 1_000_000_000  # money is counted in whole billionths of a dollar, so that sums are exact


class Spend(msgspec.Struct, frozen=True, gc=False):
    """What the gateway charged: credits, and nano-dollars."""

    credits: int = 0
    nanos: int = 0

    @property
    def dollars(self) -> float:
        return self.nanos / NANO

    def __add__(self, other: "Spend") -> "Spend":
        return Spend(self.credits + other.credits, self.nanos + other.nanos)


NOTHING = Spend()


class Counts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A sum over settled claims. Counts are only ever added, so the order does not matter."""

    successful: int = 0
    auth_failed: int = 0
    blocked: int = 0
    bad_target: int = 0
    rate_limited: int = 0
    timeout: int = 0
    gateway_error: int = 0
    other: int = 0
    credits: int = 0
    nanos: int = 0

    @property
    def failed(self) -> int:
        return sum(getattr(self, reason) for reason in FailureReason)

    @property
    def done(self) -> int:
        return self.successful + self.failed

    @property
    def reasons(self) -> dict[str, int]:
        """How many tasks failed for each reason that occurred."""
        return {str(why): n for why in FailureReason if (n := getattr(self, why))}

    @property
    def spend(self) -> Spend:
        return Spend(self.credits, self.nanos)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            **{name: getattr(self, name) + getattr(other, name) for name in COUNT_COLUMNS}
        )


class OpenCounts(msgspec.Struct, frozen=True, gc=False):
    """Where the tasks of a live run are that are neither done nor due. Each figure is at most `MOST_OPEN`."""

    in_flight: int = 0  # under a claim
    waiting_for_retry: int = 0  # tried before, and not due yet


MOST_OPEN = 10_000  # tasks that are counted: beyond, the figure says "at least"
COUNT_COLUMNS: tuple[str, ...] = Counts.__struct_fields__
ZERO = Counts()


def total(parts: Iterable[Counts]) -> Counts:
    return sum(parts, ZERO)
