"""The scraping gateway: one request for one page."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Protocol

import msgspec

from conveyor.domain.breaker import HealthSignal
from conveyor.domain.counts import NOTHING, Spend
from conveyor.domain.failure import Ruling
from conveyor.ports.bodies import Spool


class PageRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A page to fetch, with the caller's key and the merged parameters."""

    url: str
    key: str
    method: str = "GET"
    params: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: str | None = None  # JSON text, as the caller gave it
    call_id: str = ""  # of this very call; the target must not see it


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Content, to be kept as the result."""

    content: bytes | Spool
    content_type: str | None = None  # of a gateway that hands on what sites say (`media.label`)
    spend: Spend = NOTHING
    gateway_request_id: str | None = None  # what the gateway itself calls the call
    limit: int | None = None  # of calls at once, as the gateway tells it for the key
    signal: HealthSignal = (
        HealthSignal.ALIVE
    )  # none for a 5xx that the caller asked for: it may be the gateway's own


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Anything but content.

    `problem` is the whole answer, with the gateway's id of the call if there is one. `ruling` says
    what the refusal means for its task: each gateway reads its own codes. With `storage_full` a page
    came and could not be stored.
    """

    status: int
    code: str
    problem: str
    ruling: Ruling
    retry_after: timedelta | None = None
    spend: Spend = NOTHING
    gateway_request_id: str | None = None
    storage_full: bool = False
    signal: HealthSignal = HealthSignal.ALIVE


class Gateway(Protocol):
    async def fetch(self, request: PageRequest, spool: Callable[[], Spool]) -> Page | Refusal:
        """Fetch one page. Expected failures are values: no answer is `gateway_unreachable`, no
        answer in time `gateway_timeout`, an answer cut short or unreadable `gateway_garbled`, a
        body over the cap `body_too_large`, a request that cannot be put on the wire
        `request_unsendable`, a page that the spool has no room for `storage_full` with what the
        page cost. Content past a few hundred kilobytes goes to a spool, so memory does
        not grow with the page. Spools of pages not returned are discarded. The `signal` of an answer
        says what it tells about the gateway itself.
        """
        ...

    async def check(self) -> bool:
        """Whether the gateway answers a request that concerns no key and no target, within some
        seconds. It costs nothing, and never raises.
        """
        ...
