"""The ASGI application: routes, request ids, errors, and the pages for operators."""

import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from conveyor.api import problems
from conveyor.api.auth import Callers, admit
from conveyor.api.bounds import BodyMemory, HeldMemory, TimedBody, check_head
from conveyor.api.connections import Connections
from conveyor.api.handlers import Handlers
from conveyor.api.intake import HELD_MEMORY
from conveyor.api.openapi import encoded
from conveyor.api.operators import Operators
from conveyor.api.rates import EXTRA_HEADERS, Rates
from conveyor.api.routes import ROUTES
from conveyor.domain.ids import TASK_ID, ULID
from conveyor.domain.problem import phrase
from conveyor.errors import ConveyorError, Unavailable
from conveyor.ports.clock import Ids
from conveyor.telemetry.metrics import Metrics

METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
OTHER = "other"
NO_ROUTE = "none"
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
# What may stand in a log of a path: its own words, and ids.
ID = re.compile(f"{ULID.pattern}|{TASK_ID.pattern}|")
WORDS = {word for route in ROUTES for word in re.findall(r"[a-z_0-9]+", route.path)} | {
    "_local", "inputs", "healthz", "readyz", "metrics", "openapi.json", "docs", "assets", "operator", "doctor", "dlq", "redrive",
}  # fmt: skip
MOST_PARTS = 12
LONGEST_INSTANCE = 1_000
# A link that names its own authority must not travel on in a Referer, nor a page be taken for
# what it does not say it is.
SAFE = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
CACHEABLE = "/docs"
ASSETS = Path(__file__).parent / "assets"

log = structlog.get_logger()

Headers = list[tuple[bytes, bytes]]
Ready = Callable[[], Awaitable[None]]
Endpoint = Callable[[Request], Awaitable[Response]]


def build_app(
    handlers: Handlers,
    metrics: Metrics,
    ids: Ids,
    ready: Ready,
    operators: Operators,
    *,
    callers: Callers,
    body_memory: BodyMemory,
    rates: Rates,
    connections: Connections,
    others: Sequence[object] = (),
) -> "Application":
    """`others` serve the routes that `handlers` has no method for."""
    routes = [
        *_contract_routes([handlers, *others], Admission(callers, rates, connections)),
        *_linked_routes(handlers),
        *_operators_routes(metrics, ready),
    ]
    routes.append(operators.mounted())
    return Application(Router(routes, redirect_slashes=False), metrics, ids, body_memory)


class Application:
    """Every request passes here: it gets an id, bounds, and every error its problem document."""

    def __init__(self, router: Router, metrics: Metrics, ids: Ids, body_memory: BodyMemory) -> None:
        self._router = router
        self._metrics = metrics
        self._ids = ids
        self._body_memory = body_memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"this is an HTTP service: {scope['type']}")
        scope["app"] = self._router  # so that the router raises its refusals
        request_id = self._request_id(scope["headers"])
        # Whatever is logged below bears the id.
        with bound_contextvars(request_id=request_id):
            await self._serve(scope, receive, send, request_id.encode())

    def rejection(self, error: ConveyorError, headers: Headers) -> bytes:
        """The whole answer to bytes that never became a request."""
        request_id = self._request_id(headers)
        response = problems.answer(error, None)
        head = [*response.raw_headers, *_always("", []), (b"x-request-id", request_id.encode())]
        if not any(name == b"connection" for name, _ in head):
            head.append((b"connection", b"close"))
        with bound_contextvars(request_id=request_id):
            self._log({"method": OTHER, "path": ""}, response.status_code, 0.0)
        first = f"HTTP/1.1 {response.status_code} {phrase(response.status_code)}".encode()
        lines = [first, *(name + b": " + value for name, value in head), b"", b""]
        return b"\r\n".join(lines) + bytes(response.body)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, request_id: bytes) -> None:
        started = time.perf_counter()
        took, answered = 0.0, 0
        held = HeldMemory(self._body_memory)
        body = TimedBody(receive, held)
        scope[HELD_MEMORY], scope[EXTRA_HEADERS] = held, []

        async def stamped(message: Message) -> None:
            nonlocal took, answered
            if message["type"] == "http.response.start":
                body.stop_timing()
                took, answered = time.perf_counter() - started, message["status"]
                headers: Headers = message["headers"]
                headers += [*_always(scope["path"], headers), *scope[EXTRA_HEADERS]]
                headers.append((b"x-request-id", request_id))
            await send(message)

        try:
            check_head(scope)
            await self._router(scope, body.receive, stamped)
        except ClientDisconnect:
            return
        except Exception as error:
            if answered:  # too late for a problem: the server cuts the connection
                raise
            await self._problem(error, scope)(scope, body.receive, stamped)
        finally:
            held.release()
            self._log(scope, answered, took)

    def _log(self, scope: Mapping[str, Any], status: int, took: float) -> None:
        route, method = _template(scope), scope["method"]
        labels = route, method if method in METHODS else OTHER
        self._metrics.requests.labels(*labels, str(status)).inc()
        if status:
            self._metrics.request.labels(*labels).observe(took)
        log.debug(
            "http.request",
            method=method,
            path=redacted_path(scope["path"]),
            route=route,
            status=status,
            seconds=round(took, 4),
        )

    def _problem(self, error: Exception, scope: Scope) -> Response:
        path: str = scope["path"][:LONGEST_INSTANCE]
        if isinstance(error, HTTPException):
            return problems.from_framework(error, scope["method"], path)
        if isinstance(error, ConveyorError):
            if isinstance(error, Unavailable):
                log.warning("http.unavailable", path=redacted_path(path), why=str(error))
            return problems.answer(error, path)
        log.error("http.bug", path=redacted_path(path), exc_info=error)
        return problems.internal(path)

    def _request_id(self, headers: Headers) -> str:
        for name, value in headers:
            if name == b"x-request-id" and REQUEST_ID.fullmatch(text := value.decode("latin-1")):
                return str(text)
        return self._ids.new()


