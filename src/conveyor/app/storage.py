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
FOLDER = re.compile(r"(/[^/]+)+/?")

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
    files = FileBodies(
        Path(address or opening.folder) / "bodies",
        sync=opening.sync,
        is_swept=not address,
        owner=opening.incarnation,
    )
    _sweep_unfinished(opening, address, files.sweep_spool)
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


def _in_files(open_it: Callable[[Opening, str], Awaitable[P]]) -> Scheme[P]:
    """An engine in the data folder, or in a folder that processes share."""
    return Scheme(
        open=open_it, is_shared=True, needs_address=True, address=_is_folder, form="[/folder]"
    )


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
    "files": _in_files(_file_bodies),
    "s3": _in_s3(_s3_bodies),
}
BLOBS: Mapping[str, Scheme[Blobs]] = {"files": _in_files(_file_blobs), "s3": _in_s3(_s3_blobs)}
