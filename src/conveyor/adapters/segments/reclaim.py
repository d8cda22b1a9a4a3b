"""Reclaiming the space of removed bodies, in small steps between appends.

A removal deletes a body's row in the index and leaves its record dead in the segment. Two
kinds of work remain:

- **Compaction** reclaims space. The live records of a segment are appended to the open one, then the
  file is unlinked. Nothing else makes a file with bodies smaller or removes it.
- **Erasure** removes content. Where too little is dead for compaction to pay, zeros are written over
  the dead bodies and their records are marked, so that neither a reader of the file nor an index
  rebuilt from it finds a removed page. The bytes stay allocated until compaction.

| Invariant | Why |
|---|---|
| The index alone says what is live; a record is judged by it in the step that touches it | a step that was cut off is done again |
| A record is marked `removing` before zeros are written over its body | a reader that read zeros sees the mark, and returns nothing |
| A record is marked `obsolete` after its zeros were synced | a power cut leaves no page behind a mark that says it is gone |
| A copy is synced and in the index before the original is unlinked | a body is in at least one segment at any time |
| The open segment is never compacted; it is closed first | copies are appended to it |
"""

import os
from collections.abc import Iterator
from itertools import islice

import msgspec

from conveyor.adapters.segments.index import Index, Place, Segment
from conveyor.adapters.segments.records import ENGINE, Record, erase, mark_erased
from conveyor.adapters.segments.segment_files import SegmentFiles
from conveyor.adapters.segments.writer import Appender
from conveyor.adapters.shared.disk import own_errors
from conveyor.adapters.shared.folder_lock import locked
from conveyor.errors import StorageFull, Unavailable

STEP_BYTES = 4 * 1024 * 1024
STEP_RECORDS = 500
DEAD_SHARE = 0.25  # of a segment, from which on it is compacted; figures in decision 0043
LEAST_CLOSED = 8 * 1024 * 1024  # bytes; a smaller open segment is not closed to be compacted


class _Pass(msgspec.Struct):
    """One walk over the records of a segment, over many steps."""

    segment: Segment
    records: Iterator[Record]
    compacts: bool


class Reclaimer:
    """Runs in the writer's thread only, so nothing is appended or removed during a step."""

    def __init__(
        self, segments: SegmentFiles, index: Index, appender: Appender, *, sync: bool
    ) -> None:
        self._segments = segments
        self._index = index
        self._appender = appender
        self._sync = sync
        self._current: _Pass | None = None
        self._cannot_empty: set[int] = set()

    def step(self) -> bool:
        """Do a bounded amount of work, and return whether there may be more.

        `Unavailable` while a backup copies the segments: it needs the bodies that were live when it
        began, removed ones included.
        """
        with locked(self._segments.folder, wait=False) as is_free:
            if not is_free:
                raise Unavailable(f"{ENGINE}: a backup copies the segments")
            return self._step()

    def _step(self) -> bool:
        if self._current is None:
            self._current = self._next()
        if self._current is None:
            return False
        current, self._current = self._current, None  # after an error it starts over
        is_done = self._compact(current) if current.compacts else self._erase(current)
        if not is_done and self._current is None:
            self._current = current
        return True

    def _next(self) -> _Pass | None:
        candidates = [
            one
            for one in self._index.segments()
            if one.unerased or (one.no != self._appender.segment and self._pays(one))
        ]
        if not candidates:
            return None
        # Erasure first: compaction may fail for lack of space, and must not delay it. Then the
        # segment with the least to copy, which needs the least free space.
        segment = min(candidates, key=lambda one: (one.unerased == 0, one.live))
        is_open = segment.no == self._appender.segment
        if is_open and self._pays(segment) and segment.covered > LEAST_CLOSED:
            self._appender.roll()
            is_open = False
        return self._over(segment, compacts=not is_open and self._pays(segment))

    def _over(self, segment: Segment, *, compacts: bool) -> _Pass:
        records = self._segments.records(segment.no, end=segment.covered)
        return _Pass(segment, records, compacts)

    def _pays(self, segment: Segment) -> bool:
        """Whether enough of a segment is dead to compact it."""
        if segment.no in self._cannot_empty:
            return False
        return segment.covered - segment.live >= DEAD_SHARE * segment.covered or not segment.live

    def _erase(self, current: _Pass) -> bool:
        """Erase dead records, and return whether there are no more to look at."""
        some = _take(current.records)
        dead = [one for one, is_live in self._judged(current.segment.no, some) if not is_live]
        if dead:
            with self._segments.opened(current.segment.no, write=True) as descriptor:
                for one in dead:
                    erase(descriptor, one)
                if self._sync:
                    os.fdatasync(descriptor)
                for one in dead:
                    mark_erased(descriptor, one)
        if some:
            return False
        self._index.erased(current.segment.no, current.segment.unerased)
        return True

    def _compact(self, current: _Pass) -> bool:
        """Copy live records, and unlink the segment when that was all."""
        segment = current.segment
        if some := _take(current.records):
            try:
                with own_errors(ENGINE):
                    self._copy(segment.no, some)
            except StorageFull:
                if not segment.unerased:
                    raise
                # Erasing needs no space: a full disk must not keep removed pages readable.
                self._current = self._over(segment, compacts=False)
            return False
        self._index.drop(segment.no)
        if all(one.no != segment.no for one in self._index.segments()):
            self._segments.unlink(segment.no)
        else:
            # A damaged head hides live records behind it. Trying again would never end.
            self._cannot_empty.add(segment.no)
        return True

    def _copy(self, segment: int, some: list[Record]) -> None:
        with self._segments.opened(segment) as descriptor:
            live = [
                (one.name, (os.pread(descriptor, one.size, one.at),))
                for one, is_live in self._judged(segment, some)
                if is_live and one.name
            ]
        if live:
            self._appender.append(live)

    def _judged(self, segment: int, some: list[Record]) -> Iterator[tuple[Record, bool]]:
        """Bodies that are not erased, each with whether the index leads to this record."""
        bodies = [one for one in some if one.name]
        places = self._index.places([one.name for one in bodies if one.name])
        for one, place in zip(bodies, places, strict=True):
            yield one, place == Place(segment, one.at, one.size)


def _take(records: Iterator[Record]) -> list[Record]:
    """The records of one step."""
    some, size = [], 0
    for one in islice(records, STEP_RECORDS):
        some.append(one)
        size += one.size
        if size >= STEP_BYTES:
            break
    return some
