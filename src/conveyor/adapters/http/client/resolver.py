"""The addresses of hosts, checked before the program connects to them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from conveyor.adapters.http.client.transport import Denied, NotConnected
from conveyor.adapters.http.expiring_cache import CacheEntry, ExpiringCache
from conveyor.domain.public_address import Reach, parsed

TRUSTED_FOR = 10.0  # seconds for which the addresses of a host are cached
MOST_HOSTS = 4_096  # in the cache
MOST_LOOKUPS = 32  # at once; a host whose name servers are silent keeps one for half a minute

Resolve = Callable[[str], Awaitable[Sequence[str]]]


class CheckedResolver:
    """Addresses in canonical form: connecting to one does not look up the name a second time.

    Every address of a name must be within `reach`; without one, any address will do. If one
    permitted address were enough, a name with a public and a private address would get through.
    """

    def __init__(self, reach: Reach | None, resolve: Resolve) -> None:
        self._reach, self._resolve = reach, resolve
        self._known: ExpiringCache[str, list[str]] = ExpiringCache(self._find, room=MOST_HOSTS)

    async def addresses(self, host: str) -> list[str]:
        """At least one, in the order to try them. Raises `Denied` and `NotConnected`."""
        addresses = await self._known.of(host)
        if not addresses:
            raise NotConnected("its host has no address")
        if self._reach and not self._reach.permits_all(map(parsed, addresses)):
            # Without the address, which would disclose our network to callers.
            raise Denied("target_not_allowed", 403, "The address of the page's host is not public.")
        return addresses

    async def _find(self, host: str) -> CacheEntry[list[str]]:
        try:
            return CacheEntry([str(parsed(host))], TRUSTED_FOR)
        except ValueError:
            named = await self._resolve(host)
            return CacheEntry([str(parsed(one)) for one in named], TRUSTED_FOR)


class SystemResolver:
    """Asks the system, in threads of its own, because slow name servers must not delay others."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MOST_LOOKUPS, thread_name_prefix="lookup")
        self._asked: set[Future[Sequence[str]]] = set()  # running, even if the caller gave up

    @property
    def is_full(self) -> bool:
        """Whether a new lookup would have to wait for others."""
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
        # Bytes: the name is ASCII by now, and Python would encode a text again.
        found = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(one[4][0]) for one in found))
