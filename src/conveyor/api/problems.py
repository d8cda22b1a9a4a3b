"""Errors as responses in `application/problem+json` (RFC 9457)."""

from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from conveyor.domain.problem import problem
from conveyor.errors import (
    CallerFault,
    ConveyorError,
    HeadTooLarge,
    MethodNotAllowed,
    NotFound,
    RequestTimeout,
    TaskUnsuccessful,
    Unavailable,
    UriTooLong,
)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = "2"  # seconds; about what a restart of the service takes
# Errors after which the rest of the request is not read, so that the connection cannot be used again.
CLOSING = (HeadTooLarge, RequestTimeout, UriTooLong)


def answer(error: ConveyorError, path: str | None) -> Response:
    """Return the response to an error of this service."""
    match error:
        case TaskUnsuccessful():
            return _respond(error.status, {**error.extras, "instance": path})
        case CallerFault():
            return _caller_fault(error, path)
        case Unavailable():
            document = problem(
                status=503, code=error.code, title=error.title, detail=str(error), instance=path
            )
            return _respond(503, document, {"Retry-After": RETRY_AFTER})
        case _:
            return internal(path)


def internal(path: str | None) -> Response:
    """Return the response to a bug. The cause is only in the log, under the request id."""
    detail = "Something went wrong here; the request id leads to the cause in the log"
    return _respond(500, problem(status=500, code="internal", detail=detail, instance=path))


def from_framework(error: HTTPException, method: str, path: str) -> Response:
    """Return Starlette's own errors, 404 and 405, as problem documents."""
    if error.status_code != 405:
        return answer(NotFound("No such path"), path)
    # Starlette lists methods in any order, and for static files not at all.
    allowed = ", ".join(sorted((error.headers or {}).get("Allow", "GET, HEAD").split(", ")))
    response = answer(MethodNotAllowed(f"{method} is not for this path; it takes {allowed}"), path)
    response.headers["Allow"] = allowed
    return response


def _caller_fault(error: CallerFault, path: str | None) -> Response:
    document = problem(
        status=error.status,
        code=error.code,
        title=error.title,
        detail=error.detail,
        instance=path,
        **error.extras,
    )
    closing = {"Connection": "close"} if isinstance(error, CLOSING) else {}
    return _respond(error.status, document, error.headers | closing)


def _respond(
    status: int, document: Mapping[str, object], headers: Mapping[str, str] | None = None
) -> Response:
    content = msgspec.json.encode(document)
    return Response(content, status, dict(headers or {}), media_type=MEDIA_TYPE)
