"""Result bodies as one file each, under `jobs/<job>/runs/<run>/`."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile

from conveyor.adapters.files.disk import (
    CHUNK,
    ENGINE,
    IsAbandoned,
    below,
    in_folder,
    read_whole,
    reading,
    remove_empty,
    remove_unfinished,
    unfinished_prefix,
    write_new,
)
from conveyor.adapters.shared.disk import own_errors, sync_folder, to_the_end, write_all
from conveyor.adapters.shared.folder_lock import removing
from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.errors import Unavailable
from conveyor.ports.bodies import Body, BodyName, Kept, Spool

SCHEME = "file:"
SMALL_GROUP = 1024 * 1024  # bytes that are written in the thread of the event loop


class FileSpool:
    """A large body on disk, hashed as it is written."""

    def __init__(self, folder: Path, owner: str = "") -> None:
        with own_errors(ENGINE):
            folder.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a buffer that did not fit on the disk would be written again by `close`.
            prefix = unfinished_prefix(owner)
            self._file = NamedTemporaryFile(  # noqa: SIM115 - outlives this call
                dir=folder, prefix=prefix, delete=False, buffering=0
            )
        self._digest = hashlib.sha256()
        self.length = 0

    @property
    def checksum(self) -> str:
        return self._digest.hexdigest()

    async def write(self, chunk: bytes) -> None:
        await to_the_end(self._write, chunk)

    async def discard(self) -> None:
        await asyncio.to_thread(self._discard)

    def move_to(self, path: Path, *, sync: bool) -> None:
        if sync:
            os.fdatasync(self._file.fileno())
        self._file.close()
        in_folder(path.parent, lambda: Path(self._file.name).rename(path), sync=sync)

    def _write(self, chunk: bytes) -> None:
        with own_errors(ENGINE):
            write_all(self._file.fileno(), chunk)
        self._digest.update(chunk)
        self.length += len(chunk)

    def _discard(self) -> None:
        self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


class FileBodies:
    """The name of a file contains task and claim, so no two claims ever write the same file."""

    def __init__(
        self, folder: Path, *, sync: bool = True, is_swept: bool = True, owner: str = ""
    ) -> None:
        self.is_swept = is_swept
        self._folder = folder
        self._owner = owner  # the process, for names of unfinished files
        self._sync = sync
        # One thread: several that create files in one folder contend for its lock in the kernel. With
        # four threads a file took nearly twice the CPU time, and no file was done earlier.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="bodies-write")

    def spool(self) -> Spool:
        return FileSpool(self._folder / "spool", self._owner)

    async def put_many(self, bodies: Sequence[Body]) -> Sequence[Kept]:
        if not self._sync and sum(map(_size, bodies)) <= SMALL_GROUP:
            # Writes to the page cache take less time than a switch to another thread, which would
            # wait for the interpreter lock after every system call.
            return self._put_all(bodies)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, self._put_all, bodies)

    async def read(self, locator: str) -> AsyncIterator[bytes]:
        with reading():
            file = await asyncio.to_thread(self._path(locator).open, "rb")
            try:
                while chunk := await asyncio.to_thread(file.read, CHUNK):
                    yield chunk
            finally:
                file.close()

    async def load_many(self, locators: Sequence[str]) -> Sequence[bytes | None]:
        return await asyncio.to_thread(self._load_all, locators)

    async def discard(self, names: Sequence[BodyName]) -> int:
        return await asyncio.to_thread(self._discard, names)

    async def remove(self, locators: Sequence[str]) -> None:
        await asyncio.to_thread(self._remove, [self._path(locator) for locator in locators])

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[tuple[JobId, RunId]]:
        return await asyncio.to_thread(self._runs_held, limit, after)

    async def names(
        self, job_id: JobId, run_id: RunId, *, limit: int, after: tuple[str, int] = ("", -1)
    ) -> Sequence[BodyName]:
        return await asyncio.to_thread(self._names, job_id, run_id, limit, after)

    async def delete_run(self, job_id: JobId, run_id: RunId, *, limit: int) -> int:
        return await asyncio.to_thread(self._delete_run, _run_folder(job_id, run_id), limit)

    def sign_get(self, *_: object, **__: object) -> None:
        return None

    def sweep_spool(self, is_abandoned: IsAbandoned | None = None) -> None:
        """Remove spools that are abandoned; all of them if no other process is alive."""
        for left in (self._folder / "spool").glob("*"):
            remove_unfinished(left, left.name, is_abandoned)

    def _put_all(self, bodies: Sequence[Body]) -> list[Kept]:
        try:
            with own_errors(ENGINE):
                kept = [self._put(body) for body in bodies]
                if self._sync:
                    for folder in {self._path(one.locator).parent for one in kept}:
                        sync_folder(folder)
                return kept
        except Unavailable:
            with suppress(Unavailable):
                self._discard([body.name for body in bodies])
            raise

    def _put(self, body: Body) -> Kept:
        """Write a body under its final name: no row refers to it before its claim is settled."""
        name = _file_name(body.name)
        path = str(below(self._folder, name))
        match body.content:
            case bytes(content):
                write_new(path, content, sync=self._sync)
                digest = hashlib.sha256(content).hexdigest()
                return Kept(SCHEME + name, len(content), digest)
            case FileSpool() as spool:
                spool.move_to(Path(path), sync=self._sync)
                return Kept(SCHEME + name, spool.length, spool.checksum)
            case other:
                raise TypeError(f"not a body of this store: {other!r}")

    def _load_all(self, locators: Sequence[str]) -> list[bytes | None]:
        with own_errors(ENGINE):
            return [read_whole(self._path(locator)) for locator in locators]

    def _runs_held(self, limit: int, after: str) -> list[tuple[JobId, RunId]]:
        last_job = after.partition("/")[0]
        held = (
            (JobId(job.name), RunId(run.name))
            for job in _entries(self._folder / "jobs")
            if job.name >= last_job
            for run in _entries(Path(job.path) / "runs")
        )
        return list(islice((one for one in held if "/".join(one) > after), limit))

    def _names(
        self, job_id: JobId, run_id: RunId, limit: int, after: tuple[str, int]
    ) -> list[BodyName]:
        parts = _entries(below(self._folder, _run_folder(job_id, run_id)))
        found = (
            BodyName(job_id, run_id, task_id, claim_no)
            for part in parts
            if part.name >= after[0][: len(part.name)]
            for task_id, claim_no in sorted(_claim_of(one) for one in _entries(Path(part.path)))
            if (task_id, claim_no) > after
        )
        with own_errors(ENGINE):
            return list(islice(found, limit))

    def _delete_run(self, folder: str, limit: int) -> int:
        parts = _entries(below(self._folder, folder))
        paths = (Path(entry.path) for part in parts for entry in _entries(Path(part.path)))
        with own_errors(ENGINE):
            found = list(islice(paths, limit))
        self._remove(found)
        if not found:  # a process may have died between the last body and the folders
            run = below(self._folder, folder)
            for hollow in [run, *(Path(entry.path) for entry in [*_entries(run)])]:
                remove_empty(hollow, up_to=self._folder / "jobs")
        return len(found)

    def _remove(self, paths: Sequence[Path]) -> None:
        """Delete bodies that rows may refer to."""
        if paths:
            with own_errors(ENGINE), removing(self._folder, locks=self.is_swept):
                self._delete(paths)

    def _discard(self, names: Sequence[BodyName]) -> int:
        return self._delete([below(self._folder, _file_name(name)) for name in names])

    def _delete(self, paths: Iterable[Path]) -> int:
        removed = 0
        with own_errors(ENGINE):
            for path in paths:
                removed += path.exists()
                path.unlink(missing_ok=True)
                remove_empty(path.parent, up_to=self._folder / "jobs")
        return removed

    def _path(self, locator: str) -> Path:
        return below(self._folder, locator.removeprefix(SCHEME))


def _size(body: Body) -> int:
    """The bytes to write for a body: a spool is on disk already, and only renamed."""
    return len(body.content) if isinstance(body.content, bytes) else 0


def _run_folder(job_id: JobId, run_id: RunId) -> str:
    return f"jobs/{job_id}/runs/{run_id}"


def _file_name(name: BodyName) -> str:
    """The path of a body. Each folder has up to 4,096 tasks, so that it can be listed at once."""
    part = name.task_id[:5]
    return f"{_run_folder(name.job_id, name.run_id)}/{part}/{name.task_id}.{name.claim_no}"


def _claim_of(file: os.DirEntry[str]) -> tuple[TaskId, int]:
    task_id, _, claim_no = file.name.rpartition(".")
    return (TaskId(task_id), int(claim_no)) if claim_no.isdecimal() else (TaskId(file.name), 0)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
