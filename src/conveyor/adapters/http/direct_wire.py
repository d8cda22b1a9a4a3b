"""The protocol of the direct gateway, without I/O: requests, redirects, and what statuses mean."""

from base64 import b64encode
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import NamedTuple
from urllib.parse import unquote, urljoin

import can_ada

from conveyor.adapters.http import page_wire
from conveyor.adapters.http.client.transport import (
    PORTS,
    Denied,
    HttpRequest,
    Server,
    fixed_headers,
    http_request,
)
from conveyor.adapters.http.page_wire import Unsendable
from conveyor.domain.content_coding import ACCEPTED
from conveyor.domain.failure import FailureReason, Handling, RefusalRule, fail, retry
from conveyor.domain.page_facts import PageFacts, final_url
from conveyor.domain.params import ASKS_FOR_NOTHING, HONOURED_BY_DIRECT, KNOWN
from conveyor.domain.problem import phrase
from conveyor.ports.gateway import GatewayRefusal, PageRequest

LONGEST_LANDING = 8192  # characters of a `Location` and of the URL that it is relative to
REDIRECTS = frozenset({301, 302, 303, 307, 308})
KEEP_METHOD = frozenset({307, 308})
REFUSED = frozenset({401, 402, 403, 407, 451})
OVERDUE = frozenset({408, 504})
BUSY = frozenset({429, 503})

# The only custom headers that a redirect carries to another site: any other could be a key.
HARMLESS = frozenset({"accept", "accept-language", "cache-control", "content-type", "user-agent"})

# A site's refusal concerns its page, never the account: no code here stops a run.
BY_CODE: dict[str, RefusalRule] = {
    "target_refused": fail(FailureReason.BLOCKED),
    "target_missing": fail(FailureReason.BAD_TARGET),
    "target_throttled": retry(FailureReason.RATE_LIMITED),
    "target_timeout": retry(FailureReason.TIMEOUT),
    "target_failed": retry(FailureReason.BAD_TARGET),
    "target_not_allowed": fail(FailureReason.BAD_TARGET),
    "too_many_redirects": fail(FailureReason.BAD_TARGET),
    "robots_disallowed": fail(FailureReason.BLOCKED),
    "robots_unreachable": retry(FailureReason.BLOCKED),
    "unsupported_parameter": fail(FailureReason.OTHER),
    "host_resting": RefusalRule(Handling.POSTPONE, FailureReason.RATE_LIMITED),
}


class Visit(NamedTuple):
    """One request to one site."""

    url: str  # without a name and password
    server: Server
    target: str
    method: str
    headers: Mapping[str, str]
    content: bytes | None

    def request(self, agent: str) -> HttpRequest:
        """Raises `Unsendable`."""
        fixed = {"Host": self.server.host_header, "Accept-Encoding": ACCEPTED}
        if not page_wire.has(self.headers, "user-agent"):
            fixed["User-Agent"] = agent
        if not page_wire.has(self.headers, "accept"):
            fixed["Accept"] = "*/*"
        try:
            return http_request(
                self.method, self.target, fixed_headers(fixed), self.headers, self.content
            )
        except ValueError as odd:
            raise Unsendable from odd


def check_params(params: Mapping[str, str]) -> None:
    """Raise `Denied` for a parameter that a plain fetch cannot honour, unless it turns a feature off."""
    for name, value in params.items():
        if name not in HONOURED_BY_DIRECT and value not in ASKS_FOR_NOTHING:
            known = "does not do this" if name in KNOWN else "knows no such parameter"
            why = f"{name}: the direct gateway fetches pages as they are, and {known}."
            raise Denied("unsupported_parameter", 400, why)


def first(request: PageRequest, ports: Collection[int]) -> Visit:
    """The first request of a task. Raises `Unsendable` and `Denied`."""
    try:
        return _first(request, ports)
    except (ValueError, LookupError) as odd:
        raise Unsendable from odd


