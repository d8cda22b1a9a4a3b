"""Conversion of requests into the input of steps: body, `Conveyor-*` headers, fingerprint."""

import hashlib
import re
from collections.abc import Callable
from difflib import get_close_matches
from io import BytesIO

from starlette.requests import Request

from conveyor.api.auth import Identity
from conveyor.api.limits import UNCOUNTED_BYTES, HeldMemory
from conveyor.domain.ids import CallerId
from conveyor.domain.json_bodies import LONGEST_SHOWN, field_error
from conveyor.domain.step_functions import TaskToken
from conveyor.domain.submission import BOUNDS, OnInvalid
from conveyor.errors import InvalidArgument, TooLarge, UnsupportedMediaType
from conveyor.steps.shared.idempotency import Call

PREFIX = "conveyor-"
NUMBERS = {name.replace("_", "-") for name in BOUNDS}
FLAGS = {"async"}
CHOICES = {"on-invalid": set(OnInvalid)}
TOKEN = "step-functions"  # noqa: S105 - the name of a header
KNOWN = NUMBERS | FLAGS | {TOKEN} | CHOICES.keys()
IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,128}")
QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
# curl and browsers label a body as a form or plain text by default.
JSON_TYPES = re.compile(
    r"|\*/\*|(application|text)/([\w.-]+\+)?json|text/plain"
    r"|application/(x-www-form-urlencoded|octet-stream)",
    re.ASCII | re.IGNORECASE,
)
CHARSET = re.compile(r"charset\s*=\s*\"?([^\s;\"]+)", re.IGNORECASE)
LARGEST_SMALL_BODY = 64 * 1024  # bytes of a request that has no list in it
HELD_MEMORY = "conveyor.held_memory"  # key of an ASGI scope: the memory that the body holds


async def read_body(request: Request, most: int) -> bytes:
    """Return the body of a request that takes JSON; at most `most` bytes, which must be few."""
    return await _read(request, most, lambda _: None, caller="")


async def take_call(request: Request, identity: Identity, most: int) -> Call:
    """Return a request that may have an `Idempotency-Key`, as the steps take it."""
    key, extensions = _idempotency_key(request), _extensions(request)
    digest = _fingerprint(request, identity.caller)
    raw = await _read(request, most, digest.update, caller=identity.caller)
    return Call(
        caller=identity.caller,
        gateway_key=identity.gateway_key or "",
        raw=raw,
        fingerprint=digest.digest(),
        extensions=extensions,
        idempotency_key=key,
        api_key_id=identity.api_key_id,
    )


async def _read(
    request: Request, most: int, take: Callable[[bytes], object], *, caller: str
) -> bytes:
    """Read the body, and call `take` with each part as it arrives.

    Memory is reserved as the body grows, not by its announced length: a client that announces much
    and sends nothing must not hold any.
    """
    declared = request.headers.get("content-length", "0")
    length = int(declared) if declared.isascii() and declared.isdigit() else 0
    if length > most:
        raise TooLarge(f"The body must have at most {most} bytes, got {declared}")
    _check_media_type(request)
    holding: HeldMemory = request.scope[HELD_MEMORY]
    body, room = BytesIO(), 0
    async for part in request.stream():
        reached = body.tell() + len(part)
        if reached > most:
            raise TooLarge(f"The body must have at most {most} bytes, got more")
        if reached > room:
            # Reserve twice as much each time, so that a large body waits only a few times.
            room = max(min(max(2 * room, UNCOUNTED_BYTES), length or most), reached)
            await holding.reserve(room, caller)
        take(part)
        body.write(part)
    return body.getvalue()


def _check_media_type(request: Request) -> None:
    """Raise for a body that says that it is not JSON. A body without a type is read as JSON."""
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed not in {"", "identity"}:
        raise UnsupportedMediaType(f"The body must not be compressed, got `{packed[:40]}`")
    given = request.headers.get("content-type", "")
    kind, _, rest = given.partition(";")
    if not JSON_TYPES.fullmatch(kind.strip()):
        raise UnsupportedMediaType(
            f"`Content-Type` must be `application/json`, got `{kind.strip()[:80]}`"
        )
    charset = CHARSET.search(rest)
    if charset and charset[1].lower() not in {"utf-8", "utf8", "us-ascii"}:
        raise UnsupportedMediaType(f"The charset must be UTF-8, got `{charset[1][:40]}`")


def _idempotency_key(request: Request) -> str | None:
    """Return the key. The IETF draft puts it in double quotes; both forms are the same key."""
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    key = given[0]
    if quoted := QUOTED.fullmatch(key):
        key = re.sub(r"\\(.)", r"\1", quoted[1])
    if len(given) > 1 or not IDEMPOTENCY_KEY.fullmatch(key):
        raise field_error(
            "Idempotency-Key",
            "must have 1 to 128 printable characters without spaces, and be sent once",
        )
    return key


def _extensions(request: Request) -> dict[str, object]:
    """Return the values of `Conveyor-*` headers, by the names of the body's fields."""
    return {
        name.replace("-", "_"): _value(name, value)
        for header, value in request.headers.items()
        if (name := header.removeprefix(PREFIX)) != header
    }


def _value(name: str, text: str) -> object:
    if name == TOKEN:
        return TaskToken(task_token=text)
    if name in NUMBERS and text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    if name in FLAGS and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if text in CHOICES.get(name, ()):
        return OnInvalid(text)
    if name in KNOWN:
        raise InvalidArgument(
            f"`Conveyor-{name}` must have a valid value, got `{text[:40]}`",
            extras={"field": name.replace("-", "_")},
        )
    like = get_close_matches(name[:LONGEST_SHOWN], KNOWN, n=1)
    hint = f"; did you mean Conveyor-{like[0]}?" if like else ""
    raise field_error(f"Conveyor-{name[:LONGEST_SHOWN]}", f"is not a known extension{hint}")


def _fingerprint(request: Request, caller: CallerId) -> "hashlib._Hash":
    """Return the digest that tells requests apart, up to the body, which `take_call` adds."""
    extensions = sorted(
        f"{header}: {value}"
        for header, value in request.headers.items()
        if header.startswith(PREFIX)
    )
    head = "\n".join([caller, request.method, request.url.path, request.url.query, *extensions])
    return hashlib.sha256(head.encode() + b"\n\n")
