"""What lies in the data folder is for its owner alone, also where the folder is not."""

import stat
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from conveyor.adapters.files.bodies import FileBodies
from conveyor.app.engines import open_engines
from conveyor.ports.blobs import as_stream
from conveyor.ports.bodies import Body, BodyName
from conveyor.settings import Settings
from conveyor.testing.clock import FakeIds
from conveyor.testing.factories import JOB, RUN, a_task

PAGE = Body(BodyName(JOB, RUN, a_task().id, 1), b"a page")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder that existed before, open to everybody, with files of an earlier release."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    (folder / "bodies").mkdir()
    (folder / "bodies").chmod(0o755)
    (folder / "conveyor.db").touch(mode=0o644)
    (folder / "conveyor.db").chmod(0o644)
    return folder


async def test_nobody_else_reads_what_is_in_an_open_folder(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        engines = await open_engines(Settings(data=str(folder)), stack)
        await engines.bodies.put_many([PAGE])
        await engines.blobs.put("lists/a/b/c.ndjson", as_stream([b"{}"]))

        files = _modes(folder)
        assert files.keys() >= {
            "conveyor.db", "conveyor.db-wal", "conveyor.db-shm", "conveyor.lock",
            "bodies/packs/index.db", "bodies/packs/00000001.warc",
        }  # fmt: skip
        assert set(files.values()) == {0o600}
        assert (_mode(folder / "bodies"), _mode(folder / "blobs")) == (0o700, 0o700)


async def test_a_body_kept_as_a_file_is_private(tmp_path: Path) -> None:
    bodies = FileBodies(tmp_path, FakeIds(), sync=False)
    await bodies.put_many([PAGE])

    assert list(_modes(tmp_path).values()) == [0o600]


@pytest.mark.parametrize(("mode", "warnings"), [(0o755, 1), (0o750, 1), (0o700, 0)])
async def test_a_folder_that_others_may_list_is_warned_about(
    folder: Path, mode: int, warnings: int
) -> None:
    _set_mode(folder, mode)
    with capture_logs() as logs:
        async with AsyncExitStack() as stack:
            await open_engines(Settings(data=str(folder)), stack)

    told = [line for line in logs if line["event"] == "data.open_to_others"]
    assert len(told) == warnings
    assert all(f"chmod 700 {folder}" in line["hint"] for line in told)
    assert _mode(folder) == mode


def _modes(folder: Path) -> dict[str, int]:
    """Of each file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): _mode(path) for path in files}


def _set_mode(path: Path, mode: int) -> None:
    path.chmod(mode)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