def _first(request: PageRequest, ports: Collection[int]) -> Visit:
    headers, content = dict(page_wire.forwarded(request)), None
    if request.method == "POST" and request.body is not None:
        content, kind = page_wire.payload(request.body)
        if not page_wire.has(headers, "content-type"):
            headers["Content-Type"] = kind
    url = can_ada.parse(request.url)
    if url.username and not page_wire.has(headers, "authorization"):
        pair = f"{unquote(url.username)}:{unquote(url.password)}".encode()
        headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
    return _visit(url, ports, request.method, headers, content)


def plain(url: str, ports: Collection[int]) -> Visit:
    """A request of the gateway itself, such as for robots.txt: without headers of callers."""
    return _visit(can_ada.parse(url), ports, "GET", {}, None)


def redirected(visit: Visit, status: int, location: str | None, ports: Collection[int]) -> Visit:
    """The request that a redirect leads to. Raises `Denied`."""
    url = _landing(visit, status, location)
    method, headers, content = visit.method, visit.headers, visit.content
    if method != "GET" and status not in KEEP_METHOD:
        method, content = "GET", None
        headers = _without(headers, "content-")
    following = _visit(url, ports, method, headers, content)
    if _is_same(visit.server, following.server):
        return following
    if content is not None and visit.server.is_safe and not following.server.is_safe:
        why = "The page redirects what is posted to it from https to http."
        raise Denied("target_not_allowed", 403, why)
    kept = {name: value for name, value in headers.items() if name.lower() in HARMLESS}
    return following._replace(headers=kept)


def facts(request: PageRequest, visit: Visit, status: int) -> PageFacts:
    """What the response to a visit says about the page, after any redirects."""
    return PageFacts(http_status=status, final_url=final_url(request.url, visit.url))


def refusal(status: int, wait: timedelta | None) -> GatewayRefusal:
    """The refusal for a status that is not a page."""
    detail = f"The site answered {status} {phrase(status)}."
    code = _code(status, wait)
    refused = page_wire.synthesised(code, status, detail, rule=BY_CODE[code])
    return page_wire.later(refused, wait)


def _code(status: int, wait: timedelta | None) -> str:
    if status in REFUSED:
        return "target_refused"
    if status in OVERDUE:
        return "target_timeout"
    if status == 429 or (status in BUSY and wait is not None):
        return "target_throttled"
    return "target_failed" if status >= 500 else "target_missing"


def _visit(
    url: can_ada.URL,
    ports: Collection[int],
    method: str,
    headers: Mapping[str, str],
    content: bytes | None,
) -> Visit:
    scheme = str(url.protocol).removesuffix(":")
    if scheme not in PORTS:
        raise Denied("target_not_allowed", 403, "The page is neither on http nor on https.")
    port = int(url.port) if url.port else PORTS[scheme]
    if port not in ports:
        why = f"Port {port} is not among those that pages are fetched from (direct_ports)."
        raise Denied("target_not_allowed", 403, why)
    host, target = str(url.hostname).strip("[]"), f"{url.pathname}{url.search}"
    server = Server(host, port, str(url.host), scheme == "https")
    return Visit(f"{scheme}://{url.host}{target}", server, target, method, headers, content)


def _is_same(one: Server, other: Server) -> bool:
    """Whether two servers are one site. The redirect from http to https on the usual ports is."""
    usual = (one.is_safe, one.port, other.is_safe, other.port) == (False, 80, True, 443)
    return one == other or (one.host == other.host and usual)


def _landing(visit: Visit, status: int, location: str | None) -> can_ada.URL:
    path, mark, rest = (location or "").partition("?")
    if len(visit.url) + len(location or "") > LONGEST_LANDING:
        why = f"The site answered {status}, and what it points to is too long an address."
        raise Denied("target_missing", status, why)
    try:
        # Browsers take a backslash for a slash; the standard library does not.
        return can_ada.parse(urljoin(visit.url, path.replace("\\", "/") + mark + rest))
    except ValueError:
        why = f"The site answered {status}, and what it points to is no address."
        raise Denied("target_missing", status, why) from None


def _without(headers: Mapping[str, str], beginning: str) -> Mapping[str, str]:
    return {
        name: value for name, value in headers.items() if not name.lower().startswith(beginning)
    }
