"""Storage: files in the data folder belong to one process, files in a named folder are shared."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from conveyor.adapters.files.blobs import DRAFT
from conveyor.app import engines as engines_module
from conveyor.app.engines import SCHEMES, check_engines
from conveyor.app.migrate import migrate
from conveyor.app.roles import open_service
from conveyor.app.schemes import Opening
from conveyor.app.storage import BLOBS, BODIES
from conveyor.errors import RefusedToStart
from conveyor.ports.blobs import Blobs, as_stream
from conveyor.ports.bodies import Bodies, Body, BodyName
from conveyor.settings import Settings
from conveyor.testing.clock import FakeClock, FakeIds
from conveyor.testing.factories import JOB, RUN, new_tasks
from tests.harness.memory_service import a_house

A_DAY = timedelta(days=1)


@pytest.mark.parametrize("kind", ["bodies", "blobs"])
def test_files_are_shared_only_in_a_folder_that_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines_module, "SCHEMES", {kind: SCHEMES[kind]})
    with pytest.raises(RefusedToStart, match="got 'files:', which belongs to one process"):
        check_engines(Settings(bodies="files:"), sharing="worker")
    there = f"files:{tmp_path}"
    check_engines(Settings(bodies=there, blobs=there), sharing="worker")


@pytest.mark.parametrize("address", ["here", "//", "/a//b", "relative/folder"])
def test_a_folder_to_share_must_be_absolute(address: str) -> None:
    with pytest.raises(RefusedToStart, match=r"blobs must be files:\[/folder\]"):
        check_engines(Settings(blobs=f"files:{address}"))


@pytest.mark.parametrize("folder", ["", "/a", "/a/b/"])
def test_bodies_take_a_layout_after_their_folder(folder: str) -> None:
    check_engines(Settings(bodies=f"files:{folder}?layout=segments"))


@pytest.mark.parametrize(
    "address",
    [
        "?",
        "/a?",
        "/a?layout",
        "/a?layout=files",
        "/a?layout=segments&region=b",
        "/a?region=b&layout=segments",
        "/a?layout=segments?layout=segments",
        "/a?layout=segments/b",
        "a?layout=segments",
    ],
)
def test_anything_else_after_the_folder_is_refused(address: str) -> None:
    told = r"bodies must be .* files:\[/folder\]\[\?layout=segments\] or .*: correct it"
    with pytest.raises(RefusedToStart, match=told):
        check_engines(Settings(bodies=f"files:{address}"))


@pytest.mark.parametrize("address", ["?layout=segments", "/a?layout=segments", "/a?"])
def test_lists_and_exports_take_no_layout(address: str) -> None:
    with pytest.raises(RefusedToStart, match=r"blobs must be files:\[/folder\] or s3:"):
        check_engines(Settings(blobs=f"files:{address}"))


@pytest.mark.parametrize("shared", [True, False])
async def test_the_layout_of_a_folder_can_be_changed_at_any_time(
    tmp_path: Path, shared: bool
) -> None:
    """In the data folder also from and to segments that one process appends to."""
    place = f"files:{tmp_path}/shared" if shared else "files:"
    used = [place, f"{place}?layout=segments", *([] if shared else ["segments:"]), place]
    locators = list[str]()
    for number, address in enumerate(used):
        async with _bodies_at(tmp_path, address) as bodies:
            names = [BodyName(JOB, RUN, task.id, number + 1) for task in new_tasks(RUN, 3)]
            kept = await bodies.put_many([Body(name, b"%d" % number) for name in names])
            locators += [one.locator for one in kept]
            expected = [b"%d" % earlier for earlier in range(number + 1) for _ in names]
            assert list(await bodies.load_many(locators)) == expected
            assert len(await bodies.names(JOB, RUN, limit=99)) == len(locators)
    folder = tmp_path / ("shared" if shared else "data") / "bodies" / "jobs"
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 3 + 1 + 3


async def test_bodies_and_objects_are_in_folders_of_their_own_below_the_named_one(
    tmp_path: Path,
) -> None:
    blobs, _ = await _opened(tmp_path)
    await blobs.put("lists/a", as_stream([b"list"]))
    assert (tmp_path / "shared" / "blobs" / "lists" / "a").read_bytes() == b"list"


async def test_a_sweep_leaves_what_another_service_has_in_a_named_folder(tmp_path: Path) -> None:
    blobs, bodies = await _opened(tmp_path)
    theirs = f"lists/{JOB}/{RUN}/a.ndjson"
    await blobs.put(theirs, as_stream([b"list"]))
    [task] = new_tasks(RUN, 1)
    await bodies.put_many([Body(BodyName(JOB, RUN, task.id, 1), b"page")])

    house = a_house(blobs=blobs, bodies=bodies)
    house.clock.advance(A_DAY)
    await house.sweep_twice()

    assert await blobs.length(theirs) == len(b"list")
    assert list(await bodies.runs_held(limit=9)) == [(JOB, RUN)]


async def test_a_start_leaves_what_another_process_is_writing(tmp_path: Path) -> None:
    old, young = FakeClock().now() - A_DAY * 2, FakeClock().now() - A_DAY / 2
    spool, lists = tmp_path / "shared/bodies/spool", tmp_path / "shared/blobs/lists"
    for folder, prefix in ((spool, ""), (lists, DRAFT)):
        folder.mkdir(parents=True)
        for name, at in (("old", old), ("young", young)):
            path = folder / f"{prefix}{name}"
            path.write_bytes(b"half")
            os.utime(path, (at.timestamp(), at.timestamp()))

    await _opened(tmp_path)

    assert {path.name for path in spool.iterdir()} == {"old", "young"}
    assert {path.name for path in lists.iterdir()} == {f"{DRAFT}old", f"{DRAFT}young"}


async def test_the_sweeper_looks_at_unfinished_files_of_a_shared_folder(tmp_path: Path) -> None:
    address = f"files:{tmp_path / 'shared'}"
    for bodies, blobs, folders in ((address, address, 2), ("files:", "files:", 0)):
        settings = Settings(data=str(tmp_path / "data"), bodies=bodies, blobs=blobs)
        async with open_service(settings) as service:
            assert len(service.unfinished_files.removers) == folders
            assert service.unfinished_files.is_alive("another") is None


async def test_without_the_extra_an_s3_engine_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith("conveyor.adapters.s3.")]:
        monkeypatch.delitem(sys.modules, module)
    for module in [name for name in sys.modules if name.partition(".")[0] == "botocore"]:
        monkeypatch.setitem(sys.modules, module, None)
    settings = Settings(data=str(tmp_path), blobs="s3://pages/team?region=a")
    async with AsyncExitStack() as stack:
        opening = Opening(
            settings=settings, stack=stack, clock=FakeClock(), ids=FakeIds(), incarnation="one"
        )
        with pytest.raises(RefusedToStart, match=r"pip install 'conveyor-batch\[s3\]'"):
            await BLOBS["s3"].open(opening, "//pages/team?region=a")
    with pytest.raises(RefusedToStart, match=r"pip install 'conveyor-batch\[s3\]'"):
        [line async for line in migrate(settings)]


@asynccontextmanager
async def _bodies_at(folder: Path, address: str) -> AsyncIterator[Bodies]:
    scheme, _, place = address.partition(":")
    async with AsyncExitStack() as stack:
        opening = Opening(
            settings=Settings(data=str(folder / "data"), durability="process"),
            stack=stack,
            clock=FakeClock(),
            ids=FakeIds(),
            incarnation="incarnation",
        )
        yield await BODIES[scheme].open(opening, place)


async def _opened(folder: Path) -> tuple[Blobs, Bodies]:
    address = str(folder / "shared")
    async with AsyncExitStack() as stack:
        opening = Opening(
            settings=Settings(data=str(folder / "data")),
            stack=stack,
            clock=FakeClock(),
            ids=FakeIds(),
            incarnation="incarnation",
        )
        blobs = await BLOBS["files"].open(opening, address)
        return blobs, await BODIES["files"].open(opening, address)
