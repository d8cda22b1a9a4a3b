"""The robots.txt of sites: fetched like pages, cached for a while, checked before each page."""

import asyncio
from collections.abc import Awaitable, Callable

from conveyor.adapters.http.client.body import BodyTooLarge
from conveyor.adapters.http.client.transport import (
    Denied,
    IncompleteResponse,
    NoResponse,
    NotConnected,
    ResponseStalled,
)
from conveyor.adapters.http.direct_wire import Visit
from conveyor.adapters.http.expiring_cache import CacheEntry, ExpiringCache
from conveyor.adapters.http.page_wire import Unsendable
from conveyor.domain.content_coding import CorruptContent
from conveyor.domain.robots import ALLOW_ALL, Rules, product, rules_for

PATH = "/robots.txt"
LIFE = 3_600.0  # seconds for which rules are valid
AWAY = 60.0  # seconds without a request to a site whose robots.txt cannot be fetched
LONGEST = 30.0  # seconds to fetch one
ROOM = 32 * 1024 * 1024  # bytes of cached rules
MOST_SITES = 10_000  # in the cache
ON_THE_LOOP = 64 * 1024  # bytes; more is parsed in a thread

# Returns the status and the text of a URL.
Fetch = Callable[[str], Awaitable[tuple[int, bytes]]]


class Robots:
    """What sites allow a crawler of this name to fetch.

    By RFC 9309 a site without rules (4xx) allows everything, and one that cannot be reached (5xx,
    no response) nothing, for a while. 429 says nothing about rules, so it counts as unreachable.
    """

    def __init__(self, agent: str, fetch: Fetch) -> None:
        self._name, self._fetch = product(agent), fetch
        self._known: ExpiringCache[str, Rules | None] = ExpiringCache(self._find, room=ROOM)

    async def check_visit(self, visit: Visit) -> bool:
        """Raise `Denied` for a page that must not be fetched, or not now.

        Return whether the rules were in the cache.
        """
        site = f"{'https' if visit.server.is_safe else 'http'}://{visit.server.host_header}{PATH}"
        was_known = self._known.left(site) > 0
        rules = await self._known.of(site)
        if rules is None:
            why = "The site's robots.txt cannot be fetched, so no page is fetched from it for a minute."
            raise Denied("robots_unreachable", 503, why, self._known.left(site))
        if visit.target != PATH and not rules.allow(visit.target):
            why = f"The site's robots.txt does not let {self._name!r} fetch this page."
            raise Denied("robots_disallowed", 403, why)
        return was_known

    async def _find(self, site: str) -> CacheEntry[Rules | None]:
        try:
            async with asyncio.timeout(LONGEST):
                status, text = await self._fetch(site)
        except NotConnected:
            raise  # the page could not be fetched either: report that, and cache nothing
        except (
            NoResponse,
            IncompleteResponse,
            ResponseStalled,
            CorruptContent,
            BodyTooLarge,
            TimeoutError,
        ):
            return CacheEntry(None, AWAY, ROOM // MOST_SITES)
        except (Denied, Unsendable) as denied:
            if isinstance(denied, Denied) and denied.wait is not None:
                raise  # not now
            # It redirects to a forbidden address, which is the same as no robots.txt.
            status, text = 404, b""
        if status >= 500 or status == 429:
            return CacheEntry(None, AWAY, ROOM // MOST_SITES)
        rules = await self._read(text) if 200 <= status < 300 else ALLOW_ALL
        return CacheEntry(rules, LIFE, max(rules.weight, ROOM // MOST_SITES))

    async def _read(self, text: bytes) -> Rules:
        if len(text) <= ON_THE_LOOP:
            return rules_for(self._name, text)
        return await asyncio.to_thread(rules_for, self._name, text)
