"""The OpenAPI document, from the table of routes, and a page that shows it."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from conveyor import __version__
from conveyor.api import events, wire
from conveyor.api.auth import needed
from conveyor.api.routes import ROUTES, Route
from conveyor.domain.api_key import Scope
from conveyor.domain.problem import phrase

Document = dict[str, Any]

REFERENCE = "#/components/schemas/{name}"
PARAMETERS: dict[str, Document] = {
    "limit": {"schema": {"type": "integer", "minimum": 1}, "description": "How many to list"},
    "cursor": {"schema": {"type": "string"}, "description": "`next_cursor` of the page before"},
    "status": {"schema": {"type": "string"}, "description": "Only those of this status"},
    "type": {"schema": {"type": "string"}, "description": "Only those of this type"},
}
EXTENSIONS: dict[str, Document] = {
    "Conveyor-Max-Inflight": {"type": "integer", "minimum": 1},
    "Conveyor-Retries": {"type": "integer", "minimum": 0},
    "Conveyor-Result-Ttl-Days": {"type": "integer", "minimum": 1},
    "Conveyor-Async": {"type": "boolean"},
    "Conveyor-Step-Functions": {"type": "string", "maxLength": 2048},
}


@cache
def encoded() -> bytes:
    """The document as it is served: it never changes while the program runs."""
    return msgspec.json.encode(document())


def document() -> Document:
    kinds = list(_kinds())
    _, schemas = msgspec.json.schema_components(kinds, ref_template=REFERENCE, schema_hook=_any)
    paths: dict[str, Document] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Conveyor",
            "version": __version__,
            "description": "A durable inbox for scrape jobs. Speaks the ZenRows Batch API.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
        "security": [{"ApiKey": []}],
    }


def _kinds() -> Iterator[type[msgspec.Struct]]:
    yield wire.WireProblem
    for route in ROUTES:
        yield from (kind for kind in (route.answer, route.body) if kind)


def _any(_kind: type) -> Document:
    """The schema of JSON that is passed through."""
    return {}


def _operation(route: Route) -> Document:
    operation: Document = {
        "operationId": "_".join([route.method.lower(), *re.findall(r"\w+", route.path)[1:]]),
        "summary": route.summary,
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_headers(route)],
        "responses": {str(status): _response(route, status) for status in _statuses(route)},
    }
    if route.body:
        operation["requestBody"] = {"required": True, "content": _json(route.body.__name__)}
    return operation


def _statuses(route: Route) -> list[int]:
    """A call that changes something is refused to keys that may only read."""
    writes = needed(route.method) is Scope.WRITE
    return sorted({*route.statuses, *([403] if writes else [])})


def _path_parameters(route: Route) -> list[Document]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]


def _query_parameters(route: Route) -> list[Document]:
    return [{"name": name, "in": "query", **PARAMETERS[name]} for name in route.query]


def _headers(route: Route) -> list[Document]:
    schemas: dict[str, Document] = {}
    if route.repeatable:
        schemas["Idempotency-Key"] = {"type": "string", "maxLength": 128}
    if route.media_type == events.MEDIA_TYPE:
        schemas["Last-Event-ID"] = {"type": "string"}
    if route.repeatable and route.path == "/v1/jobs":
        schemas |= EXTENSIONS
    return [{"name": name, "in": "header", "schema": schema} for name, schema in schemas.items()]


def _response(route: Route, status: int) -> Document:
    if status >= 400:
        return {
            "description": phrase(status),
            "content": {"application/problem+json": _content("WireProblem")},
        }
    if route.answer is None:
        return {"description": "The body, in the format of the job", "content": {"*/*": {}}}
    answered = {route.media_type: _content(route.answer.__name__)}
    return {"description": phrase(status), "content": answered}


def _json(name: str) -> Document:
    return {"application/json": _content(name)}


def _content(name: str) -> Document:
    return {"schema": {"$ref": REFERENCE.format(name=name)}}
