"""The OpenAPI document, built from the table of routes, the types of bodies and the error classes."""

import re
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import get_args

import msgspec

from conveyor import __version__, wire
from conveyor.api import descriptions, render, schemas
from conveyor.api.auth import needed
from conveyor.api.handlers.common import EVENT_STREAM
from conveyor.api.problems import MEDIA_TYPE
from conveyor.api.routes import ROUTES, Route
from conveyor.api.schemas import Document
from conveyor.domain.api_key import Scope
from conveyor.domain.problem import phrase
from conveyor.domain.schedule import Schedule
from conveyor.domain.selection import RerunBody
from conveyor.domain.submission import Submission
from conveyor.errors import (
    CallerFault,
    ConveyorError,
    HeadTooLarge,
    InvalidArgument,
    NotFound,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    RateLimited,
    RequestTimeout,
    StorageFull,
    SubscriptionInactive,
    TaskUnsuccessful,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
    UriTooLong,
)

HEADER = "#/components/headers/{name}"
# Errors that every operation can return.
COMMON: tuple[type[ConveyorError], ...] = (
    InvalidArgument,
    Unauthenticated,
    RequestTimeout,
    UriTooLong,
    RateLimited,
    QuotaExceeded,  # of connections
    HeadTooLarge,
    ConveyorError,
    Unavailable,
    Overloaded,
    StorageFull,
)
WITH_BODY: tuple[type[ConveyorError], ...] = (TooLarge, UnsupportedMediaType)
# Fields that hold stored JSON, which `render` copies without reading it.
PASSED_THROUGH: dict[type, tuple[str, ...]] = {
    wire.WireResult: ("metadata", "error"),
    wire.WireAttempt: ("error",),
}
NO_BODY = {202, 204}  # statuses of responses without a body, where the route names no document
HEADERS: dict[str, Document] = {
    "X-Request-ID": {
        "description": "The request's own id if it has 1 to 128 letters, digits, dots, dashes or "
        "underscores; otherwise a new one",
        "required": True,
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "Whole seconds after which the same call may work",
        "schema": {"type": "integer", "minimum": 1},
    },
    render.IGNORED: {
        "description": "Members of the body that are not known here and had no effect",
        "schema": {"type": "string"},
    },
    "RateLimit-Policy": {
        "description": "The limit of the caller, where there is one",
        "schema": {"type": "string"},
    },
    "RateLimit": {
        "description": "What is left of it, where there is one",
        "schema": {"type": "string"},
    },
}


@cache
def encoded() -> bytes:
    """Return the document as it is served. It does not change while the process runs."""
    return msgspec.json.encode(document())


