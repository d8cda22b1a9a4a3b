"""The addresses of hosts, each of them checked before anyone connects to it."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from conveyor.adapters.http.direct_wire import Denied
from conveyor.adapters.http.exchange import Unconnected
from conveyor.adapters.http.remembered import Found, Remembered
from conveyor.domain.public_address import Reach, parsed

TRUSTED_FOR = 10.0  # seconds that the addresses of a host are believed
MOST_HOSTS = 4_096  # whose addresses are known
MOST_LOOKUPS = 32  # at once; a host whose name servers are silent keeps one for half a minute

Resolve = Callable[[str], Awaitable[Sequence[str]]]


class Lookup:
    """Addresses as text in its usual form, so that nothing is looked up a second time.

    All that a name stands for must be within reach: one that means a public address now and a
    private one the next time it is asked gets nowhere.
    """

    def __init__(self, reach: Reach, resolve: Resolve) -> None:
        self._reach, self._resolve = reach, resolve
        self._known: Remembered[str, tuple[str, ...]] = Remembered(self._find, room=MOST_HOSTS)

    async def addresses(self, host: str) -> Sequence[str]:
        """At least one. Raises `Denied` and `Unconnected`."""
        addresses = await self._known.of(host)
        if not addresses:
            raise Unconnected("its host has no address")
        if not self._reach.permits_all(map(parsed, addresses)):
            # Not the address itself: that would tell callers about networks that are not theirs.
            raise Denied("target_not_allowed", 403, "The address of the page's host is not public.")
        return addresses

    async def _find(self, host: str) -> Found[tuple[str, ...]]:
        try:
            return Found((str(parsed(host)),), TRUSTED_FOR)
        except ValueError:
            named = await self._resolve(host)
            return Found(tuple(str(parsed(one)) for one in named), TRUSTED_FOR)


class SystemResolver:
    """Asks the system, in threads of its own: others must not wait for slow name servers."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MOST_LOOKUPS, thread_name_prefix="lookup")
        self._asked: set[Future[Sequence[str]]] = set()  # and not answered, wanted or not

    @property
    def is_full(self) -> bool:
        """Whoever asks now waits for others first."""
        return sum(not one.done() for one in self._asked) >= MOST_LOOKUPS

    async def __call__(self, host: str) -> Sequence[str]:
        self._asked = {one for one in self._asked if not one.done()}
        asked = self._threads.submit(_resolved, host)
        self._asked.add(asked)
        return await asyncio.wrap_future(asked)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _resolved(host: str) -> Sequence[str]:
    try:
        # As bytes: a name is in ASCII by now, and Python's own ideas of names stay out of it.
        found = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(one[4][0]) for one in found))
