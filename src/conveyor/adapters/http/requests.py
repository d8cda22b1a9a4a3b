"""Requests of HTTP/1.1 as bytes, from parts that may hold anything; what cannot be sent raises
ValueError.
"""

import re
from collections.abc import Mapping

TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
TARGET = re.compile(r"[!-~]+")
BREAKS = re.compile("[\r\n\0]")
# An answer to these is read in another way, which is not needed here.
UNANSWERABLE = frozenset({"HEAD", "CONNECT"})


def request(
    method: str, target: str, own: str, headers: Mapping[str, str], content: bytes | None
) -> bytes:
    """A whole request; `own` are header lines that are known to be fit."""
    method = method.upper()
    if method in UNANSWERABLE or not TOKEN.fullmatch(method) or not TARGET.fullmatch(target):
        raise ValueError("no method, or no target")
    lines = f"{method} {target} HTTP/1.1\r\n{own}{fields(headers) if headers else ''}"
    if content is None and method == "GET":
        return f"{lines}\r\n".encode()
    content = content or b""
    return f"{lines}Content-Length: {len(content)}\r\n\r\n".encode() + content


def fields(headers: Mapping[str, str]) -> str:
    """Header lines. Nothing in a name or a value can begin a line of its own."""
    for name, value in headers.items():
        if not TOKEN.fullmatch(name) or BREAKS.search(value):
            raise ValueError("no header")
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
