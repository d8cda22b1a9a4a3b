"""Metadata that writes no credential under an old key: what was encrypted before the key was changed,
and comes to be written after it, is re-encrypted on its way.
"""

import asyncio
from typing import cast

from conveyor.domain.credentials import reencrypted
from conveyor.errors import Unavailable
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Change, Metadata


class FreshSeals:
    """Reads and writes as the metadata behind it does."""

    def __init__(self, metadata: Metadata, encryption: KeyRing) -> None:
        self._metadata, self._encryption = metadata, encryption
        self._under_way: set[asyncio.Event] = set()

    @property
    def metadata(self) -> Metadata:
        return cast("Metadata", self)

    async def commit(self, *changes: Change) -> None:
        over = asyncio.Event()
        self._under_way.add(over)
        try:
            await self._metadata.commit(*(reencrypted(change, self._fresh) for change in changes))
        finally:
            self._under_way.discard(over)
            over.set()

    async def settled(self) -> None:
        """Until every write that has begun by now has ended."""
        for over in [*self._under_way]:
            await over.wait()
        # One whose caller went away ends here, and may be on its way in the engine: an engine
        # of one writer does it before this.
        await self._metadata.commit()

    def _fresh(self, encrypted: bytes, context: str) -> bytes:
        if self._encryption.is_current(encrypted):
            return encrypted
        try:
            return self._encryption.encrypt(
                self._encryption.decrypt(encrypted, context=context), context=context
            )
        except Unavailable:
            return encrypted  # as unreadable as it was; whoever needs it says so

    def __getattr__(self, name: str) -> object:
        return getattr(self._metadata, name)
