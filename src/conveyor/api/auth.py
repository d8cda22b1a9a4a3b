"""Who is calling, and what for: the `X-API-Key` header, and nothing else.

Asked once for each request, before anything else of it is looked at.
"""

import hmac
from collections.abc import Sequence
from typing import Protocol

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request

from conveyor.domain.api_key import EVERYTHING, Scope, digest
from conveyor.domain.ids import CallerId, KeyId
from conveyor.errors import PermissionDenied, Unauthenticated
from conveyor.steps.auth import Authenticate

IN_QUERY = {"apikey", "api_key", "api-key", "x-api-key", "key"}
LONGEST_KEY = 512
READS = {"GET", "HEAD"}
# One answer for a key that never was, was revoked, or has expired.
UNKNOWN = "This API key is not known here"


class Who(msgspec.Struct, frozen=True):
    """Whoever calls, the key to ask the gateway with, and what the caller may do."""

    caller: CallerId
    gateway_key: str | None
    scopes: Sequence[Scope] = EVERYTHING
    key_id: KeyId | None = None  # of a key that can be revoked here


class Callers(Protocol):
    """A way to tell callers."""

    async def identify(self, request: Request) -> Who:
        """The caller; `Unauthenticated` for whoever is none."""
        ...


class ForwardedKeys:
    """The caller's own gateway key tells who it is, and is passed on; all are taken, or a few."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._known = [digest(key) for key in keys]

    async def identify(self, request: Request) -> Who:
        key = _key(request)
        found = digest(key)
        if self._known and not self._is_known(found):
            raise Unauthenticated(UNKNOWN)
        return Who(CallerId(found.hex()[:32]), key)

    def _is_known(self, found: bytes) -> bool:
        # Every key is compared, so that time tells nothing of which one was near.
        return sum(hmac.compare_digest(found, known) for known in self._known) > 0


class OwnKeys:
    """Keys that this service gave out. The gateway is asked with the one stored for the key, else
    with the service's own; where the gateway takes none, the caller's name stands for it.
    """

    def __init__(
        self, authenticate: Authenticate, *, gateway_key: str | None, takes_key: bool = True
    ) -> None:
        self._authenticate = authenticate
        self._gateway_key = gateway_key
        self._takes_key = takes_key

    async def identify(self, request: Request) -> Who:
        known = await self._authenticate.key(_key(request))
        if known is None:
            raise Unauthenticated(UNKNOWN)
        if needed(request.method) is Scope.READ:
            return Who(known.caller, None, known.scopes, known.id)
        spare = self._gateway_key if self._takes_key else known.caller
        gateway_key = self._authenticate.gateway_key(known) or spare
        return Who(known.caller, gateway_key, known.scopes, known.id)


def needed(method: str) -> Scope:
    """What a key must be good for, whatever the route: only these two methods change nothing."""
    return Scope.READ if method in READS else Scope.WRITE


async def admit(request: Request, callers: Callers) -> None:
    """Let a request in, so that its handler can ask whose it is."""
    known = await callers.identify(request)
    if needed(request.method) not in known.scopes:
        raise PermissionDenied("This API key may only read: the call needs one that may write")
    request.state.who = known


def who(request: Request) -> Who:
    """Whose request it is that was let in."""
    known: Who = request.state.who
    return known


def scraper(request: Request) -> Who:
    """As `who`, of a call that has pages scraped: there is a key to ask the gateway with."""
    known = who(request)
    if known.gateway_key is None:
        raise PermissionDenied(
            "There is no gateway key to ask for pages with: whoever runs the service sets "
            "`gateway_key`, or makes a key that has one, `conveyor keys create --gateway-key`"
        )
    return known


def caller_of(request: Request) -> CallerId:
    return who(request).caller


def _key(request: Request) -> str:
    query = request.query_params
    _refuse_key_in_query(query)
    # Of two keys a proxy may have looked at the other one.
    given = request.headers.getlist("x-api-key")
    key = given[0].strip() if len(given) == 1 else ""
    if not key or len(key) > LONGEST_KEY or not key.isprintable():
        raise Unauthenticated("Send your API key in the X-API-Key header, once")
    return key


def _refuse_key_in_query(query: QueryParams) -> None:
    if query and any(name.lower() in IN_QUERY for name in query):
        raise Unauthenticated("A key in the query string ends up in logs: send X-API-Key instead")
