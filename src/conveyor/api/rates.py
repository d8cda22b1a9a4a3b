"""Request rates of callers, reported in the RateLimit headers of the IETF draft."""

import math
from dataclasses import dataclass

from starlette.requests import Request

from conveyor.api.auth import caller_of
from conveyor.domain.concurrency import Allowance
from conveyor.errors import RateLimited, Unavailable
from conveyor.ports.coordination import Coordination

EXTRA_HEADERS = "conveyor.extra_headers"  # of a scope: headers of its response, whatever it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A limit on the requests of each caller; a rate of 0 is none."""

    coordination: Coordination
    rate: float = 0.0  # requests a second
    burst: int = 0  # requests at once; 0: as many as in a second

    async def count(self, request: Request) -> None:
        """Count a request of an authenticated caller, or refuse it with `RateLimited`."""
        if not self.rate:
            return
        try:
            allowance = await self.coordination.take(
                f"requests:{caller_of(request)}", rate=self.rate, burst=self._burst
            )
        except Unavailable:
            return  # without a counter, requests are served
        request.scope[EXTRA_HEADERS] += self._headers(allowance)
        if not allowance.granted:
            wait = max(math.ceil(allowance.next_in), 1)
            raise RateLimited(
                f"A caller may make {self.rate:g} requests a second, and made more: wait {wait} s",
                headers={"Retry-After": str(wait)},
            )

    @property
    def _burst(self) -> int:
        return self.burst or max(math.ceil(self.rate), 1)

    def _headers(self, allowance: Allowance) -> list[tuple[bytes, bytes]]:
        window = max(math.ceil(self._burst / self.rate), 1)
        policy = f'"requests";q={self._burst};w={window}'
        left = f'"requests";r={allowance.left};t={math.ceil(allowance.full_in)}'
        return [(b"ratelimit-policy", policy.encode()), (b"ratelimit", left.encode())]
