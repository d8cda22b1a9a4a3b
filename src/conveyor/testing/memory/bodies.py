"""Result bodies in memory."""

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import count

from conveyor.domain.ids import JobId, RunId
from conveyor.errors import NotFound
from conveyor.ports.bodies import Body, BodyName, Kept, Spool

CHUNK = 64 * 1024


class MemorySpool:
    """A spool in memory, for tests with small pages."""

    def __init__(self) -> None:
        self._content = bytearray()

    @property
    def length(self) -> int:
        return len(self._content)

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self._content).hexdigest()

    async def write(self, chunk: bytes) -> None:
        self._content += chunk

    async def discard(self) -> None:
        self._content = bytearray()

    def whole(self) -> bytes:
        return bytes(self._content)


class MemoryBodies:
    is_swept = True

    def __init__(self) -> None:
        self._kept: dict[str, tuple[BodyName, bytes]] = {}
        self._numbers = count(1)  # of puts, each of which has its own locator

    def spool(self) -> MemorySpool:
        return MemorySpool()

    def damage(self, locator: str, content: bytes) -> None:
        """Change a stored body, as a fault of the disk might."""
        self._kept[locator] = (self._kept[locator][0], content)

    async def put_many(self, bodies: Sequence[Body]) -> Sequence[Kept]:
        return [self._keep(body.name, _whole(body.content)) for body in bodies]

    async def read(self, locator: str) -> AsyncIterator[bytes]:
        if locator not in self._kept:
            raise NotFound(f"no body at {locator}")
        _, content = self._kept[locator]
        for start in range(0, len(content), CHUNK):
            yield content[start : start + CHUNK]

    async def load_many(self, locators: Sequence[str]) -> Sequence[bytes | None]:
        found = (self._kept.get(locator) for locator in locators)
        return [kept and kept[1] for kept in found]

    async def discard(self, names: Sequence[BodyName]) -> int:
        wanted = set(names)
        return self._remove([at for at, (name, _) in self._kept.items() if name in wanted])

    async def remove(self, locators: Sequence[str]) -> None:
        self._remove(locators)

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[tuple[JobId, RunId]]:
        held = {(name.job_id, name.run_id) for name, _ in self._kept.values()}
        return sorted(one for one in held if "/".join(one) > after)[:limit]

    async def names(
        self, job_id: JobId, run_id: RunId, *, limit: int, after: tuple[str, int] = ("", -1)
    ) -> Sequence[BodyName]:
        of_run = {
            name
            for name, _ in self._kept.values()
            if (name.job_id, name.run_id) == (job_id, run_id)
        }
        rest = (name for name in of_run if (name.task_id, name.claim_no) > after)
        return sorted(rest, key=lambda name: (name.task_id, name.claim_no))[:limit]

    async def delete_run(self, job_id: JobId, run_id: RunId, *, limit: int) -> int:
        of_run = [
            locator
            for locator, (name, _) in self._kept.items()
            if (name.job_id, name.run_id) == (job_id, run_id)
        ]
        return self._remove(of_run[:limit])

    def sign_get(self, *_: object, **__: object) -> None:
        return None

    def _keep(self, name: BodyName, content: bytes) -> Kept:
        locator = (
            f"{name.job_id}/{name.run_id}/{name.task_id}/{name.claim_no}/{next(self._numbers)}"
        )
        self._kept[locator] = (name, content)
        return Kept(locator, len(content), hashlib.sha256(content).hexdigest())

    def _remove(self, locators: Iterable[str]) -> int:
        return sum(self._kept.pop(locator, None) is not None for locator in locators)


def _whole(content: bytes | Spool) -> bytes:
    if isinstance(content, bytes):
        return content
    if isinstance(content, MemorySpool):
        return content.whole()
    raise TypeError(f"a spool must be made by the store that keeps it, got {content!r}")
