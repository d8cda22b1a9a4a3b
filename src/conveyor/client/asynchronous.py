"""The client for programs with an event loop, over aiohttp."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import aiohttp
from yarl import URL

from conveyor.client.calls import DEFAULT_URL, Calls
from conveyor.client.errors import UnreachableError
from conveyor.client.transport import (
    CHUNK,
    ClientOptions,
    Request,
    Response,
    SendCount,
    Transport,
)

T = TypeVar("T")

CONNECTIONS = 100
NOT_OPEN = "the client must be open: use it as a context manager"


class AsyncConveyor(Calls):
    """The client of a service for programs with an event loop; use it as a context manager.

    One client can make many calls at the same time. A call is repeated after 429, 502, 503, 504 and
    broken connections, within the bounds of `patience`; a call that creates something carries an
    idempotency key, so that nothing is created twice. `on_outage` is called before every
    repetition, and with None when the service answers again.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        api_key: str | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        self._network = AiohttpNetwork(base_url)
        super().__init__(Transport(base_url, api_key, self._network, **options))

    async def __aenter__(self) -> Self:
        await self._network.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._network.close()


class AiohttpNetwork:
    """A connection pool, and a task group that fetches bodies ahead."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._session: aiohttp.ClientSession | None = None
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        self._group = await asyncio.TaskGroup().__aenter__()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS), cookie_jar=aiohttp.DummyCookieJar()
        )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        group, self._group = self._group, None
        session, self._session = self._session, None
        # The caller's error is not passed on: the group would wrap it in an exception group.
        await group.__aexit__(None, None, None) if group else None
        await session.close() if session else None

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Response]:
        if self._session is None:
            raise RuntimeError(NOT_OPEN)
        if request.own_connection:
            own = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
            async with own as session, self._requested(session, request) as response:
                yield response
            return
        async with self._requested(self._session, request) as response:
            yield response

    @asynccontextmanager
    async def _requested(
        self, session: aiohttp.ClientSession, request: Request
    ) -> AsyncIterator[Response]:
        seconds = request.timeout
        requested = session.request(
            request.method,
            URL(request.url, encoded=True),
            data=request.body,
            headers=request.headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds),
            middlewares=(_counted(request.send_count),) if request.send_count else (),
            allow_redirects=False,  # the API key must not reach another host
        )
        with self._network_errors():
            response = await requested.__aenter__()
        try:
            yield _Response(response, self._network_errors)
        finally:
            await requested.__aexit__(None, None, None)

    @contextmanager
    def _network_errors(self) -> Iterator[None]:
        try:
            yield
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UnreachableError(f"cannot reach {self._base}: {reason}") from error

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def blocking(self, function: Callable[..., T], *args: object) -> T:
        return await asyncio.to_thread(function, *args)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        if self._group is None:
            coroutine.close()
            raise RuntimeError(NOT_OPEN)
        task = self._group.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Response:
    def __init__(self, response: aiohttp.ClientResponse, network_errors: Callable[[], Any]) -> None:
        self._response, self._network_errors = response, network_errors

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def read(self) -> bytes:
        with self._network_errors():
            return await self._response.read()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while True:
            with self._network_errors():
                chunk = await self._response.content.read(CHUNK)
            if not chunk:
                return
            yield chunk

    async def lines(self) -> AsyncGenerator[bytes, None]:
        while True:
            try:
                with self._network_errors():
                    line = await self._response.content.readline()
            except ValueError as error:  # aiohttp raises it for a line above its limit
                raise UnreachableError(f"a line of the response is too long: {error}") from error
            if not line:
                return
            yield line


def _counted(send_count: SendCount) -> aiohttp.ClientMiddlewareType:
    async def send(
        request: aiohttp.ClientRequest, send_on: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        send_count.times += 1
        return await send_on(request)

    return send
