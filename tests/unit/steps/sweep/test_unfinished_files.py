"""Unfinished files in a shared folder go with their process, or by age if that is not known."""

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from conveyor.adapters.files.blobs import FileBlobs, _Draft
from conveyor.adapters.files.bodies import FileBodies
from conveyor.steps.sweep.unfinished_files import LONGEST_WRITE, QUIET, UnfinishedFiles
from conveyor.testing.clock import FakeClock, FakeIds

ALIVE, DEAD, UNKNOWN = "01ALIVE", "01DEAD", "01UNKNOWN"
KNOWN = {ALIVE: True, DEAD: False}
A_MINUTE = timedelta(minutes=1)


def _spool(folder: Path, owner: str) -> Path:
    """A page that a process began to spool."""
    FileBodies(folder / "bodies", FakeIds(), owner=owner).spool()
    [left] = (folder / "bodies" / "spool").iterdir()
    return left


def _draft(folder: Path, owner: str) -> Path:
    """An object that a process began to write."""
    _Draft(folder / "blobs" / "inputs" / "one", owner, sync=False).open()
    [left] = (folder / "blobs" / "inputs").iterdir()
    return left


@pytest.mark.parametrize("make", [_spool, _draft])
@pytest.mark.parametrize(
    ("owner", "quiet_for", "stays"),
    [
        (ALIVE, 2 * LONGEST_WRITE, True),
        (DEAD, QUIET + A_MINUTE, False),
        (DEAD, QUIET - A_MINUTE, True),  # it may be cut off from coordination, and write
        (UNKNOWN, LONGEST_WRITE - A_MINUTE, True),
        (UNKNOWN, LONGEST_WRITE + A_MINUTE, False),
        ("", LONGEST_WRITE - A_MINUTE, True),
        ("", LONGEST_WRITE + A_MINUTE, False),
    ],
)
def test_a_file_stays_while_its_process_may_finish_it(
    tmp_path: Path,
    make: Callable[[Path, str], Path],
    owner: str,
    quiet_for: timedelta,
    *,
    stays: bool,
) -> None:
    clock = FakeClock()
    left = make(tmp_path, owner)
    written_at = (clock.now() - quiet_for).timestamp()
    os.utime(left, (written_at, written_at))
    removers = [
        FileBodies(tmp_path / "bodies", FakeIds()).sweep_spool,
        FileBlobs(tmp_path / "blobs").sweep_drafts,
    ]

    asyncio.run(UnfinishedFiles(clock=clock, is_alive=KNOWN.get, removers=removers).step())

    assert left.exists() is stays
