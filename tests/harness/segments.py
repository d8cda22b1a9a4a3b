"""SegmentStore for tests: short names, small segments, and a disk that can lose its power."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import apsw
import msgspec
from warcio.archiveiterator import ArchiveIterator

from conveyor.adapters.segments.store import SegmentStore, open_segment_store
from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.ports.bodies import BodyName
from conveyor.testing.clock import FakeClock

JOB = JobId("01J0000000000000000000000A")
RUNS = [RunId(f"01J000000000000000000000{number:02}") for number in range(4)]
SECTOR = 512


def a_name(index: int, *, run: int = 0, claim_no: int = 1) -> BodyName:
    return BodyName(JOB, RUNS[run], TaskId(f"{index:08x}-{'0' * 24}"), claim_no)


def a_page(index: int, size: int = 3_000) -> bytes:
    return Random(index).randbytes(size)


@contextmanager
def opened(
    folder: Path, *, sync: bool = True, segment_size: int = 40_000
) -> Iterator[SegmentStore]:
    with open_segment_store(
        folder, clock=FakeClock(), sync=sync, segment_size=segment_size
    ) as store:
        yield store


def segments_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.warc"))


def told_by_warcio(path: Path, *, check: bool = True) -> dict[str, bytes]:
    """What a stranger reads in a segment: bodies by their URI, every digest checked."""
    found = {}
    with path.open("rb") as file:
        records = ArchiveIterator(file, check_digests="raise" if check else False)
        for number, record in enumerate(records):
            content = record.content_stream().read()
            assert (record.rec_type == "warcinfo") == (number == 0)
            if record.rec_type == "resource":
                uri = record.rec_headers.get_header("WARC-Target-URI")
                found[uri.removeprefix("urn:conveyor:")] = content
    return found


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a file, or that was promised to a caller."""

    kind: str
    file: str = ""
    at: int = 0
    content: bytes = b""
    promise: Any = None


class Disk:
    """Remembers what was written, and what was made to last, in the order it happened."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self.events: list[Event] = []

    def log(self, kind: str, path: str, at: int = 0, content: bytes = b"") -> None:
        if path.startswith(f"{self._folder}/"):
            self.events.append(Event(kind, path.removeprefix(f"{self._folder}/"), at, content))

    def promise(self, kind: str, promise: object) -> None:
        self.events.append(Event(kind, promise=promise))

    def image(self, moment: int, dice: Random, folder: Path) -> None:
        """What a power cut at that moment leaves: all that was synced, and any part of the rest."""
        files: dict[str, _File] = {}
        for event in self.events[:moment]:
            if event.kind == "unlink":
                gone = files.pop(event.file, None)
                if gone and event.file.endswith(".warc") and dice.random() < 0.5:
                    files[event.file] = gone  # the folder was not synced
            elif event.file:
                files.setdefault(event.file, _File()).take(event)
        folder.mkdir(parents=True)
        for name, file in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(file.after_a_cut(dice))


class _File:
    def __init__(self) -> None:
        self.durable = bytearray()
        self.pending: list[Event] = []

    def take(self, event: Event) -> None:
        if event.kind == "sync":
            for one in self.pending:
                _apply(self.durable, one)
            self.pending = []
        else:
            self.pending.append(event)

    def after_a_cut(self, dice: Random) -> bytes:
        content = bytearray(self.durable)
        luck = dice.choice([0.0, 0.5, 0.9, 1.0])
        for one in self.pending:
            for part in _sectors(one):
                if dice.random() < luck:
                    _apply(content, part)
        return bytes(content)


def _sectors(event: Event) -> Iterator[Event]:
    if event.kind == "truncate":
        yield event
        return
    start = 0
    while start < len(event.content):
        step = SECTOR - (event.at + start) % SECTOR
        yield Event("write", at=event.at + start, content=event.content[start : start + step])
        start += step


def _apply(content: bytearray, event: Event) -> None:
    if event.kind == "truncate":
        del content[event.at :]
        content.extend(bytes(event.at - len(content)))
        return
    if event.kind == "write":
        content.extend(bytes(max(0, event.at + len(event.content) - len(content))))
        content[event.at : event.at + len(event.content)] = event.content


@contextmanager
def watched(folder: Path, monkeypatch: Any) -> Iterator[Disk]:
    """All that this process writes below a folder is remembered, SQLite's part included."""
    disk = Disk(folder)
    real = {name: getattr(os, name) for name in ("pwrite", "fdatasync", "fsync", "ftruncate")}

    def pwrite(descriptor: int, content: Any, at: int) -> int:
        written: int = real["pwrite"](descriptor, content, at)
        disk.log("write", _path(descriptor), at, bytes(content)[:written])
        return written

    def fdatasync(descriptor: int) -> None:
        real["fdatasync"](descriptor)
        disk.log("sync", _path(descriptor))

    def ftruncate(descriptor: int, size: int) -> None:
        real["ftruncate"](descriptor, size)
        disk.log("truncate", _path(descriptor), size)

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.exists():
            os.unlink(path)  # noqa: PTH108 - it is what stands for that
            disk.log("unlink", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        patch.setattr(os, "fdatasync", fdatasync)
        patch.setattr(os, "ftruncate", ftruncate)
        patch.setattr(Path, "unlink", unlink)
        before = apsw.vfs_names()[0]
        shadow = _Vfs(disk, before)
        try:
            yield disk
        finally:
            shadow.unregister()
            apsw.set_default_vfs(before)


def _path(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


class _Vfs(apsw.VFS):
    def __init__(self, disk: Disk, base: str) -> None:
        self.disk = disk
        self.base = base
        super().__init__("watched", base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> "_VfsFile":  # noqa: N802
        return _VfsFile(self.disk, self.base, name, flags)

    def xDelete(self, name: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(name, syncdir)
        self.disk.log("unlink", name)


class _VfsFile(apsw.VFSFile):
    def __init__(self, disk: Disk, base: str, name: Any, flags: list[int]) -> None:
        self.disk = disk
        self.name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__(base, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self.disk.log("write", self.name, offset, bytes(data))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self.disk.log("sync", self.name)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self.disk.log("truncate", self.name, newsize)


def sample(dice: Random, things: Sequence[Any], most: int) -> list[Any]:
    return dice.sample(list(things), min(len(things), dice.randrange(1, most + 1)))
