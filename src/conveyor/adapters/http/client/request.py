"""Encodes HTTP/1.1 requests. The parts come from callers: what cannot be sent raises ValueError."""

import re
from collections.abc import Mapping
from functools import lru_cache

TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Responses to these have another framing, which the client does not implement.
UNANSWERABLE = frozenset({"HEAD", "CONNECT"})


def request(
    method: str, target: str, own: str, headers: Mapping[str, str], content: bytes | None
) -> bytes:
    """A whole request; `own` are header lines that were checked before."""
    method = method.upper()
    if method in UNANSWERABLE or not _is_token(method) or not _is_target(target):
        raise ValueError("no method, or no target")
    lines = f"{method} {target} HTTP/1.1\r\n{own}{fields(headers) if headers else ''}"
    if content is None and method == "GET":
        return f"{lines}\r\n".encode()
    content = content or b""
    return f"{lines}Content-Length: {len(content)}\r\n\r\n".encode() + content


def fields(headers: Mapping[str, str]) -> str:
    """Header lines. A name or value that could begin another line is refused."""
    for name, value in headers.items():
        if not _is_token(name) or "\r" in value or "\n" in value or "\0" in value:
            raise ValueError("no header")
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


@lru_cache(maxsize=1024)
def _is_token(text: str) -> bool:
    return TOKEN.fullmatch(text) is not None


def _is_target(text: str) -> bool:
    """Whether all of it is printable ASCII, without a space."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
