"""A run's figures as others see them, on the wire and in what they are told of its end."""

import msgspec
from msgspec import UNSET, UnsetType

from conveyor.domain import run as life
from conveyor.domain.counts import Counts, Spend
from conveyor.domain.run import Run


class Cost(msgspec.Struct, frozen=True, rename={"dollars": "cost"}):
    credits: int
    dollars: float


class Stats(msgspec.Struct, frozen=True):
    total: int
    completed: int
    successful: int
    failed: int
    spend: Cost
    failure_reasons: dict[str, int] | UnsetType = UNSET


def stats(run: Run, settled: Counts) -> Stats:
    """A run's figures, given the sum of its counter rows."""
    counts = life.counts(run, settled)
    failed = counts.failed
    return Stats(
        total=life.shown_total(run, settled),
        completed=counts.successful + failed,
        successful=counts.successful,
        failed=failed,
        failure_reasons=counts.reasons if failed else UNSET,
        spend=cost(counts.spend),
    )


def cost(spend: Spend) -> Cost:
    return Cost(spend.credits, spend.dollars)
