"""Problem documents (RFC 9457), with all members that strict clients require."""

from http import HTTPStatus

import can_ada
import msgspec


def problem(
    *, status: int, code: str, title: str | None = None, detail: str | None = None, **more: object
) -> dict[str, object]:
    """A problem document; members that are None are left out."""
    document = {
        "type": "about:blank",
        "title": title or phrase(status),
        "status": status,
        "code": code,
        "detail": detail,
        **more,
    }
    return {name: value for name, value in document.items() if value is not None}


def completed(partial: dict[str, object], status: int, code: str) -> dict[str, object]:
    """A gateway's problem document with valid type, title, status and code."""
    whole = dict(partial)
    if not _is_absolute_uri(whole.get("type")):
        whole["type"] = "about:blank"
    if not isinstance(whole.get("title"), str):
        whole["title"] = phrase(status)
    if type(whole.get("status")) is not int:
        whole["status"] = status
    if not isinstance(whole.get("code"), str):
        whole["code"] = code
    for optional in ("detail", "instance"):
        if optional in whole and not isinstance(whole[optional], str):
            del whole[optional]
    # The official client parses this member, so only this service may set it.
    whole.pop("invalid_tasks", None)
    return whole


def encoded(document: dict[str, object]) -> str:
    return msgspec.json.encode(document).decode()


def phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _is_absolute_uri(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        can_ada.parse(value)
    except ValueError:
        return False
    return True
