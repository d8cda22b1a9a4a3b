"""Segments: result bodies of one run that were put together, as one object or one file.

A segment holds bodies one after the other, then its index: a JSON array of [task id, claim number].
Its key says what is in it:

    jobs/<job>/runs/<run>/segments/<first index>-<last index>.<bodies>.<index offset>.<nonce>

The locator of a body in a segment ends with `#<offset>+<length>`. Nothing in a segment is ever
changed. A body in it that no row refers to stays until the run is deleted.

The nonce differs for every segment. After a crash of the database two workers may hold a task under
the same claim number; each then writes its own segment, and the row refers to one of them.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, groupby

import msgspec

from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.ports.bodies import Body, BodyName, Kept
from conveyor.ports.clock import Ids

JOBS = "jobs/"
SEGMENTS = "segments/"
LARGEST_SEGMENT = 32 * 1024 * 1024  # bytes of bodies
INDEX_DIGITS = 8  # the index of a task, with which its id begins
NONCE = 10  # characters, the random ones of a ULID
NAME = re.compile(
    r"(?P<first>[0-9a-f]{8})-(?P<last>[0-9a-f]{8})\.(?P<count>\d+)\.(?P<index>\d+)\.[^.]+"
)

Span = tuple[int, int]  # offset and length
Index = list[tuple[str, int]]  # task id and claim number of each body, in the order of the bodies
INDEX = msgspec.json.Decoder(Index)


class SegmentKey(msgspec.Struct, frozen=True):
    """What the key of a segment says."""

    key: str
    first: str  # the index of its first task, in hex
    last: str
    count: int  # of bodies
    index: int  # where its index begins


class NewSegment(msgspec.Struct, frozen=True):
    """A segment to be written."""

    key: str
    bodies: Sequence[bytes]
    index: bytes

    @property
    def content(self) -> bytes:
        return b"".join([*self.bodies, self.index])

    def kept(self, scheme: str) -> list[Kept]:
        """Where each body is once the segment is written."""
        kept, offset = list[Kept](), 0
        for body in self.bodies:
            length, digest = len(body), hashlib.sha256(body).hexdigest()
            kept.append(Kept(f"{scheme}{self.key}#{offset}+{length}", length, digest))
            offset += length
        return kept


# Keys and locators.


def run_folder(job_id: JobId, run_id: RunId) -> str:
    return f"{JOBS}{job_id}/runs/{run_id}/"


def new_nonce(ids: Ids) -> str:
    return ids.new()[-NONCE:]


def segment_of(key: str) -> SegmentKey | None:
    """The segment under a key; None if something else is."""
    folder, _, name = key.rpartition("/")
    found = NAME.fullmatch(name) if folder.endswith(f"/{SEGMENTS[:-1]}") else None
    if found is None:
        return None
    return SegmentKey(key, found["first"], found["last"], int(found["count"]), int(found["index"]))


def located(locator: str, scheme: str) -> tuple[str, Span | None] | None:
    """The key of a locator, and the part of it if that is a segment.

    None for a locator of another engine: the setting `bodies` was changed.
    """
    if not locator.startswith(scheme):
        return None
    key, _, part = locator.removeprefix(scheme).partition("#")
    offset, _, length = part.partition("+")
    return key, (int(offset), int(length)) if part else None


# Writing and removing.


def grouped(bodies: Sequence[Body], *, packs: bool) -> Iterator[list[int]]:
    """The positions of bodies that share a segment, if `packs`; one alone needs none."""
    packed = defaultdict[tuple[JobId, RunId], list[int]](list)
    for n, body in enumerate(bodies):
        if packs and isinstance(body.content, bytes):
            packed[body.name.job_id, body.name.run_id].append(n)
        else:
            yield [n]
    for positions in packed.values():
        yield from _split(positions, bodies)


def _split(positions: Iterable[int], bodies: Sequence[Body]) -> Iterator[list[int]]:
    """The positions of bodies in groups, none larger than a segment may be."""
    group, size = list[int](), 0
    for n in positions:
        content = bodies[n].content
        own = len(content) if isinstance(content, bytes) else content.length
        if group and size + own > LARGEST_SEGMENT:
            yield group
            group, size = [], 0
        group.append(n)
        size += own
    yield group


def ungrouped(groups: Iterable[list[int]], kept: Iterable[Sequence[Kept]]) -> list[Kept]:
    """What was stored in groups, in the order in which it was given."""
    places = dict(zip(chain.from_iterable(groups), chain.from_iterable(kept), strict=True))
    return [places[n] for n in range(len(places))]


def new_segment(bodies: Sequence[Body], ids: Ids) -> NewSegment:
    """Pack bodies of one run."""
    names = [body.name for body in bodies]
    contents = [body.content for body in bodies if isinstance(body.content, bytes)]
    indexes = sorted(name.task_id[:INDEX_DIGITS] for name in names)
    end = sum(map(len, contents))
    name = f"{indexes[0]}-{indexes[-1]}.{len(names)}.{end}.{new_nonce(ids)}"
    key = f"{run_folder(names[0].job_id, names[0].run_id)}{SEGMENTS}{name}"
    index = msgspec.json.encode([(name.task_id, name.claim_no) for name in names])
    return NewSegment(key, contents, index)


def removable(keys: Iterable[str]) -> list[str]:
    """Those, of the keys of removed bodies, that hold no other body."""
    return [
        key
        for key, same in groupby(sorted(keys))
        if (segment := segment_of(key)) is None or segment.count == len(list(same))
    ]


# Listing.


def names_in(job_id: JobId, run_id: RunId, index: bytes) -> list[BodyName]:
    """The bodies that the index of a segment lists."""
    return [
        BodyName(job_id, run_id, TaskId(task_id), claim_no)
        for task_id, claim_no in INDEX.decode(index)
    ]


def segments_above(found: Iterable[SegmentKey], after: tuple[str, int]) -> list[SegmentKey]:
    """Segments that may hold names above `after`, in order of their first task."""
    above = [segment for segment in found if segment.last >= after[0][:INDEX_DIGITS]]
    return sorted(above, key=lambda segment: segment.first)


def is_full(names: Collection[BodyName], segment: SegmentKey, *, limit: int) -> bool:
    """Whether this segment, and all that follow, begin above what a page has room for."""
    return sum(name.task_id[:INDEX_DIGITS] < segment.first for name in names) >= limit


def page_of(names: Iterable[BodyName], *, limit: int, after: tuple[str, int]) -> list[BodyName]:
    above = {name for name in names if (name.task_id, name.claim_no) > after}
    return sorted(above, key=lambda name: (name.task_id, name.claim_no))[:limit]
