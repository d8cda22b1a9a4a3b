"""The ASGI application: routes, request ids, errors, and the pages for operators."""

import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.types import Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from conveyor.api import problems
from conveyor.api.auth import Callers, admit
from conveyor.api.dashboard import ASSETS, Dashboard, RevalidatedFiles
from conveyor.api.handlers.admin import AdminHandlers
from conveyor.api.handlers.common import Endpoint, check_ids
from conveyor.api.handlers.files import FileHandlers
from conveyor.api.handlers.jobs import JobHandlers
from conveyor.api.handlers.operators import OperatorHandlers
from conveyor.api.handlers.webhooks import WebhookHandlers
from conveyor.api.intake import HELD_MEMORY
from conveyor.api.limits import (
    EXTRA_HEADERS,
    BodyMemory,
    Connections,
    HeldMemory,
    Rates,
    TimedBody,
    check_head,
)
from conveyor.api.openapi import encoded
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
# The parts of a path that may be logged: words of routes, and ids.
ID = re.compile(f"{ULID.pattern}|{TASK_ID.pattern}|")
WORDS = {word for route in ROUTES for word in re.findall(r"[a-z_0-9]+", route.path)} | {
    "_local", "inputs", "healthz", "readyz", "metrics", "openapi.json", "docs", "assets", "operator", "doctor", "dlq", "redrive",
}  # fmt: skip
MOST_PARTS = 12
LONGEST_INSTANCE = 1_000
# A signed link is a credential: it must not leak in a Referer. And a browser must not guess the type
# of a body, which could turn a scraped text into a script.
ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
# The page makes calls with the reader's key, so it runs no script but its own.
DOCS_POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
}

log = structlog.get_logger()

Headers = list[tuple[bytes, bytes]]
Ready = Callable[[], Awaitable[None]]


class Handlers(NamedTuple):
    """The handlers of all routes; those of `ROUTES` are methods of the first four."""

    jobs: JobHandlers
    files: FileHandlers
    webhooks: WebhookHandlers
    operators: OperatorHandlers
    admin: AdminHandlers


def build_app(
    handlers: Handlers,
    admission: "Admission",
    metrics: Metrics,
    ids: Ids,
    ready: Ready,
    *,
    dashboard: Dashboard,
    body_memory: BodyMemory,
) -> "Application":
    routes = [
        *dashboard.routes(),
        *_contract_routes(handlers, admission),
        *_linked_routes(handlers.files),
        *_monitoring_routes(metrics, ready),
        *_docs_routes(dashboard),
        handlers.admin.mounted(),
    ]
    return Application(Router(routes, redirect_slashes=False), metrics, ids, body_memory)


def build_monitoring_app(
    metrics: Metrics, ids: Ids, ready: Ready, *, body_memory: BodyMemory
) -> "Application":
    """Return the application of a process that serves no API: health, readiness and metrics."""
    routes = _monitoring_routes(metrics, ready)
    return Application(Router(routes, redirect_slashes=False), metrics, ids, body_memory)


class Application:
    """The ASGI application. Each request gets an id and limits, each error a problem document."""

    def __init__(self, router: Router, metrics: Metrics, ids: Ids, body_memory: BodyMemory) -> None:
        self._router = router
        self._metrics = metrics
        self._ids = ids
        self._body_memory = body_memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"this is an HTTP service: {scope['type']}")
        scope["app"] = self._router  # with it, Starlette raises 404 and 405 instead of answering
        request_id = self._request_id(scope["headers"])
        with bound_contextvars(request_id=request_id):
            await self._serve(scope, receive, send, request_id.encode())

    def rejection(self, error: ConveyorError, headers: Headers) -> bytes:
        """Return the whole response to bytes that never became a request."""
        request_id = self._request_id(headers)
        response = problems.answer(error, None)
        head = [*response.raw_headers, *_always([]), (b"x-request-id", request_id.encode())]
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
                headers += [*_always(headers), *scope[EXTRA_HEADERS]]
                headers.append((b"x-request-id", request_id))
            await send(message)

        try:
            check_head(scope)
            await self._router(scope, body.receive, stamped)
        except ClientDisconnect:
            return
        except Exception as error:
            if answered:  # too late for a problem document: uvicorn closes the connection
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
    """Return a path for the log: known words and ids only. Anything else might be a secret."""
    parts = path.split("/")[:MOST_PARTS]
    return "/".join(one if one in WORDS or ID.fullmatch(one) else "***" for one in parts)


def _always(headers: Headers) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of every response, except those that the handler has set."""
    known = {name for name, _ in headers}
    for name, value in ALWAYS:
        if name not in known:
            yield name, value


def _template(scope: Mapping[str, Any]) -> str:
    """Return the path with its parameters as names: a metric must not have a label for each id."""
    return getattr(scope.get("route"), "path", None) or NO_ROUTE


@dataclass(frozen=True, slots=True)
class Admission:
    """The checks that a request of the public API must pass before its handler runs."""

    callers: Callers
    rates: Rates
    connections: Connections

    async def check_request(self, request: Request, *, for_operators: bool) -> None:
        await admit(request, self.callers, for_operators=for_operators)
        self.connections.count(request)
        await self.rates.count(request)


def _contract_routes(handlers: Handlers, admission: Admission) -> list[Route]:
    """Return one route per path, so that the `Allow` of a 405 names every method of the path."""
    public = (handlers.jobs, handlers.files, handlers.webhooks, handlers.operators)
    paths: dict[str, dict[str, Endpoint]] = {}
    for route in ROUTES:
        [serve] = [getattr(one, route.handler) for one in public if hasattr(one, route.handler)]
        paths.setdefault(route.path, {})[route.method] = serve
    for_operators = {route.path for route in ROUTES if route.for_operators}
    return [
        Route(
            path,
            _by_method(calls, admission, for_operators=path in for_operators),
            methods=list(calls),
        )
        for path, calls in paths.items()
    ]


def _linked_routes(files: FileHandlers) -> list[Route]:
    """Return the routes of signed links, whose signature takes the place of an API key."""
    return [
        Route("/_local/results/{job}/{run}/{task}", files.get_linked_content),
        Route("/_local/inputs/{input}", files.upload_file_input, methods=["PUT"]),
        Route("/_local/exports/{export}", files.get_linked_export),
    ]


def _by_method(
    calls: Mapping[str, Endpoint], admission: Admission, *, for_operators: bool
) -> Endpoint:
    async def serve(request: Request) -> Response:
        await admission.check_request(request, for_operators=for_operators)
        check_ids(request)
        return await calls["GET" if request.method == "HEAD" else request.method](request)

    return serve


def _monitoring_routes(metrics: Metrics, ready: Ready) -> list[Route]:
    async def healthz(_: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def readyz(_: Request) -> Response:
        await ready()
        return Response(b'{"status":"ready"}', media_type="application/json")

    async def exposed(_: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", exposed),
    ]


def _docs_routes(dashboard: Dashboard) -> list[Route | Mount]:
    async def openapi(_: Request) -> Response:
        return Response(encoded(), media_type="application/json")

    async def docs(_: Request) -> Response:
        return dashboard.html(ASSETS / "docs.html", DOCS_POLICY)

    return [
        Route("/openapi.json", openapi),
        Route("/docs", docs),
        Mount("/docs/assets", RevalidatedFiles(directory=ASSETS / "docs")),
    ]
