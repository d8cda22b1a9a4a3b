"""A large body on the local disk while it arrives, hashed as it is written."""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator

from conveyor.adapters.shared.disk import own_errors, to_the_end, write_all

ENGINE = "spool"  # the name in errors
CHUNK = 1024 * 1024


class LocalSpool:
    """A file without a name in the temporary folder of the system: it ends with the process."""

    def __init__(self) -> None:
        with own_errors(ENGINE):
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - outlives this call
        self._digest = hashlib.sha256()
        self.length = 0

    @property
    def checksum(self) -> str:
        return self._digest.hexdigest()

    async def write(self, chunk: bytes) -> None:
        await to_the_end(self._write, chunk)

    async def chunks(self) -> AsyncIterator[bytes]:
        """What was written, from its start."""
        with own_errors(ENGINE):
            self._file.seek(0)
            while chunk := await to_the_end(self._file.read, CHUNK):
                yield chunk

    async def discard(self) -> None:
        await asyncio.to_thread(self._file.close)

    def _write(self, chunk: bytes) -> None:
        with own_errors(ENGINE):
            write_all(self._file.fileno(), chunk)
        self._digest.update(chunk)
        self.length += len(chunk)
