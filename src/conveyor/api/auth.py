"""Who is calling: the `X-API-Key` header, and nothing else.

Asked once for each request, before anything else of it is looked at.
"""

import hashlib
import hmac
from collections.abc import Sequence

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request

from conveyor.domain.ids import CallerId
from conveyor.errors import Unauthenticated

IN_QUERY = {"apikey", "api_key", "api-key", "x-api-key", "key"}
LONGEST_KEY = 512


class Who(msgspec.Struct, frozen=True):
    """Whoever calls, and the key to ask the gateway with."""

    caller: CallerId
    gateway_key: str


class Callers:
    """Known keys; without any, every key is a caller of its own (for loopback only)."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._known = [_digest(key) for key in keys]

    async def identify(self, request: Request) -> Who:
        """The caller; `Unauthenticated` for whoever is none."""
        _refuse_key_in_query(request.query_params)
        key = request.headers.get("x-api-key", "").strip()
        if not key or len(key) > LONGEST_KEY or not key.isprintable():
            raise Unauthenticated("Send your API key in the X-API-Key header")
        digest = _digest(key)
        if self._known and not self._is_known(digest):
            raise Unauthenticated("This API key is not known here")
        return Who(CallerId(digest.hex()[:32]), key)

    def _is_known(self, digest: bytes) -> bool:
        # Every key is compared, so that time tells nothing of which one was near.
        return sum(hmac.compare_digest(digest, known) for known in self._known) > 0


async def admit(request: Request, callers: Callers) -> None:
    """Let a request in, so that its handler can ask whose it is."""
    request.state.who = await callers.identify(request)


def who(request: Request) -> Who:
    """Whose request it is that was let in."""
    known: Who = request.state.who
    return known


def caller_of(request: Request) -> CallerId:
    return who(request).caller


def _refuse_key_in_query(query: QueryParams) -> None:
    if query and any(name.lower() in IN_QUERY for name in query):
        raise Unauthenticated("A key in the query string ends up in logs: send X-API-Key instead")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
