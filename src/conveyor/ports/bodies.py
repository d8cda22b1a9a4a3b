"""Result bodies: stored many at a time, read as streams."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from conveyor.domain.ids import JobId, RunId, TaskId


class BodyName(msgspec.Struct, frozen=True, gc=False):
    """The name of a body. It includes the claim number, so that a worker that lost its lease cannot
    overwrite the body of the next claim.
    """

    job_id: JobId
    run_id: RunId
    task_id: TaskId
    claim_no: int


class Spool(Protocol):
    """A body that is too large for memory and is being written. Discarding it after a put does nothing."""

    @property
    def length(self) -> int: ...

    @property
    def checksum(self) -> str:
        """SHA-256 in hex of what has been written."""
        ...

    async def write(self, chunk: bytes) -> None: ...

    async def discard(self) -> None: ...


class Body(msgspec.Struct, frozen=True, gc=False):
    name: BodyName
    content: bytes | Spool


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A stored body: its place, and its length and SHA-256 (hex) to verify it."""

    locator: str
    length: int
    checksum: str


class Bodies(Protocol):
    """Raises `Unavailable`, and `StorageFull` when there is no room."""

    def spool(self) -> Spool:
        """Open a spool for one large body; `put_many` takes it over."""
        ...

    async def put_many(self, bodies: Sequence[Body]) -> Sequence[Kept]:
        """Store the bodies, as durably as the engine was opened for, and return where they are.

        A locator is opaque, and stays valid when the way bodies are stored changes.
        """
        ...

    def read(self, locator: str) -> AsyncIterator[bytes]:
        """Stream a body; `NotFound` when it is gone."""
        ...

    async def load_many(self, locators: Sequence[str]) -> Sequence[bytes | None]:
        """Read whole bodies in the given order; None for one that is gone.

        All of them are in memory at once: for bodies that are known to be small.
        """
        ...

    async def discard(self, names: Sequence[BodyName]) -> int:
        """Remove bodies of claims that never settled; return how many there were."""
        ...

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[tuple[JobId, RunId]]:
        """List runs that have bodies in order of job id and run id, from above `after`, which is
        `"<job>/<run>"`.
        """
        ...

    async def names(
        self, job_id: JobId, run_id: RunId, *, limit: int, after: tuple[str, int] = ("", -1)
    ) -> Sequence[BodyName]:
        """List the bodies of a run in order of (task id, claim number), from above `after`.

        A foreign file among them is listed too, by its own name and claim 0.
        """
        ...

    async def delete_run(self, job_id: JobId, run_id: RunId, *, limit: int) -> int:
        """Remove up to `limit` bodies of a run; return how many were found.

        Fewer than `limit` means that none are left, even when another process removes them too.
        """
        ...
