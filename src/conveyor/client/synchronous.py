"""The same client for programs without an event loop: a thin shell, with a loop in a thread."""

import asyncio
import io
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
)
from concurrent.futures import Future
from functools import wraps
from itertools import islice
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from conveyor.client.asynchronous import DEFAULT_URL, AsyncConveyor
from conveyor.client.transport import Patience

P = ParamSpec("P")
T = TypeVar("T")

TAKEN_AT_ONCE = 1000  # items of a list that are taken over to the loop
Ask = Callable[[], None]
Asks = SimpleQueue[Ask | None]


def _waited(
    method: Callable[Concatenate[AsyncConveyor, P], Awaitable[T]],
) -> Callable[Concatenate["Conveyor", P], T]:
    """A method of the asynchronous client that the caller waits for."""

    @wraps(method)
    def call(self: "Conveyor", /, *args: P.args, **kwargs: P.kwargs) -> T:
        asks: Asks = SimpleQueue()
        given: Any = [_fed(value, asks) for value in args]
        named: Any = {name: _fed(value, asks) for name, value in kwargs.items()}

        async def awaited() -> T:
            return await method(self._client, *given, **named)

        return self._run(awaited(), asks)

    return call


def _iterated(
    method: Callable[Concatenate[AsyncConveyor, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate["Conveyor", P], Iterator[T]]:
    """A method of the asynchronous client that gives one thing after another."""

    @wraps(method)
    def call(self: "Conveyor", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        self._start()
        source = method(self._client, *args, **kwargs)
        self._sources.add(source)

        async def following() -> list[T]:
            async for one in source:
                return [one]
            return []

        try:
            while got := self._run(following(), SimpleQueue()):
                yield got[0]
                if source not in self._sources:
                    raise RuntimeError("the client was left before the end was reached")
        except GeneratorExit:  # any other error has ended the source itself
            if source in self._sources:
                self._run(source.aclose(), SimpleQueue())
            raise
        finally:
            self._sources.discard(source)

    return call


class Conveyor:
    """`AsyncConveyor` for programs without an event loop; use it as a context.

    Its calls may be made from several threads. Lists that are handed in are iterated in the
    thread of the caller.
    """

    submit = _waited(AsyncConveyor.submit)
    submit_file = _waited(AsyncConveyor.submit_file)
    errors = _iterated(AsyncConveyor.errors)
    open = _waited(AsyncConveyor.open)
    add = _waited(AsyncConveyor.add)
    close = _waited(AsyncConveyor.close)
    job = _waited(AsyncConveyor.job)
    jobs = _iterated(AsyncConveyor.jobs)
    run = _waited(AsyncConveyor.run)
    progress = _iterated(AsyncConveyor.progress)
    wait = _waited(AsyncConveyor.wait)
    results = _iterated(AsyncConveyor.results)
    body = _waited(AsyncConveyor.body)
    save = _waited(AsyncConveyor.save)
    start_export = _waited(AsyncConveyor.start_export)
    export = _waited(AsyncConveyor.export)
    wait_export = _waited(AsyncConveyor.wait_export)
    save_export = _waited(AsyncConveyor.save_export)
    history = _waited(AsyncConveyor.history)
    stop = _waited(AsyncConveyor.stop)
    pause = _waited(AsyncConveyor.pause)
    resume = _waited(AsyncConveyor.resume)
    rerun = _waited(AsyncConveyor.rerun)
    delete = _waited(AsyncConveyor.delete)
    delete_run = _waited(AsyncConveyor.delete_run)

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        patience: Patience | None = None,
    ) -> None:
        self._client = AsyncConveyor(base_url, api_key, timeout=timeout, patience=patience)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._sources: set[AsyncGenerator[Any, None]] = set()  # of iterators not at their end
        self._loop: asyncio.AbstractEventLoop
        self._leaving: asyncio.Event

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._thread:
            self._loop.call_soon_threadsafe(self._leaving.set)
            self._thread.join()
            self._thread = None

    def _start(self) -> None:
        with self._lock:
            if self._thread:
                return
            ready: Future[None] = Future()
            # A daemon, so that a program that forgets to leave can end.
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._live(ready)), name="conveyor", daemon=True
            )
            self._thread.start()
            ready.result()

    async def _live(self, ready: "Future[None]") -> None:
        self._loop, self._leaving = asyncio.get_running_loop(), asyncio.Event()
        async with self._client:
            ready.set_result(None)
            await self._leaving.wait()
            await self._close_sources()

    async def _close_sources(self) -> None:
        """While the client is open still: what they hold is given back in order.

        One that is waited for in another thread is ended by the end of the loop.
        """
        while self._sources:
            source = self._sources.pop()
            if not getattr(source, "ag_running", False):
                await source.aclose()

    def _run(self, coroutine: Coroutine[object, object, T], asks: Asks) -> T:
        """Wait for the loop, and meanwhile do here what it asks this thread for."""
        self._start()
        outcome = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        outcome.add_done_callback(lambda _: asks.put(None))
        try:
            while (ask := asks.get()) is not None:
                ask()
        except BaseException:
            outcome.cancel()
            raise
        return outcome.result()


def _fed(value: object, asks: Asks) -> object:
    """What is read as it is iterated stays with the caller: cursors are tied to their thread."""
    is_bytes = hasattr(value, "read") and not isinstance(value, io.TextIOBase)
    if isinstance(value, Iterable) and not isinstance(value, Collection) and not is_bytes:
        return _Fed(value, asks)
    return value


class _Fed:
    """An iterator of another thread, for the loop."""

    def __init__(self, source: Iterable[object], asks: Asks) -> None:
        self._source = iter(source)
        self._asks = asks

    async def __aiter__(self) -> AsyncIterator[object]:
        while some := await self._next():
            for one in some:
                yield one

    async def _next(self) -> list[object]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[object]] = loop.create_future()

        def take() -> None:
            try:
                some = list(islice(self._source, TAKEN_AT_ONCE))
            except Exception as error:  # noqa: BLE001 - it goes where the list is wanted
                loop.call_soon_threadsafe(answer.set_exception, error)
            else:
                loop.call_soon_threadsafe(answer.set_result, some)

        self._asks.put(take)
        return await answer
