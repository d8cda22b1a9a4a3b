"""Rotate the encryption key: create a new one and re-encrypt every stored credential with it.

The new key is written beside the old one and becomes current. Then rows are rewritten page by page,
each on condition that it has not changed, until a pass finds nothing under the old key. Only then
is the old key deleted. After a crash at any point both keys are there and every credential can be
decrypted with one of them; running the rotation again continues it.

Nothing is written under the old key once the passes begin:

| a credential is written by | why it cannot appear under the old key later |
|---|---|
| a step that encrypts it | it does so inside `KeyRing.writing()`, for which `rotate()` waits |
| a step that read its row, or copies it to an event | it commits that row, which is stale by then |
| a request that was cancelled in its commit | it is committed before the passes begin: see `_rotate` |
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
from conveyor.ports.metadata import MOST_CHANGES, Key, Metadata, key_of
from conveyor.steps.shared.pagination import pages

PAGE = MOST_CHANGES  # a page is rewritten in one commit

log = structlog.get_logger()

Read = Callable[[Key | None], Awaitable[Sequence[CredentialRow]]]


@dataclass(slots=True)
class Pass:
    """What one pass over all rows found."""

    reencrypted: int = 0
    unreadable: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class RotateEncryption:
    metadata: Metadata
    encryption: KeyRing
    is_running: bool = False

    async def rotate(
        self, *, force: bool = False
    ) -> AsyncIterator[RotationProgress | RotationResult]:
        """Rotate the key and report progress; with `force` the old key is deleted in any case."""
        if self.is_running:
            raise Conflict("Another rotation of the encryption key is running: wait for its end")
        self.is_running = True
        try:
            async for event in self._rotate(force=force):
                yield event
        finally:
            self.is_running = False

    async def _rotate(self, *, force: bool) -> AsyncIterator[RotationProgress | RotationResult]:
        await self.encryption.rotate()
        # A cancelled request leaves its `writing()` block while its commit may still be queued in
        # the engine. The engine writes in order, so that commit is done when this one is.
        await self.metadata.commit()
        total = 0
        while True:
            found = Pass()
            async for event in self._pass(found):
                yield event
            total += found.reencrypted
            if not found.reencrypted:
                break
        retired = force or not found.unreadable
        counts = {"reencrypted": total, "unreadable": len(found.unreadable)}
        if retired:
            await self.encryption.retire()
            log.info("encryption.rotated", **counts)
        else:
            log.error("encryption.unreadable", rows=found.unreadable[:20], **counts)
        yield RotationResult(total, tuple(found.unreadable), retired)

    async def _pass(self, found: Pass) -> AsyncIterator[RotationProgress]:
        for kind, read in self._kinds().items():
            examined, before = 0, found.reencrypted
            async for rows in pages(read, start=None, key=key_of):
                await self._rewrite(rows, found)
                examined += len(rows)
                yield RotationProgress(kind, examined, found.reencrypted - before)

    def _kinds(self) -> dict[str, Read]:
        # Runs come before events: a run that ends hands its token to an event.
        return {
            "jobs": lambda after: self.metadata.page(Job, limit=PAGE, after=after),
            "runs": self._live_runs,
            "signing_keys": lambda after: self.metadata.page(SigningKeys, limit=PAGE, after=after),
            "api_keys": lambda after: self.metadata.page(ApiKey, limit=PAGE, after=after),
            "events": lambda after: self.metadata.page(OutboxEvent, limit=PAGE, after=after),
        }

    async def _live_runs(self, after: Key | None) -> Sequence[Run]:
        return await self.metadata.live_runs(limit=PAGE, after=str(after or ""))

    async def _rewrite(self, rows: Sequence[CredentialRow], found: Pass) -> None:
        """Rewrite a page in one commit; if a row has changed meanwhile, each row by itself."""
        changed = [new for row in rows if (new := self._reencrypted(row, found)) is not None]
        if not changed:
            return
        try:
            await self.metadata.commit(*changed)
            found.reencrypted += len(changed)
        except Stale:
            for row in changed:
                await self._rewrite_one(row, found)

    async def _rewrite_one(self, row: CredentialRow, found: Pass) -> None:
        while (stored := await self._stored(row)) and (new := self._reencrypted(stored, found)):
            with suppress(Stale):
                await self.metadata.commit(new)
                found.reencrypted += 1
                return

    def _reencrypted(self, row: CredentialRow, found: Pass) -> CredentialRow | None:
        """Return the row under the current key; None when it is, or cannot be decrypted."""
        try:
            new = reencrypted(row, self._under_current_key)
        except Unavailable:
            found.unreadable.append(row.id)
            return None
        return None if new is row else new

    def _under_current_key(self, encrypted: bytes, context: str) -> bytes:
        if self.encryption.is_current(encrypted):
            return encrypted
        secret = self.encryption.decrypt(encrypted, context=context)
        return self.encryption.encrypt(secret, context=context)

    async def _stored(self, row: CredentialRow) -> CredentialRow | None:
        """Read the row again; None when it was removed."""
        return await self.metadata.get(type(row), key_of(row))