def document() -> Document:
    kinds = list(_kinds())
    _, shapes = msgspec.json.schema_components(
        kinds, ref_template=schemas.REFERENCE, schema_hook=_any
    )
    paths: dict[str, Document] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    described = {
        "openapi": "3.1.0",
        "info": {
            "title": "Conveyor",
            "version": __version__,
            "description": descriptions.INTRODUCTION,
        },
        "tags": [
            {"name": name, "description": about} for name, about in descriptions.GROUPS.items()
        ],
        "paths": paths,
        "components": {
            "schemas": descriptions.described(schemas.bounded(_as_written(shapes))),
            "headers": HEADERS,
            "securitySchemes": {
                "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
        "security": [{"ApiKey": []}],
    }
    return _without_unused(described)


def _without_unused(described: Document) -> Document:
    """Remove schemas without a reference: `bounded` replaces some enumerations by their values."""
    text = msgspec.json.encode(described).decode()
    shapes = described["components"]["schemas"]
    for name in list(shapes):
        if f'"{schemas.REFERENCE.format(name=name)}"' not in text:
            del shapes[name]
    return described


def _as_written(shapes: dict[str, Document]) -> dict[str, Document]:
    """Change the schemas of documents from what clients may read to what the service writes.

    See `conveyor.wire`: the service leaves out a field that is None, and always writes one whose
    default is for clients only. msgspec knows the defaults alone.
    """
    for kind in vars(wire).values():
        if not (isinstance(kind, type) and issubclass(kind, wire.Document)):
            continue
        if (schema := shapes.get(kind.__name__)) is None:
            continue
        properties: dict[str, Document] = schema["properties"]
        required: list[str] = []
        schema["required"] = required
        for name, shape in properties.items():
            may_be_left_out = "default" in shape
            if may_be_left_out:
                properties[name] = _without_null(shape)
            if name in wire.ALWAYS_WRITTEN or not may_be_left_out:
                required.append(name)
        properties.update({name: {} for name in PASSED_THROUGH.get(kind, ())})
        for field in msgspec.structs.fields(kind):
            if datetime in {field.type, *get_args(field.type)}:
                shape = properties[field.encode_name]
                properties[field.encode_name] = schemas.narrowed(shape, {"format": "date-time"})
    return shapes


def _without_null(shape: Document) -> Document:
    rest: list[Document] = [one for one in shape.get("anyOf", []) if one != schemas.NULL]
    if len(rest) == 1:
        return rest[0]
    return {name: value for name, value in shape.items() if name != "default"}


def _kinds() -> Iterator[type[msgspec.Struct]]:
    yield wire.WireProblem
    yield Schedule
    for route in ROUTES:
        yield from (kind for kind in (route.answer, route.body) if kind)


def _any(_kind: type) -> Document:
    """Return the schema of `msgspec.Raw`: any JSON."""
    return {}


def _operation(route: Route) -> Document:
    errors = _errors(route)
    statuses = {status for status in route.statuses if status < 400} | errors.keys()
    operation: Document = {
        "operationId": _name(route),
        "summary": route.summary,
        "tags": [descriptions.group_of(route.path)],
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_headers(route)],
        "responses": {
            str(status): _problem(status, errors[status])
            if status in errors
            else _response(route, status)
            for status in sorted(statuses)
        },
    }
    if route.body:
        content = _content(route.body.__name__)
        if route.handler in schemas.EXAMPLES:
            content["example"] = schemas.EXAMPLES[route.handler]
        operation["requestBody"] = {
            "required": route.body is not RerunBody,
            "content": {"application/json": content},
        }
    return operation


def _name(route: Route) -> str:
    return "_".join([route.method.lower(), *re.findall(r"\w+", route.path)[1:]])


def _path_parameters(route: Route) -> Iterator[Document]:
    for name in re.findall(r"{(\w+)}", route.path):
        schema = schemas.PATHS.get(name, schemas.PATHS[""])
        about = descriptions.PARAMETERS.get(name, "")
        described = {"name": name, "in": "path", "required": True, "schema": schema}
        yield described | {"description": about}


def _query_parameters(route: Route) -> Iterator[Document]:
    known = schemas.QUERIES.get(route.handler, {})
    for name in route.query:
        schema = known.get(name, {"type": "string"})
        about = descriptions.QUERIES.get(name, "")
        described = {"name": name, "in": "query", "schema": schema, "description": about}
        yield described | ({"allowEmptyValue": True} if name == "cursor" else {})


def _headers(route: Route) -> Iterator[Document]:
    shapes: dict[str, Document] = {}
    if route.repeatable:
        shapes["Idempotency-Key"] = schemas.IDEMPOTENCY_KEY
    if route.media_type == EVENT_STREAM:
        shapes["Last-Event-ID"] = {"type": "string"}
    if route.repeatable and route.path == "/v1/jobs":
        shapes |= {
            "Conveyor-" + field.replace("_", "-").title(): shape
            for field, shape in schemas.EXTENSIONS.items()
        }
        shapes["Conveyor-Step-Functions"] = schemas.TASK_TOKEN
    for name, shape in shapes.items():
        yield {"name": name, "in": "header", "schema": shape, "description": _about_header(name)}


def _about_header(name: str) -> str:
    """Return the sentence of a header, or that of the field of a submission that it stands for."""
    field = name.removeprefix("Conveyor-").replace("-", "_").lower()
    known = descriptions.FIELDS["Submission"].get(field) or descriptions.COMMON.get(field, "")
    return descriptions.PARAMETERS.get(name) or known


def _errors(route: Route) -> dict[int, list[str]]:
    """Return the error codes of an operation by status.

    Where the route names a status and no error that has it, all errors with that status count.
    """
    kinds = [*COMMON, *route.raises, *(WITH_BODY if route.body else ())]
    if "{" in route.path and 404 in route.statuses:
        kinds.append(NotFound)
    known = {_status(kind) for kind in kinds}
    for status in route.statuses:
        if status >= 400 and status not in known:
            kinds += [kind for kind in _tree(ConveyorError) if _status(kind) == status]
    if needed(route.method) is Scope.WRITE or route.for_operators:
        kinds.append(PermissionDenied)
    codes: dict[int, list[str]] = {}
    for kind in kinds:
        if (status := _status(kind)) and kind.code not in codes.setdefault(status, []):
            codes[status].append(kind.code)
    return codes


def _tree(root: type[ConveyorError]) -> Iterator[type[ConveyorError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _tree(kind)


def _status(kind: type[ConveyorError]) -> int:
    """Return the HTTP status of an error; 0 for a base class, which is never returned itself."""
    if issubclass(kind, CallerFault):
        return 0 if kind is CallerFault else kind.status
    if issubclass(kind, Unavailable):
        return 503
    return 500 if kind is ConveyorError else 0


def _problem(status: int, codes: list[str]) -> Document:
    """Return an error response and its codes."""
    shown: Document = {}
    # The problem of a failed task has the status and code of the page, not of the response.
    if status != TaskUnsuccessful.status:
        shown = {"status": {"const": status}, "code": {"enum": sorted(codes)}}
    schema = {"$ref": schemas.REFERENCE.format(name="WireProblem"), "properties": shown}
    described = ", ".join(f"`{code}`" for code in sorted(codes))
    says_when = status in {402, 429, 503} or SubscriptionInactive.code in codes
    return {
        "description": f"{phrase(status)}: {described}",
        "headers": _bears("Retry-After") if says_when else _bears(),
        "content": {MEDIA_TYPE: {"schema": schema}},
    }


def _response(route: Route, status: int) -> Document:
    headers = _bears(render.IGNORED) if route.body is Submission else _bears()
    response: Document = {"description": phrase(status), "headers": headers}
    if route.answer is not None:
        response["content"] = {route.media_type: _content(route.answer.__name__)}
    elif status not in NO_BODY:
        response |= {"description": "The body, in the format of the job", "content": {"*/*": {}}}
    if links := _links(route, status):
        response["links"] = links
    return response


# Handler -> path parameter -> the field of its response that holds the value.
LEADS = {
    "submit_job": {"job": "/job_id", "run": "/latest_run/run_id"},
    "rerun_job": {"job": "/job_id", "run": "/latest_run/run_id"},
    "get_run": {"job": "/job_id", "run": "/run_id"},
    "list_results": {"task": "/results/0/task_id"},
    "start_export": {"export": "/export_id"},
}


def _links(route: Route, status: int) -> Document:
    """Return links to the operations that take ids of this response and of its request."""
    if status >= 300 or route.handler not in LEADS:
        return {}
    given = {name: f"$request.path.{name}" for name in re.findall(r"{(\w+)}", route.path)}
    fresh = {name: f"$response.body#{field}" for name, field in LEADS[route.handler].items()}
    links: Document = {}
    for other in ROUTES:
        wanted = re.findall(r"{(\w+)}", other.path)
        if not set(wanted) <= (given | fresh).keys() or not set(wanted) & fresh.keys():
            continue
        known = {name: (given | fresh)[name] for name in wanted}
        links[_name(other)] = {"operationId": _name(other), "parameters": known}
    return links


def _bears(*more: str) -> Document:
    names = ("X-Request-ID", "RateLimit-Policy", "RateLimit", *more)
    return {name: {"$ref": HEADER.format(name=name)} for name in names}


def _content(name: str) -> Document:
    return {"schema": {"$ref": schemas.REFERENCE.format(name=name)}}
