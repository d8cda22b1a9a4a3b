"""Bodies and lists as files: whole or absent, inside their folder, and gone without a trace."""

import asyncio
import errno
import itertools
import os
import resource
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

from conveyor.adapters.files import blobs as blobs_module
from conveyor.adapters.files.blobs import FileBlobs
from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.files.disk import in_folder
from conveyor.adapters.shared.disk import own_errors
from conveyor.domain.batch import list_key
from conveyor.domain.ids import JobId, RunId, TaskId, task_ids
from conveyor.errors import NotFound, StorageFull, Unavailable
from conveyor.ports.blobs import as_stream
from conveyor.ports.bodies import Body, BodyName
from conveyor.testing.clock import FakeIds
from conveyor.testing.factories import JOB, OTHER_RUN, RUN
from tests.harness.full_disk import a_disk_with_room_for
from tests.harness.trace import Crash

LARGE = bytes(range(256)) * 4096  # a MiB
FAULTS = pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
HOSTILE = ["../out", "a/../../out", "/out", "..", "a/b/../../../out"]


@FAULTS
@pytest.mark.parametrize("room", [0, 1, 100_000, len(LARGE)])
async def test_an_object_that_finds_no_room_is_not_there_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, room: int
) -> None:
    blobs = FileBlobs(tmp_path)
    with a_disk_with_room_for(room, number, monkeypatch), pytest.raises(StorageFull):
        await blobs.put("lists/a", as_stream([LARGE, LARGE]))

    assert await blobs.length("lists/a") is None
    assert _files(tmp_path) == []
    assert await blobs.put("lists/a", as_stream([LARGE])) == len(LARGE)


async def test_an_object_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FileBlobs(tmp_path)
    await blobs.put("lists/a", as_stream([b"old"]))

    with a_disk_with_room_for(2, errno.ENOSPC, monkeypatch), pytest.raises(StorageFull):
        await blobs.put("lists/a", as_stream([b"newer"]))

    assert [part async for part in blobs.read("lists/a")] == [b"old"]
    assert _files(tmp_path) == ["lists/a"]


async def test_a_stream_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield LARGE
        raise ZeroDivisionError

    blobs = FileBlobs(tmp_path)
    with pytest.raises(ZeroDivisionError):
        await blobs.put("lists/a", as_stream(broken()))

    assert _everything(tmp_path) == []  # nor the folder that was made for it


async def test_drafts_that_a_dead_process_left_are_swept_away_with_their_folders(
    tmp_path: Path,
) -> None:
    blobs = FileBlobs(tmp_path)
    await blobs.put("inputs/kept/a", as_stream([b"list"]))
    for name in ("inputs/b", "inputs/c", "inputs/kept"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"{blobs_module.DRAFT}1").write_bytes(b"half a list")

    blobs.sweep_drafts()

    assert _everything(tmp_path) == ["inputs", "inputs/kept", "inputs/kept/a"]


