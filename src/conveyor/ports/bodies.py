"""Result bodies: many at a time in, streams out."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from conveyor.domain.ids import JobId, RunId, TaskId


class BodyName(msgspec.Struct, frozen=True, gc=False):
    """Whose body it is. The claim number is part of it: a worker that lost its lease
    can never overwrite the body of the claim that followed.
    """

    job_id: JobId
    run_id: RunId
    task_id: TaskId
    claim_no: int


class Spool(Protocol):
    """A body too large for memory, on its way in. Discarding after a put does nothing."""

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
    """A body that is stored: where, and how to know it whole (SHA-256 in hex)."""

    locator: str
    length: int
    checksum: str


class Bodies(Protocol):
    """Raises `Unavailable`, and `StorageFull` when there is no room."""

    def spool(self) -> Spool:
        """Room for one large body; the body given to `put_many` takes it over."""
        ...

    async def put_many(self, bodies: Sequence[Body]) -> Sequence[Kept]:
        """Keep the bodies, as durably as the engine was told to, and say where.

        A locator is opaque, and stays good when the way bodies are kept changes.
        """
        ...

    def read(self, locator: str) -> AsyncIterator[bytes]:
        """The body in chunks; `NotFound` when it is gone."""
        ...

    async def load_many(self, locators: Sequence[str]) -> Sequence[bytes | None]:
        """Whole bodies in the order asked for; None for one that is gone.

        They are all in memory at once: for those that are known to be small.
        """
        ...

    async def discard(self, names: Sequence[BodyName]) -> int:
        """Remove what bodies claims left that never settled, and say how many there were."""
        ...

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[tuple[JobId, RunId]]:
        """Runs that have bodies here, in order of run id within their job, job by job.

        From above `after`, which is a run's `"<job>/<run>"`.
        """
        ...

    async def names(
        self, job_id: JobId, run_id: RunId, *, limit: int, after: tuple[str, int] = ("", -1)
    ) -> Sequence[BodyName]:
        """Bodies of a run in order of task id and claim, from above `after`, which is both.

        What lies among them under no name of ours is listed too, by the name it has and claim 0.
        """
        ...

    async def delete_run(self, job_id: JobId, run_id: RunId, *, limit: int) -> int:
        """Remove up to `limit` bodies of a run, and say how many were found.

        Fewer than `limit` only when there are no more, though another removes them as well.
        """
        ...
