"""How much room the data have, and how much files take."""

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from conveyor.adapters.files.disk import own_errors


async def disk(folder: Path) -> tuple[int, int]:
    """Bytes free on the disk a folder is on, and its size."""
    with own_errors():
        usage = await asyncio.to_thread(shutil.disk_usage, folder)  # a network disk may hang
    return usage.free, usage.total


async def sizes(files: Mapping[str, Path]) -> dict[str, int]:
    """The length of each file; one that is not there takes nothing."""
    with own_errors():
        return dict(zip(files, await asyncio.to_thread(_lengths, files.values()), strict=True))


def _lengths(paths: Iterable[Path]) -> list[int]:
    return [path.stat().st_size if path.exists() else 0 for path in paths]
