"""The robots.txt of sites: fetched as pages are, known for a while, and asked before each page."""

import asyncio
from collections.abc import Awaitable, Callable

from conveyor.adapters.http.direct_wire import Denied, Visit
from conveyor.adapters.http.exchange import Cut, FellSilent, Lost, Unconnected
from conveyor.adapters.http.page_wire import Unsendable
from conveyor.adapters.http.reading import BodyTooLarge
from conveyor.adapters.http.remembered import Found, Remembered
from conveyor.domain.content_coding import CorruptContent
from conveyor.domain.robots import ALLOW_ALL, Rules, product, rules_for

PATH = "/robots.txt"
LIFE = 3_600.0  # seconds that rules are good for
AWAY = 60.0  # seconds for which a site is left alone whose robots.txt cannot be had
LONGEST = 30.0  # seconds for fetching one
ROOM = 32 * 1024 * 1024  # bytes of rules that are known
MOST_SITES = 10_000  # whose rules are known
ON_THE_LOOP = 64 * 1024  # bytes; more is parsed in a thread

# The status and the text of what is at a URL.
Fetch = Callable[[str], Awaitable[tuple[int, bytes]]]


class Robots:
    """What sites let a crawler by this name fetch.

    By RFC 9309 a site that says there are no rules (4xx) allows everything, and one that cannot
    be asked (5xx, no answer) nothing, for a while. 429 is no word about rules, so it is read as the
    latter.
    """

    def __init__(self, agent: str, fetch: Fetch) -> None:
        self._name, self._fetch = product(agent), fetch
        self._known: Remembered[str, Rules | None] = Remembered(self._find, room=ROOM)

    async def check(self, visit: Visit) -> bool:
        """Raises `Denied` for a page that is not to be fetched, or not now. Says whether that was
        known already.
        """
        site = f"{'https' if visit.server.is_safe else 'http'}://{visit.server.named}{PATH}"
        was_known = self._known.left(site) > 0
        rules = await self._known.of(site)
        if rules is None:
            why = "The site's robots.txt cannot be had, so nothing is fetched from it for now."
            raise Denied("robots_unreachable", 503, why, self._known.left(site))
        if visit.target != PATH and not rules.allow(visit.target):
            why = f"The site's robots.txt does not let {self._name!r} fetch this page."
            raise Denied("robots_disallowed", 403, why)
        return was_known

    async def _find(self, site: str) -> Found[Rules | None]:
        try:
            async with asyncio.timeout(LONGEST):
                status, text = await self._fetch(site)
        except Unconnected:
            raise  # nor could the page be had: that is told as it is, and not remembered
        except (Lost, Cut, FellSilent, CorruptContent, BodyTooLarge, TimeoutError):
            return Found(None, AWAY, ROOM // MOST_SITES)
        except (Denied, Unsendable) as denied:
            if isinstance(denied, Denied) and denied.wait is not None:
                raise  # not now
            status, text = 404, b""  # it leads where nobody may go: as good as not there
        if status >= 500 or status == 429:
            return Found(None, AWAY, ROOM // MOST_SITES)
        rules = await self._read(text) if 200 <= status < 300 else ALLOW_ALL
        return Found(rules, LIFE, max(rules.weight, ROOM // MOST_SITES))

    async def _read(self, text: bytes) -> Rules:
        if len(text) <= ON_THE_LOOP:
            return rules_for(self._name, text)
        return await asyncio.to_thread(rules_for, self._name, text)
