"""Quotas: limits on what one caller may have at once.

Steps that create runs, tasks, file inputs and exports check them before they write. Concurrent
calls count what was there before them, so a caller may exceed a limit by its concurrent calls.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from conveyor.domain.ids import CallerId
from conveyor.domain.run import Run, open_tasks
from conveyor.errors import QuotaExceeded
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks

Name = TypeVar("Name", bound=str)

RETRY_AFTER = "10"  # whole seconds: when the caller's usage falls is not known


class QuotaDemand(msgspec.Struct, frozen=True, kw_only=True):
    """What a call would add to the usage of its caller."""

    caller: CallerId
    jobs: int = 0  # that run now
    scheduled: int = 0
    tasks: int = 0
    file_inputs: int = 0
    exports: int = 0


CheckQuota = Callable[[QuotaDemand], Awaitable[None]]


async def unlimited(_demand: QuotaDemand) -> None:
    """Refuse nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Limits on one caller; 0 is none."""

    metadata: Metadata
    tasks: Tasks
    active_jobs: int = 0
    scheduled_jobs: int = 0
    open_tasks: int = 0
    unused_file_inputs: int = 0
    active_exports: int = 0

    async def check_quota(self, demand: QuotaDemand) -> None:
        """Refuse with `QuotaExceeded` what would go past a limit."""
        limits = {
            "scheduled_jobs": (demand.scheduled, self.scheduled_jobs),
            "unused_file_inputs": (demand.file_inputs, self.unused_file_inputs),
            "active_exports": (demand.exports, self.active_exports),
            "active_jobs": (demand.jobs, self.active_jobs),
            "open_tasks": (demand.tasks, self.open_tasks),
        }
        asked = {name: pair for name, pair in limits.items() if all(pair)}
        if not asked:
            return
        usage = await self.metadata.usage(demand.caller)
        used = {
            "scheduled_jobs": usage.scheduled_jobs,
            "unused_file_inputs": usage.unused_inputs,
            "active_exports": usage.open_exports,
            "active_jobs": len(usage.live_runs),
        }
        for name, (more, most) in asked.items():
            # Open tasks are counted last and only if they are limited: that takes a further read.
            taken = await self._open(usage.live_runs) if name == "open_tasks" else used[name]
            check_quota(name, taken, more, most)

    async def _open(self, live: Sequence[Run]) -> int:
        settled = await self.tasks.counts([run.id for run in live])
        return sum(open_tasks(run, settled[run.id]) for run in live)


def check_quota(
    name: str, used: int, more: int, most: int, headers: Mapping[str, str] | None = None
) -> None:
    """Refuse with `QuotaExceeded` what would go past a limit."""
    if used + more <= most:
        return
    what = name.replace("_", " ")
    raise QuotaExceeded(
        f"You may have at most {most} {what}: you have {used}, and asked for {more} more",
        extras={"quota": name, "limit": most, "used": used},
        headers={
            "Retry-After": RETRY_AFTER,
            "RateLimit-Policy": f'"{name}";q={most}',
            "RateLimit": f'"{name}";r={max(most - used, 0)}',
            **(headers or {}),
        },
    )


def count_down(counts: Counter[Name], name: Name) -> None:
    """Count one less; a count of 0 is removed, or the counter would grow with every caller."""
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
