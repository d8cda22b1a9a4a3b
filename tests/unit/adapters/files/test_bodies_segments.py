"""Bodies of a group as one file: how many files there are, and what faults and strangers leave."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from conveyor.adapters.files import bodies as bodies_module
from conveyor.adapters.files import spool as spool_module
from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.shared import body_segments
from conveyor.adapters.shared import disk as disk_module
from conveyor.domain.ids import RunId, task_ids
from conveyor.errors import NotFound, StorageFull, Unavailable
from conveyor.ports.bodies import Body, BodyName, Kept
from conveyor.testing.clock import FakeIds
from conveyor.testing.factories import JOB, OTHER_RUN, RUN
from tests.harness.full_disk import a_disk_with_room_for
from tests.harness.trace import Crash

PAGE = b"page " * 4_000  # 20 KB
IDS = FakeIds()


def a_store(folder: Path, *, sync: bool = False) -> FileBodies:
    return FileBodies(folder, IDS, sync=sync, packs=True)


async def test_a_group_is_one_file_for_each_run(tmp_path: Path) -> None:
    names = [_name(n, run) for n in range(100) for run in (RUN, OTHER_RUN)]

    kept = await a_store(tmp_path).put_many([Body(name, PAGE) for name in names])

    files = _files(tmp_path)
    assert [file.rpartition(".")[0] for file in files] == [
        f"jobs/{JOB}/runs/{run}/segments/00000000-00000063.100.{100 * len(PAGE)}"
        for run in sorted((RUN, OTHER_RUN))
    ]
    assert {one.locator.partition("#")[0] for one in kept} == {f"file:{file}" for file in files}
    assert kept[2].locator.endswith(f"#{len(PAGE)}+{len(PAGE)}")


async def test_a_group_is_synced_by_one_sync_of_its_file_and_one_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = a_store(tmp_path, sync=True)
    await bodies.put_many([Body(_name(n), PAGE) for n in range(2)])  # makes the folders
    synced = list[str]()
    with monkeypatch.context() as patched:
        for name in ("fsync", "fdatasync"):
            patched.setattr(os, name, lambda _, name=name: synced.append(name))
        await bodies.put_many([Body(_name(n), PAGE) for n in range(2, 50)])

    assert synced == ["fdatasync", "fsync"]


async def test_groups_that_are_put_at_the_same_time_are_synced_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies, together = a_store(tmp_path, sync=True), threading.Barrier(3)
    monkeypatch.setattr(os, "fdatasync", lambda _: together.wait(10))

    async with asyncio.TaskGroup() as group:
        for first in range(0, 30, 10):
            put = [Body(_name(n), PAGE) for n in range(first, first + 10)]
            group.create_task(bodies.put_many(put))

    assert list(await bodies.names(JOB, RUN, limit=99)) == [_name(n) for n in range(30)]


async def test_pages_that_are_alone_or_spooled_are_files_of_their_own(tmp_path: Path) -> None:
    bodies = a_store(tmp_path)
    spool = bodies.spool()
    await spool.write(PAGE)

    await bodies.put_many([Body(_name(0), PAGE)])
    await bodies.put_many([Body(_name(1), spool), Body(_name(2), PAGE)])

    assert [file.rpartition("/")[2].rpartition(".")[0] for file in _files(tmp_path)] == [
        f"{_name(n).task_id}.1" for n in range(3)
    ]


async def test_a_group_larger_than_a_segment_is_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_segments, "LARGEST_SEGMENT", 10)
    bodies = a_store(tmp_path)
    contents = [b"four", b"four", b"four", b"larger than ten", b"", b"four"]

    kept = await bodies.put_many([Body(_name(n), page) for n, page in enumerate(contents)])

    assert list(await bodies.load_many([one.locator for one in kept])) == contents
    assert len(_files(tmp_path)) == 4  # two of four, one of four, the large one, the last two


async def test_both_layouts_read_list_and_remove_what_the_other_stored(tmp_path: Path) -> None:
    packed, single = a_store(tmp_path), FileBodies(tmp_path, FakeIds(), sync=False)
    kept = [
        *await packed.put_many([Body(_name(n), b"%d" % n) for n in range(3)]),
        *await single.put_many([Body(_name(n), b"%d" % n) for n in range(3, 6)]),
    ]
    locators = [one.locator for one in kept]

    for bodies in (packed, single):
        assert list(await bodies.load_many(locators)) == [b"%d" % n for n in range(6)]
        assert [await _read(bodies, one) for one in kept] == [b"%d" % n for n in range(6)]
        assert list(await bodies.names(JOB, RUN, limit=9)) == [_name(n) for n in range(6)]
        assert list(await bodies.runs_held(limit=9)) == [(JOB, RUN)]
    await single.remove(locators[:3])
    await packed.remove(locators[3:])
    assert _everything(tmp_path) == ["jobs", "spool"]


async def test_a_reader_of_many_bodies_opens_each_segment_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = a_store(tmp_path)
    groups = [[Body(_name(n), b"%d" % n) for n in range(first, 60, 3)] for first in range(3)]
    kept = [one for group in groups for one in await bodies.put_many(group)]
    opened, really = list[str](), Path.open

    def watched(path: Path, mode: str, buffering: int) -> object:
        opened.append(path.name)
        return really(path, mode, buffering)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", watched)
        contents = await bodies.load_many([one.locator for one in kept])

    assert list(contents) == [b"%d" % n for first in range(3) for n in range(first, 60, 3)]
    assert len(opened) == len(set(opened)) == 3


async def test_a_segment_stays_while_a_row_may_refer_to_one_of_its_bodies(tmp_path: Path) -> None:
    bodies = a_store(tmp_path)
    kept = await bodies.put_many([Body(_name(n), b"%d" % n) for n in range(3)])
    locators = [one.locator for one in kept]

    await bodies.remove(locators[:2])
    assert await bodies.discard([_name(2)]) == 0

    assert list(await bodies.load_many(locators)) == [b"0", b"1", b"2"]
    assert await bodies.delete_run(JOB, RUN, limit=9) == 3
    assert list(await bodies.load_many(locators)) == [None] * 3


async def test_two_workers_that_hold_one_claim_number_do_not_share_a_segment(
    tmp_path: Path,
) -> None:
    one, other = a_store(tmp_path), a_store(tmp_path)
    put = [[Body(_name(n), content) for n in range(2)] for content in (b"one", b"other")]

    dropped = await one.put_many(put[0])
    settled = await other.put_many(put[1])
    await one.remove([kept.locator for kept in dropped])

    assert list(await one.load_many([kept.locator for kept in settled])) == [b"other"] * 2
    assert list(await other.names(JOB, RUN, limit=9)) == [_name(0), _name(1)]


async def test_an_empty_body_in_a_segment_that_is_gone_is_not_found(tmp_path: Path) -> None:
    bodies = a_store(tmp_path)
    kept = await bodies.put_many([Body(_name(n), b"") for n in range(2)])
    assert list(await bodies.load_many([kept[0].locator])) == [b""]
    await bodies.delete_run(JOB, RUN, limit=9)
    assert list(await bodies.load_many([kept[0].locator])) == [None]
    with pytest.raises(NotFound):
        await _read(bodies, kept[0])


@pytest.mark.parametrize("scheme", ["s3", "pack"])
async def test_a_body_of_another_engine_is_gone(tmp_path: Path, scheme: str) -> None:
    bodies = a_store(tmp_path)
    [kept, _] = await bodies.put_many([Body(_name(n), b"page") for n in range(2)])
    locator = kept.locator.replace("file", scheme, 1)

    await bodies.remove([locator, locator])

    assert list(await bodies.load_many([locator, kept.locator])) == [None, b"page"]
    with pytest.raises(NotFound):
        [part async for part in bodies.read(locator)]


# Faults.


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("room", [0, 1, len(PAGE) * 7 // 2])
async def test_a_group_that_finds_no_room_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, room: int
) -> None:
    bodies = a_store(tmp_path)
    put = [Body(_name(n, run), PAGE) for run in (RUN, OTHER_RUN) for n in range(3)]
    with a_disk_with_room_for(room, number, monkeypatch), pytest.raises(StorageFull):
        await bodies.put_many(put)

    assert _files(tmp_path) == []
    assert list(await bodies.runs_held(limit=9)) == []
    kept = await bodies.put_many(put)
    assert await _read(bodies, kept[-1]) == PAGE


@pytest.mark.parametrize("call", ["fdatasync", "rename", "sync_folder"])
async def test_a_group_that_cannot_be_synced_or_named_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    bodies = a_store(tmp_path, sync=True)
    module = {"fdatasync": os, "rename": Path, "sync_folder": bodies_module}[call]

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(module, call, failing)
        with pytest.raises(Unavailable):
            await bodies.put_many([Body(_name(n), PAGE) for n in range(3)])

    assert _files(tmp_path) == []


@pytest.mark.parametrize("call", ["write_all", "in_folder"])
async def test_what_a_death_cut_short_is_not_a_segment_and_is_swept_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(spool_module, call, killed)
        with pytest.raises(Crash):
            await a_store(tmp_path).put_many([Body(_name(n), PAGE) for n in range(3)])

    bodies = a_store(tmp_path)
    assert list(await bodies.names(JOB, RUN, limit=9)) == []
    assert [Path(file).parent.name for file in _files(tmp_path)] == ["spool"]
    bodies.sweep_spool()
    assert _files(tmp_path) == []


async def test_a_write_that_stops_short_is_carried_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.write
    monkeypatch.setattr(os, "write", lambda where, content: really(where, content[:7_000]))
    bodies = a_store(tmp_path)
    kept = await bodies.put_many([Body(_name(n), PAGE) for n in range(3)])
    assert list(await bodies.load_many([one.locator for one in kept])) == [PAGE] * 3


async def test_large_groups_are_written_outside_the_thread_of_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, really = set[int](), disk_module.write_all

    def watched(descriptor: int, content: bytes) -> None:
        threads.add(threading.get_ident())
        really(descriptor, content)

    monkeypatch.setattr(spool_module, "write_all", watched)
    await a_store(tmp_path).put_many([Body(_name(n), PAGE) for n in range(100)])
    assert threads
    assert threading.get_ident() not in threads


# Listings.


@pytest.mark.parametrize("size", [1, 3, 50])
async def test_names_of_segments_that_overlap_are_listed_in_order(
    tmp_path: Path, size: int
) -> None:
    bodies = a_store(tmp_path)
    for group in ([0, 9, 5], [1], [2, 8], [3, 4, 7], [6], [10, 11], [2, 3]):
        await bodies.put_many([Body(_name(n), b"page") for n in group])

    assert await _listed(bodies, size) == [(_name(n).task_id, 1) for n in range(12)]


@pytest.mark.parametrize("size", [1, 2, 50])
async def test_what_is_beside_segments_and_not_one_is_listed_by_its_name(
    tmp_path: Path, size: int
) -> None:
    bodies = a_store(tmp_path)
    await bodies.put_many([Body(_name(n), b"page") for n in range(3)])
    folder = tmp_path / f"jobs/{JOB}/runs/{RUN}/segments"
    for name in ("0notes", "notes.txt", "00000000-00000002.3.12", "00000001-00000002.x.1.a"):
        (folder / name).write_bytes(b"hello")
    (folder / "00000001-00000001.1.4.damaged").write_bytes(b"pag")

    assert await _listed(bodies, size) == [
        ("00000000-00000002.3.12", 0),
        (_name(0).task_id, 1),
        ("00000001-00000001.1.4.damaged", 0),
        ("00000001-00000002.x.1.a", 0),
        (_name(1).task_id, 1),
        (_name(2).task_id, 1),
        ("0notes", 0),
        ("notes.txt", 0),
    ]
    assert await bodies.delete_run(JOB, RUN, limit=9) == 8
    assert _everything(tmp_path) == ["jobs", "spool"]


async def test_a_page_of_names_reads_the_indexes_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = a_store(tmp_path)
    for first in range(0, 100, 10):
        await bodies.put_many([Body(_name(n), b"page") for n in range(first, first + 10)])
    read, really = list[bytes](), body_segments.names_in

    def watched(*given: object) -> list[BodyName]:
        read.append(b"")
        return really(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(bodies_module, "names_in", watched)
    page = await bodies.names(JOB, RUN, limit=10, after=(_name(24).task_id, 1))

    assert list(page) == [_name(n) for n in range(25, 35)]
    assert len(read) == 2


async def test_a_run_is_deleted_in_portions_of_files(tmp_path: Path) -> None:
    bodies = a_store(tmp_path)
    for first in range(0, 9, 3):
        await bodies.put_many([Body(_name(n), b"page") for n in range(first, first + 3)])
    await bodies.put_many([Body(_name(9), b"page")])

    portions = [await bodies.delete_run(JOB, RUN, limit=2) for _ in range(3)]

    assert portions == [4, 6, 0]
    assert _everything(tmp_path) == ["jobs", "spool"]


def _name(index: int, run_id: RunId = RUN) -> BodyName:
    return BodyName(JOB, run_id, task_ids(run_id)(index), 1)


async def _read(bodies: FileBodies, kept: Kept) -> bytes:
    return b"".join([part async for part in bodies.read(kept.locator)])


async def _listed(bodies: FileBodies, size: int) -> list[tuple[str, int]]:
    listed, after = list[tuple[str, int]](), ("", -1)
    while page := await bodies.names(JOB, RUN, limit=size, after=after):
        listed += [(name.task_id, name.claim_no) for name in page]
        after = listed[-1]
    return listed


def _files(folder: Path) -> list[str]:
    return [name for name in _everything(folder) if (folder / name).is_file()]


def _everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
