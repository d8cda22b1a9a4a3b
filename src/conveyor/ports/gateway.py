"""The scraping gateway: one request for one page."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Protocol

import msgspec

from conveyor.domain.breaker import HealthSignal
from conveyor.domain.counts import NOTHING, Spend
from conveyor.domain.failure import RefusalRule
from conveyor.domain.page_facts import NO_FACTS, PageFacts
from conveyor.ports.bodies import Spool


class PageRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A page to fetch, with the gateway key and the merged parameters."""

    url: str
    gateway_key: str
    method: str = "GET"
    params: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: str | None = None  # JSON text, as the caller gave it
    call_id: str = ""  # unique for each call; the target must not see it


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Content, to be stored as the result."""

    content: bytes | Spool
    content_type: str | None = None  # as the site labelled it (`media.label`), if that is known
    spend: Spend = NOTHING
    gateway_request_id: str | None = None  # the gateway's own id of the call
    limit: int | None = None  # of calls at once, as the gateway states it for the key
    # NONE for a 5xx that the caller accepts as a page: it may be the gateway's own.
    signal: HealthSignal = HealthSignal.ALIVE
    facts: PageFacts = NO_FACTS  # without the duration


class GatewayRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a call that gave no page: the gateway refused it, failed, or did not answer.

    `problem` is the problem document, with the gateway's id of the call if there is one. `rule`
    says how it is handled, by the error table of the gateway. `storage_full` means that a page
    arrived and could not be stored. `status` is that of the problem document; the status of the
    target, if the gateway passes it on, is in `facts`.
    """

    status: int
    code: str
    problem: str
    rule: RefusalRule
    retry_after: timedelta | None = None
    spend: Spend = NOTHING
    gateway_request_id: str | None = None
    storage_full: bool = False
    signal: HealthSignal = HealthSignal.ALIVE
    facts: PageFacts = NO_FACTS  # without the duration


class Gateway(Protocol):
    async def fetch(
        self, request: PageRequest, spool: Callable[[], Spool]
    ) -> Page | GatewayRefusal:
        """Fetch one page, with one request. Expected failures are values, by code:

        - `gateway_unreachable`: no response;
        - `gateway_timeout`: none within the deadline, or it stalled;
        - `gateway_garbled`: cut short, or it cannot be decoded;
        - `body_too_large`: a body over the limit;
        - `request_unsendable`: the request cannot be written as HTTP;
        - `storage_full`: the spool has no room. `spend` still holds what the page cost.

        Content over a few hundred kilobytes goes to a spool, so memory does not grow with the page.
        The gateway discards the spools of pages that it does not return. `signal` says what the
        call shows about the health of the gateway itself.
        """
        ...

    async def check_health(self) -> bool:
        """Whether the gateway responds within seconds to a request without a key and a target.

        It costs nothing, and never raises.
        """
        ...
