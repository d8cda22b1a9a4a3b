"""Bodies in segments: readable by strangers, whole after any death, and their room given back."""

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

import pytest

from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.segments import reclaim, writer
from conveyor.adapters.segments.bodies import SegmentBodies
from conveyor.adapters.segments.index import open_index
from conveyor.adapters.segments.records import erase, records, urn
from conveyor.adapters.segments.store import SegmentStore, visit_segment_store
from conveyor.errors import RefusedToStart, StorageFull, Unavailable
from conveyor.ports.bodies import Body, BodyName, Kept
from conveyor.testing.clock import FakeIds
from tests.harness.segments import JOB, RUNS, a_name, a_page, opened, segments_of, told_by_warcio
from tests.seed import drawn

# SegmentFiles.


async def test_strangers_read_every_body_in_every_segment(tmp_path: Path) -> None:
    pages = {a_name(number): a_page(number) for number in range(40)}
    pages[a_name(99)] = b""
    with opened(tmp_path) as store:
        for name, page in pages.items():
            await store.put([(name, page)])

    assert len(segments_of(tmp_path)) > 2
    told = {
        word: page for path in segments_of(tmp_path) for word, page in told_by_warcio(path).items()
    }
    assert told == {urn(name): page for name, page in pages.items()}


async def test_strangers_pass_over_what_was_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        await _fill(store, 30)
        await store.remove([a_name(number) for number in range(0, 30, 3)])
        await store.reclaim()

    told = {word for path in segments_of(tmp_path) for word in told_by_warcio(path)}
    assert told == {urn(a_name(number)) for number in range(30) if number % 3}


async def test_a_segment_is_left_when_it_is_full(tmp_path: Path) -> None:
    with opened(tmp_path, segment_size=10_000) as store:
        await _fill(store, 12)

    assert len(segments_of(tmp_path)) == 6
    assert all(path.stat().st_size <= 10_000 for path in segments_of(tmp_path))


async def test_a_body_larger_than_a_segment_has_one_of_its_own(tmp_path: Path) -> None:
    page = a_page(0, 100_000)
    with opened(tmp_path, segment_size=10_000) as store:
        await store.put([(a_name(0), page)])
        await store.put([(a_name(1), b"small")])

        assert await store.load([a_name(0), a_name(1)]) == [page, b"small"]


async def test_those_who_wait_together_share_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = _count(monkeypatch, "fdatasync")
    with opened(tmp_path) as store:
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(store.put([(a_name(number), b"page")]))

    assert len(synced) < 30


async def test_without_the_wish_to_survive_power_cuts_nothing_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = _count(monkeypatch, "fdatasync") + _count(monkeypatch, "fsync")
    with opened(tmp_path, sync=False) as store:
        await _fill(store, 20)
        await store.remove([a_name(1)])
        await store.reclaim()

    assert synced == []


@pytest.mark.parametrize("hostile", ["", "a b", "a\r\nb", "a>b", "ä" * 200, "x" * 400])
async def test_a_name_that_would_break_a_head_is_refused(tmp_path: Path, hostile: str) -> None:
    name = BodyName(JOB, RUNS[0], hostile, 1)  # type: ignore[arg-type]
    with opened(tmp_path) as store, pytest.raises(ValueError, match="not a name"):
        await store.put([(name, b"page")])


# Deaths.


async def test_a_tail_torn_at_any_byte_is_cut_off(tmp_path: Path) -> None:
    with opened(tmp_path / "whole") as store:
        await store.put([(a_name(0), b"first")])
        [path] = segments_of(tmp_path / "whole")
        length = path.stat().st_size
        shutil.copytree(tmp_path / "whole", tmp_path / "before")  # as the index lags behind
        await store.put([(a_name(1), b"second"), (a_name(2), b"third")])
    content = path.read_bytes()
    ends = [length, content.index(b"WARC/1.1", length + 1), len(content)]
    cuts = drawn(range(length, len(content) + 1), 60, of="torn tails")
    for cut in sorted({*cuts, *ends, *(end - 1 for end in ends[1:])}):
        folder = shutil.copytree(tmp_path / "before", tmp_path / "torn")
        (folder / path.name).write_bytes(content[:cut])
        whole = sum(end <= cut for end in ends)
        with opened(folder) as store:
            found = await store.load([a_name(number) for number in range(3)])
            assert found == [b"first", b"second", b"third"][:whole] + [None] * (3 - whole)
            assert (folder / path.name).stat().st_size == ends[whole - 1]
            await store.put([(a_name(3), b"goes on")])
        assert len(told_by_warcio(folder / path.name)) == whole + 1
        shutil.rmtree(folder)


