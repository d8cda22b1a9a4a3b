"""A thread that makes calls in the order they come, and resolves the futures of those who wait.

SQLite and segments each have one: a single writer needs no locks, and calls that wait together can
share a sync. What is shared, and how, is up to the subclass.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import structlog

from conveyor.adapters.shared.disk import own_errors
from conveyor.errors import Unavailable

T = TypeVar("T")
C = TypeVar("C", bound="WriterCall[Any]")

log = structlog.get_logger()


class WriterCall(Generic[T]):
    """A call for the thread to make, and the future that waits for its result."""

    __slots__ = ("call", "error", "future", "result")

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.result: T | None = None
        self.error: BaseException | None = None

    def resolve(self) -> None:
        if self.future.done():  # the caller was cancelled while it waited
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]


class WriterThread:
    """Base of writers. A subclass sets its attributes first: the thread starts here."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()  # calls; None to end
        # A daemon, so that a process that fails to close it can still end.
        self._thread = threading.Thread(target=self._run, name=f"{engine}-write", daemon=True)
        self._thread.start()

    async def do(self, call: WriterCall[T]) -> T:
        self._waiting.put(call)
        return await call.future

    def close(self) -> None:
        """Make the calls that wait already, then end."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError

    def _make(self, call: WriterCall[Any]) -> None:
        call.error = None
        try:
            with own_errors(self._engine):
                call.result = call.call()
        except Exception as error:  # noqa: BLE001 - a bug fails its caller, not the thread
            call.error = error

    def _finish(self, group: list[C], make_all: Callable[[list[C]], None]) -> None:
        """Make the calls of a group and wake their callers, with one turn of the event loop for all.

        If `make_all` raises, the calls of the group fail and the thread goes on: without the thread
        every later call would wait for ever.
        """
        try:
            make_all(group)
        except Exception as error:
            log.exception("writer.bug", engine=self._engine)
            for call in group:
                call.error = Unavailable(f"{self._engine}: {error!r}")
        with suppress(RuntimeError):  # the event loop is closed: no caller waits
            group[0].future.get_loop().call_soon_threadsafe(_resolve_all, group)


def _resolve_all(group: Sequence[WriterCall[Any]]) -> None:
    for call in group:
        call.resolve()
