"""How often a caller may ask, told in the headers that the IETF drafts for it."""

import math
from dataclasses import dataclass

from starlette.requests import Request

from conveyor.api.auth import caller_of
from conveyor.domain.allowance import Allowance
from conveyor.errors import RateLimited, Unavailable
from conveyor.ports.coordination import Coordination

TOLD = "conveyor.told"  # of a scope: headers that its answer bears, whichever it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A limit on each caller's requests; a rate of 0 is none."""

    coordination: Coordination
    rate: float = 0.0  # requests a second
    burst: int = 0  # requests at once; 0 is what comes in a second

    async def count(self, request: Request) -> None:
        """Let a request of a known caller pass, or refuse it with `RateLimited`."""
        if not self.rate:
            return
        try:
            allowance = await self.coordination.take(
                f"requests:{caller_of(request)}", rate=self.rate, burst=self._burst
            )
        except Unavailable:
            return  # who cannot be counted is not to suffer for it
        request.scope[TOLD] += self._told(allowance)
        if not allowance.granted:
            wait = max(math.ceil(allowance.next_in), 1)
            raise RateLimited(
                f"More than {self.rate:g} requests a second: wait {wait} s",
                headers={"Retry-After": str(wait)},
            )

    @property
    def _burst(self) -> int:
        return self.burst or max(math.ceil(self.rate), 1)

    def _told(self, allowance: Allowance) -> list[tuple[bytes, bytes]]:
        window = max(math.ceil(self._burst / self.rate), 1)
        policy = f'"requests";q={self._burst};w={window}'
        left = f'"requests";r={allowance.left};t={math.ceil(allowance.full_in)}'
        return [(b"ratelimit-policy", policy.encode()), (b"ratelimit", left.encode())]
