"""Result bodies in segments, beside an engine that stores each as a file.

Pages that fit into memory go into segments. Larger ones come through a spool and are files already
when they are put. They stay files: copying them would write everything twice.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from heapq import merge

from conveyor.adapters.segments.records import named
from conveyor.adapters.segments.store import SegmentStore
from conveyor.domain.ids import JobId, RunId
from conveyor.errors import NotFound, Unavailable
from conveyor.ports.bodies import Bodies, Body, BodyName, Kept, Spool

SCHEME = "pack:"  # stored in rows since 0.1.0
CHUNK = 256 * 1024


class SegmentBodies:
    """Reads, lists and removes bodies of both engines; `packing` selects where small ones are put."""

    def __init__(self, store: SegmentStore, singles: Bodies, *, packing: bool = True) -> None:
        self.is_swept = singles.is_swept
        self._store = store
        self._singles = singles
        self._packing = packing

    def spool(self) -> Spool:
        return self._singles.spool()

    async def put_many(self, bodies: Sequence[Body]) -> Sequence[Kept]:
        if not self._packing:
            return await self._singles.put_many(bodies)
        small = [(body.name, body.content) for body in bodies if isinstance(body.content, bytes)]
        large = [body for body in bodies if not isinstance(body.content, bytes)]
        try:
            packed = iter(await self._store.put(small) if small else ())
            single = iter(await self._singles.put_many(large) if large else ())
        except Unavailable:
            with suppress(Unavailable):
                await self._store.remove([name for name, _ in small])
            raise
        return [next(packed if isinstance(body.content, bytes) else single) for body in bodies]

    async def read(self, locator: str) -> AsyncIterator[bytes]:
        if not locator.startswith(SCHEME):
            async for chunk in self._singles.read(locator):
                yield chunk
            return
        [content] = await self._store.load([_name(locator)])
        if content is None:
            raise NotFound("The object is gone")
        for start in range(0, len(content), CHUNK):
            yield content[start : start + CHUNK]

    async def load_many(self, locators: Sequence[str]) -> Sequence[bytes | None]:
        packed = [_name(one) for one in locators if one.startswith(SCHEME)]
        others = [one for one in locators if not one.startswith(SCHEME)]
        mine = iter(await self._store.load(packed) if packed else ())
        theirs = iter(await self._singles.load_many(others) if others else ())
        return [next(mine if one.startswith(SCHEME) else theirs) for one in locators]

    async def discard(self, names: Sequence[BodyName]) -> int:
        return await self._store.remove(names) + await self._singles.discard(names)

    async def remove(self, locators: Sequence[str]) -> None:
        await self._store.remove([_name(one) for one in locators if one.startswith(SCHEME)])
        await self._singles.remove([one for one in locators if not one.startswith(SCHEME)])

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[tuple[JobId, RunId]]:
        packed = await self._store.runs(limit=limit, after=after)
        single = await self._singles.runs_held(limit=limit, after=after)
        return sorted({*packed, *single})[:limit]

    async def names(
        self, job_id: JobId, run_id: RunId, *, limit: int, after: tuple[str, int] = ("", -1)
    ) -> Sequence[BodyName]:
        packed = await self._store.names(job_id, run_id, after=after, limit=limit)
        single = await self._singles.names(job_id, run_id, limit=limit, after=after)
        both = merge(packed, single, key=lambda name: (name.task_id, name.claim_no))
        return list(dict.fromkeys(both))[:limit]

    async def delete_run(self, job_id: JobId, run_id: RunId, *, limit: int) -> int:
        removed = await self._store.remove_run(job_id, run_id, limit=limit)
        if removed == limit:
            return removed
        return removed + await self._singles.delete_run(job_id, run_id, limit=limit - removed)

    def sign_get(self, *_: object, **__: object) -> None:
        return None


def _name(locator: str) -> BodyName:
    return named(locator.removeprefix(SCHEME))
