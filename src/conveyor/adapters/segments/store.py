"""SegmentStore: many bodies in few files, written by one thread, read by any.

Readers take no lock. The index leads to a record; the record is read and its mark is looked at
afterwards, because the reclaimer marks a record before it erases the body. A body that was moved
meanwhile is looked up again.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from conveyor.adapters.segments.index import Index, Place, open_index, visit_index
from conveyor.adapters.segments.reclaim import Reclaimer
from conveyor.adapters.segments.records import (
    END,
    ENGINE,
    LIVE_START,
    content_of,
    date_of,
    head,
    urn,
)
from conveyor.adapters.segments.segment_files import SegmentFiles, cut, learn, unlink_emptied
from conveyor.adapters.segments.writer import Appender, Put, Record, Writer
from conveyor.adapters.shared.disk import make_folder, own_errors
from conveyor.adapters.shared.writer_thread import WriterCall
from conveyor.domain.ids import JobId, RunId
from conveyor.errors import Unavailable
from conveyor.ports.bodies import BodyName, Kept
from conveyor.ports.clock import Clock

T = TypeVar("T")

INDEX = "index.db"
SEGMENT = 256 * 1024 * 1024
MOST_TRIES = 5  # lookups of a body that compaction moves meanwhile
SLICE = 1024 * 1024  # bytes made into records before the event loop runs other tasks


class SegmentStore:
    """Bodies in segments, found by their names. Make it with `open_segment_store` or `visit_segment_store`."""

    def __init__(self, segments: SegmentFiles, index: Index) -> None:
        self._segments = segments
        self._index = index
        self._writer: Writer | None = None
        self._appender: Appender | None = None
        self._reclaimer: Reclaimer | None = None

    def begin(self, appender: Appender, clock: Clock, *, sync: bool) -> None:
        """Start the writer."""
        self._clock = clock
        self._appender = appender
        self._reclaimer = Reclaimer(self._segments, self._index, appender, sync=sync)
        self._writer = Writer(appender, self._reclaimer.step)

    def close(self) -> None:
        if self._writer:
            self._writer.close()
        if self._appender:
            self._appender.close()
        self._index.close()

    async def put(self, bodies: Sequence[tuple[BodyName, bytes]]) -> list[Kept]:
        """Store bodies, and return where and how they are stored.

        Records are made here, in slices, and not by the writer: its thread would wait for the
        interpreter lock with each record, and all other appends would wait with it.
        """
        writing, date = self._writing, date_of(self._clock.now())
        records: list[Record] = []
        kept: list[Kept] = []
        made = 0
        for name, content in bodies:
            digest, word = sha256(content).hexdigest(), urn(name)
            records.append((name, (head(word, digest, len(content), date), content, END)))
            kept.append(Kept(f"pack:{word}", len(content), digest))
            made += len(content)
            if made > SLICE:
                made = 0
                await asyncio.sleep(0)
        return await writing.do(Put(records, kept))

    async def remove(self, names: Sequence[BodyName]) -> int:
        """Remove bodies, and return how many there were."""

        def remove() -> int:
            if not any(self._index.places(names)):
                return 0
            return self._unlink(self._index.remove(names, open_segment=self._open))

        return await self._do(remove) if names else 0

    async def remove_run(self, job_id: JobId, run_id: RunId, *, limit: int) -> int:
        """Remove up to `limit` bodies of a run, and return how many."""

        def remove() -> int:
            if not self._index.names(job_id, run_id, ("", -1), 1):
                return 0
            removed = self._index.remove_run(job_id, run_id, limit=limit, open_segment=self._open)
            return self._unlink(removed)

        return await self._do(remove)

    async def reclaim(self) -> None:
        """Erase and compact all dead records now; for tests and benchmarks."""
        assert self._reclaimer
        while await self._do(self._reclaimer.step):
            pass

    async def load(self, names: Sequence[BodyName]) -> list[bytes | None]:
        """Whole bodies; None for one that is not there."""
        return await asyncio.to_thread(self._load, names)

    async def runs(self, *, limit: int, after: str) -> list[tuple[JobId, RunId]]:
        return await self._ask(lambda: self._index.runs(after, limit))

    async def names(
        self, job_id: JobId, run_id: RunId, *, after: tuple[str, int], limit: int
    ) -> list[BodyName]:
        return await self._ask(lambda: self._index.names(job_id, run_id, after, limit))

    @property
    def _writing(self) -> Writer:
        if self._writer is None:
            raise Unavailable("segments: the data folder is open for reading only")
        return self._writer

    @property
    def _open(self) -> int:
        return self._appender.segment if self._appender else 0

    async def _do(self, call: Callable[[], T]) -> T:
        return await self._writing.do(WriterCall(call))

    async def _ask(self, call: Callable[[], T]) -> T:
        with own_errors(ENGINE):
            return await asyncio.to_thread(call)

    def _unlink(self, removed: tuple[int, list[int]]) -> int:
        count, emptied = removed
        for segment in emptied:
            self._segments.unlink(segment)
        return count

    def _load(self, names: Sequence[BodyName]) -> list[bytes | None]:
        """Bodies by name. One that was moved while it was read is looked up again."""
        found: dict[int, bytes] = {}
        wanted = list(enumerate(names))
        with own_errors(ENGINE):
            for _ in range(MOST_TRIES):
                places = self._index.places([name for _, name in wanted])
                there = [
                    (place, number, name)
                    for (number, name), place in zip(wanted, places, strict=True)
                    if place
                ]
                found |= self._read(there)
                wanted = [(number, name) for _, number, name in there if number not in found]
                if not wanted:
                    break
        return [found.get(number) for number in range(len(names))]

    def _read(self, there: Sequence[tuple[Place, int, BodyName]]) -> Iterator[tuple[int, bytes]]:
        """Bodies in the order of their places, without those that are no longer there."""
        with ExitStack() as stack:
            descriptors: dict[int, int] = {}
            for place, number, name in sorted(there, key=lambda one: (one[0].segment, one[0].at)):
                try:
                    if place.segment not in descriptors:
                        opened = self._segments.opened(place.segment)
                        descriptors[place.segment] = stack.enter_context(opened)
                except FileNotFoundError:
                    continue
                content = _read_one(descriptors[place.segment], place, name)
                if content is not None:
                    yield number, content


def _read_one(descriptor: int, place: Place, name: BodyName) -> bytes | None:
    record = os.pread(descriptor, place.size, place.at)
    content = content_of(record, urn(name)) if len(record) == place.size else None
    # The reclaimer marks a record before it erases the body. If there is no mark after the read, the
    # body was whole during the read.
    if os.pread(descriptor, len(LIVE_START), place.at) != LIVE_START:
        return None
    return content


@contextmanager
def open_segment_store(
    folder: Path, *, clock: Clock, sync: bool = True, segment_size: int = SEGMENT
) -> Iterator[SegmentStore]:
    """Open a folder of segments for writing: truncate a torn tail and append after it.

    The caller must hold the lock of the data folder, so that no other process writes to it.
    """
    segments = SegmentFiles(folder, sync=sync)
    with own_errors(ENGINE):
        make_folder(folder, sync=sync)
        index = open_index(folder / INDEX, sync=sync)
        store = SegmentStore(segments, index)
        appender = Appender(segments, index, clock=clock, sync=sync, segment_size=segment_size)
        try:
            _resume(segments, index, appender, sync=sync)
        except BaseException:
            store.close()
            raise
    store.begin(appender, clock, sync=sync)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def visit_segment_store(folder: Path) -> Iterator[SegmentStore]:
    """Open a folder for reading, while no process writes to it, and change nothing in it."""
    segments = SegmentFiles(folder, sync=False)
    with ExitStack() as stack:
        with own_errors(ENGINE):
            index = stack.enter_context(visit_index(folder / INDEX))
            store = SegmentStore(segments, index)
            stack.callback(store.close)
            learn(segments, index)
        yield store


def _resume(segments: SegmentFiles, index: Index, appender: Appender, *, sync: bool) -> None:
    end = learn(segments, index)
    unlink_emptied(segments, index)
    numbers = segments.numbers()
    appender.segment = max([*numbers, *(one.no for one in index.segments())], default=0)
    if numbers and end:
        cut(segments, numbers[-1], end, sync=sync)
        appender.resume(numbers[-1], end)
