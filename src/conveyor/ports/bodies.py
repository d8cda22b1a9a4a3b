"""Result bodies: the pages that tasks fetched, stored many at a time and read as streams."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from conveyor.domain.ids import JobId, RunId, TaskId


class BodyName(msgspec.Struct, frozen=True, gc=False):
    """The name of a body.

    It includes the claim number, so that a worker that lost its lease cannot overwrite the body
    that the next claim stored. A failover of the database may give a number to two workers, so a
    store that processes share keeps what each of them put under one name.
    """

    job_id: JobId
    run_id: RunId
    task_id: TaskId
    claim_no: int


class Spool(Protocol):
    """A body that is too large for memory, while it arrives.

    It belongs to the coroutine that opened it, until `Bodies.put_many` takes it over or `discard`
    removes it. `write` raises `Unavailable` or `StorageFull`.
    """

    @property
    def length(self) -> int:
        """Bytes written so far."""
        ...

    @property
    def checksum(self) -> str:
        """SHA-256 in hex of the bytes written so far."""
        ...

    async def write(self, chunk: bytes) -> None:
        """Append a chunk. It need not be durable before `put_many`."""
        ...

    async def discard(self) -> None:
        """Remove the spool. After a put, or when repeated, this does nothing."""
        ...


class Body(msgspec.Struct, frozen=True, gc=False):
    """A body to store: in memory, or in a spool."""

    name: BodyName
    content: bytes | Spool


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A stored body: where it is, and its length and SHA-256 in hex, which verify it."""

    locator: str
    length: int
    checksum: str


class Bodies(Protocol):
    """Every method that waits raises `Unavailable`; `put_many` also raises `StorageFull`.

    Bodies are stored before the rows that refer to them. So a body may exist that no row refers
    to, but no row may refer to a body that was never stored. The next start or the sweeper removes
    the former by name.

    An engine may keep several bodies of one run in one object. A body in it that no row refers to
    then stays until all of them are removed, or the run is deleted.
    """

    @property
    def is_swept(self) -> bool:
        """Whether the sweeper may list the bodies of all runs again and again.

        False where listings are billed, where the bodies may belong to another service, and where
        one without a row may be in an object with others, so that it is no fault. Bodies are then
        removed only by claim, by locator and by run.
        """
        ...

    def spool(self) -> Spool:
        """Open a spool for one large body."""
        ...

    async def put_many(self, bodies: Sequence[Body]) -> Sequence[Kept]:
        """Store bodies and return where each is, in the given order.

        When the call returns, they are as durable as the engine was opened for. When it raises, it
        has removed those that it stored, as far as it could; the call may be repeated. A locator is
        opaque to all other code. It must stay valid for as long as the body exists, also when a
        later version stores bodies in another way.
        """
        ...

    def read(self, locator: str) -> AsyncIterator[bytes]:
        """Stream a body in chunks of bounded size; `NotFound` when it does not exist."""
        ...

    async def load_many(self, locators: Sequence[str]) -> Sequence[bytes | None]:
        """Read whole bodies in the given order, with None for each that does not exist.

        All of them are in memory at once, so the caller must know that they are small.
        """
        ...

    async def discard(self, names: Sequence[BodyName]) -> int:
        """Remove bodies of claims that never settled, and return about how many existed."""
        ...

    async def remove(self, locators: Sequence[str]) -> None:
        """Remove bodies that `put_many` stored and no row will refer to.

        Unlike `discard`, this leaves alone what another process stored under the same name.
        """
        ...

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[tuple[JobId, RunId]]:
        """List at most `limit` runs that have bodies, in order of job id and run id.

        The list begins above `after`, which has the form `"<job>/<run>"`.
        """
        ...

    async def names(
        self, job_id: JobId, run_id: RunId, *, limit: int, after: tuple[str, int] = ("", -1)
    ) -> Sequence[BodyName]:
        """List at most `limit` bodies of a run in order of (task id, claim number), above `after`.

        A file that is not a body is listed too, with its file name as task id and claim number 0,
        so that the doctor can report it.
        """
        ...

    async def delete_run(self, job_id: JobId, run_id: RunId, *, limit: int) -> int:
        """Remove about `limit` bodies of a run, and return about how many were found.

        0 means that none are left, also while another process removes bodies of the same run.
        """
        ...

    def sign_get(
        self, locator: str, *, life: timedelta, content_type: str, filename: str | None = None
    ) -> str | None:
        """Sign a URL by which a client downloads a body without this service.

        With `filename`, browsers save it under that name. None where the engine cannot, or where
        the URL would end before `life` because the credentials that sign it do.
        """
        ...
