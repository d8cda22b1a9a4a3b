"""Files that are written in a folder of their own and then moved to their place."""

import asyncio
import hashlib
import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from conveyor.adapters.files.disk import ENGINE, in_folder, unfinished_prefix
from conveyor.adapters.shared.disk import own_errors, to_the_end, write_all


class UnfinishedFile:
    """A file that gets its name when it is whole: a crash leaves none there that is cut short."""

    def __init__(self, folder: Path, owner: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a buffer that did not fit on the disk would be written again by `close`.
        self._file = NamedTemporaryFile(  # noqa: SIM115 - outlives this call
            dir=folder, prefix=unfinished_prefix(owner), delete=False, buffering=0
        )

    def write(self, content: bytes) -> None:
        write_all(self._file.fileno(), content)

    def move_to(self, path: Path, *, sync: bool) -> None:
        if sync:
            os.fdatasync(self._file.fileno())
        self._file.close()
        in_folder(path.parent, lambda: Path(self._file.name).rename(path), sync=sync)

    def discard(self) -> None:
        self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


class FileSpool:
    """A large body on disk, hashed as it is written."""

    def __init__(self, folder: Path, owner: str = "") -> None:
        with own_errors(ENGINE):
            self._draft = UnfinishedFile(folder, owner)
        self._digest = hashlib.sha256()
        self.length = 0

    @property
    def checksum(self) -> str:
        return self._digest.hexdigest()

    async def write(self, chunk: bytes) -> None:
        await to_the_end(self._write, chunk)

    async def discard(self) -> None:
        await asyncio.to_thread(self._draft.discard)

    def move_to(self, path: Path, *, sync: bool) -> None:
        self._draft.move_to(path, sync=sync)

    def _write(self, chunk: bytes) -> None:
        with own_errors(ENGINE):
            self._draft.write(chunk)
        self._digest.update(chunk)
        self.length += len(chunk)
