"""Result bodies as files: one for each, or one for those of a run that are put together, a segment.

    jobs/<job>/runs/<run>/<task id, 5 digits>/<task id>.<claim number>.<nonce>
    jobs/<job>/runs/<run>/segments/<name of the segment>

A locator is `file:` and the path. The nonce differs for every put. After a failover of the database
two workers may hold a task under the same claim number; each then writes its own file, and the row
refers to one of them. Files of earlier releases have no nonce. A segment gets its name when it is
whole, so one that a crash cut short lies in `spool/`, where the sweeper removes it.
"""

import asyncio
import hashlib
import os
import re
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from itertools import islice
from pathlib import Path

import msgspec

from conveyor.adapters.files.disk import (
    CHUNK,
    ENGINE,
    IsAbandoned,
    below,
    reading,
    remove_empty,
    remove_unfinished,
    write_new,
)
from conveyor.adapters.files.spool import FileSpool, UnfinishedFile
from conveyor.adapters.shared.body_segments import (
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
from conveyor.adapters.shared.disk import own_errors, sync_folder
from conveyor.adapters.shared.folder_lock import removing
from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.errors import NotFound, Unavailable
from conveyor.ports.bodies import Body, BodyName, Kept, Spool
from conveyor.ports.clock import Ids

SCHEME = "file:"
SMALL_GROUP = 1024 * 1024  # bytes that are written in the thread of the event loop
SEGMENTS_AT_ONCE = 3  # as many groups as a dispatcher settles at once
END = sys.maxsize  # the length of what reaches to the end of a file
WHOLE: Span = (0, END)
BODY = re.compile(r"(?P<task>[^.]+)\.(?P<claim>\d+)(\.[^.]+)?")


class FileBodies:
    """Reads, lists and removes both kinds; with `packs` small bodies are put into segments."""

    def __init__(
        self,
        folder: Path,
        ids: Ids,
        *,
        sync: bool = True,
        is_swept: bool = True,
        owner: str = "",
        packs: bool = False,
    ) -> None:
        # The bodies of a dead claim cannot be removed from a segment, so one without a row is no fault.
        self.is_swept = is_swept and not packs
        self._locks = is_swept
        self._folder = folder
        self._owner = owner  # the process, for names of unfinished files
        self._ids = ids
        self._packs = packs
        self._sync = sync
        # One thread for files: several that create files in one folder contend for its lock in the
        # kernel. With four threads a file took nearly twice the CPU time, and no file was done earlier.
        # A segment is few calls, most of its time a sync: side by side, their syncs share commits of
        # the file system.
        threads = SEGMENTS_AT_ONCE if packs else 1
        self._writer = ThreadPoolExecutor(threads, thread_name_prefix="bodies-write")

    def spool(self) -> Spool:
        return FileSpool(self._spools, self._owner)

    async def put_many(self, bodies: Sequence[Body]) -> Sequence[Kept]:
        if not self._sync and sum(map(_size, bodies)) <= SMALL_GROUP:
            # Writes to the page cache take less time than a switch to another thread, which would
            # wait for the interpreter lock after every system call.
            return self._put_all(bodies)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writer, self._put_all, bodies)

    async def read(self, locator: str) -> AsyncIterator[bytes]:
        place = located(locator, SCHEME)
        if place is None:
            raise NotFound("The object is gone")
        path, (offset, left) = below(self._folder, place[0]), place[1] or WHOLE
        with reading():
            file = await asyncio.to_thread(path.open, "rb")
            try:
                file.seek(offset)
                while chunk := await asyncio.to_thread(file.read, min(CHUNK, left)):
                    yield chunk
                    left -= len(chunk)
            finally:
                file.close()

    async def load_many(self, locators: Sequence[str]) -> Sequence[bytes | None]:
        return await asyncio.to_thread(self._load_all, locators)

    async def discard(self, names: Sequence[BodyName]) -> int:
        return await asyncio.to_thread(self._discard, names)

    async def remove(self, locators: Sequence[str]) -> None:
        places = filter(None, (located(locator, SCHEME) for locator in locators))
        paths = [below(self._folder, name) for name in removable(name for name, _ in places)]
        await asyncio.to_thread(self._remove, paths)

    async def runs_held(self, *, limit: int, after: str = "") -> Sequence[tuple[JobId, RunId]]:
        return await asyncio.to_thread(self._runs_held, limit, after)

    async def names(
        self, job_id: JobId, run_id: RunId, *, limit: int, after: tuple[str, int] = ("", -1)
    ) -> Sequence[BodyName]:
        return await asyncio.to_thread(self._names, job_id, run_id, limit, after)

    async def delete_run(self, job_id: JobId, run_id: RunId, *, limit: int) -> int:
        return await asyncio.to_thread(self._delete_run, run_folder(job_id, run_id), limit)

    def sign_get(self, *_: object, **__: object) -> None:
        return None

    def sweep_spool(self, is_abandoned: IsAbandoned | None = None) -> None:
        """Remove spools that are abandoned; all of them if no other process is alive."""
        for left in self._spools.glob("*"):
            remove_unfinished(left, left.name, is_abandoned)

    # Writing.

    @property
    def _spools(self) -> Path:
        return self._folder / "spool"

    def _put_all(self, bodies: Sequence[Body]) -> list[Kept]:
        groups = list(grouped(bodies, packs=self._packs))
        paths = list[Path]()
        try:
            with own_errors(ENGINE):
                kept = [self._put_group([bodies[n] for n in group], paths) for group in groups]
                if self._sync:
                    for folder in {path.parent for path in paths}:
                        sync_folder(folder)
        except Unavailable:
            with suppress(Unavailable):
                self._delete(paths)
            raise
        return ungrouped(groups, kept)

    def _put_group(self, bodies: Sequence[Body], paths: list[Path]) -> list[Kept]:
        """Store bodies as one file, and add its path to `paths` before it is written."""
        if len(bodies) > 1:
            return self._put_segment(bodies, paths)
        return [self._put(bodies[0], paths)]

    def _put_segment(self, bodies: Sequence[Body], paths: list[Path]) -> list[Kept]:
        segment = new_segment(bodies, self._ids)
        paths.append(below(self._folder, segment.key))
        draft = UnfinishedFile(self._spools, self._owner)
        try:
            draft.write(segment.content)
            draft.move_to(paths[-1], sync=self._sync)
        except OSError:
            draft.discard()
            raise
        return segment.kept(SCHEME)

    def _put(self, body: Body, paths: list[Path]) -> Kept:
        """Write a body under its final name: no row refers to it before its claim is settled."""
        task = f"{body.name.task_id}.{body.name.claim_no}"
        name = f"{_part_folder(body.name)}{task}.{new_nonce(self._ids)}"
        path = below(self._folder, name)
        paths.append(path)
        match body.content:
            case bytes(content):
                write_new(str(path), content, sync=self._sync)
                digest = hashlib.sha256(content).hexdigest()
                return Kept(SCHEME + name, len(content), digest)
            case FileSpool() as spool:
                spool.move_to(path, sync=self._sync)
                return Kept(SCHEME + name, spool.length, spool.checksum)
            case other:
                raise TypeError(f"not a body of this store: {other!r}")

    # Reading.

    def _load_all(self, locators: Sequence[str]) -> list[bytes | None]:
        places = [located(locator, SCHEME) for locator in locators]
        parts = defaultdict[str, list[Span | None]](list)
        for name, span in filter(None, places):
            parts[name].append(span)
        with own_errors(ENGINE):
            found = {name: self._load(name, spans) for name, spans in parts.items()}
        return [found[place[0]].get(place[1]) if place else None for place in places]

    def _load(self, name: str, spans: Iterable[Span | None]) -> dict[Span | None, bytes]:
        """Parts of one file, or all of it; nothing if it does not exist."""
        try:
            with below(self._folder, name).open("rb", buffering=0) as file:
                return {span: _part(file, span or WHOLE) for span in spans}
        except FileNotFoundError:
            return {}

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
        """Indexes are read for the segments that may hold names of this page."""
        with own_errors(ENGINE):
            names = set(islice(self._single_names(job_id, run_id, after), limit))
            segments, others = self._segments(job_id, run_id)
            names.update(page_of(others, limit=limit, after=after))
            for segment in segments_above(segments, after):
                if is_full(names, segment, limit=limit):
                    break
                indexed = self._names_in(job_id, run_id, segment)
                names.update(page_of(indexed, limit=limit, after=after))
        return page_of(names, limit=limit, after=after)

    def _single_names(
        self, job_id: JobId, run_id: RunId, after: tuple[str, int]
    ) -> Iterator[BodyName]:
        """Names of bodies that are a file each, in order."""
        for part in _entries(below(self._folder, run_folder(job_id, run_id))):
            if part.name == SEGMENTS[:-1] or part.name < after[0][: len(part.name)]:
                continue
            for task_id, claim_no in sorted({_claim_of(one) for one in _entries(Path(part.path))}):
                if (task_id, claim_no) > after:
                    yield BodyName(job_id, run_id, task_id, claim_no)

    def _segments(self, job_id: JobId, run_id: RunId) -> tuple[list[SegmentKey], list[BodyName]]:
        """The segments of a run, and other files beside them."""
        folder = run_folder(job_id, run_id) + SEGMENTS
        segments, others = list[SegmentKey](), list[BodyName]()
        for entry in _entries(below(self._folder, folder)):
            if segment := segment_of(folder + entry.name):
                segments.append(segment)
            else:
                others.append(BodyName(job_id, run_id, TaskId(entry.name), 0))
        return segments, others

    def _names_in(self, job_id: JobId, run_id: RunId, segment: SegmentKey) -> list[BodyName]:
        """What its index lists; nothing if it was deleted meanwhile."""
        [index] = self._load(segment.key, [(segment.index, END)]).values() or [b"[]"]
        try:
            return names_in(job_id, run_id, index)
        except msgspec.DecodeError:  # damaged: it is listed as what is not a body
            name = segment.key.rpartition("/")[2]
            return [BodyName(job_id, run_id, TaskId(name), 0)]

    # Removing.

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
        segments = [segment_of(str(path)) for path in found]
        return sum(segment.count if segment else 1 for segment in segments)

    def _remove(self, paths: Sequence[Path]) -> None:
        """Delete bodies that rows may refer to."""
        if paths:
            with own_errors(ENGINE), removing(self._folder, locks=self._locks):
                self._delete(paths)

    def _discard(self, names: Sequence[BodyName]) -> int:
        """Each folder is listed once: a start may discard the claims of thousands of tasks."""
        claims = defaultdict[str, set[tuple[TaskId, int]]](set)
        for name in names:
            claims[_part_folder(name)].add((name.task_id, name.claim_no))
        with own_errors(ENGINE):
            found = [
                Path(file.path)
                for folder, wanted in claims.items()
                for file in _entries(below(self._folder, folder))
                if _claim_of(file) in wanted
            ]
        return self._delete(found)

    def _delete(self, paths: Iterable[Path]) -> int:
        removed = 0
        with own_errors(ENGINE):
            for path in paths:
                removed += path.exists()
                path.unlink(missing_ok=True)
                remove_empty(path.parent, up_to=self._folder / "jobs")
        return removed


def _size(body: Body) -> int:
    """The bytes to write for a body: a spool is on disk already, and only renamed."""
    return len(body.content) if isinstance(body.content, bytes) else 0


def _part_folder(name: BodyName) -> str:
    """The folder of a body. It has up to 4,096 tasks, so that it can be listed at once."""
    return f"{run_folder(name.job_id, name.run_id)}{name.task_id[:5]}/"


def _part(file: FileIO, span: Span) -> bytes:
    file.seek(span[0])
    return file.readall() if span[1] == END else file.read(span[1])


def _claim_of(file: os.DirEntry[str]) -> tuple[TaskId, int]:
    found = BODY.fullmatch(file.name)
    return (TaskId(found["task"]), int(found["claim"])) if found else (TaskId(file.name), 0)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
