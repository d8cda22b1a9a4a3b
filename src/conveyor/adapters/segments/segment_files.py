"""The files of segments, and their comparison with the index when the store opens."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from conveyor.adapters.segments.index import Index, Place
from conveyor.adapters.segments.records import Record, first_record, is_sound, records
from conveyor.adapters.shared.disk import PRIVATE, sync_folder

SUFFIX = ".warc"
LEARN_RECORDS = 5_000


class SegmentFiles:
    """The numbered files of a folder. No number is used twice."""

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self.folder = folder
        self._sync = sync

    def path(self, segment: int) -> Path:
        return self.folder / f"{segment:08}{SUFFIX}"

    def numbers(self) -> list[int]:
        found = self.folder.glob(f"*{SUFFIX}") if self.folder.exists() else ()
        return sorted(int(path.stem) for path in found if path.stem.isdecimal())

    def create(self, segment: int, date: bytes) -> tuple[int, int]:
        """A new segment, open for writing, and its length."""
        content = first_record(segment, date)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(self.path(segment), flags, PRIVATE)
        try:
            os.pwrite(descriptor, content, 0)
            if self._sync:
                os.fdatasync(descriptor)
                sync_folder(self.folder)
        except OSError:
            os.close(descriptor)
            self.path(segment).unlink(missing_ok=True)
            raise
        return descriptor, len(content)

    def open(self, segment: int, *, write: bool = False) -> int:
        mode = os.O_RDWR if write else os.O_RDONLY
        return os.open(self.path(segment), mode | os.O_CLOEXEC)

    @contextmanager
    def opened(self, segment: int, *, write: bool = False) -> Iterator[int]:
        descriptor = self.open(segment, write=write)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def unlink(self, segment: int) -> None:
        self.path(segment).unlink(missing_ok=True)

    def records(self, segment: int, *, start: int = 0, end: int | None = None) -> Iterator[Record]:
        """Whole records of a segment, up to the first that is not whole."""
        with self.opened(segment) as descriptor:
            size = os.fstat(descriptor).st_size
            yield from records(descriptor, start, size if end is None else min(end, size))


def learn(segments: SegmentFiles, index: Index) -> int:
    """Enter in the index what the segments hold beyond what it covers.

    Returns where the last segment ends: what follows was being written when the process died.
    """
    known = {one.no: one.covered for one in index.segments()}
    newest = max(known, default=0)
    end = 0
    for number in segments.numbers():
        # Older segments are covered: a segment is begun after all entries of the one before.
        if number >= newest:
            end = _learn_one(segments, index, number, known.get(number, 0))
    return end


def unlink_emptied(segments: SegmentFiles, index: Index) -> None:
    """Unlink segments that were emptied but not unlinked before the process died."""
    known = {one.no for one in index.segments()}
    newest = max(known, default=0)
    for number in segments.numbers():
        if number < newest and number not in known:
            segments.unlink(number)


def cut(segments: SegmentFiles, segment: int, end: int, *, sync: bool) -> None:
    """Truncate a torn tail."""
    with segments.opened(segment, write=True) as descriptor:
        if os.fstat(descriptor).st_size > end:
            os.ftruncate(descriptor, end)
            if sync:
                os.fsync(descriptor)


def _learn_one(segments: SegmentFiles, index: Index, segment: int, covered: int) -> int:
    length = segments.path(segment).stat().st_size
    if length < covered:  # a power cut took what was not synced
        covered = 0
        for record in segments.records(segment):
            covered = record.at + record.size
        index.forget_beyond(segment, covered)
    found = segments.records(segment, start=covered)
    with segments.opened(segment) as descriptor:
        while some := list(islice(found, LEARN_RECORDS)):
            covered = some[-1].at + some[-1].size
            # A torn record may be the copy of a sound one, and must not replace it in the index.
            bodies = [one for one in some if one.name]
            sound = [one for one in bodies if one.is_resource and is_sound(descriptor, one)]
            unerased = sum(one.size for one in bodies) - sum(one.size for one in sound)
            entries = [(one.name, Place(segment, one.at, one.size)) for one in sound if one.name]
            index.add(entries, segment=segment, covered=covered, unerased=unerased)
    return covered
