"""How far apart calls to one host begin, and hosts that asked to be left alone."""

import asyncio

from conveyor.adapters.http.page_wire import Denied

PATIENCE = 2.0  # seconds that a page waits for its turn here; for longer it goes back
LONGEST_TURN = 30.0  # the same once it is on its way; what was asked for it so far is lost then
LONGEST_REST = 900.0  # seconds after which a page that went back comes again at the latest
LONGEST_HOLD = 300.0  # seconds for which a host is left alone at the most
LEAST_STEP = 0.01  # seconds between two pages that went back, so that they do not return as one
QUIET = 10.0  # seconds without a call after which nobody is thought to come back to a host
MOST_HOSTS = 10_000  # of which it is known when they may be called next


class Host:
    """When the next call may begin, and until when pages were told to stay away."""

    __slots__ = ("busy_until", "next_at")

    def __init__(self) -> None:
        self.next_at = self.busy_until = 0.0


class Spacing:
    """Turns for hosts, each by itself; hosts that were called longest ago are forgotten first.

    A page waits here only for a moment, for it keeps a place meanwhile that others could use. It is
    sent back with a time to return, such that those who return come one after the other.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._hosts: dict[str, Host] = {}

    def admit(self, name: str) -> None:
        """Whether it is a host's turn soon. Raises `Denied` with the time to come back after."""
        host, now = self._hosts.get(name), self._loop.time()
        if host is not None and host.next_at > now + PATIENCE:
            raise self._later(host, now)

    async def turn(self, name: str) -> None:
        """Wait for a turn. Raises `Denied` when a host is left alone for longer than that takes."""
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

    def hold(self, name: str, seconds: float) -> None:
        """Leave a host alone for a while."""
        until = self._loop.time() + min(seconds, LONGEST_HOLD)
        host = self._known(name)
        host.next_at = max(host.next_at, until)

    def _later(self, host: Host, now: float) -> Denied:
        turn = max(host.busy_until, host.next_at)
        host.busy_until = turn + max(self._delay, LEAST_STEP)
        wait = turn - now
        if wait > LONGEST_REST:  # a longer queue comes back spread over the last half of that
            wait = LONGEST_REST / 2 + wait % (LONGEST_REST / 2)
        return Denied("host_resting", 429, "The page's host is called again later.", wait)

    def _known(self, name: str) -> Host:
        host = self._hosts.pop(name, None) or Host()
        self._hosts[name] = host  # the latest is last
        if len(self._hosts) > MOST_HOSTS:
            del self._hosts[next(iter(self._hosts))]
        return host
