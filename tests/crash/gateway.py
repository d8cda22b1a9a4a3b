"""A gateway whose answers follow from the URL and the attempts on record, whoever died meanwhile."""

from collections.abc import Callable
from urllib.parse import urlsplit

from conveyor.domain.counts import Spend
from conveyor.domain.problem import encoded, problem
from conveyor.ports.bodies import Spool
from conveyor.ports.gateway import GatewayRefusal, Page, PageRequest
from conveyor.testing.factories import gateway_refusal

PRICE = Spend(credits=1, nanos=280_000)


class ScriptedGateway:
    """`tried` tells how many attempts at a URL are on record, and of how many claims: an attempt
    that was lost is asked for again.
    """

    def __init__(self, tried: Callable[[str], tuple[int, int]]) -> None:
        self._tried = tried

    async def check_health(self) -> bool:
        return True

    async def fetch(
        self, request: PageRequest, spool: Callable[[], Spool]
    ) -> Page | GatewayRefusal:
        match urlsplit(request.url).hostname:
            case "flaky.example" if self._tried(request.url)[0] == 0:
                return _refusal(422, "RESP001")
            case "busy.example" if self._tried(request.url)[1] == 1:
                return _refusal(429, "AUTH006")
            case "missing.example":
                return _refusal(404, "RESP002")
            case "blocked.example":
                return _refusal(402, "AUTH004")
            case "large.example":
                return Page(content=await _spooled(spool(), content(request.url)), spend=PRICE)
            case _:
                return Page(content=content(request.url), spend=PRICE)


def content(url: str) -> bytes:
    return f"<p>{url}</p>".encode()


async def _spooled(spool: Spool, page: bytes) -> Spool:
    await spool.write(page)
    return spool


def _refusal(status: int, code: str) -> GatewayRefusal:
    return gateway_refusal(status, code, problem=encoded(problem(status=status, code=code)))