async def test_zeros_at_the_end_are_no_records(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        await _fill(store, 2)
    [path] = segments_of(tmp_path)
    length = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(10_000))

    with opened(tmp_path) as store:
        assert path.stat().st_size == length
        assert await store.load([a_name(1)]) == [a_page(1)]


async def test_a_torn_copy_does_not_take_the_place_of_a_sound_body(tmp_path: Path) -> None:
    """A power cut while the rest of a segment was being moved to the open one."""
    with opened(tmp_path, segment_size=4_000) as store:
        await _fill(store, 3)
    first, *_, last = segments_of(tmp_path)
    record = first.read_bytes()[_start(first) :]
    length = last.stat().st_size
    with last.open("ab") as file:
        file.write(record[:1_000] + bytes(len(record) - 1_004) + record[-4:])

    with opened(tmp_path, segment_size=4_000) as store:
        assert await store.load([a_name(0), a_name(2)]) == [a_page(0), a_page(2)]
        assert last.stat().st_size > length
        await store.reclaim()
        assert await store.load([a_name(0), a_name(2)]) == [a_page(0), a_page(2)]
    assert list(told_by_warcio(last)) == [urn(a_name(2))]


@pytest.mark.parametrize("damage", ["gone", "garbage"])
async def test_an_index_that_is_lost_is_made_again(tmp_path: Path, damage: str) -> None:
    with opened(tmp_path) as store:
        await _fill(store, 30)
        await store.remove([a_name(number) for number in range(0, 30, 3)])
        await store.reclaim()
    if damage == "gone":
        (tmp_path / "index.db").unlink()
    else:
        (tmp_path / "index.db").write_bytes(b"no database" * 1000)

    with opened(tmp_path) as store:
        assert [one.task_id for one in await _listed(store)] == [
            a_name(number).task_id for number in range(30) if number % 3
        ]
        await store.put([(a_name(50), b"goes on")])
        assert await store.load([a_name(1), a_name(50)]) == [a_page(1), b"goes on"]


async def test_a_segment_shorter_than_the_index_says_is_gone_on_with(tmp_path: Path) -> None:
    """After a power cut that unsynced bodies did not survive, though the index did."""
    with opened(tmp_path, sync=False) as store:
        await _fill(store, 5)
    [path] = segments_of(tmp_path)
    os.truncate(path, path.stat().st_size - 4_000)

    with opened(tmp_path) as store:
        assert [one.task_id for one in await _listed(store)] == [
            a_name(n).task_id for n in range(3)
        ]
        await _fill(store, 5)
        assert await store.load([a_name(4)]) == [a_page(4)]
    assert len(told_by_warcio(path)) == 5


async def test_an_index_of_a_later_version_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path):
        index = open_index(tmp_path / "index.db", sync=False)
        index._connection.pragma("user_version", 9)
        index.close()

    with pytest.raises(RefusedToStart, match="newer Conveyor"), opened(tmp_path):
        pass


# Room.


async def test_a_segment_without_bodies_goes_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        await _fill(store, 40)
        before = segments_of(tmp_path)
        while await store.remove_run(JOB, RUNS[0], limit=10) == 10:
            pass

        assert segments_of(tmp_path) == before[-1:]


async def test_a_run_is_removed_with_few_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        await store.put([(a_name(number), b"page") for number in range(2_000)])
        synced = _count(monkeypatch, "fdatasync")
        assert await store.remove_run(JOB, RUNS[0], limit=2_000) == 2_000
        await store.reclaim()

    assert len(synced) < 10


