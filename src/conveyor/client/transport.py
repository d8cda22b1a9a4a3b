"""One service over HTTP: requests that are made again when that may help, refusals as errors."""

import asyncio
import hashlib
import random
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import msgspec
from yarl import URL

from conveyor import __version__
from conveyor.client.errors import ClientError, Refused, Unreachable, refusal

T = TypeVar("T")
Query = Mapping[str, str | int | None]

CONNECTIONS = 100
CHUNK = 256 * 1024
PASSING = frozenset({429, 502, 503, 504})
LASTING = frozenset({"quota_exceeded", "storage_full"})  # waiting a little changes nothing
KEY = re.compile(r"[\x20-\x7e]{1,512}")
CHECKSUM = re.compile(r'"([0-9a-f]{64})"')
UNDER_WAY = frozenset({"idempotency_key_conflict"})


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How often a call is made, and how long the rests between are: twice as long each time."""

    attempts: int = 8
    first: float = 0.25  # seconds
    longest: float = 15.0
    longest_asked: float = 120.0  # of what the service asks for by Retry-After

    def rest(self, attempt: int, asked: float | None = None) -> float:
        if asked is not None:
            return min(asked, self.longest_asked)
        most = min(self.first * 2.0 ** (attempt - 1), self.longest)
        return random.uniform(most / 2, most)  # noqa: S311 - so that many do not come back at once


class Sendings:
    """How often a request went out: the library repeats some by itself, on a new connection."""

    def __init__(self) -> None:
        self.times = 0

    async def __call__(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        self.times += 1
        return await send(request)


class Transport:
    """A base URL and a key. Opened and closed as a context."""

    def __init__(
        self, base_url: str, api_key: str | None, *, timeout: float, patience: Patience
    ) -> None:
        address = urlsplit(base_url)
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise ValueError("a base URL is like https://host/v1")
        if api_key is not None and not KEY.fullmatch(api_key):
            raise ValueError("an API key is 1 to 512 printable ASCII characters")
        self.base = base_url.rstrip("/")
        self.patience = patience
        self.timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
        self._headers = {"User-Agent": f"conveyor/{__version__}"}
        self._headers |= {"X-API-Key": api_key} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            timeout=self.timeout,
            connector=aiohttp.TCPConnector(limit=CONNECTIONS),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        key: str | None = None,
        wait_out: frozenset[str] = frozenset(),
    ) -> bytes:
        """The whole answer. `wait_out` are codes of refusals that pass by themselves.

        The call may be made several times: what creates something needs a key.
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
        sent: Sendings | None = None,
    ) -> bytes:
        async with self.answer(method, path, body, headers, sent=sent) as answer:
            return await answer.read()

    async def read(self, kind: type[T], path: str) -> T:
        return decoded(await self.call("GET", path), kind)

    async def body(self, path: str) -> bytes:
        """A page, whole as its checksum and length say."""

        async def once() -> bytes:
            async with self.answer("GET", path) as answer:
                content = await answer.read()
                _check(answer, hashlib.sha256(content))
                return content

        return await self.patiently(once)

    async def save(self, path: str, file: Path) -> int:
        """Stream a page into a file, which appears under its name only when whole; its length.

        Of a page that does not come nothing is left.
        """
        unfinished = file.with_name(f"{file.name}.part")

        async def once() -> int:
            with unfinished.open("wb") as into:
                async with self.answer("GET", path) as answer:
                    return await _copy(answer, into)

        try:
            length = await self.patiently(once)
            unfinished.replace(file)
        except BaseException:
            with suppress(OSError):  # it may never have been made
                unfinished.unlink()
            raise
        return length

    async def put(
        self, url: str, content: AsyncIterable[bytes], headers: Mapping[str, str]
    ) -> None:
        """Stream a body to a link, which may be of another host: without the key, and only once.

        On a connection of its own: the library would send what is left of the body again when one
        that was kept turns out to be dead.
        """
        connector = aiohttp.TCPConnector(force_close=True)
        about = {"User-Agent": self._headers["User-Agent"], **headers}
        async with aiohttp.ClientSession(
            timeout=self.timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar()
        ) as session:
            exchange = session.put(
                URL(url, encoded=True), data=content, headers=about, allow_redirects=False
            )
            async with self._checked(exchange) as answer:
                await answer.read()

    async def patiently(
        self,
        once: Callable[[], Awaitable[T]],
        *,
        keyed: bool = False,
        wait_out: frozenset[str] = frozenset(),
    ) -> T:
        """Do something until it works, it is refused for good, or patience ends."""
        attempt = 1
        while True:
            # A lost first call may still be at work when it is repeated with its key.
            passing = wait_out | (UNDER_WAY if keyed and attempt > 1 else frozenset())
            try:
                return await once()
            except ClientError as error:
                if not may_pass(error, passing) or attempt >= self.patience.attempts:
                    raise
                asked = getattr(error, "retry_after", None)
            await asyncio.sleep(self.patience.rest(attempt, asked))
            attempt += 1

    @asynccontextmanager
    async def answer(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: aiohttp.ClientTimeout | None = None,  # noqa: ASYNC109 - of the library
        sent: Sendings | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One exchange. Errors of the library come out as ours, while the answer is read too."""
        if self._session is None:
            raise RuntimeError("the client is not open: use it as a context")
        exchange = self._session.request(
            method,
            URL(self.base + path, encoded=True),
            data=body,
            headers=headers,
            timeout=timeout or self.timeout,
            middlewares=(sent,) if sent else (),
            allow_redirects=False,  # the key is for this service alone
        )
        async with self._checked(exchange) as answer:
            yield answer

    @asynccontextmanager
    async def _checked(
        self, exchange: AbstractAsyncContextManager[aiohttp.ClientResponse]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with exchange as answer:
                if answer.status >= 300:
                    raise refusal(
                        answer.status, await answer.read(), answer.headers.get("Retry-After")
                    )
                yield answer
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(f"cannot reach {self.base}: {reason}") from error


def path_of(*parts: str, query: Query | None = None) -> str:
    """A path below the base URL; a part cannot reach beyond its place."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    path = "".join(f"/{quote(part, safe='')}" for part in parts)
    return f"{path}?{urlencode(given)}" if given else path


def decoded(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Unreachable("the answer is none of this API's; is the base URL right?") from None


async def _copy(answer: aiohttp.ClientResponse, into: BinaryIO) -> int:
    digest, length = hashlib.sha256(), 0
    async for chunk in answer.content.iter_chunked(CHUNK):
        await asyncio.to_thread(into.write, chunk)
        digest.update(chunk)
        length += len(chunk)
    _check(answer, digest)
    return length


def _check(answer: aiohttp.ClientResponse, digest: "hashlib._Hash") -> None:
    """By the checksum where one is told; a body that is too short the library finds itself."""
    told = CHECKSUM.fullmatch(answer.headers.get("ETag", ""))
    if told and told[1] != digest.hexdigest():
        raise Unreachable("a page did not arrive whole")


def may_pass(error: ClientError, wait_out: frozenset[str] = frozenset()) -> bool:
    """Whether asking again may help."""
    if not isinstance(error, Refused):
        return isinstance(error, Unreachable)
    lasting = error.code in LASTING and error.retry_after is None
    return error.code in wait_out or (error.status in PASSING and not lasting)
