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
from typing import Any, BinaryIO, Protocol, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from conveyor import __version__
from conveyor.client.errors import ApiError, ClientError, UnreachableError, refusal

T = TypeVar("T")
Query = Mapping[str, str | int | None]

CHUNK = 256 * 1024
LONGEST_LINE = 1024 * 1024
PASSING = frozenset({429, 502, 503, 504})
LASTING = frozenset({"quota_exceeded", "storage_full"})  # waiting a little changes nothing
KEY = re.compile(r"[\x20-\x7e]{1,512}")
CHECKSUM = re.compile(r'"([0-9a-f]{64})"')
UNDER_WAY = frozenset({"idempotency_key_conflict"})


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long failures in a row are tolerated, and the rest after each: twice as long each time."""

    attempts: int = 8
    within: float | None = None  # seconds from the first failure; None: only `attempts` counts
    first: float = 0.25  # seconds
    longest: float = 15.0
    longest_asked: float = 120.0  # of what the service asks for by Retry-After

    def rest(self, attempt: int, asked: float | None = None) -> float:
        if asked is not None:
            return min(asked, self.longest_asked)
        # The exponent is bounded: 2.0 ** 1024 overflows.
        most = min(self.first * 2.0 ** min(attempt - 1, 64), self.longest)
        return random.uniform(most / 2, most)  # noqa: S311 - spreads clients that failed together


class Outage(msgspec.Struct, frozen=True):
    """The service has failed to answer for so long; the call will be repeated."""

    error: ClientError
    seconds: float


OnOutage = Callable[[Outage | None], None]  # None: the service answers again


class Sendings:
    """How often a request was sent: a network may repeat one when a kept connection was dead."""

    def __init__(self) -> None:
        self.times = 0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | AsyncIterator[bytes] | None = None
    timeout: float  # seconds without a byte
    sendings: Sendings | None = None
    own_connection: bool = False  # neither a kept one, nor kept afterwards


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
        timeout: float,
        patience: Patience | None = None,
        on_outage: OnOutage | None = None,
    ) -> None:
        address = urlsplit(base_url)
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise ValueError("the base URL must be like https://host/v1")
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
        """The whole response. `wait_out` are codes of refusals that pass by themselves.

        The call may be made several times: one that creates something needs a key.
        """
        headers = {"Idempotency-Key": key} if key else {}
        if body is not None:
            headers["Content-Type"] = "application/json"

        return await self.patiently(
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
        sendings: Sendings | None = None,
    ) -> bytes:
        async with self.response(method, path, body, headers, sendings=sendings) as response:
            return await response.read()

    async def read(self, kind: type[T], path: str) -> T:
        return decoded(await self.call("GET", path), kind)

    async def body(self, path: str) -> bytes:
        """A page, whole as its checksum and length say."""

        async def once() -> bytes:
            async with self.response("GET", path) as response:
                content = await response.read()
                _check(response, hashlib.sha256(content))
                return content

        return await self.patiently(once)

    async def head(self, path: str) -> Mapping[str, str]:
        """The headers of a page, without the page."""

        async def once() -> Mapping[str, str]:
            async with self.response("HEAD", path) as response:
                await response.read()
                return response.headers

        return await self.patiently(once)

    async def save(self, path: str, file: Path) -> int:
        """Stream a page into a file, which appears under its name only when whole; its length.

        A page that does not arrive leaves no file behind.
        """
        unfinished = file.with_name(f"{file.name}.part")

        async def once() -> int:
            with unfinished.open("wb") as into:
                async with self.response("GET", path) as response:
                    return await self._copy(response, into)

        try:
            length = await self.patiently(once)
            unfinished.replace(file)
        except BaseException:
            with suppress(OSError):  # it may never have been made
                unfinished.unlink()
            raise
        return length

    async def put(
        self, url: str, content: AsyncIterator[bytes], headers: Mapping[str, str]
    ) -> None:
        """Stream a body to a link, which may be of another host: without the key, and only once.

        On a connection of its own: a library that repeats a request when a kept connection was
        dead would send what is left of the body.
        """
        async with self.exchange("PUT", url, content, headers) as response:
            await _check_status(response)
            await response.read()

    async def patiently(
        self,
        once: Callable[[], Awaitable[T]],
        *,
        keyed: bool = False,
        wait_out: frozenset[str] = frozenset(),
    ) -> T:
        """Repeat a call until it works, is refused for good, or patience ends."""
        failures = Failures(self)
        passing = wait_out
        while True:
            try:
                result = await once()
            except ClientError as error:
                await failures.rest(error, passes=may_pass(error, passing))
                # A first call without a response may still be at work when it is repeated.
                passing = wait_out | (UNDER_WAY if keyed else frozenset())
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
        sendings: Sendings | None = None,
    ) -> AsyncIterator[Response]:
        """One exchange with the service; a status of 300 or more is raised."""
        request = Request(
            method=method,
            url=self.base + path,
            headers={**self._headers, **(headers or {})},
            body=body,
            timeout=timeout or self.timeout,
            sendings=sendings,
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
        """One exchange with a link, which may be of another host: without the key."""
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

    async def _copy(self, response: Response, into: BinaryIO) -> int:
        digest, length = hashlib.sha256(), 0
        async for chunk in response.chunks():
            await self.network.blocking(into.write, chunk)
            digest.update(chunk)
            length += len(chunk)
        _check(response, digest)
        return length


class Failures:
    """Failures in a row of one undertaking, and the rests between its attempts."""

    def __init__(self, transport: Transport) -> None:
        self._patience, self._network = transport.patience, transport.network
        self._on_outage = transport.on_outage or (lambda _: None)
        self._count = 0
        self._since = 0.0

    async def rest(self, error: ClientError, *, passes: bool) -> None:
        """Sleep until the next attempt; raise the error when there is to be none."""
        now = time.monotonic()
        self._since = self._since if self._count else now
        self._count += 1
        away, within = now - self._since, self._patience.within
        is_late = within is not None and away > within
        if not passes or is_late or self._count >= self._patience.attempts:
            raise error
        self._on_outage(Outage(error, away))
        asked = getattr(error, "retry_after", None)
        await self._network.sleep(self._patience.rest(self._count, asked))

    def end(self) -> None:
        """An attempt worked: the next failure is the first again."""
        if self._count:
            self._count = 0
            self._on_outage(None)


def path_of(*parts: str, query: Query | None = None) -> str:
    """A path below the base URL; a part cannot reach beyond its place."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    path = "".join(f"/{quote(part, safe='')}" for part in parts)
    return f"{path}?{urlencode(given)}" if given else path