async def test_removed_bodies_are_erased_where_too_few_are_dead_to_compact(tmp_path: Path) -> None:
    with opened(tmp_path, segment_size=10_000_000) as store:
        await store.put([(a_name(number), a_page(number, 80_000)) for number in range(50)])
        [path] = segments_of(tmp_path)
        size = path.stat().st_size
        await store.remove([a_name(number) for number in range(0, 50, 5)])
        await store.reclaim()

        assert path.stat().st_size == size
        content = path.read_bytes()
        assert [number for number in range(50) if _is_in(content, a_page(number, 80_000))] == [
            number for number in range(50) if number % 5
        ]
        assert await store.load([a_name(1), a_name(49)]) == [a_page(1, 80_000), a_page(49, 80_000)]
    told = told_by_warcio(path)
    assert set(told) == {urn(a_name(number)) for number in range(50) if number % 5}


async def test_no_removed_page_is_left_on_disk_whatever_was_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        await _fill(store, 60)
        for start, step in ((0, 50), (1, 7), (2, 3)):
            gone = range(start, 60, step)
            await store.remove([a_name(number) for number in gone])
            await store.reclaim()
            left = b"".join(path.read_bytes() for path in segments_of(tmp_path))
            assert not [number for number in gone if _is_in(left, a_page(number))]


