"""Large objects as files."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import mkstemp

from conveyor.adapters.files.disk import (
    CHUNK,
    ENGINE,
    IsAbandoned,
    below,
    in_folder,
    reading,
    remove_empty,
    remove_unfinished,
    unfinished_prefix,
)
from conveyor.adapters.shared.disk import own_errors, sync_folder, to_the_end, write_all
from conveyor.adapters.shared.folder_lock import removing

DRAFT = ".draft-"


class FileBlobs:
    """A key is a path below the folder. An object appears whole, by a rename."""

    def __init__(
        self, folder: Path, *, sync: bool = True, is_swept: bool = True, owner: str = ""
    ) -> None:
        self.is_swept = is_swept
        self._folder = folder
        self._owner = owner  # the process, for names of unfinished files
        self._sync = sync

    async def put(self, key: str, content: AsyncIterable[bytes]) -> int:
        draft = _Draft(below(self._folder, key), self._owner, sync=self._sync)
        with own_errors(ENGINE):
            try:
                await to_the_end(draft.open)
                async for chunk in content:
                    await to_the_end(draft.write, chunk)
                await to_the_end(draft.publish)
            finally:
                draft.discard(up_to=self._folder)
        return draft.length

    async def read(self, key: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        with reading():
            file = await asyncio.to_thread(below(self._folder, key).open, "rb")
            try:
                file.seek(offset)
                while chunk := await asyncio.to_thread(file.read, CHUNK):
                    yield chunk
            finally:
                file.close()

    async def length(self, key: str) -> int | None:
        return await asyncio.to_thread(_length, below(self._folder, key))

    async def keys(self, prefix: str, *, limit: int, after: str = "") -> Sequence[str]:
        return await asyncio.to_thread(self._keys, prefix, limit, after)

    async def delete(self, keys: Sequence[str]) -> None:
        await asyncio.to_thread(self._delete, keys)

    def sign_put(self, *_: object, **__: object) -> None:
        return None

    def sign_get(self, *_: object, **__: object) -> None:
        return None

    def sweep_drafts(self, is_abandoned: IsAbandoned | None = None) -> None:
        """Remove empty folders, and drafts that are abandoned; all if no other process is alive."""
        for path, _, names in os.walk(self._folder, topdown=False):
            for name in names:
                if name.startswith(DRAFT):
                    remove_unfinished(Path(path, name), name.removeprefix(DRAFT), is_abandoned)
            remove_empty(Path(path), up_to=self._folder)

    def _keys(self, prefix: str, limit: int, after: str) -> list[str]:
        with own_errors(ENGINE):
            return list(islice(_below(str(self._folder), "", prefix, after), limit))

    def _delete(self, keys: Sequence[str]) -> None:
        with own_errors(ENGINE), removing(self._folder, locks=self.is_swept):
            for key in keys:
                path = below(self._folder, key)
                path.unlink(missing_ok=True)
                remove_empty(path.parent, up_to=self._folder)


class _Draft:
    """An object that is being written, in the folder where it will appear."""

    def __init__(self, path: Path, owner: str, *, sync: bool) -> None:
        self._path = path
        self._prefix = DRAFT + unfinished_prefix(owner)
        self._sync = sync
        self._descriptor, self._name = -1, ""  # until it is open
        self.length = 0

    def open(self) -> None:
        folder = self._path.parent
        self._descriptor, self._name = in_folder(
            folder, lambda: mkstemp(dir=folder, prefix=self._prefix), sync=self._sync
        )

    def write(self, chunk: bytes) -> None:
        write_all(self._descriptor, chunk)
        self.length += len(chunk)

    def publish(self) -> None:
        # The content is synced before the rename and the name after it, so that a power cut leaves
        # either no object or a whole one.
        if self._sync:
            os.fdatasync(self._descriptor)
        Path(self._name).rename(self._path)
        if self._sync:
            sync_folder(self._path.parent)

    def discard(self, *, up_to: Path) -> None:
        """Close it. If it was not published, remove it and the folders that were created for it."""
        if self._name:
            os.close(self._descriptor)
            Path(self._name).unlink(missing_ok=True)
            remove_empty(self._path.parent, up_to=up_to)


def _below(folder: str, base: str, prefix: str, after: str) -> Iterator[str]:
    """Yield the keys at and below the folder `base`, in order.

    It reads only folders that can hold a key with the prefix after `after`, and no further than the
    caller iterates.
    """
    for name in _names(f"{folder}/{base}"):
        key = base + name
        if not name.endswith("/"):
            if key.startswith(prefix) and key > after and not name.startswith(DRAFT):
                yield key
        elif (key.startswith(prefix) or prefix.startswith(key)) and (
            key > after or after.startswith(key)
        ):
            yield from _below(folder, key, prefix, after)


def _names(folder: str) -> list[str]:
    """The names in a folder in the order of keys. Folders end with a slash, as they do in keys."""
    try:
        with os.scandir(folder) as entries:
            return sorted(one.name + "/" * one.is_dir(follow_symlinks=False) for one in entries)
    except FileNotFoundError:  # removed since its parent was read
        return []


def _length(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
