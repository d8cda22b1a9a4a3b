"""A service over HTTP, for the commands: one connection kept open, refusals as errors.

Every call may be sent twice: reads and turns are idempotent, and what creates something carries
an idempotency key. So a kept connection that turns out to be dead is opened anew, once.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import BinaryIO, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from conveyor import __version__
from conveyor.cli.hints import hint
from conveyor.cli.show import plain
from conveyor.errors import ConveyorError

T = TypeVar("T")

TIMEOUT = 60.0  # seconds without a byte
CHUNK = 256 * 1024
PARTIAL = 206


class InvalidTask(msgspec.Struct, frozen=True):
    index: int
    reason: str
    value: str = ""
    line: int | None = None  # of a list in a slot


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What a refusal says, as far as it says it."""

    status: int = 0
    code: str = ""
    title: str = ""
    detail: str = ""
    invalid_tasks: list[InvalidTask] = []
    request_id: str = ""


class Refused(ConveyorError):
    """The service answered, and said no. `advice` is what to do, where the caller knows better."""

    def __init__(self, problem: Problem, advice: str | None = None) -> None:
        self.problem = problem
        advice = advice or hint(problem.status, problem.code)
        said = plain(problem.detail or problem.title or "Refused")
        which = f"{problem.status} {plain(problem.code)}".rstrip()
        if problem.request_id and problem.status >= 500:  # by it the operator finds the cause
            which += f", request id {plain(problem.request_id)}"
        super().__init__(f"{said} ({which})" + (f"\n  {advice}" if advice else ""))


class Unreachable(ConveyorError):
    """There was no answer, or none that can be made sense of."""


class Page(msgspec.Struct, frozen=True):
    """What a body is known by; a service may leave out either."""

    length: int | None
    checksum: str | None


class Length(msgspec.Struct, frozen=True):
    """How much is to come, and whether it is the part that was asked for or all of it."""

    value: int
    is_rest: bool


Query = Mapping[str, str | int | None]


