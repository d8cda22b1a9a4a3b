"""Rate limits of hosts: the delay between calls to one host, and holds after 429 or 503."""

import asyncio
import math
from contextlib import suppress
from datetime import datetime, timedelta

from conveyor.adapters.http.client.transport import Denied
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Coordination

PATIENCE = 2.0  # seconds that a page waits for its turn; for a longer wait it is postponed
LONGEST_TURN = 30.0  # the same after a first request, whose response a postponement loses
LONGEST_REST = 900.0  # seconds for which a page is postponed at most
LONGEST_HOLD = 300.0  # seconds without calls to a host at most, whatever it asks for
LOOK_EVERY = 1.0  # seconds between looks at the holds that other processes know of a host
LEAST_STEP = 0.01  # seconds between postponed pages, so that they do not return all at once
QUIET = 10.0  # seconds without a call after which no postponed page is expected any more
MOST_HOSTS = 10_000  # whose next call time is kept


class Host:
    """When the next call may begin, and when the next postponed page is to return."""

    __slots__ = ("busy_until", "held_until", "looked_at", "next_at")

    def __init__(self) -> None:
        self.next_at = self.busy_until = self.held_until = 0.0
        self.looked_at = -math.inf  # for holds of other processes

    def hold(self, until: float) -> None:
        self.held_until = max(self.held_until, until)
        self.next_at = max(self.next_at, until)


class Spacing:
    """Call times of hosts, each by itself. Hosts that were called longest ago are forgotten first.

    A page that waits here holds a place that pages of other hosts could use. So it waits up to
    `PATIENCE` and is postponed otherwise. Each postponed page gets the next free time of its host,
    so that they return one after the other.

    With `coordination` the delay holds over all processes that share it. Each call then also takes a
    token of its host, of which there is one for each delay. With a `clock` as well, a hold is cached
    there, and looked for before the first request of a page.
    """

    def __init__(
        self, delay: float, coordination: Coordination | None = None, clock: Clock | None = None
    ) -> None:
        self._delay = delay
        self._coordination, self._clock = coordination, clock
        self._loop = asyncio.get_running_loop()
        self._hosts: dict[str, Host] = {}

    async def begin(self, name: str) -> None:
        """As `admit`, also by what other processes know of the host."""
        if self._coordination and self._clock:
            await self._look(self._coordination, self._clock, name)
        self.admit(name)

    def admit(self, name: str) -> None:
        """Check that a host's turn is soon. Raises `Denied` with the time to return after."""
        host, now = self._hosts.get(name), self._loop.time()
        if host is not None and host.next_at > now + PATIENCE:
            raise self._later(host, now)

    async def turn(self, name: str) -> None:
        """Wait for a turn, and take it. Raises `Denied` if the wait would be too long."""
        if not self._delay and name not in self._hosts:
            return
        host, now = self._known(name), self._loop.time()
        if now > host.next_at + QUIET:
            host.busy_until = 0.0
        start = max(host.next_at, now)
        if start > now + max(LONGEST_TURN, 2 * self._delay):
            raise self._later(host, now)
        host.next_at = start + self._delay
        if start > now:
            await asyncio.sleep(start - now)
        if self._coordination and self._delay:
            await self._token(self._coordination, name, host)

    async def _token(self, coordination: Coordination, name: str, host: Host) -> None:
        """Wait for a token of a host. While coordination is unavailable none is needed."""
        longest, waited = max(LONGEST_TURN, 2 * self._delay), 0.0
        while True:
            try:
                allowance = await coordination.take(f"host:{name}", rate=1 / self._delay, burst=1)
            except Unavailable:
                return
            if allowance.granted:
                return
            waited += allowance.next_in
            host.next_at += allowance.next_in  # the pages that follow here wait as much longer
            if waited > longest:
                raise self._later(host, self._loop.time())
            await asyncio.sleep(allowance.next_in)

    async def hold(self, name: str, seconds: float) -> None:
        """Start no call to a host for a while."""
        host, now = self._known(name), self._loop.time()
        host.hold(now + min(seconds, LONGEST_HOLD))
        left = timedelta(seconds=host.held_until - now)
        if self._coordination and self._clock and left:
            ends_at = (self._clock.now() + left).isoformat().encode()
            with suppress(Unavailable):  # the others find out by themselves
                await self._coordination.remember({_hold_name(name): ends_at}, life=left)

    async def _look(self, coordination: Coordination, clock: Clock, name: str) -> None:
        """Take over a hold of another process. While coordination is unavailable there is none."""
        host, now = self._known(name), self._loop.time()
        if now - host.looked_at < LOOK_EVERY:
            return
        host.looked_at = now
        cached: bytes | None = None
        with suppress(Unavailable):
            cached = (await coordination.recall([_hold_name(name)])).get(_hold_name(name))
        if cached is not None:
            # Clocks may differ by seconds. As long as the value is cached, the hold is not over.
            left = (datetime.fromisoformat(cached.decode()) - clock.now()).total_seconds()
            host.hold(now + min(max(left, LOOK_EVERY), LONGEST_HOLD))

    def _later(self, host: Host, now: float) -> Denied:
        turn = max(host.busy_until, host.next_at)
        host.busy_until = turn + max(self._delay, LEAST_STEP)
        wait = turn - now
        if wait > LONGEST_REST:  # spread the rest of a longer queue over the last half of that time
            wait = LONGEST_REST / 2 + wait % (LONGEST_REST / 2)
        return Denied("host_resting", 429, "The page's host is called again later.", wait)

    def _known(self, name: str) -> Host:
        host = self._hosts.pop(name, None) or Host()
        self._hosts[name] = host  # moved to the end: the first is the one called longest ago
        if len(self._hosts) > MOST_HOSTS:
            del self._hosts[next(iter(self._hosts))]
        return host


def _hold_name(host: str) -> str:
    return f"hold:{host}"