async def test_a_quarter_at_most_of_the_closed_segments_is_dead(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        await _fill(store, 120)
        for number in range(120):
            if number % 3:
                await store.remove([a_name(number)])
            if number % 10 == 0:
                await store.reclaim()
        await store.reclaim()
        *closed, _ = store._index.segments()
        assert closed
        assert all(one.covered - one.live < one.covered / 4 for one in closed)


@pytest.mark.parametrize("index", ["kept", "lost"])
@pytest.mark.parametrize("state", ["torn", "marked", "zeros"])
async def test_an_erasure_that_a_power_cut_tore_is_done_again(
    tmp_path: Path, state: str, index: str
) -> None:
    """Of the mark and the zeros any part may have reached the disk."""
    with opened(tmp_path) as store:
        await _fill(store, 10)
        [path] = segments_of(tmp_path)
        await store.remove([a_name(0)])
    content = path.read_bytes()
    match state:
        case "torn":
            content = content.replace(b"resource", b"remource", 1)
        case "marked":
            content = content.replace(b"resource", b"removing", 1)
        case "zeros":
            content = content.replace(a_page(0)[:1_000], bytes(1_000))
    path.write_bytes(content)
    if index == "lost":
        (tmp_path / "index.db").unlink()

    with opened(tmp_path) as store:
        assert await store.load([a_name(0), a_name(1)]) == [None, a_page(1)]
        await store.reclaim()
    assert not _is_in(path.read_bytes(), a_page(0))
    assert len(told_by_warcio(path)) == 9


async def test_on_a_full_disk_removed_pages_are_erased_and_compacted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with opened(tmp_path) as store:
        await _fill(store, 30)
        before = segments_of(tmp_path)
        await store.remove([a_name(number) for number in range(0, 30, 2)])
        with monkeypatch.context() as patch:
            patch.setattr(writer.Appender, "append", full)
            with pytest.raises(StorageFull):
                await store.reclaim()
        left = b"".join(path.read_bytes() for path in segments_of(tmp_path))
        assert not [number for number in range(0, 30, 2) if _is_in(left, a_page(number))]
        assert set(before) <= set(segments_of(tmp_path))

        await store.reclaim()
        assert set(segments_of(tmp_path)) & set(before) <= {before[-1]}
        alive = range(1, 30, 2)
        assert await store.load([a_name(n) for n in alive]) == [a_page(n) for n in alive]


async def test_a_segment_that_cannot_be_emptied_is_kept_and_not_tried_for_ever(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as store:
        await _fill(store, 30)
        first = segments_of(tmp_path)[0]
        content = first.read_bytes()
        second = content.index(b"WARC/1.1", content.index(urn(a_name(5)).encode()))
        first.write_bytes(content[:second] + b"DAMAGED!" + content[second + 8 :])
        await store.remove([a_name(number) for number in range(4)])
        async with asyncio.timeout(60):
            await store.reclaim()

        assert first in segments_of(tmp_path)
        assert await store.load([a_name(4), a_name(9)]) == [a_page(4), a_page(9)]


async def test_under_load_removed_bodies_are_erased_when_overdue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "IDLE", 1_000)
    monkeypatch.setattr(writer, "BUSY_GROUPS", 10**9)
    with opened(tmp_path) as store:
        await _fill(store, 5)
        await store.remove([a_name(0)])
        await store.put([(a_name(6), b"not overdue yet")])
        assert any(one.unerased for one in store._index.segments())
        monkeypatch.setattr(writer, "OVERDUE", 0)
        async with asyncio.timeout(60):
            number = 7
            while any(one.unerased for one in store._index.segments()):
                await store.put([(a_name(number), b"busy")])
                number += 1


async def test_an_index_of_version_1_is_taken_over(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        await _fill(store, 10)
        await store.remove([a_name(0)])
    index = open_index(tmp_path / "index.db", sync=False)
    index._connection.execute("ALTER TABLE segment RENAME COLUMN unerased TO untidy")
    index._connection.pragma("user_version", 1)
    index.close()

    with opened(tmp_path) as store:
        assert [one.unerased > 0 for one in store._index.segments()] == [True]
        await store.reclaim()
        assert await store.load([a_name(0), a_name(9)]) == [None, a_page(9)]


async def test_what_is_left_of_a_mostly_dead_segment_moves_and_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        await _fill(store, 60)
        before = segments_of(tmp_path)
        await store.remove([a_name(number) for number in range(60) if number % 4])
        await store.reclaim()

        assert set(segments_of(tmp_path)) & set(before) <= {before[-1]}
        alive = [a_name(number) for number in range(0, 60, 4)]
        assert await store.load(alive) == [a_page(number) for number in range(0, 60, 4)]
    with opened(tmp_path) as store:
        assert await _listed(store) == alive


async def test_an_open_segment_that_is_mostly_dead_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reclaim, "LEAST_CLOSED", 20_000)
    with opened(tmp_path, segment_size=1_000_000) as store:
        await _fill(store, 20)
        [before] = segments_of(tmp_path)
        await store.remove([a_name(number) for number in range(1, 20)])
        await store.reclaim()

        assert before not in segments_of(tmp_path)
        assert await store.load([a_name(0)]) == [a_page(0)]


async def test_room_is_given_back_without_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conveyor.adapters.segments.writer.IDLE", 0.01)
    with opened(tmp_path) as store:
        await _fill(store, 20)
        await store.remove([a_name(number) for number in range(10)])
        async with asyncio.timeout(60):
            while any(one.unerased for one in store._index.segments()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_body_put_again_is_the_later_one(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        await store.put([(a_name(0), b"first"), (a_name(1), b"other"), (a_name(0), b"second")])
        await store.put([(a_name(1), b"another")])
        assert await store.load([a_name(0), a_name(1)]) == [b"second", b"another"]
    (tmp_path / "index.db").unlink()
    with opened(tmp_path) as store:
        assert await store.load([a_name(0), a_name(1)]) == [b"second", b"another"]
        await store.remove([a_name(0), a_name(1)])
        [segment] = store._index.segments()
        assert segment.live == 0


async def test_a_body_is_read_whole_or_not_at_all_while_it_goes(tmp_path: Path) -> None:
    pages = [a_page(number, 60_000) for number in range(30)]
    names = [a_name(number) for number in range(30)]
    with opened(tmp_path, segment_size=500_000) as store:
        for _ in range(5):
            await store.put(list(zip(names, pages, strict=True)))
            await _race(store, names, pages)


async def test_a_body_that_goes_while_it_is_read_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head was read in time, its pages too late."""
    real = os.pread

    def late(descriptor: int, size: int, at: int) -> bytes:
        content = real(descriptor, size, at)
        if size < 3_000:
            return content
        with segments_of(tmp_path)[0].open("r+b") as file:
            erase(file.fileno(), next(records(file.fileno(), at, at + size)))
        return content[:600] + bytes(size - 604) + content[-4:]

    with opened(tmp_path) as store:
        await _fill(store, 1)
        monkeypatch.setattr(os, "pread", late)
        assert await store.load([a_name(0)]) == [None]


async def _race(store: SegmentStore, names: list[BodyName], pages: list[bytes]) -> None:
    async def remove() -> None:
        for start in range(0, 30, 5):
            await store.remove(names[start : start + 4])
            await store.reclaim()

    async with asyncio.TaskGroup() as group:
        removing = group.create_task(remove())
        while not removing.done():
            found = await store.load(names)
            for number, (page, want) in enumerate(zip(found, pages, strict=True)):
                assert page == want or (page is None and number % 5 != 4)


# Faults.


async def test_bodies_that_find_no_room_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        await _fill(store, 2)
        [path] = segments_of(tmp_path)
        length = path.stat().st_size
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", _stopping_short(os.pwrite))
            with pytest.raises(StorageFull):
                await store.put([(a_name(5), a_page(5))])
        assert path.stat().st_size == length
        assert await store.load([a_name(5)]) == [None]
        await store.put([(a_name(6), b"goes on")])

    assert len(told_by_warcio(path)) == 3


async def test_a_segment_whose_sync_failed_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ill(_descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk is ill")

    with opened(tmp_path) as store:
        await _fill(store, 1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", ill)
            with pytest.raises(Unavailable, match="the disk is ill"):
                await store.put([(a_name(5), b"page")])
        await store.put([(a_name(6), b"goes on")])
        assert await store.load([a_name(0), a_name(5), a_name(6)]) == [a_page(0), None, b"goes on"]

    assert [len(told_by_warcio(path)) for path in segments_of(tmp_path)] == [1, 1]


async def test_a_bug_in_the_writer_fails_its_caller_and_the_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(writer.Writer, "_put_all", lambda *_: 1 / 0)
            with pytest.raises(Unavailable, match="ZeroDivisionError"):
                await asyncio.wait_for(store.put([(a_name(0), b"page")]), 60)
        await asyncio.wait_for(store.put([(a_name(1), b"goes on")]), 60)
        assert await store.load([a_name(0), a_name(1)]) == [None, b"goes on"]


async def test_one_put_too_large_for_the_disk_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def full(descriptor: int, content: bytes, at: int) -> int:
        if at + len(content) > 100_000:
            raise OSError(errno.ENOSPC, "no room")
        return real(descriptor, content, at)

    monkeypatch.setattr(os, "pwrite", full)
    with opened(tmp_path, segment_size=10_000_000) as store:
        put: list[list[tuple[BodyName, bytes]]] = [
            [(a_name(number), a_page(number, size))]
            for number, size in enumerate([100, 200_000, 100])
        ]
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(_told(store, one)) for one in put]
        assert [task.result() for task in asked] == [True, False, True]


async def _told(store: SegmentStore, some: list[tuple[BodyName, bytes]]) -> bool:
    try:
        await store.put(some)
    except StorageFull:
        return False
    return True


# Looking at a folder, and living beside files.


async def test_a_visit_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with opened(folder) as store:
        await _fill(store, 30)
        await store.remove([a_name(0)])
        shutil.copytree(folder, tmp_path / "killed")
    for left in (folder, tmp_path / "killed"):
        with segments_of(left)[-1].open("ab") as file:
            file.write(b"WARC/1.1\r\ntorn")
        before = _contents(left)
        with visit_segment_store(left) as store:
            assert await store.load([a_name(0), a_name(29)]) == [None, a_page(29)]
            assert len(await _listed(store)) == 29
            with pytest.raises(Unavailable, match="for reading only"):
                await store.put([(a_name(0), b"page")])
            with pytest.raises(Unavailable, match="for reading only"):
                await store.remove([a_name(1)])
        assert _contents(left) == before


async def test_a_visit_knows_what_the_index_does_not(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        await _fill(store, 30)
    (tmp_path / "index.db").unlink()
    before = _contents(tmp_path)

    with visit_segment_store(tmp_path) as store:
        assert len(await _listed(store)) == 30
    assert _contents(tmp_path) == before


async def test_a_visit_where_nothing_is_finds_nothing(tmp_path: Path) -> None:
    with visit_segment_store(tmp_path / "store") as store:
        assert await store.runs(limit=9, after="") == []
    assert _contents(tmp_path) == {}


@pytest.mark.parametrize("packing", [True, False])
async def test_packs_and_files_live_side_by_side(tmp_path: Path, packing: bool) -> None:
    """Whichever is written now, the other is read, listed and removed as well."""
    files = FileBodies(tmp_path, FakeIds())
    with opened(tmp_path / "store") as store:
        kept: list[Kept] = []
        for number in range(6):
            home = SegmentBodies(store, files, packing=bool(number % 2))
            kept += await home.put_many([Body(a_name(number), a_page(number))])
        bodies = SegmentBodies(store, files, packing=packing)

        assert {one.locator.partition(":")[0] for one in kept} == {"file", "pack"}
        locators = [one.locator for one in kept]
        assert await bodies.load_many(locators) == [a_page(number) for number in range(6)]
        assert await bodies.names(JOB, RUNS[0], limit=9) == [a_name(n) for n in range(6)]
        assert await bodies.names(JOB, RUNS[0], limit=2, after=(a_name(1).task_id, 1)) == [
            a_name(2),
            a_name(3),
        ]
        assert await bodies.discard([a_name(0), a_name(1)]) == 2
        assert await bodies.runs_held(limit=9) == [(JOB, RUNS[0])]
        assert [await bodies.delete_run(JOB, RUNS[0], limit=3) for _ in range(3)] == [3, 1, 0]
        assert await bodies.runs_held(limit=9) == []


async def test_a_put_that_fails_after_its_append_leaves_no_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as store:
        real = store.put

        async def failing(bodies: Sequence[tuple[BodyName, bytes]]) -> list[Kept]:
            await real(bodies)
            raise Unavailable("segments: the thread has ended")

        monkeypatch.setattr(store, "put", failing)
        bodies = SegmentBodies(store, FileBodies(tmp_path, FakeIds()))
        with pytest.raises(Unavailable):
            await bodies.put_many([Body(a_name(1), b"page")])
        assert await _listed(store) == []


async def _fill(store: SegmentStore, count: int) -> None:
    for number in range(count):
        await store.put([(a_name(number), a_page(number))])


async def _listed(store: SegmentStore) -> list[BodyName]:
    return await store.names(JOB, RUNS[0], after=("", -1), limit=9_999)


def _contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def _is_in(content: bytes, page: bytes) -> bool:
    """Whether any part of a page can be read."""
    return any(page[at : at + 100] in content for at in range(0, len(page) - 100, 1_000))


def _start(path: Path) -> int:
    """Where the first body's record begins."""
    return path.read_bytes().index(b"WARC/1.1", 1)


def _count(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """Descriptors that a call of the system was made with."""
    real, calls = getattr(os, name), list[int]()

    def counted(descriptor: int) -> None:
        calls.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, name, counted)
    return calls


def _stopping_short(real: Callable[..., int]) -> Callable[..., int]:
    """A disk that takes half of what it is given, and then nothing."""
    taken: list[int] = []

    def pwrite(descriptor: int, content: bytes, at: int) -> int:
        if taken:
            raise OSError(errno.ENOSPC, "no room")
        taken.append(real(descriptor, bytes(content)[: len(content) // 2], at))
        return taken[0]

    return pwrite


async def test_a_bug_in_reclaiming_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = Event()

    def bug(_: reclaim.Reclaimer) -> bool:
        tried.set()
        raise ZeroDivisionError

    monkeypatch.setattr(reclaim.Reclaimer, "step", bug)
    monkeypatch.setattr(writer, "IDLE", 0.01)
    with opened(tmp_path) as store:
        assert await asyncio.to_thread(tried.wait, 10)
        async with asyncio.timeout(60):
            [kept] = await store.put([(a_name(1), b"a page")])
        assert kept.length == len(b"a page")