def of_run(job_id: str, run_id: str | None, *rest: str) -> tuple[str, ...]:
    """The parts of a path below a run, or below the job when it means the latest run."""
    return ("jobs", job_id, *(("runs", run_id) if run_id else ()), *rest)


def decoded(raw: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise UnreachableError("the answer is none of this API's; is the base URL right?") from None


def is_whole(file: Path, headers: Mapping[str, str]) -> bool:
    """Whether a file holds the page with these headers: by length, and by checksum if there is one."""
    length = headers.get("Content-Length", "")
    if not length.isdigit() or int(length) != file.stat().st_size:
        return False
    checksum = CHECKSUM.fullmatch(headers.get("ETag", ""))
    with file.open("rb") as content:
        return not checksum or checksum[1] == hashlib.file_digest(content, "sha256").hexdigest()


def may_pass(error: ClientError, wait_out: frozenset[str] = frozenset()) -> bool:
    """Whether asking again may help."""
    if not isinstance(error, ApiError):
        return isinstance(error, UnreachableError)
    lasting = error.code in LASTING and error.retry_after is None
    return error.code in wait_out or (error.status in PASSING and not lasting)


async def _check_status(response: Response) -> None:
    if response.status >= 300:
        raise refusal(response.status, await response.read(), response.headers)


def _check(response: Response, digest: "hashlib._Hash") -> None:
    """By the checksum where there is one; the network finds a body that is too short."""
    promised = CHECKSUM.fullmatch(response.headers.get("ETag", ""))
    if promised and promised[1] != digest.hexdigest():
        raise UnreachableError("a page did not arrive whole")