def redacted_path(path: str) -> str:
    """A path as it may stand in a log: its words and ids. Whatever else it holds may be a key."""
    parts = path.split("/")[:MOST_PARTS]
    return "/".join(one if one in WORDS or ID.fullmatch(one) else "***" for one in parts)


def _always(path: str, headers: Headers) -> Iterator[tuple[bytes, bytes]]:
    """What every answer bears, unless whoever made it knew better."""
    known = {name for name, _ in headers}
    for name, value in SAFE:
        if name not in known:
            yield name, value
    if b"cache-control" not in known and not path.startswith(CACHEABLE):
        yield b"cache-control", b"no-store"


def _template(scope: Mapping[str, Any]) -> str:
    """The path as the table of routes has it: of paths themselves there is no end."""
    return getattr(scope.get("route"), "path", None) or NO_ROUTE


@dataclass(frozen=True, slots=True)
class Admission:
    """What a request of the contract passes before it is served."""

    callers: Callers
    rates: Rates
    connections: Connections

    async def let_in(self, request: Request) -> None:
        await admit(request, self.callers)
        self.connections.count(request)
        await self.rates.count(request)


def _contract_routes(served: Sequence[object], admission: Admission) -> list[Route]:
    """One route a path, so that a refused method is told all that the path takes."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for route in ROUTES:
        [serve] = [getattr(one, route.handler) for one in served if hasattr(one, route.handler)]
        paths.setdefault(route.path, {})[route.method] = serve
    return [
        Route(path, _by_method(calls, admission), methods=list(calls))
        for path, calls in paths.items()
    ]


def _linked_routes(handlers: Handlers) -> list[Route]:
    """Where signed links lead: they need no key."""
    return [
        Route("/_local/results/{job}/{run}/{task}", handlers.get_linked_content),
        Route("/_local/inputs/{input}", handlers.upload_file_input, methods=["PUT"]),
        Route("/_local/exports/{export}", handlers.get_linked_export),
    ]


def _by_method(calls: Mapping[str, Endpoint], admission: Admission) -> Endpoint:
    async def serve(request: Request) -> Response:
        await admission.let_in(request)
        return await calls["GET" if request.method == "HEAD" else request.method](request)

    return serve


def _operators_routes(metrics: Metrics, ready: Ready) -> list[Route | Mount]:
    async def healthz(_: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def readyz(_: Request) -> Response:
        await ready()
        return Response(b'{"status":"ready"}', media_type="application/json")

    async def exposed(_: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def openapi(_: Request) -> Response:
        return Response(encoded(), media_type="application/json")

    async def docs(_: Request) -> Response:
        return FileResponse(ASSETS / "docs.html")

    return [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", exposed),
        Route("/openapi.json", openapi),
        Route("/docs", docs),
        Mount("/docs/assets", StaticFiles(directory=ASSETS)),
    ]
