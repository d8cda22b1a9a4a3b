"""RotateEncryption: a new encryption key, and every stored credential encrypted with it.

First the new key is in the folder beside the old one, and encrypts from then on. Then row after row
is written anew, each on condition that it has not moved. At last the old key goes. Whoever dies
at any point leaves both keys, and rows that open with one of them: doing it again goes on.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from conveyor.domain.api_key import ApiKey
from conveyor.domain.credentials import CredentialRow, RotationProgress, RotationResult, reencrypted
from conveyor.domain.job import Job
from conveyor.domain.outbox import OutboxEvent
from conveyor.domain.run import Run
from conveyor.domain.signing import SigningKeys
from conveyor.errors import Conflict, Stale, Unavailable
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Key, Metadata, key_of

PAGE = 100

log = structlog.get_logger()

Page = Callable[[Key | None], Awaitable[Sequence[CredentialRow]]]


@dataclass(slots=True)
class Tally:
    """What was done so far."""

    reencrypted: int = 0
    unreadable: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class RotateEncryption:
    metadata: Metadata
    encryption: KeyRing
    settled: Callable[[], Awaitable[None]]  # until all writes that had begun have ended
    under_way: bool = False

    async def rotate(
        self, *, force: bool = False
    ) -> AsyncIterator[RotationProgress | RotationResult]:
        """Change the key and tell how far it is; with `force` the old one goes in any case."""
        if self.under_way:
            raise Conflict("The encryption key is being changed already: wait for the end of that")
        self.under_way = True
        try:
            async for event in self._rotate(force=force):
                yield event
        finally:
            self.under_way = False

    async def _rotate(self, *, force: bool) -> AsyncIterator[RotationProgress | RotationResult]:
        await self.encryption.rotate()
        # What was encrypted before and is on its way to its row is there when the rows are read.
        await self.settled()
        tally = Tally()
        for kind, page in self._kinds().items():
            async for event in self._each(kind, page, tally):
                yield event
        removed = force or not tally.unreadable
        if removed:
            await self.encryption.retire()
        told = {"reencrypted": tally.reencrypted, "unreadable": len(tally.unreadable)}
        if removed:
            log.info("encryption.rotated", **told)
        else:
            log.error("encryption.unreadable", rows=tally.unreadable[:20], **told)
        yield RotationResult(tally.reencrypted, tuple(tally.unreadable), removed)

    def _kinds(self) -> dict[str, Page]:
        return {
            "jobs": lambda after: self.metadata.page(Job, limit=PAGE, after=after),
            "runs": self._live,
            "signing_keys": lambda after: self.metadata.page(SigningKeys, limit=PAGE, after=after),
            "api_keys": lambda after: self.metadata.page(ApiKey, limit=PAGE, after=after),
            "events": lambda after: self.metadata.page(OutboxEvent, limit=PAGE, after=after),
        }

    async def _live(self, after: Key | None) -> Sequence[Run]:
        """Runs whose token is still to be told; that of a run which has ended is with its event."""
        live = await self.metadata.live_runs(limit=PAGE, after=str(after or ""))
        return [run for run, _ in live]

    async def _each(self, kind: str, page: Page, tally: Tally) -> AsyncIterator[RotationProgress]:
        after: Key | None = None
        examined, before = 0, tally.reencrypted
        while rows := await page(after):
            await self._together(rows, tally)
            examined, after = examined + len(rows), key_of(rows[-1])
            yield RotationProgress(kind, examined, tally.reencrypted - before)

    async def _together(self, rows: Sequence[CredentialRow], tally: Tally) -> None:
        """A page in one write; when one of its rows has moved on meanwhile, each by itself."""
        fresh = [one for row in rows if (one := self._fresh(row, tally)) is not None]
        try:
            await self.metadata.commit(*fresh)
            tally.reencrypted += len(fresh)
        except Stale:
            for row in fresh:
                await self._alone(row, tally)

    async def _alone(self, row: CredentialRow, tally: Tally) -> None:
        while (found := await self._again(row)) and (fresh := self._fresh(found, tally)):
            with suppress(Stale):
                await self.metadata.commit(fresh)
                tally.reencrypted += 1
                return

    def _fresh(self, row: CredentialRow, tally: Tally) -> CredentialRow | None:
        """The row as it is to be; None when it needs no change, or cannot have one."""
        try:
            fresh = reencrypted(row, self._turned)
        except Unavailable:
            tally.unreadable.append(row.id)
            return None
        return None if fresh is row else fresh

    def _turned(self, encrypted: bytes, context: str) -> bytes:
        if self.encryption.is_current(encrypted):
            return encrypted
        return self.encryption.encrypt(
            self.encryption.decrypt(encrypted, context=context), context=context
        )

    async def _again(self, row: CredentialRow) -> CredentialRow | None:
        """The row as it is now; None when it is gone."""
        return await self.metadata.get(type(row), key_of(row))
