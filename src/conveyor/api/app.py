"""The ASGI application: routes, request ids, errors, and the pages for operators."""

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import structlog
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from conveyor.api import problems
from conveyor.api.auth import Callers, admit
from conveyor.api.handlers import Handlers
from conveyor.api.openapi import encoded
from conveyor.api.operators import Operators
from conveyor.api.routes import ROUTES
from conveyor.errors import ConveyorError, Unavailable
from conveyor.ports.clock import Ids
from conveyor.telemetry import Metrics

METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
OTHER = "other"
NO_ROUTE = "none"
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
ASSETS = Path(__file__).parent / "assets"

log = structlog.get_logger()

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
    others: Sequence[object] = (),
) -> ASGIApp:
    """`others` serve the routes that `handlers` has no method for."""
    routes = [
        *_contract_routes([handlers, *others], callers),
        *_linked_routes(handlers),
        *_operators_routes(metrics, ready),
    ]
    routes.append(operators.mounted())
    return Front(Router(routes, redirect_slashes=False), metrics, ids)


class Front:
    """Every request passes here: it gets an id, and every error its problem document."""

    def __init__(self, router: Router, metrics: Metrics, ids: Ids) -> None:
        self._router = router
        self._metrics = metrics
        self._ids = ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"this is an HTTP service: {scope['type']}")
        scope["app"] = self._router  # so that the router raises its refusals
        request_id = self._request_id(scope)
        # Whatever is logged below bears the id.
        with bound_contextvars(request_id=request_id):
            await self._serve(scope, receive, send, request_id.encode())

    async def _serve(self, scope: Scope, receive: Receive, send: Send, request_id: bytes) -> None:
        started = time.perf_counter()
        took, answered = 0.0, 0

        async def stamped(message: Message) -> None:
            nonlocal took, answered
            if message["type"] == "http.response.start":
                took, answered = time.perf_counter() - started, message["status"]
                message["headers"].append((b"x-request-id", request_id))
            await send(message)

        try:
            await self._router(scope, receive, stamped)
        except ClientDisconnect:
            return
        except Exception as error:
            if answered:  # too late for a problem: the server cuts the connection
                raise
            await self._problem(error, scope)(scope, receive, stamped)
        finally:
            self._tell(scope, answered, took)

    def _tell(self, scope: Scope, status: int, took: float) -> None:
        route, method = _template(scope), scope["method"]
        labels = route, method if method in METHODS else OTHER
        self._metrics.requests.labels(*labels, str(status)).inc()
        if status:
            self._metrics.request.labels(*labels).observe(took)
        log.debug(
            "http.request",
            method=method,
            path=scope["path"],
            route=route,
            status=status,
            seconds=round(took, 4),
        )

    def _problem(self, error: Exception, scope: Scope) -> Response:
        path: str = scope["path"]
        if isinstance(error, HTTPException):
            return problems.from_framework(error, scope["method"], path)
        if isinstance(error, ConveyorError):
            if isinstance(error, Unavailable):
                log.warning("http.unavailable", path=path, why=str(error))
            return problems.answer(error, path)
        log.error("http.bug", path=path, exc_info=error)
        return problems.internal(path)

    def _request_id(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name == b"x-request-id" and REQUEST_ID.fullmatch(text := value.decode("latin-1")):
                return str(text)
        return self._ids.new()


def _template(scope: Scope) -> str:
    """The path as the table of routes has it: of paths themselves there is no end."""
    return getattr(scope.get("route"), "path", None) or NO_ROUTE


def _contract_routes(served: Sequence[object], callers: Callers) -> list[Route]:
    """One route a path, so that a refused method is told all that the path takes."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for route in ROUTES:
        [serve] = [getattr(one, route.handler) for one in served if hasattr(one, route.handler)]
        paths.setdefault(route.path, {})[route.method] = serve
    return [
        Route(path, _by_method(calls, callers), methods=list(calls))
        for path, calls in paths.items()
    ]


def _linked_routes(handlers: Handlers) -> list[Route]:
    """Where signed links lead: they need no key."""
    return [
        Route("/_local/results/{job}/{run}/{task}", handlers.get_linked_content),
        Route("/_local/inputs/{input}", handlers.fill_slot, methods=["PUT"]),
        Route("/_local/exports/{export}", handlers.get_linked_export),
    ]


def _by_method(calls: Mapping[str, Endpoint], callers: Callers) -> Endpoint:
    async def serve(request: Request) -> Response:
        await admit(request, callers)
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
