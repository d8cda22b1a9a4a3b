"""Engines of result bodies and of large objects."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from conveyor.adapters.files.blobs import FileBlobs
from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.files.disk import IsAbandoned
from conveyor.adapters.s3.address import FORM as S3_FORM
from conveyor.adapters.s3.address import Layout, parse_address
from conveyor.adapters.segments.bodies import SegmentBodies
from conveyor.adapters.segments.store import open_segment_store, visit_segment_store
from conveyor.app.schemes import Opening, Scheme
from conveyor.errors import RefusedToStart
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies
from conveyor.settings import Settings

if TYPE_CHECKING:
    from conveyor.adapters.s3.bucket import S3Bucket

SEGMENTS = "packs"  # the folder of segments, as version 0.1.0 named it
FOLDER = re.compile(r"(/[^/?]+)+/?")
IN_SEGMENTS = "?layout=segments"  # after a folder, for bodies

P = TypeVar("P")


async def _file_blobs(opening: Opening, address: str) -> Blobs:
    blobs = FileBlobs(
        Path(address or opening.folder) / "blobs",
        sync=opening.sync,
        is_swept=not address,
        owner=opening.incarnation,
    )
    _sweep_unfinished(opening, address, blobs.sweep_drafts)
    return blobs


async def _file_bodies(opening: Opening, address: str) -> Bodies:
    """Write bodies to files. Bodies that were written to segments earlier stay readable."""
    # A service that never wrote segments needs neither their index nor their writer thread.
    is_packed = opening.is_offline or (opening.folder / "bodies" / SEGMENTS).exists()
    folder = address.removesuffix(IN_SEGMENTS)
    files = _loose_bodies(opening, folder, in_segments=folder != address)
    return files if folder or not is_packed else _segment_bodies(opening, files, packing=False)


async def _packed_bodies(opening: Opening, _address: str) -> Bodies:
    """Write bodies to segments. Bodies that were written to files earlier stay readable."""
    return _segment_bodies(opening, _loose_bodies(opening), packing=True)


def _segment_bodies(opening: Opening, files: FileBodies, *, packing: bool) -> Bodies:
    folder = opening.folder / "bodies" / SEGMENTS
    if opening.is_offline:
        store = opening.stack.enter_context(visit_segment_store(folder))
    else:
        opened = open_segment_store(folder, clock=opening.clock, sync=opening.sync)
        store = opening.stack.enter_context(opened)
    return SegmentBodies(store, files, packing=packing)


def _loose_bodies(opening: Opening, folder: str = "", *, in_segments: bool = False) -> FileBodies:
    files = FileBodies(
        Path(folder or opening.folder) / "bodies",
        opening.ids,
        sync=opening.sync,
        is_swept=not folder,
        owner=opening.incarnation,
        packs=in_segments,
    )
    _sweep_unfinished(opening, folder, files.sweep_spool)
    return files


def _sweep_unfinished(
    opening: Opening, address: str, sweep: Callable[[IsAbandoned | None], None]
) -> None:
    """Remove unfinished files: at once if the lock of the data folder proves them abandoned."""
    if address:
        opening.sweep_unfinished.append(sweep)  # the members tell later
    elif not opening.is_offline:
        sweep(None)


def _is_folder(address: str) -> bool:
    return not address or FOLDER.fullmatch(address) is not None


def _is_folder_of_bodies(address: str) -> bool:
    return _is_folder(address.removesuffix(IN_SEGMENTS))


async def _s3_blobs(opening: Opening, address: str) -> Blobs:
    bucket, _ = await _s3_bucket(opening, address)
    from conveyor.adapters.s3.blobs import S3Blobs  # noqa: PLC0415 - an extra

    return S3Blobs(bucket)


async def _s3_bodies(opening: Opening, address: str) -> Bodies:
    bucket, layout = await _s3_bucket(opening, address)
    from conveyor.adapters.s3.bodies import S3Bodies  # noqa: PLC0415 - an extra

    return S3Bodies(bucket, opening.ids, layout=layout)


async def _s3_bucket(opening: Opening, address: str) -> "tuple[S3Bucket, Layout]":
    with _s3_installed():
        from conveyor.adapters.s3.bucket import open_bucket  # noqa: PLC0415 - an extra
    parsed = parse_address(address)
    assert parsed, "checked by `check_engines`"
    return await asyncio.to_thread(open_bucket, parsed, opening.clock), parsed.layout


@contextmanager
def _s3_installed() -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise RefusedToStart(
            "settings: s3: needs obstore and botocore: install them with `pip install 'conveyor-batch[s3]'`"
        ) from None


def _in_s3(open_it: Callable[[Opening, str], Awaitable[P]]) -> Scheme[P]:
    return Scheme(
        open=open_it,
        is_shared=True,
        address=_is_s3_address,
        form=S3_FORM,
        migrate=_migrate_s3,
    )


async def _migrate_s3(settings: Settings, address: str, kinds: Sequence[str]) -> Sequence[str]:
    with _s3_installed():
        from conveyor.adapters.s3.setup import set_up_bucket  # noqa: PLC0415 - an extra
    parsed = parse_address(address)
    assert parsed, "checked by `check_engines`"
    return await asyncio.to_thread(
        set_up_bucket, parsed, settings.s3_origins, has_blobs="blobs" in kinds
    )


def _is_s3_address(address: str) -> bool:
    return parse_address(address) is not None


BODIES: Mapping[str, Scheme[Bodies]] = {
    "segments": Scheme(open=_packed_bodies),
    # In the data folder, or in a folder that processes share.
    "files": Scheme(
        open=_file_bodies,
        is_shared=True,
        needs_address=True,
        address=_is_folder_of_bodies,
        form=f"[/folder][{IN_SEGMENTS}]",
    ),
    "s3": _in_s3(_s3_bodies),
}
BLOBS: Mapping[str, Scheme[Blobs]] = {
    "files": Scheme(
        open=_file_blobs,
        is_shared=True,
        needs_address=True,
        address=_is_folder,
        form="[/folder]",
    ),
    "s3": _in_s3(_s3_blobs),
}
