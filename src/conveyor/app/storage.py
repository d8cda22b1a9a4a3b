"""Engines of result bodies and of large objects."""

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from conveyor.adapters.files.blobs import FileBlobs
from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.segments.bodies import SegmentBodies
from conveyor.adapters.segments.store import open_segment_store, visit_segment_store
from conveyor.app.schemes import Opening, Scheme
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies

SEGMENTS = "packs"  # the folder of segments, as version 0.1.0 named it
FOLDER = re.compile(r"(/[^/]+)+/?")
LONGEST_WRITE = timedelta(days=1)  # in which nothing is added to an unfinished file

P = TypeVar("P")


async def _file_blobs(opening: Opening, address: str) -> Blobs:
    blobs = FileBlobs(Path(address or opening.folder) / "blobs", sync=opening.sync)
    if not opening.is_offline:
        blobs.sweep_drafts(before=_abandoned(opening, address))
    return blobs


async def _file_bodies(opening: Opening, address: str) -> Bodies:
    """Write bodies to files. Bodies that were written to segments earlier stay readable."""
    # A service that never wrote segments needs neither their index nor their writer thread.
    is_packed = opening.is_offline or (opening.folder / "bodies" / SEGMENTS).exists()
    if address or not is_packed:
        return _loose_bodies(opening, address)
    return _segment_bodies(opening, packing=False)


async def _packed_bodies(opening: Opening, _address: str) -> Bodies:
    """Write bodies to segments. Bodies that were written to files earlier stay readable."""
    return _segment_bodies(opening, packing=True)


def _segment_bodies(opening: Opening, *, packing: bool) -> Bodies:
    folder = opening.folder / "bodies" / SEGMENTS
    files = _loose_bodies(opening)
    if opening.is_offline:
        store = opening.stack.enter_context(visit_segment_store(folder))
    else:
        opened = open_segment_store(folder, clock=opening.clock, sync=opening.sync)
        store = opening.stack.enter_context(opened)
    return SegmentBodies(store, files, packing=packing)


def _loose_bodies(opening: Opening, address: str = "") -> FileBodies:
    files = FileBodies(Path(address or opening.folder) / "bodies", sync=opening.sync)
    if not opening.is_offline:
        files.sweep_spool(before=_abandoned(opening, address))
    return files


def _abandoned(opening: Opening, address: str) -> datetime | None:
    """Unfinished files that were last written before this belong to dead processes.

    None if all of them do: the lock of the data folder proves it.
    """
    return opening.clock.now() - LONGEST_WRITE if address else None


def _is_folder(address: str) -> bool:
    return not address or FOLDER.fullmatch(address) is not None


def _in_files(open_it: Callable[[Opening, str], Awaitable[P]]) -> Scheme[P]:
    """An engine in the data folder, or in a folder that processes share."""
    return Scheme(
        open=open_it, is_shared=True, needs_address=True, address=_is_folder, form="[/folder]"
    )


BODIES: Mapping[str, Scheme[Bodies]] = {
    "segments": Scheme(open=_packed_bodies),
    "files": _in_files(_file_bodies),
}
BLOBS: Mapping[str, Scheme[Blobs]] = {"files": _in_files(_file_blobs)}
