"""The thread that appends. Bodies that wait together are written and synced together."""

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Generic, TypeVar

import structlog

from conveyor.adapters.segments.disk import NO_ROOM, own_errors, write_all
from conveyor.adapters.segments.index import Entry, Index, Place
from conveyor.adapters.segments.records import date_of
from conveyor.adapters.segments.segment_files import SegmentFiles
from conveyor.errors import ConveyorError
from conveyor.ports.bodies import BodyName, Kept
from conveyor.ports.clock import Clock

log = structlog.get_logger()

T = TypeVar("T")
# A body's name, and the parts of its record in their order: joined only as they are written.
Record = tuple[BodyName, tuple[bytes, ...]]

MOST_GROUPED = 16 * 1024 * 1024  # bytes that share a sync
QUIET = 2.0  # seconds without a call after which there is time to tidy
BUSY_ROUNDS = 50  # so many groups without a removal will do as well


class WriterCall(Generic[T]):
    """Something for the thread to do, and who waits for it."""

    __slots__ = ("call", "error", "future", "result")

    def __init__(self, call: Callable[[], T], future: "asyncio.Future[T] | None") -> None:
        self.call = call
        self.future = future
        self.result: T | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with own_errors():
                self.result = self.call()
        except Exception as error:  # noqa: BLE001 - a bug is its caller's, not the thread's end
            self.error = error

    def resolve(self) -> None:
        if self.future is None or self.future.done():  # the caller was cancelled meanwhile
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]


class Put(WriterCall[list[Kept]]):
    """Records to be written with those of others, and what is told of them when they last."""

    __slots__ = ("records", "size")

    def __init__(
        self, records: Sequence[Record], kept: list[Kept], future: "asyncio.Future[list[Kept]]"
    ) -> None:
        super().__init__(list, future)
        self.records = records
        self.result = kept
        self.size = sum(one.length for one in kept)


class Appender:
    """The open segment. What was not appended whole is cut off again."""

    def __init__(
        self, segments: SegmentFiles, index: Index, *, clock: Clock, sync: bool, segment_size: int
    ) -> None:
        self._segments = segments
        self._index = index
        self._clock = clock
        self._sync = sync
        self._segment_size = segment_size
        self._descriptor: int | None = None
        self._end = 0
        self.segment = 0

    def resume(self, segment: int, end: int) -> None:
        """Go on with a segment that an earlier process began."""
        self._descriptor = self._segments.open(segment, write=True)
        self.segment, self._end = segment, end

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def append(self, records: Sequence[Record]) -> None:
        """Write whole records, make them last, and let the index know of them."""
        sizes = [sum(map(len, parts)) for _, parts in records]
        descriptor = self._ready(sum(sizes))
        start, end = self._end, self._end + sum(sizes)
        try:
            content = b"".join(chain.from_iterable(parts for _, parts in records))
            write_all(descriptor, content, start)
            if self._sync:
                os.fdatasync(descriptor)
            entries = self._entries([name for name, _ in records], sizes)
            self._index.add(entries, segment=self.segment, covered=end)
        except BaseException as error:
            self._step_back(descriptor, start, error)
            raise
        self._end = end

    def roll(self) -> None:
        """Leave the open segment, and begin another."""
        date = date_of(self._clock.now())
        descriptor, end = self._segments.create(self.segment + 1, date)
        self.close()
        self._descriptor, self._end = descriptor, end
        self.segment += 1
        self._index.add([], segment=self.segment, covered=end)

    def _ready(self, wanted: int) -> int:
        full = self._end + wanted > self._segment_size and self._end > 1024
        if self._descriptor is None or full:
            self.roll()
        assert self._descriptor is not None
        return self._descriptor

    def _entries(self, names: Sequence[BodyName], sizes: Sequence[int]) -> list[Entry]:
        ends = accumulate(sizes, initial=self._end)
        return [
            (name, Place(self.segment, at, size))
            for name, at, size in zip(names, ends, sizes, strict=False)
        ]

    def _step_back(self, descriptor: int, end: int, error: BaseException) -> None:
        """Nothing was promised of what follows: cut it off. A segment whose sync failed is left,
        for what the disk holds of it is not known.
        """
        try:
            os.ftruncate(descriptor, end)
        except OSError:
            self.close()
            return
        if isinstance(error, OSError) and error.errno not in NO_ROOM:
            self.close()


class Writer:
    """Does jobs in their order, one after another; puts that wait side by side are one."""

    def __init__(self, appender: Appender, tidy: Callable[[], bool]) -> None:
        """`tidy` does a little of what can wait, and says whether there is more."""
        self._appender = appender
        self._tidy = tidy
        self._rounds = 0
        self._untidy = True
        self._waiting: queue.SimpleQueue[WriterCall[object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="segments-write", daemon=True)
        self._thread.start()

    def put(self, job: "WriterCall[T]") -> None:
        self._waiting.put(job)  # type: ignore[arg-type]

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        held: WriterCall[object] | None = None
        while (first := held or self._next()) is not None:
            group, held, last = self._gather(first)
            self._do(group)
            if last:
                return

    def _next(self) -> "WriterCall[object] | None":
        """The next job; until it comes, or when it has been busy for long, tidy."""
        while self._untidy:
            try:
                quiet = QUIET if self._rounds < BUSY_ROUNDS else 0
                return self._waiting.get(timeout=quiet) if quiet else self._waiting.get_nowait()
            except queue.Empty:
                self._tidy_some()
        return self._waiting.get()

    def _tidy_some(self) -> None:
        try:
            with own_errors():
                self._untidy = self._tidy()
            self._rounds = BUSY_ROUNDS
        except ConveyorError:  # the disk is full or away: another time
            self._rounds = 0
        except Exception:
            # Whatever it is, bodies are waiting: room is given back at the next start.
            log.exception("segments.reclaim.bug")
            self._untidy = False

    def _gather(
        self, first: "WriterCall[object]"
    ) -> tuple[list["WriterCall[object]"], "WriterCall[object] | None", bool]:
        """Puts that wait in a row; what comes after them; whether that is the end."""
        group, size = [first], first.size if isinstance(first, Put) else MOST_GROUPED
        while size < MOST_GROUPED:
            try:
                job = self._waiting.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return group, None, True
            if not isinstance(job, Put):
                return group, job, False
            group.append(job)  # type: ignore[arg-type]
            size += job.size
        return group, None, False

    def _do(self, group: list["WriterCall[object]"]) -> None:
        puts = [job for job in group if isinstance(job, Put)]
        if puts:
            self._rounds += 1
            self._put_all(puts)
        else:
            self._untidy, self._rounds = True, 0
            group[0].run()
        if (future := group[0].future) and not (loop := future.get_loop()).is_closed():
            loop.call_soon_threadsafe(_resolve, group)

    def _put_all(self, puts: Sequence[Put]) -> None:
        """Together; if that fails each by itself, so that one too many fails alone."""
        try:
            with own_errors():
                self._appender.append([record for put in puts for record in put.records])
        except Exception as error:  # noqa: BLE001 - told to whoever waits
            if len(puts) == 1:
                puts[0].error = error
                return
            for one in puts:
                self._put_all([one])


def _resolve(group: "list[WriterCall[object]]") -> None:
    for job in group:
        job.resolve()
