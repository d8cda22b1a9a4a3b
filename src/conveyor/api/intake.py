"""Requests as steps want them: bodies within bounds, extensions from headers, fingerprints."""

import hashlib
import re
from difflib import get_close_matches

from starlette.requests import Request

from conveyor.api.auth import Who
from conveyor.domain.ids import CallerId
from conveyor.domain.submission import OnInvalid
from conveyor.domain.task_token import StepFunctions
from conveyor.errors import InvalidArgument, TooLarge
from conveyor.steps.idempotency import Call

PREFIX = "conveyor-"
NUMBERS = {"max-inflight", "max-per-host", "retries", "result-ttl-days"}
FLAGS = {"async"}
CHOICES = {"on-invalid": set(OnInvalid)}
TOKEN = "step-functions"  # noqa: S105 - the name of a header
KNOWN = NUMBERS | FLAGS | {TOKEN} | CHOICES.keys()
IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,128}")


async def read_body(request: Request, most: int) -> bytes:
    """The body, read no further than `most` bytes."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise TooLarge(f"The body has {declared} bytes; at most {most} are taken")
    chunks: list[bytes] = []
    length = 0
    async for chunk in request.stream():
        length += len(chunk)
        if length > most:
            raise TooLarge(f"The body has more than the {most} bytes that are taken")
        chunks.append(chunk)
    return b"".join(chunks)


async def take_call(request: Request, who: Who, most: int) -> Call:
    """A call that may be repeated."""
    raw = await read_body(request, most)
    extensions = _extensions(request)
    return Call(
        caller=who.caller,
        api_key=who.gateway_key,
        raw=raw,
        fingerprint=_fingerprint(request, who.caller, raw),
        extensions=extensions,
        idempotency_key=_idempotency_key(request),
    )


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidArgument("`Idempotency-Key` is 1 to 128 printable characters without spaces")
    return key


def _extensions(request: Request) -> dict[str, object]:
    """What `Conveyor-*` headers say, under the names of the body's fields."""
    return {
        name.replace("-", "_"): _value(name, value)
        for header, value in request.headers.items()
        if (name := header.removeprefix(PREFIX)) != header
    }


def _value(name: str, text: str) -> object:
    if name == TOKEN:
        return StepFunctions(task_token=text)
    if name in NUMBERS and text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    if name in FLAGS and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if text in CHOICES.get(name, ()):
        return OnInvalid(text)
    if name in KNOWN:
        raise InvalidArgument(f"`Conveyor-{name}: {text[:40]}` is not a value it takes")
    like = get_close_matches(name, KNOWN, n=1)
    hint = f"; did you mean Conveyor-{like[0]}?" if like else ""
    raise InvalidArgument(f"`Conveyor-{name}` is not a known extension{hint}")


def _fingerprint(request: Request, caller: CallerId, raw: bytes) -> bytes:
    """Tells one request from another: caller, route, extensions and raw body."""
    extensions = sorted(
        f"{header}: {value}"
        for header, value in request.headers.items()
        if header.startswith(PREFIX)
    )
    head = "\n".join([caller, request.method, request.url.path, request.url.query, *extensions])
    digest = hashlib.sha256(head.encode() + b"\n\n")
    digest.update(raw)
    return digest.digest()
