"""Calls to one service, repeated when that may help; refusals become errors.

The calls are written once, as coroutines over a `Network`. The asynchronous client's network is
aiohttp on the event loop. The synchronous client's is `http.client`: its coroutines block instead
of suspending, so that no event loop is needed to run them.
"""

import hashlib
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from conveyor import __version__
from conveyor.client.errors import NOT_THIS_API, ApiError, ClientError, UnreachableError, refusal

T = TypeVar("T")
Query = Mapping[str, str | int | None]

CHUNK = 256 * 1024
LONGEST_LINE = 1024 * 1024
RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
# Refusals with such a status that a short wait does not change.
FINAL_CODES = frozenset({"quota_exceeded", "storage_full"})
KEY = re.compile(r"[\x20-\x7e]{1,512}")
CHECKSUM = re.compile(r'"([0-9a-f]{64})"')
IN_PROGRESS = frozenset({"idempotency_key_conflict"})


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long failures in a row are tolerated, and the delay after each, which doubles each time."""

    attempts: int = 8
    within: float | None = None  # seconds from the first failure; None: only `attempts` counts
    first: float = 0.25  # seconds
    longest: float = 15.0
    longest_asked: float = 120.0  # the most of a Retry-After that is honoured

    def delay(self, attempt: int, asked: float | None = None) -> float:
        if asked is not None:
            return min(asked, self.longest_asked)
        # The exponent is bounded: 2.0 ** 1024 overflows.
        most = min(self.first * 2.0 ** min(attempt - 1, 64), self.longest)
        return random.uniform(most / 2, most)  # noqa: S311 - spreads clients that failed together


class Outage(msgspec.Struct, frozen=True):
    """The service has not answered for `seconds`; the call will be repeated."""

    error: ClientError
    seconds: float


OnOutage = Callable[[Outage | None], None]  # None: the service answers again


class ClientOptions(TypedDict, total=False):
    """Options of both clients."""

    timeout: float  # seconds without a byte, 60 by default
    patience: Patience | None
    on_outage: OnOutage | None


class SendCount:
    """How often a request was sent: a network may send it again when a kept connection was dead."""

    def __init__(self) -> None:
        self.times = 0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | AsyncIterator[bytes] | None = None
    timeout: float  # seconds without a byte
    send_count: SendCount | None = None
    own_connection: bool = False  # a new one, closed afterwards


class Response(Protocol):
    """The head of a response, and its body as it arrives. Raises `UnreachableError` when it is cut."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self) -> bytes: ...

    def chunks(self) -> AsyncIterator[bytes]: ...

    def lines(self) -> AsyncIterator[bytes]: ...


T_co = TypeVar("T_co", covariant=True)


class Fetching(Protocol[T_co]):
    """Something being fetched in the background: await it once, or cancel it."""

    def __await__(self) -> Any: ...

    def cancel(self) -> object: ...


class Network(Protocol):
    """Sends requests, sleeps, and runs blocking calls and background work, in its own way."""

    def exchange(self, request: Request) -> AbstractAsyncContextManager[Response]: ...

    async def sleep(self, seconds: float) -> None: ...

    async def blocking(self, function: Callable[..., T], *args: object) -> T: ...

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Fetching[T]: ...