class Remote:
    """A base URL and a key. Not for several threads."""

    def __init__(self, base: str, key: str | None) -> None:
        self.base = base
        self._connection = _connection(base)
        self._path = urlsplit(base).path.rstrip("/")
        self._headers = {"Accept": "application/json", "User-Agent": f"conveyor/{__version__}"}
        if key:
            self._headers["X-API-Key"] = key

    def get(self, *parts: str, **query: str | int | None) -> bytes:
        return self._whole(self._answer("GET", _path(parts, query)))

    def post(
        self,
        *parts: str,
        body: object = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        raw = b"" if body is None else msgspec.json.encode(body)
        return self._whole(self._answer("POST", _path(parts, query or {}), raw, headers))

    def delete(self, *parts: str) -> None:
        self._whole(self._answer("DELETE", _path(parts, {})))

    def head(self, *parts: str) -> Page:
        answer = self._answer("HEAD", _path(parts, {}))
        self._whole(answer)
        return _page(answer)

    def save(self, *parts: str, into: BinaryIO) -> None:
        """Stream a body into a file; one that does not arrive whole is `Unreachable`."""
        answer = self._answer("GET", _path(parts, {}))
        length, digest = 0, hashlib.sha256()
        for chunk in self._chunks(answer):
            into.write(chunk)
            digest.update(chunk)
            length += len(chunk)
        promised = _page(answer)
        arrived = Page(length, digest.hexdigest() if promised.checksum else None)
        if promised not in {arrived, Page(None, arrived.checksum)}:
            raise Unreachable(f"a page from {self.base} did not arrive whole; try again")

    def stream(self, path: str, headers: Mapping[str, str]) -> tuple["Length", Iterator[bytes]]:
        """What stands at a path, or the part that a `Range` among the headers asks for."""
        answer = self._answer("GET", path, headers=headers)
        length = answer.getheader("Content-Length") or ""
        if not length.isdigit():
            raise Unreachable(f"{self.base} does not say how long the file is")
        return Length(int(length), is_rest=answer.status == PARTIAL), self._chunks(answer)

    def lines(self, *parts: str) -> Iterator[bytes]:
        """An answer of many lines, one by one as they come."""
        answer = self._answer("GET", _path(parts, {}))
        while True:
            with self._network():
                line = answer.readline()
            if not line:
                return
            yield line

    def send(
        self, method: str, url: str, chunks: Iterable[bytes], headers: Mapping[str, str]
    ) -> None:
        """Stream a body to a link, which may be of another host: without the key, and only once.

        Raises `OSError` or `HTTPException` when the connection breaks. Without a `Content-Length`
        the body is sent in chunks.
        """
        with contextlib.closing(_connection(url)) as connection:
            path = url.partition("://")[2].partition("/")[2]
            about = {"User-Agent": self._headers["User-Agent"], **headers}
            answer = _exchange(connection, method, f"/{path}", chunks, about)
            if answer.status >= 300:
                raise Refused(_problem(answer, answer.read()))

    def _answer(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> HTTPResponse:
        sent = {**self._headers, **(headers or {})}
        if body:
            sent["Content-Type"] = "application/json"
        with self._network():
            answer = self._exchange(method, self._path + path, body, sent)
        if answer.status >= 300:
            raise Refused(_problem(answer, self._whole(answer)))
        return answer

    def _whole(self, answer: HTTPResponse) -> bytes:
        with self._network():
            return answer.read()

    def _chunks(self, answer: HTTPResponse) -> Iterator[bytes]:
        while True:
            with self._network():
                chunk = answer.read(CHUNK)
            if not chunk:
                return
            yield chunk

    @contextlib.contextmanager
    def _network(self) -> Iterator[None]:
        try:
            yield
        except (OSError, HTTPException) as error:
            self._connection.close()
            raise self._unreachable(error) from None

    def _exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> HTTPResponse:
        kept_open = self._connection.sock is not None
        try:
            return self._once(method, path, body, headers)
        except (ConnectionError, HTTPException):
            self._connection.close()
            if not kept_open:
                raise
            return self._once(method, path, body, headers)

    def _once(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> HTTPResponse:
        return _exchange(self._connection, method, path, body or None, headers)

    def _unreachable(self, error: Exception) -> Unreachable:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Unreachable(
            f"cannot reach {self.base}: {reason}\n"
            "  is it running? start one with `conveyor dev`, or name another with --url"
        )


def _connection(url: str) -> HTTPConnection:
    address = urlsplit(url)
    kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
    return kind(address.hostname or "", address.port, timeout=TIMEOUT)


def _exchange(
    connection: HTTPConnection,
    method: str,
    path: str,
    body: bytes | Iterable[bytes] | None,
    headers: Mapping[str, str],
) -> HTTPResponse:
    # A body that is too large is refused while it is sent: the answer is there all the same.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.request(method, path, body, dict(headers))
    return connection.getresponse()


def read(raw: bytes, kind: type[T]) -> T:
    """An answer as the commands want it."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Unreachable("the answer is none of this API's; is --url its base URL?") from None


def _path(parts: tuple[str, ...], query: Query) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    path = "".join(f"/{quote(part, safe='')}" for part in parts)
    return f"{path}?{urlencode(given)}" if given else path


def _page(answer: HTTPResponse) -> Page:
    length, tag = answer.getheader("Content-Length"), answer.getheader("ETag") or ""
    checksum = tag.strip('"')
    return Page(
        int(length) if length and length.isdigit() else None,
        checksum if len(checksum) == 64 else None,
    )


def _problem(answer: HTTPResponse, raw: bytes) -> Problem:
    try:
        found = msgspec.json.decode(raw, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = Problem(detail="The answer is none of this API's; is --url its base URL?")
    request_id = answer.getheader("X-Request-ID") or ""
    return msgspec.structs.replace(found, status=answer.status, request_id=request_id)
