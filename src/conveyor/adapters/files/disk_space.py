"""Disk space: how much is free, and how much files take."""

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from conveyor.adapters.files.disk import own_errors


async def disk_usage(folder: Path) -> tuple[int, int]:
    """The free bytes and the size of the disk that a folder is on."""
    with own_errors():
        usage = await asyncio.to_thread(shutil.disk_usage, folder)  # may hang on a network disk
    return usage.free, usage.total


async def file_sizes(files: Mapping[str, Path]) -> dict[str, int]:
    """The length of each file; 0 for one that does not exist."""
    with own_errors():
        return dict(zip(files, await asyncio.to_thread(_lengths, files.values()), strict=True))


def _lengths(paths: Iterable[Path]) -> list[int]:
    return [path.stat().st_size if path.exists() else 0 for path in paths]
