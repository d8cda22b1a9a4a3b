"""Giving back the room of bodies that are no more, a little at a time.

Of a segment that is mostly dead the rest is copied to the open one, and the file goes. In any other the
dead records are marked as such, and their pages given back to the file system. Whichever it is, the
index says what is alive: cut off anywhere, it is done again.
"""

import os
from collections.abc import Iterator
from itertools import islice

from conveyor.adapters.segments.disk import punch
from conveyor.adapters.segments.index import Index, Place, Segment
from conveyor.adapters.segments.records import Record, mark_dead
from conveyor.adapters.segments.segment_files import SegmentFiles
from conveyor.adapters.segments.writer import Appender

MOST_COPIED = 4 * 1024 * 1024  # bytes while others wait
MOST_LOOKED_AT = 500  # records while others wait
WORTH_ROLLING = 8 * 1024 * 1024  # bytes of the open segment, before it is left for being dead


class Reclaimer:
    def __init__(
        self, segments: SegmentFiles, index: Index, appender: Appender, *, sync: bool
    ) -> None:
        self._segments = segments
        self._index = index
        self._appender = appender
        self._sync = sync
        self._at_hand: tuple[Segment, Iterator[Record]] | None = None

    def step(self) -> bool:
        """Do a little, and say whether there may be more."""
        if self._at_hand is None and not self._begin():
            return False
        assert self._at_hand is not None
        segment, rest = self._at_hand
        try:
            done = self._look(segment, rest)
        except BaseException:
            self._at_hand = None  # from the beginning, another time
            raise
        if done:
            self._at_hand = None
        return True

    def _begin(self) -> bool:
        untidy = [one for one in self._index.segments() if one.untidy or not one.live]
        mine = [one for one in untidy if one.no != self._appender.segment]
        own = [one for one in untidy if one.no == self._appender.segment and one.untidy]
        if not (mine or own):
            return False
        segment = (mine or own)[0]
        if not mine and _is_mostly_dead(segment) and segment.covered > WORTH_ROLLING:
            self._appender.roll()
        rest = self._segments.records(segment.no, end=segment.covered)
        self._at_hand = segment, rest
        return True

    def _look(self, segment: Segment, rest: Iterator[Record]) -> bool:
        if segment.no != self._appender.segment and _is_mostly_dead(segment):
            return self._move(segment, rest)
        return self._mark(segment, rest)

    def _mark(self, segment: Segment, rest: Iterator[Record]) -> bool:
        """Mark dead records and free their pages. The mark lasts before the pages go."""
        some = list(islice(rest, MOST_LOOKED_AT))
        dead = [one for one, alive in self._judged(segment.no, some) if not alive]
        with self._segments.opened(segment.no, write=True) as descriptor:
            for one in dead:
                mark_dead(descriptor, one)
            if dead and self._sync:
                os.fdatasync(descriptor)
            for one in dead:
                punch(descriptor, one.body_at, one.at + one.size - 4)
        if some:
            return False
        self._index.tidied(segment.no, segment.untidy)
        return True

    def _move(self, segment: Segment, rest: Iterator[Record]) -> bool:
        """Copy what is alive, and drop the segment when that was all."""
        some, size = [], 0
        for one in islice(rest, MOST_LOOKED_AT):
            some.append(one)
            size += one.size
            if size >= MOST_COPIED:
                break
        if some:
            self._copy(segment.no, some)
            return False
        self._index.drop(segment.no)
        if all(one.no != segment.no for one in self._index.segments()):
            self._segments.unlink(segment.no)
        else:  # it should not be: something alive was passed over
            self._index.tidied(segment.no, segment.untidy)
        return True

    def _copy(self, segment: int, some: list[Record]) -> None:
        with self._segments.opened(segment) as descriptor:
            alive = [
                (one.name, (os.pread(descriptor, one.size, one.at),))
                for one, alive in self._judged(segment, some)
                if alive and one.name
            ]
        if alive:
            self._appender.append(alive)

    def _judged(self, segment: int, some: list[Record]) -> Iterator[tuple[Record, bool]]:
        """Bodies among records, each with whether the index still leads to it."""
        bodies = [one for one in some if one.name]
        places = self._index.places([one.name for one in bodies if one.name])
        for one, place in zip(bodies, places, strict=True):
            yield one, place == Place(segment, one.at, one.size)


def _is_mostly_dead(segment: Segment) -> bool:
    return segment.live * 2 < segment.covered
