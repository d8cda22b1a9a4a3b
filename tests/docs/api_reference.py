"""The page of the HTTP API in docs/reference, from the OpenAPI document that the service serves."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from conveyor.api import openapi

Part = Mapping[str, Any]

ABOUT = (
    "Every call of the API, as `/docs` and `/openapi.json` of a running service describe it; `/docs`"
    " also has examples and sends calls. Routes under `/v1/operator` need a key with that scope."
    " Errors are [problem documents](errors.md). A field with `?` may be absent."
)
WIRE = re.compile("^Wire")


def api_page(head: str) -> str:
    document = openapi.document()
    groups = {tag["name"]: tag["description"] for tag in document["tags"]}
    schemas = document["components"]["schemas"]
    return "\n".join(
        [
            "# HTTP API",
            "",
            head,
            ABOUT,
            "",
            *(line for name, what in groups.items() for line in _group(document, name, what)),
            "## Objects",
            "",
            *(
                line
                for name in sorted(schemas, key=_shown)
                for line in _object(name, schemas[name])
            ),
        ]
    )


def _group(document: Part, name: str, what: str) -> Iterator[str]:
    yield from (f"## {name}", "", what, "")
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            if name in call["tags"]:
                yield from _call(f"{method.upper()} {path}", call)


def _call(title: str, call: Part) -> Iterator[str]:
    yield from (f"### {title}", "", f"{call['summary']}.", "")
    if about := call.get("description"):
        yield from (about, "")
    answers = [
        f"{status}{_content(answer)}"
        for status, answer in call["responses"].items()
        if status.startswith("2")
    ]
    body = _content(call.get("requestBody", {}))
    yield f"{f'Takes{body}. ' if body else ''}Answers {' or '.join(answers)}."
    yield ""
    if given := [one for one in call.get("parameters", ()) if one["in"] != "path"]:
        yield from ("| parameter | in | is | meaning |", "|---|---|---|---|")
        for one in given:
            yield f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {_text(one)} |"
        yield ""


def _content(part: Part) -> str:
    for kind, content in part.get("content", {}).items():
        is_object = kind == "application/json" and "schema" in content
        return f" {_type(content['schema'])}" if is_object else f" `{kind}`"
    return ""


def _object(name: str, schema: Part) -> Iterator[str]:
    yield from (f"### {_shown(name)} object", "")
    if about := schema.get("description"):
        yield from (about, "")
    if not schema.get("properties"):
        yield from (f"{_type(schema)}." if "enum" in schema else "It has no fields.", "")
        return
    yield from ("| field | is | meaning |", "|---|---|---|")
    needed = {*schema.get("required", ())}
    for field, one in schema["properties"].items():
        mark = "" if field in needed else "?"
        yield f"| `{field}`{mark} | {_type(one)} | {_text(one)} |"
    yield ""


def _type(schema: Part) -> str:
    if "$ref" in schema:
        name = _shown(schema["$ref"].rsplit("/", 1)[1])
        return f"[{name}](#{name.lower()}-object)"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(values := schema.get("additionalProperties"), dict) and values:
        return f"object of {_type(values)}"
    return str(schema.get("format") or schema.get("type") or "any value")


def _text(part: Part) -> str:
    return str(part.get("description", "")).replace("|", "\\|").replace("\n", " ")


def _shown(name: str) -> str:
    return WIRE.sub("", name)
