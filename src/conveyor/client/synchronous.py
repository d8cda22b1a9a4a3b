"""The client for programs without an event loop, over `http.client`.

It runs the coroutines of `Calls` on a network that blocks: they never suspend, so one step runs a
coroutine to its end. Neither asyncio nor aiohttp is imported.
"""

import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import wraps
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from socket import SHUT_RDWR, socket
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack
from urllib.parse import urlsplit

from conveyor.client.calls import DEFAULT_URL, Calls
from conveyor.client.errors import UnreachableError
from conveyor.client.transport import (
    CHUNK,
    LONGEST_LINE,
    ClientOptions,
    Request,
    Response,
    Transport,
)

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

P = ParamSpec("P")
T = TypeVar("T")

FETCHING = 32  # threads that fetch bodies ahead, at most
CLOSED = "the client was closed before the end was reached"


def drive(coroutine: Any) -> Any:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError("Conveyor cannot await: pass ordinary iterables, or use AsyncConveyor")


def _waited(
    method: Callable[Concatenate[Calls, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Conveyor", P], T]:
    """The synchronous form of a call with one result, with the same signature."""

    @wraps(method)
    def call(self: "Conveyor", /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = drive(method(self._calls, *args, **kwargs))
        return result

    return call


def _iterated(
    method: Callable[Concatenate[Calls, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate["Conveyor", P], Iterator[T]]:
    """The synchronous form of a call that iterates, with the same signature."""

    @wraps(method)
    def call(self: "Conveyor", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        source = method(self._calls, *args, **kwargs)
        self._sources.add(source)
        try:
            while True:
                self._network.check_open()
                try:
                    one = drive(anext(source))
                except StopAsyncIteration:
                    return
                yield one
        finally:
            self._sources.discard(source)
            drive(source.aclose())

    return call


class Conveyor:
    """`AsyncConveyor` for programs without an event loop; use it as a context manager.

    Several threads may share one client. Iterables are iterated in the caller's thread.
    """

    submit = _waited(Calls.submit)
    submit_file = _waited(Calls.submit_file)
    upload = _waited(Calls.upload)
    errors = _iterated(Calls.errors)
    error_rows = _iterated(Calls.error_rows)
    open = _waited(Calls.open)
    add = _waited(Calls.add)
    close = _waited(Calls.close)
    job = _waited(Calls.job)
    jobs = _iterated(Calls.jobs)
    run = _waited(Calls.run)
    runs = _iterated(Calls.runs)
    progress = _iterated(Calls.progress)
    wait = _waited(Calls.wait)
    results = _iterated(Calls.results)
    result_rows = _iterated(Calls.result_rows)
    body = _waited(Calls.body)
    save = _waited(Calls.save)
    is_saved = _waited(Calls.is_saved)
    start_export = _waited(Calls.start_export)
    export = _waited(Calls.export)
    wait_export = _waited(Calls.wait_export)
    save_export = _waited(Calls.save_export)
    history = _waited(Calls.history)
    stop = _waited(Calls.stop)
    pause = _waited(Calls.pause)
    resume = _waited(Calls.resume)
    failures = _waited(Calls.failures)
    timeline = _waited(Calls.timeline)
    rerun = _waited(Calls.rerun)
    delete = _waited(Calls.delete)
    delete_run = _waited(Calls.delete_run)
    webhook = _waited(Calls.webhook)
    set_webhook = _waited(Calls.set_webhook)
    clear_webhook = _waited(Calls.clear_webhook)
    test_webhook = _waited(Calls.test_webhook)
    deliveries = _iterated(Calls.deliveries)
    redeliver = _waited(Calls.redeliver)
    set_schedule = _waited(Calls.set_schedule)
    pause_schedule = _waited(Calls.pause_schedule)
    resume_schedule = _waited(Calls.resume_schedule)
    signing_keys = _waited(Calls.signing_keys)
    rotate_signing_key = _waited(Calls.rotate_signing_key)
    finish_rotation = _waited(Calls.finish_rotation)
    cancel_rotation = _waited(Calls.cancel_rotation)
    request = _waited(Calls.request)

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        api_key: str | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        self._network = HttpNetwork(base_url)
        self._calls = Calls(Transport(base_url, api_key, self._network, **options))
        self._sources: set[AsyncGenerator[Any, None]] = set()  # of iterators not at their end

    def __enter__(self) -> Self:
        self._network.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._network.leave()
        while self._sources:
            # RuntimeError: another thread is inside. `leave` broke its connection, so it ends there.
            with suppress(RuntimeError):
                drive(self._sources.pop().aclose())
        self._network.close()


class HttpNetwork:
    """A connection pool for several threads, and threads that fetch bodies ahead."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._idle: list[HTTPConnection] = []
        self._busy: set[socket] = set()
        self._left = threading.Event()
        self._threads: ThreadPoolExecutor | None = None

    def open(self) -> None:
        self._left.clear()

    def leave(self) -> None:
        """Shut down the connections of other threads: closing would not wake a blocked read."""
        self._left.set()
        for sock in list(self._busy):
            with suppress(OSError):
                sock.shutdown(SHUT_RDWR)

    def close(self) -> None:
        if self._threads:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
        while self._idle:
            self._idle.pop().close()

    def check_open(self) -> None:
        if self._left.is_set():
            raise RuntimeError(CLOSED)

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Response]:
        self.check_open()
        with self._network_errors():
            connection, sock, response = self._sent(request)
        is_whole = False
        try:
            yield _HttpResponse(response, self._network_errors)
            is_whole = response.isclosed()
        finally:
            self._busy.discard(sock)
            if is_whole and not (response.will_close or request.own_connection):
                self._idle.append(connection)
            else:
                response.close()
                connection.close()

    def _sent(self, request: Request) -> tuple[HTTPConnection, socket, HTTPResponse]:
        """Send a request. A kept connection that turns out to be dead is replaced, once."""
        if self._idle and not request.own_connection:
            with suppress(
                IndexError, ConnectionError, HTTPException
            ):  # IndexError: another thread took it
                return self._exchanged(self._idle.pop(), request)
        return self._exchanged(_connection(request.url, request.timeout), request)

    def _exchanged(
        self, connection: HTTPConnection, request: Request
    ) -> tuple[HTTPConnection, socket, HTTPResponse]:
        if request.send_count:
            request.send_count.times += 1
        body = request.body
        content = body if isinstance(body, bytes | None) else _iterated_here(body)
        sock: socket | None = None
        try:
            if connection.sock is None:
                connection.connect()
            # Taken now: the connection drops its socket when the server closes after the response.
            sock = connection.sock
            sock.settimeout(request.timeout)
            self._busy.add(sock)
            self.check_open()
            # A server may refuse a large body and close while it is sent. Its response can be read.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(
                    request.method, _target(request.url), content, dict(request.headers)
                )
            return connection, sock, connection.getresponse()
        except BaseException:
            if sock:
                self._busy.discard(sock)
            connection.close()
            raise

    @contextmanager
    def _network_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, HTTPException) as error:
            self.check_open()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UnreachableError(f"cannot reach {self._base}: {reason}") from error

    async def sleep(self, seconds: float) -> None:
        self._left.wait(seconds)
        self.check_open()

    async def blocking(self, function: Callable[..., T], *args: object) -> T:
        return function(*args)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> "_Fetching[T]":
        # Imported here: most programs that use this client fetch nothing ahead.
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

        if self._threads is None:
            self._threads = ThreadPoolExecutor(FETCHING, "conveyor")
        return _Fetching(self._threads.submit(drive, coroutine), coroutine)


class _Fetching(Generic[T]):
    """The result of another thread; awaiting it blocks."""

    def __init__(self, future: "Future[T]", coroutine: Coroutine[Any, Any, T]) -> None:
        self._future, self._coroutine = future, coroutine

    def __await__(self) -> Generator[Any, None, T]:
        yield from ()  # makes this a generator, as `await` requires
        return self._future.result()

    def cancel(self) -> None:
        if self._future.cancel():
            self._coroutine.close()


class _HttpResponse:
    def __init__(self, response: HTTPResponse, network_errors: Callable[[], Any]) -> None:
        self._response, self._network_errors = response, network_errors

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers  # type: ignore[return-value] # a message is a mapping

    async def read(self) -> bytes:
        with self._network_errors():
            return self._response.read()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        left = (
            self._response.length
        )  # None: unknown, the body is chunked or ends with the connection
        while True:
            with self._network_errors():
                chunk = self._response.read(CHUNK)
                if not chunk and left:
                    # `read` with a size does not report a body that is too short.
                    raise IncompleteRead(b"", left)
            if not chunk:
                return
            left = None if left is None else left - len(chunk)
            yield chunk

    async def lines(self) -> AsyncGenerator[bytes, None]:
        # Not `readline`: it reports a chunked body that was cut as complete.
        rest = b""
        while True:
            with self._network_errors():
                some = self._response.read1(CHUNK)
                if not some and self._response.length:
                    raise IncompleteRead(b"", self._response.length)
            *whole, rest = (rest + some).split(b"\n")
            for line in whole:
                yield line + b"\n"
            if len(rest) > LONGEST_LINE:
                raise UnreachableError("a line of the response is too long")
            if not some:
                break
        if rest:
            yield rest


def _iterated_here(body: AsyncIterator[bytes]) -> Iterable[bytes]:
    with suppress(StopAsyncIteration):
        while True:
            yield drive(anext(body))


def _connection(url: str, seconds: float) -> HTTPConnection:
    address = urlsplit(url)
    kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
    return kind(address.hostname or "", address.port, timeout=seconds)


def _target(url: str) -> str:
    address = urlsplit(url)
    return f"{address.path or '/'}?{address.query}" if address.query else address.path or "/"
