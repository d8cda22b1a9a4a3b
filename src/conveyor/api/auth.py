"""Authentication of requests by their `X-API-Key` header, before their body is read."""

import hmac
import re
from collections.abc import Sequence
from typing import Protocol

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request

from conveyor.domain.api_key import OWN_JOBS, PREFIX, Scope, digest
from conveyor.domain.ids import ApiKeyId, CallerId
from conveyor.errors import PermissionDenied, Unauthenticated
from conveyor.steps.auth import Authenticate

IN_QUERY = {"apikey", "api_key", "api-key", "x-api-key", "key"}
LONGEST_KEY = 512
READS = {"GET", "HEAD"}
# Of the `Host` header. Anything else may be the name of another site that resolves to this machine.
LOOPBACK_HOST = re.compile(r"(127\.[0-9.]+|localhost|\[::1\])(:[0-9]+)?", re.ASCII | re.IGNORECASE)
# The same text for unknown, revoked and expired keys, so that it does not reveal which keys exist.
UNKNOWN = "This API key is not valid here"


class Identity(msgspec.Struct, frozen=True):
    """An authenticated caller, its gateway key and its scopes."""

    caller: CallerId
    gateway_key: str | None
    scopes: Sequence[Scope] = OWN_JOBS
    api_key_id: ApiKeyId | None = None  # None if the key was not created here


class Callers(Protocol):
    """A mode of authentication."""

    async def identify(self, request: Request) -> Identity:
        """Return the caller of a request, or raise `Unauthenticated`."""
        ...


class ForwardedKeys:
    """Callers send their own gateway keys, which the service passes on.

    With `keys`, only those are accepted. Operators send API keys of this service; with `scopes`
    that include theirs, every caller is an operator as well. With `only_loopback`, requests to
    other hosts are refused.
    """

    def __init__(
        self,
        authenticate: Authenticate,
        keys: Sequence[str] = (),
        *,
        scopes: Sequence[Scope] = OWN_JOBS,
        only_loopback: bool = False,
    ) -> None:
        self._authenticate = authenticate
        self._known = [digest(key) for key in keys]
        self._scopes = scopes
        self._only_loopback = only_loopback

    async def identify(self, request: Request) -> Identity:
        if self._only_loopback:
            _refuse_other_hosts(request)
        key = _key(request)
        if key.startswith(PREFIX):
            return await self._operator(key)
        found = digest(key)
        if self._known and not self._is_known(found):
            raise Unauthenticated(UNKNOWN)
        return Identity(CallerId(found.hex()[:32]), key, self._scopes)

    async def _operator(self, key: str) -> Identity:
        known = await self._authenticate.key(key)
        # Any other key of a service, also a revoked one, must not be sent to the gateway.
        if known is None or Scope.OPERATOR not in known.scopes:
            raise Unauthenticated(UNKNOWN)
        return Identity(known.caller, None, known.scopes, known.id)

    def _is_known(self, found: bytes) -> bool:
        # Compare with every key: the response time must not depend on which one matches.
        return sum(hmac.compare_digest(found, known) for known in self._known) > 0


class OwnKeys:
    """Callers send API keys of this service.

    Pages are requested with the gateway key that is stored with the API key, else with that of the
    settings. For a gateway without keys the caller's name takes its place.
    """

    def __init__(
        self, authenticate: Authenticate, *, gateway_key: str | None, takes_key: bool = True
    ) -> None:
        self._authenticate = authenticate
        self._gateway_key = gateway_key
        self._takes_key = takes_key

    async def identify(self, request: Request) -> Identity:
        known = await self._authenticate.key(_key(request))
        if known is None:
            raise Unauthenticated(UNKNOWN)
        if needed(request.method) is Scope.READ:
            return Identity(known.caller, None, known.scopes, known.id)
        spare = self._gateway_key if self._takes_key else known.caller
        gateway_key = await self._authenticate.gateway_key(known) or spare
        return Identity(known.caller, gateway_key, known.scopes, known.id)


def needed(method: str) -> Scope:
    """Return the scope that a method needs, on every route: GET and HEAD change nothing."""
    return Scope.READ if method in READS else Scope.WRITE


async def admit(request: Request, callers: Callers, *, for_operators: bool = False) -> None:
    """Authenticate and authorize a request; `identity_of` then returns its caller."""
    known = await callers.identify(request)
    if for_operators and Scope.OPERATOR not in known.scopes:
        raise PermissionDenied("This is for operators: send an API key with the scope `operator`")
    if needed(request.method) not in known.scopes:
        raise PermissionDenied("This API key may only read: send one with the scope `write`")
    request.state.identity = known


def identity_of(request: Request) -> Identity:
    """Return the caller of an authenticated request."""
    known: Identity = request.state.identity
    return known


def scraping_identity_of(request: Request) -> Identity:
    """Return the caller of a request that starts scraping, for which it needs a gateway key."""
    known = identity_of(request)
    if known.gateway_key is None:
        raise PermissionDenied(
            "This API key must have a gateway key, and the service has no default: its operator "
            "can set `gateway_key`, or create a key with `conveyor keys create --gateway-key`"
        )
    return known


def caller_of(request: Request) -> CallerId:
    return identity_of(request).caller


def _key(request: Request) -> str:
    query = request.query_params
    _refuse_key_in_query(query)
    # Refuse two keys: a proxy in front may have checked the other one.
    given = request.headers.getlist("x-api-key")
    key = given[0].strip() if len(given) == 1 else ""
    if not key or len(key) > LONGEST_KEY or not key.isprintable():
        raise Unauthenticated("Send your API key in the X-API-Key header, once")
    return key


def _refuse_other_hosts(request: Request) -> None:
    if not LOOPBACK_HOST.fullmatch(request.headers.get("host", "")):
        raise Unauthenticated(
            "This service accepts any key, so it answers only requests to localhost or a loopback "
            "address. To serve other host names, set CONVEYOR_AUTH to keys or forward"
        )


def _refuse_key_in_query(query: QueryParams) -> None:
    if query and any(name.lower() in IN_QUERY for name in query):
        raise Unauthenticated("A key in the query string ends up in logs: send X-API-Key instead")