@FAULTS
async def test_bodies_that_find_no_room_are_told_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    bodies = FileBodies(tmp_path, FakeIds())
    names = [_name(index) for index in range(3)]
    with (
        a_disk_with_room_for(len(LARGE) * 3 // 2, number, monkeypatch),
        pytest.raises(StorageFull),
    ):
        await bodies.put_many([Body(name, LARGE) for name in names])

    assert _files(tmp_path) == []
    kept = await bodies.put_many([Body(name, LARGE) for name in names])
    assert b"".join([part async for part in bodies.read(kept[0].locator)]) == LARGE


async def test_a_limit_of_the_operating_system_is_no_room(tmp_path: Path) -> None:
    bodies, blobs = FileBodies(tmp_path, FakeIds()), FileBlobs(tmp_path)
    spool = bodies.spool()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(LARGE) // 2, hard))
    try:
        with pytest.raises(StorageFull):
            await bodies.put_many([Body(_name(), LARGE)])
        with pytest.raises(StorageFull):
            await blobs.put("lists/a", as_stream([LARGE]))
        with pytest.raises(StorageFull):
            await spool.write(LARGE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    await spool.discard()
    await bodies.discard([_name()])
    assert _files(tmp_path) == []


async def test_a_write_that_stops_short_is_carried_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.write
    monkeypatch.setattr(os, "write", lambda where, content: really(where, content[:7_000]))
    bodies, blobs = FileBodies(tmp_path, FakeIds()), FileBlobs(tmp_path)
    spool = bodies.spool()

    await spool.write(LARGE)
    kept = await bodies.put_many([Body(_name(0), LARGE), Body(_name(1), spool)])
    await blobs.put("lists/a", as_stream([LARGE]))

    for one in kept:
        assert b"".join([part async for part in bodies.read(one.locator)]) == LARGE
    assert await blobs.length("lists/a") == len(LARGE)


@FAULTS
@pytest.mark.parametrize("room", [0, 1, 100_000])
async def test_a_spool_that_finds_no_room_can_be_discarded_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, room: int
) -> None:
    spool = FileBodies(tmp_path, FakeIds()).spool()
    before = _descriptors()
    with a_disk_with_room_for(room, number, monkeypatch):
        with pytest.raises(StorageFull):
            await spool.write(LARGE)
        await spool.discard()

    assert _files(tmp_path) == []
    assert _descriptors() == before - 1


async def test_a_spool_is_discarded_more_than_once_without_harm(tmp_path: Path) -> None:
    bodies = FileBodies(tmp_path, FakeIds())
    spool = bodies.spool()
    await spool.write(b"page")
    [kept] = await bodies.put_many([Body(_name(), spool)])

    await spool.discard()
    await spool.discard()

    assert [part async for part in bodies.read(kept.locator)] == [b"page"]


async def test_spools_that_a_dead_process_left_are_swept_away(tmp_path: Path) -> None:
    bodies = FileBodies(tmp_path, FakeIds())
    bodies.sweep_spool()
    left = bodies.spool()
    await left.write(b"half a page")

    FileBodies(tmp_path, FakeIds()).sweep_spool()

    assert _files(tmp_path) == []
    await left.discard()


async def test_a_spool_whose_file_is_gone_is_an_engine_that_is_away_and_no_missing_page(
    tmp_path: Path,
) -> None:
    bodies = FileBodies(tmp_path, FakeIds())
    spool = bodies.spool()
    await spool.write(b"page")
    bodies.sweep_spool()

    with pytest.raises(Unavailable):
        await bodies.put_many([Body(_name(), spool)])


async def test_a_body_that_is_no_body_of_this_store_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        await FileBodies(tmp_path, FakeIds()).put_many([Body(_name(), "text")])  # type: ignore[arg-type]


@pytest.mark.parametrize("key", HOSTILE)
async def test_no_key_leads_out_of_the_folder(tmp_path: Path, key: str) -> None:
    folder = tmp_path / "in"
    blobs, bodies = FileBlobs(folder), FileBodies(folder, FakeIds())
    (tmp_path / "out").write_text("not ours")
    hostile = BodyName(JobId(key), RunId(key), TaskId(key), 1)

    with pytest.raises(ValueError, match="not a name below"):
        await blobs.put(key, as_stream([b"x"]))
    with pytest.raises(ValueError, match="not a name below"):
        await blobs.length(key)
    with pytest.raises(ValueError, match="not a name below"):
        await blobs.delete([key])
    with pytest.raises(ValueError, match="not a name below"):
        [part async for part in blobs.read(key)]
    with pytest.raises(ValueError, match="not a name below"):
        [part async for part in bodies.read(f"file:{key}")]
    if ".." in key:
        with pytest.raises(ValueError, match="not a name below"):
            await bodies.put_many([Body(hostile, b"x")])
        with pytest.raises(ValueError, match="not a name below"):
            await bodies.discard([hostile])
        with pytest.raises(ValueError, match="not a name below"):
            await bodies.delete_run(JobId(key), RunId(key), limit=9)

    assert (tmp_path / "out").read_text() == "not ours"
    assert _files(tmp_path) == ["out"]


async def test_every_name_that_our_ids_make_stands_in_the_folder(tmp_path: Path) -> None:
    bodies, blobs = FileBodies(tmp_path, FakeIds()), FileBlobs(tmp_path)
    names = [_name(index, claim) for index in (0, 4095, 4096, 2**32 - 1) for claim in (1, 10)]

    await bodies.put_many([Body(name, b"page") for name in names])
    await blobs.put(list_key(JOB, RUN, "0"), as_stream([b""]))

    assert len(_files(tmp_path / "jobs" / JOB / "runs" / RUN)) == len(names)
    assert _files(tmp_path / "lists" / JOB / RUN) == ["0.ndjson"]


async def test_what_was_never_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        [part async for part in FileBodies(tmp_path, FakeIds()).read("file:jobs/a")]
    with pytest.raises(NotFound):
        [part async for part in FileBlobs(tmp_path).read("lists/a")]


async def test_what_cannot_be_read_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(Unavailable):
        [part async for part in FileBodies(tmp_path, FakeIds()).read("file:folder")]
    with pytest.raises(Unavailable):
        [part async for part in FileBlobs(tmp_path).read("folder")]


async def test_a_deleted_run_leaves_no_folders_and_no_other_run_is_touched(
    tmp_path: Path,
) -> None:
    bodies = FileBodies(tmp_path, FakeIds())
    mine = [_name(index) for index in (0, 1, 5_000, 10_000)]
    await bodies.put_many([Body(name, b"page") for name in mine])
    [kept] = await bodies.put_many([Body(_name(run_id=OTHER_RUN), b"page")])

    removed = [await bodies.delete_run(JOB, RUN, limit=3) for _ in range(3)]

    assert removed == [3, 1, 0]
    assert [path.name for path in (tmp_path / "jobs" / JOB / "runs").iterdir()] == [OTHER_RUN]
    assert [part async for part in bodies.read(kept.locator)] == [b"page"]
    await bodies.delete_run(JOB, OTHER_RUN, limit=9)
    assert _everything(tmp_path) == ["jobs"]


async def test_discarded_bodies_and_deleted_lists_leave_no_folders(tmp_path: Path) -> None:
    bodies, blobs = FileBodies(tmp_path / "bodies", FakeIds()), FileBlobs(tmp_path / "blobs")
    await bodies.put_many([Body(_name(), b"page")])
    key = list_key(JOB, RUN, "0")
    await blobs.put(key, as_stream([b"list"]))

    assert await bodies.discard([_name(), _name(1)]) == 1
    await blobs.delete([key, key])

    assert _everything(tmp_path) == ["blobs", "bodies", "bodies/jobs"]
    assert list(await blobs.keys("", limit=9)) == []


async def test_unfinished_objects_are_not_listed(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    seen: list[str] = []

    async def look() -> None:
        seen.extend(await blobs.keys("", limit=9))

    async def content() -> AsyncIterator[bytes]:
        yield b"half"
        await look()
        yield b"whole"

    await blobs.put("lists/a", content())

    assert seen == []
    assert list(await blobs.keys("", limit=9)) == ["lists/a"]


async def test_a_listing_looks_into_no_folder_that_holds_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FileBlobs(tmp_path)
    for key in ("lists/a/1/0", "lists/b/1/0", "lists/c/1/0", "lists/c/2/0", "exports/a/1/0"):
        await blobs.put(key, as_stream([b""]))
    really, looked_into = os.scandir, []

    def scandir(path: str) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        looked_into.append(Path(path).relative_to(tmp_path).as_posix())
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    page = await blobs.keys("lists/", limit=1, after="lists/b/1/0")

    assert list(page) == ["lists/c/1/0"]
    assert looked_into == [".", "lists", "lists/b", "lists/b/1", "lists/c", "lists/c/1"]


def test_a_folder_removed_just_before_its_first_file_is_made_again(tmp_path: Path) -> None:
    folder, path = tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"

    made = in_folder(folder, _failing(2, folder, path.touch), sync=True)

    assert made is None
    assert path.exists()


def test_a_folder_that_is_removed_every_time_is_an_engine_that_is_away(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with pytest.raises(Unavailable), own_errors("files"):
        in_folder(folder, _failing(1_000, folder, lambda: None), sync=False)


def _failing(times: int, folder: Path, create: Callable[[], None]) -> Callable[[], None]:
    """What creates something in a folder that somebody removes the first times."""
    left = times

    def attempt() -> None:
        nonlocal left
        if left:
            left -= 1
            if folder.exists():
                folder.rmdir()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        create()

    return attempt


def _name(index: int = 0, claim_no: int = 1, run_id: RunId = RUN) -> BodyName:
    return BodyName(JOB, run_id, task_ids(run_id)(index), claim_no)


def _files(folder: Path) -> list[str]:
    return [name for name in _everything(folder) if (folder / name).is_file()]


def _everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_folders_that_a_death_left_without_bodies_go_with_their_run(tmp_path: Path) -> None:
    bodies = FileBodies(tmp_path, FakeIds())
    hollow = tmp_path / "jobs" / JOB / "runs" / RUN / "00000"
    hollow.mkdir(parents=True)

    assert await bodies.delete_run(JOB, RUN, limit=9) == 0

    assert list(await bodies.runs_held(limit=9)) == []


async def test_a_file_that_is_no_body_is_listed_by_the_name_it_has(tmp_path: Path) -> None:
    bodies = FileBodies(tmp_path, FakeIds())
    folder = tmp_path / "jobs" / JOB / "runs" / RUN / "00000"
    folder.mkdir(parents=True)
    (folder / "notes").write_bytes(b"")

    [name] = await bodies.names(JOB, RUN, limit=9)

    assert (name.task_id, name.claim_no) == ("notes", 0)


async def test_a_body_of_an_earlier_release_is_read_listed_and_removed(tmp_path: Path) -> None:
    bodies, name = FileBodies(tmp_path, FakeIds()), _name()
    old = f"jobs/{JOB}/runs/{RUN}/00000/{name.task_id}.1"
    for claim_no in (1, 2, 11):
        [kept] = await bodies.put_many([Body(_name(claim_no=claim_no), b"new")])
    for earlier in (old, f"{old}2"):
        (tmp_path / earlier).write_bytes(b"old")

    assert [part async for part in bodies.read(f"file:{old}")] == [b"old"]
    assert [one.claim_no for one in await bodies.names(JOB, RUN, limit=9)] == [1, 2, 11, 12]
    assert await bodies.discard([name]) == 2
    assert await bodies.load_many([f"file:{old}2", kept.locator]) == [b"old", b"new"]
    await bodies.remove([f"file:{old}2", kept.locator])
    assert [one.claim_no for one in await bodies.names(JOB, RUN, limit=9)] == [2]


async def test_a_put_that_fails_leaves_what_another_put_under_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = FakeIds()
    [kept] = await FileBodies(tmp_path, ids).put_many([Body(_name(), b"page")])

    with a_disk_with_room_for(0, errno.ENOSPC, monkeypatch), pytest.raises(StorageFull):
        await FileBodies(tmp_path, ids).put_many([Body(_name(), b"another")])

    assert _files(tmp_path) == [kept.locator.removeprefix("file:")]
    assert await FileBodies(tmp_path, ids).load_many([kept.locator]) == [b"page"]


@pytest.mark.parametrize("pieces", [0, 1, 2])
async def test_a_put_that_is_cancelled_waits_for_its_thread_and_leaves_nothing(
    tmp_path: Path, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that writes after the file was closed could write into another file."""
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    calls = itertools.count()
    slow = "in_folder" if pieces == 0 else "write_all"
    real = getattr(blobs_module, slow)

    def slowly(*given: Any, **named: Any) -> Any:
        if next(calls) != max(pieces - 1, 0):
            return real(*given, **named)
        began.set()
        may_end.wait(5)
        result = real(*given, **named)
        ended.set()
        return result

    monkeypatch.setattr(blobs_module, slow, slowly)
    putting = asyncio.create_task(FileBlobs(tmp_path).put("a/b", as_stream([b"x", b"y", b"z"])))
    await asyncio.to_thread(began.wait, 5)
    putting.cancel()
    asyncio.get_running_loop().call_later(0.02, may_end.set)
    with pytest.raises(asyncio.CancelledError):
        await putting

    assert ended.is_set()
    assert not list(_files_below(tmp_path))


def _files_below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("nth", range(1, 7))
async def test_a_purge_that_was_killed_between_two_folders_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """Once with files that hold bodies, once with objects: the next purge or start finishes it."""
    bodies, blobs = FileBodies(tmp_path / "bodies", FakeIds()), FileBlobs(tmp_path / "blobs")
    key = list_key(JOB, RUN, "a list")
    await bodies.put_many([Body(BodyName(JOB, RUN, task_ids(RUN)(0), 1), b"page")])
    await blobs.put(key, as_stream([b"list"]))
    really, removed = Path.rmdir, 0

    def killed(folder: Path) -> None:
        nonlocal removed
        removed += 1
        if removed >= nth:
            raise Crash
        really(folder)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rmdir", killed)
        for purge in (lambda: bodies.delete_run(JOB, RUN, limit=9), lambda: blobs.delete([key])):
            with suppress(Crash):
                await purge()
            removed = 0

    FileBlobs(tmp_path / "blobs").sweep_drafts()
    await bodies.delete_run(JOB, RUN, limit=9)
    assert _named(tmp_path, JOB, RUN) == []


def _named(folder: Path, *names: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name in names]
