"""The sweeper's permit: of all processes that share the engines, one makes the rounds.

Two sweepers at a time would do no harm, and read everything twice. The holder keeps its permit from
round to round. When it dies the permit lapses, and another process goes on with its saved cursors.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Coordination, PermitRequest

NAME = "sweeper"
ONE = PermitRequest(want=1, cap=1)


@dataclass(slots=True, kw_only=True)
class SweeperPermit:
    coordination: Coordination
    clock: Clock
    lease: timedelta
    permit: str | None = None
    renewed_at: float = 0.0

    async def take(self) -> bool:
        """Return whether this process holds the permit, which it reserves if it is free."""
        if not self.is_held:
            reserved_at = self.clock.monotonic()
            granted = (await self.coordination.reserve({NAME: ONE})).get(NAME, ())
            self.permit, self.renewed_at = next(iter(granted), None), reserved_at
        return self.permit is not None

    async def renew(self) -> None:
        """Keep the permit; called several times in a lease."""
        if self.permit and self.is_held:
            renewed_at = self.clock.monotonic()
            await self.coordination.renew({NAME: [self.permit]})
            self.renewed_at = renewed_at

    async def release(self) -> None:
        permit, self.permit = self.permit, None
        with suppress(Unavailable):  # it lapses
            if permit:
                await self.coordination.release({NAME: [permit]})

    @property
    def is_held(self) -> bool:
        """Whether the permit cannot have lapsed; another process may hold a lapsed one."""
        age = self.clock.monotonic() - self.renewed_at
        return self.permit is not None and age < self.lease.total_seconds()
