"""Result bodies in S3: each as an object, or those of a run that are put together as a segment.

The key of an object ends with a nonce. After a crash of the database two workers may hold a task
under the same claim number; each then writes its own object, and the row refers to one of them.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from typing import TypeVar

from conveyor.adapters.s3.address import Layout
from conveyor.adapters.s3.body_keys import LAST, SCHEME, body_of, body_prefix, run_of
from conveyor.adapters.s3.bucket import AT_ONCE, PAGE, S3Bucket
from conveyor.adapters.s3.spool import LocalSpool
from conveyor.adapters.shared.body_segments import (
    JOBS,
    SEGMENTS,
    SegmentKey,
    Span,
    grouped,
    is_full,
    located,
    names_in,
    new_nonce,
    new_segment,
    page_of,
    removable,
    run_folder,
    segment_of,
    segments_above,
    ungrouped,
)
from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.errors import NotFound, Unavailable
from conveyor.ports.bodies import Body, BodyName, Kept, Spool
from conveyor.ports.clock import Ids

CLEANING = 10.0  # seconds, after a failed put
MOST_UPLOADS = 4  # of spooled bodies at once: each holds some 40 MB of parts in memory

T = TypeVar("T")


class S3Bodies:
    """Reads, lists and removes both kinds; `layout` selects where small bodies are put."""

    is_swept = False

    def __init__(self, bucket: S3Bucket, ids: Ids, *, layout: Layout = Layout.OBJECTS) -> None:
        self._bucket = bucket
        self._ids = ids
        self._layout = layout
        self._uploads = asyncio.Semaphore(MOST_UPLOADS)

    def spool(self) -> Spool:
        return LocalSpool()

    async def put_many(self, bodies: Sequence[Body]) -> Sequence[Kept]:
        packs = self._layout is Layout.SEGMENTS
        groups, keys = list(grouped(bodies, packs=packs)), list[str]()
        written = await _all(self._put_group([bodies[n] for n in group], keys) for group in groups)
        if any(isinstance(done, Unavailable) for done in written):
            # Also those whose put failed: after a timeout the object may be there.
            with suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(CLEANING):
                    await self._bucket.delete(keys)
        return ungrouped(groups, _or_raise(written))

    async def read(self, locator: str) -> AsyncIterator[bytes]:
        place = located(locator, SCHEME)
        if place is None:
            raise NotFound("The object is gone")
        key, span = place
        if span is None:
            async for chunk in self._bucket.read(key):
                yield chunk
        elif span[1]:
            [content] = await self._bucket.load_spans(key, [span])
            yield content
        elif await self._bucket.length(key) is None:
            raise NotFound("The object is gone")

    async def load_many(self, locators: Sequence[str]) -> Sequence[bytes | None]:
        places = [located(locator, SCHEME) for locator in locators]
        spans = defaultdict[str, list[Span]](list)
        for key, span in filter(None, places):
            spans[key] += [span] if span else []
        loaded = _or_raise(await _all(self._load(key, spans[key]) for key in spans))
        found = dict(chain.from_iterable(parts.items() for parts in loaded))
        return [found.get(place) if place else None for place in places]

    async def discard(self, names: Sequence[BodyName]) -> int:
        listed = await _all(self._bucket.keys(body_prefix(name), limit=PAGE) for name in names)
        found = list(chain.from_iterable(_or_raise(listed)))
        await self._bucket.delete(found)
        return len(found)

    async def remove(self, locators: Sequence[str]) -> None:
        places = [located(locator, SCHEME) for locator in locators]
        await self._bucket.delete(removable(key for key, _ in filter(None, places)))

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[tuple[JobId, RunId]]:
        """A listing of all keys, of which each run takes at least one call."""
        job_id, _, run_id = after.partition("/")
        position = run_folder(JobId(job_id), RunId(run_id)) + LAST if after else ""
        found = list[tuple[JobId, RunId]]()
        while len(found) < limit and (
            keys := await self._bucket.keys(JOBS, limit=PAGE, after=position)
        ):
            found += dict.fromkeys(filter(None, map(run_of, keys)))
            last = run_of(keys[-1])
            position = run_folder(*last) + LAST if last else keys[-1]
        return found[:limit]

    async def names(
        self, job_id: JobId, run_id: RunId, *, limit: int, after: tuple[str, int] = ("", -1)
    ) -> Sequence[BodyName]:
        """A listing of the run's segments, and of as many objects as are asked for.

        Indexes are read for the segments that may hold names of this page.
        """
        names = set(await self._object_names(job_id, run_id, limit=limit, after=after))
        segments = segments_above(await self._segments(job_id, run_id), after)
        for start in range(0, len(segments), AT_ONCE):
            batch = segments[start : start + AT_ONCE]
            if is_full(names, batch[0], limit=limit):
                break
            indexed = _or_raise(
                await _all(self._names_in(job_id, run_id, segment) for segment in batch)
            )
            names.update(page_of(chain.from_iterable(indexed), limit=limit, after=after))
        return page_of(names, limit=limit, after=after)

    async def delete_run(self, job_id: JobId, run_id: RunId, *, limit: int) -> int:
        keys = await self._bucket.keys(run_folder(job_id, run_id), limit=limit)
        await self._bucket.delete(keys)
        segments = map(segment_of, keys)
        return sum(segment.count if segment else 1 for segment in segments)

    def sign_get(
        self, locator: str, *, life: timedelta, content_type: str, filename: str | None = None
    ) -> str | None:
        place = located(locator, SCHEME)
        if place is None or place[1]:
            return None
        return self._bucket.signed_get(
            place[0], life=life, content_type=content_type, filename=filename
        )

    # Writing.

    async def _put_group(self, bodies: Sequence[Body], keys: list[str]) -> list[Kept]:
        """Store bodies as one object, and add its key to `keys` before it is stored."""
        if len(bodies) == 1:
            return [await self._put_object(bodies[0], keys)]
        return await self._put_segment(bodies, keys)

    async def _put_object(self, body: Body, keys: list[str]) -> Kept:
        key = body_prefix(body.name) + new_nonce(self._ids)
        keys.append(key)
        match body.content:
            case bytes(content):
                await self._bucket.put(key, content)
                return Kept(SCHEME + key, len(content), hashlib.sha256(content).hexdigest())
            case LocalSpool() as spool:
                async with self._uploads:
                    await self._bucket.upload(key, spool.chunks())
                await spool.discard()
                return Kept(SCHEME + key, spool.length, spool.checksum)
            case other:
                raise TypeError(f"not a body of this store: {other!r}")

    async def _put_segment(self, bodies: Sequence[Body], keys: list[str]) -> list[Kept]:
        segment = new_segment(bodies, self._ids)
        keys.append(segment.key)
        await self._bucket.put(segment.key, segment.content)
        return segment.kept(SCHEME)

    # Reading.

    async def _load(
        self, key: str, spans: Sequence[Span]
    ) -> dict[tuple[str, Span | None], bytes | None]:
        """The bodies of one object: those at the spans of a segment, or its whole content."""
        if not spans:
            return {(key, None): await self._bucket.load(key)}
        filled = [span for span in dict.fromkeys(spans) if span[1]]
        try:
            if filled:
                parts = await self._bucket.load_spans(key, filled)
            elif await self._bucket.length(key) is None:
                return {}
            else:
                parts = []
        except NotFound:
            return {}
        found = dict(zip(filled, parts, strict=True))
        return {(key, span): found.get(span, b"") for span in spans}

    async def _object_names(
        self, job_id: JobId, run_id: RunId, *, limit: int, after: tuple[str, int]
    ) -> list[BodyName]:
        """Names of bodies that are objects; one that was put twice has two objects."""
        folder = run_folder(job_id, run_id)
        found = dict[BodyName, None]()
        position = ""
        if after[0]:
            position = body_prefix(BodyName(job_id, run_id, TaskId(after[0]), after[1])) + LAST
        while len(found) < limit and (
            keys := await self._bucket.keys(folder, limit=min(limit, PAGE), after=position)
        ):
            bodies = [key for key in keys if not key.startswith(folder + SEGMENTS)]
            found |= dict.fromkeys(body_of(job_id, run_id, key) for key in bodies)
            # Segments lie between the bodies and what is none.
            position = keys[-1] if keys[-1] in bodies[-1:] else folder + SEGMENTS + LAST
        return list(found)[:limit]

    async def _segments(self, job_id: JobId, run_id: RunId) -> list[SegmentKey]:
        folder = run_folder(job_id, run_id) + SEGMENTS
        found, position = list[SegmentKey](), ""
        while keys := await self._bucket.keys(folder, limit=PAGE, after=position):
            found += filter(None, map(segment_of, keys))
            position = keys[-1]
        return found

    async def _names_in(self, job_id: JobId, run_id: RunId, segment: SegmentKey) -> list[BodyName]:
        """What its index lists; nothing if it was deleted meanwhile."""
        try:
            content = b"".join(
                [part async for part in self._bucket.read(segment.key, offset=segment.index)]
            )
        except NotFound:
            return []
        return names_in(job_id, run_id, content)


def _or_raise(results: Iterable[T | Unavailable]) -> list[T]:
    """The results of calls, unless one of them failed."""
    good = list[T]()
    for result in results:
        if isinstance(result, Unavailable):
            raise result
        good.append(result)
    return good


async def _all(calls: Iterable[Awaitable[T]]) -> list[T | Unavailable]:
    """Make calls side by side; those that fail give their error."""

    async def made(call: Awaitable[T]) -> T | Unavailable:
        try:
            return await call
        except Unavailable as error:
            return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(made(call)) for call in calls]
    return [task.result() for task in tasks]