class Transport:
    """A base URL, a key and a network."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        network: Network,
        *,
        timeout: float = 60.0,
        patience: Patience | None = None,
        on_outage: OnOutage | None = None,
    ) -> None:
        address = urlsplit(base_url)
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise ValueError("the base URL must be like https://host/v1, with http or https")
        if api_key is not None and not KEY.fullmatch(api_key):
            raise ValueError("the API key must be 1 to 512 printable ASCII characters")
        self.base = base_url.rstrip("/")
        self.network = network
        self.timeout = timeout
        self.patience = patience or Patience()
        self.on_outage = on_outage
        self._agent = {"User-Agent": f"conveyor/{__version__}"}
        self._headers = self._agent | ({"X-API-Key": api_key} if api_key else {})

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        key: str | None = None,
        wait_out: frozenset[str] = frozenset(),
    ) -> bytes:
        """The whole response. `wait_out` are codes of refusals that are worth waiting for.

        The request may be sent several times: one that creates something needs a key.
        """
        headers = {"Idempotency-Key": key} if key else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        return await self.with_retries(
            lambda: self.call_once(method, path, body, headers),
            keyed=key is not None,
            wait_out=wait_out,
        )

    async def call_once(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        send_count: SendCount | None = None,
    ) -> bytes:
        async with self.response(method, path, body, headers, send_count=send_count) as response:
            return await response.read()

    async def read(self, kind: type[T], path: str) -> T:
        return decoded(await self.call("GET", path), kind)

    async def body(self, path: str) -> bytes:
        """A body, checked against its length and checksum."""

        async def once() -> bytes:
            async with self.response("GET", path) as response:
                content = await response.read()
                _check_digest(response, hashlib.sha256(content))
                return content

        return await self.with_retries(once)

    async def head(self, path: str) -> Mapping[str, str]:
        """The headers of a body, without the body."""

        async def once() -> Mapping[str, str]:
            async with self.response("HEAD", path) as response:
                await response.read()
                return response.headers

        return await self.with_retries(once)

    async def save(self, path: str, file: Path) -> int:
        """Stream a body into a file, which appears only when complete; return its length.

        A body that does not arrive leaves no file behind.
        """
        partial = file.with_name(f"{file.name}.part")

        async def once() -> int:
            digest = hashlib.sha256()
            with partial.open("wb") as into:
                async with self.response("GET", path) as response:
                    async for chunk in response.chunks():
                        await self.network.blocking(into.write, chunk)
                        digest.update(chunk)
                    _check_digest(response, digest)
                return into.tell()

        try:
            length = await self.with_retries(once)
            partial.replace(file)
        except BaseException:
            with suppress(OSError):  # it may never have been made
                partial.unlink()
            raise
        return length

    async def put(
        self, url: str, content: AsyncIterator[bytes], headers: Mapping[str, str]
    ) -> None:
        """Stream a body once, without the API key, to a link, which may be on another host."""
        async with self.exchange("PUT", url, content, headers) as response:
            await _check_status(response)
            await response.read()

    async def with_retries(
        self,
        once: Callable[[], Awaitable[T]],
        *,
        keyed: bool = False,
        wait_out: frozenset[str] = frozenset(),
    ) -> T:
        """Repeat a call until it succeeds, is refused for good, or `patience` is exhausted."""
        failures = Failures(self)
        codes = wait_out
        while True:
            try:
                result = await once()
            except ClientError as error:
                await failures.wait_or_raise(error, retryable=is_retryable(error, codes))
                # The service may still be handling the attempt whose response was lost. Until it is
                # done, it refuses a repetition with the same key as a conflict.
                codes = wait_out | (IN_PROGRESS if keyed else frozenset())
            else:
                failures.end()
                return result

    @asynccontextmanager
    async def response(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - between two bytes, not of the whole
        send_count: SendCount | None = None,
    ) -> AsyncIterator[Response]:
        """One exchange with the service; a status of 300 or more is raised."""
        request = Request(
            method=method,
            url=self.base + path,
            headers={**self._headers, **(headers or {})},
            body=body,
            timeout=timeout or self.timeout,
            send_count=send_count,
        )
        async with self.network.exchange(request) as response:
            await _check_status(response)
            yield response

    def exchange(
        self,
        method: str,
        url: str,
        body: AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AbstractAsyncContextManager[Response]:
        """One exchange with a link, which may be on another host: without the API key.

        The connection is not taken from the pool. When a kept connection turns out to be dead, the
        network sends the request again, and of a streamed body only the rest would be left.
        """
        return self.network.exchange(
            Request(
                method=method,
                url=url,
                headers={**self._agent, **(headers or {})},
                body=body,
                timeout=self.timeout,
                own_connection=True,
            )
        )


class Failures:
    """Counts failures in a row, and waits between attempts."""

    def __init__(self, transport: Transport) -> None:
        self._patience, self._network = transport.patience, transport.network
        self._on_outage = transport.on_outage or (lambda _: None)
        self._count = 0
        self._since = 0.0

    async def wait_or_raise(self, error: ClientError, *, retryable: bool) -> None:
        """Sleep until the next attempt, or raise the error if there must not be one."""
        now = time.monotonic()
        self._since = self._since if self._count else now
        self._count += 1
        away, within = now - self._since, self._patience.within
        is_late = within is not None and away > within
        if not retryable or is_late or self._count >= self._patience.attempts:
            raise error
        self._on_outage(Outage(error, away))
        asked = getattr(error, "retry_after", None)
        await self._network.sleep(self._patience.delay(self._count, asked))

    def end(self) -> None:
        """Reset the count after a success."""
        if self._count:
            self._count = 0
            self._on_outage(None)


def path_of(*parts: str, query: Query | None = None) -> str:
    """A path below the base URL. Parts are quoted: a slash in an id does not start a new part."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    path = "".join(f"/{quote(part, safe='')}" for part in parts)
    return f"{path}?{urlencode(given)}" if given else path


def of_run(job_id: str, run_id: str | None, *rest: str) -> tuple[str, ...]:
    """The parts of a path below a run, or below the job, which means its latest run."""
    return ("jobs", job_id, *(("runs", run_id) if run_id else ()), *rest)


def decoded(raw: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise UnreachableError(NOT_THIS_API) from None


def is_complete(file: Path, headers: Mapping[str, str]) -> bool:
    """Whether a file holds the body with these headers: by length, and by checksum if there is one."""
    length = headers.get("Content-Length", "")
    if not length.isdigit() or int(length) != file.stat().st_size:
        return False
    checksum = CHECKSUM.fullmatch(headers.get("ETag", ""))
    with file.open("rb") as content:
        return not checksum or checksum[1] == hashlib.file_digest(content, "sha256").hexdigest()


def is_retryable(error: ClientError, wait_out: frozenset[str] = frozenset()) -> bool:
    """Whether the same call may succeed later. `wait_out` are codes that are worth waiting for."""
    if not isinstance(error, ApiError):
        return isinstance(error, UnreachableError)
    is_final = error.code in FINAL_CODES and error.retry_after is None
    return error.code in wait_out or (error.status in RETRYABLE_STATUSES and not is_final)


async def _check_status(response: Response) -> None:
    if response.status >= 300:
        raise refusal(response.status, await response.read(), response.headers)


def _check_digest(response: Response, digest: "hashlib._Hash") -> None:
    """By the checksum, if there is one. The network itself detects a body that is too short."""
    promised = CHECKSUM.fullmatch(response.headers.get("ETag", ""))
    if promised and promised[1] != digest.hexdigest():
        raise UnreachableError("the body does not match its checksum")
