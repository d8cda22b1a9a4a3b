"""The thread that appends. Bodies that wait together are written and synced together.

| Invariant | Why |
|---|---|
| Only this thread changes segments and index | no locks; a removal and an append have an order |
| A put is answered after its records are synced and in the index | a body that was answered is there |
| What was not appended whole is truncated before the next append | records follow each other without gaps |
| Removed pages are erased while the thread is idle, and from `OVERDUE` on between appends | they leave the disk under load too |
"""

import os
import queue
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from time import monotonic
from typing import Any

import structlog

from conveyor.adapters.segments.index import Entry, Index, Place
from conveyor.adapters.segments.records import ENGINE, date_of, write_all
from conveyor.adapters.segments.segment_files import SegmentFiles
from conveyor.adapters.shared.disk import NO_ROOM, own_errors
from conveyor.adapters.shared.writer_thread import WriterCall, WriterThread
from conveyor.errors import ConveyorError
from conveyor.ports.bodies import BodyName, Kept
from conveyor.ports.clock import Clock

log = structlog.get_logger()

# A body's name, and the parts of its record in order. They are joined when they are written.
Record = tuple[BodyName, tuple[bytes, ...]]

MOST_GROUPED = 16 * 1024 * 1024  # bytes that share a sync: they are in memory twice meanwhile
IDLE = 2.0  # seconds without a call: the removals of a run are over, and emptied segments are gone
BUSY_GROUPS = 50  # groups written since the last removal, which mean the same under load
OVERDUE = 60.0  # seconds since a removal: reclaim a step after each group, whatever is waiting


class Put(WriterCall[list[Kept]]):
    """Records to append, with those of other puts, and the answer once they are durable."""

    __slots__ = ("records", "size")

    def __init__(self, records: Sequence[Record], kept: list[Kept]) -> None:
        super().__init__(lambda: kept)
        self.records = records
        self.result = kept
        self.size = sum(one.length for one in kept)


class Appender:
    """The open segment. What was not appended whole is truncated again."""

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
        """Append to a segment that an earlier process began."""
        self._descriptor = self._segments.open(segment, write=True)
        self.segment, self._end = segment, end

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def append(self, records: Sequence[Record]) -> None:
        """Write whole records, sync them and enter them in the index."""
        sizes = [sum(map(len, parts)) for _, parts in records]
        descriptor = self._ready(sum(sizes))
        start, end = self._end, self._end + sum(sizes)
        # The order matters: the index must never lead to a record that a power cut can still take.
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
        """Close the open segment and begin the next."""
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
        """Truncate a failed append, so that the next record follows the last whole one.

        After a failed sync the segment is closed, because it is unknown what the disk holds of it: a
        second sync may succeed although the pages of the first were dropped.
        """
        try:
            os.ftruncate(descriptor, end)
        except OSError:
            self.close()
            return
        if isinstance(error, OSError) and error.errno not in NO_ROOM:
            self.close()


class Writer(WriterThread):
    """Makes calls in order; puts that wait next to each other are one append."""

    def __init__(self, appender: Appender, reclaim: Callable[[], bool]) -> None:
        """`reclaim` does a bounded amount of work, and returns whether there may be more."""
        self._appender = appender
        self._reclaim = reclaim
        self._groups = 0  # since the last removal
        # When the oldest removal was made that is not reclaimed; None when nothing is left to do.
        # Set at the start: the process before may have died with removals to reclaim.
        self._dead_since: float | None = monotonic()
        super().__init__(ENGINE)

    def _run(self) -> None:
        held: WriterCall[Any] | None = None
        while (first := held or self._next()) is not None:
            group, held, last = self._gather(first)
            self._finish(group, self._do)
            if last:
                return
            if self._dead_since is not None and monotonic() - self._dead_since > OVERDUE:
                self._reclaim_some()

    def _next(self) -> WriterCall[Any] | None:
        """The next call. While none is waiting, reclaim."""
        while self._dead_since is not None:
            try:
                # A run is removed in many calls. Reclaiming between them would copy bodies that the
                # next call removes, so it waits until the removals seem to be over.
                idle = IDLE if self._groups < BUSY_GROUPS else 0
                call = self._waiting.get(timeout=idle) if idle else self._waiting.get_nowait()
            except queue.Empty:
                self._reclaim_some()
            else:
                return call  # type: ignore[no-any-return]
        return self._waiting.get()  # type: ignore[no-any-return]

    def _reclaim_some(self) -> None:
        try:
            with own_errors(ENGINE):
                if not self._reclaim():
                    self._dead_since = None
            self._groups = BUSY_GROUPS  # so that the next step follows without a wait
        except ConveyorError:  # the disk is full or gone: try again when idle, or overdue again
            self._groups, self._dead_since = 0, monotonic()
        except Exception:
            # Bodies are waiting to be appended, so the thread must go on without reclaiming.
            log.exception("segments.reclaim.bug")
            self._dead_since = None

    def _gather(
        self, first: WriterCall[Any]
    ) -> tuple[list[WriterCall[Any]], WriterCall[Any] | None, bool]:
        """Puts that wait in a row; the call after them, if any; whether the writer must stop."""
        group, size = [first], first.size if isinstance(first, Put) else MOST_GROUPED
        while size < MOST_GROUPED:
            try:
                call = self._waiting.get_nowait()
            except queue.Empty:
                break
            if call is None:
                return group, None, True
            # Calls keep their order: a body that is put after a removal must not be removed by it.
            if not isinstance(call, Put):
                return group, call, False
            group.append(call)
            size += call.size
        return group, None, False

    def _do(self, group: list[WriterCall[Any]]) -> None:
        puts = [call for call in group if isinstance(call, Put)]
        if puts:
            self._groups += 1
            self._put_all(puts)
        else:
            if self._dead_since is None:
                self._dead_since = monotonic()
            self._groups = 0
            self._make(group[0])

    def _put_all(self, puts: Sequence[Put]) -> None:
        """Append puts together; if that fails each alone, so that one too large fails alone."""
        try:
            with own_errors(ENGINE):
                self._appender.append([record for put in puts for record in put.records])
        except Exception as error:  # noqa: BLE001 - the answer of its caller
            if len(puts) == 1:
                puts[0].error = error
                return
            for one in puts:
                self._put_all([one])
