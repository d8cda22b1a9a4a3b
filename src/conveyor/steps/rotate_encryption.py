"""Rotate the encryption key: create a new one and re-encrypt every stored credential with it.

1. Publish: the new key is stored beside the current one. It decrypts, and is not used to encrypt yet.
   The rotation waits until every live process names it among its keys.
2. Promote: the new key becomes current. The rotation waits until every live process encrypts with it
   and has ended what it began under the old key.
3. Re-encrypt: rows are rewritten page by page, each on condition that it has not changed, in passes,
   until one finds nothing under another key. Where listings may lag, a second pass after more than
   the lag must find nothing either.
4. Retire the old key. Where processes share the keys, it still decrypts for a day. Then `step`, after
   one more such pass, drops it.

After a crash at any point each key that encrypted anything is still stored, and running the rotation
again continues it. Two rotations at the same time make the same changes, each on condition of the
record's version.

The list of live processes is not proof: it may miss one. So nothing depends on it alone:

| a credential is written by | why no row stays under the old key |
|---|---|
| a step that encrypts it | it does so inside `KeyRing.writing()`: `promote` waits for its own blocks, and the fingerprints of a process name the old key first until its blocks have ended |
| the same in a process that is missing from the list | a block begins with keys that were loaded in the last 30 s, which is less than the wait before the last pass; what it commits even later is found by the pass a day later |
| a step that read its row, or copies it to an event | it commits that row, which is stale by then |
| a request that was cancelled in its commit | it is committed before the passes begin: see `_rotate` |

A process that is missing from the list reads what others encrypt with the new key: it loads the keys
when it meets one that it does not know.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from conveyor.domain.api_key import ApiKey
from conveyor.domain.credentials import (
    CredentialRow,
    RotationEvent,
    RotationProgress,
    RotationResult,
    RotationWait,
    reencrypted,
)
from conveyor.domain.encryption_keys import RETIRED_FOR
from conveyor.domain.job import Job
from conveyor.domain.outbox import OutboxEvent
from conveyor.domain.run import Run
from conveyor.domain.signing import SigningKeys
from conveyor.errors import Conflict, Stale, Unavailable
from conveyor.ports.coordination import Coordination, Member
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import MOST_CHANGES, Key, Metadata, key_of
from conveyor.steps.shared.notifier import FROM_NO_MEMBER, Topic
from conveyor.steps.shared.pagination import pages

PAGE = MOST_CHANGES  # a page is rewritten in one commit
LOOK_AGAIN = 1.0  # seconds between looks at the live processes
# Longer than listings of engines lag, and than a process may encrypt without loading the keys.
LISTING_LAG = timedelta(seconds=60)

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
    coordination: Coordination | None = None  # None if no other process uses the engines
    lag: timedelta = timedelta()  # of listings
    is_running: bool = False

    async def rotate(self, *, force: bool = False) -> AsyncIterator[RotationEvent]:
        """Rotate the key and report progress; with `force` the old key is retired in any case."""
        if self.is_running:
            raise Conflict("Another rotation of the encryption key is running: wait for its end")
        self.is_running = True
        try:
            async for event in self._rotate(force=force):
                yield event
        finally:
            self.is_running = False

    async def step(self) -> int:
        """Drop keys that were retired a day ago, after a last look for values under them."""
        if self.is_running or not await self.encryption.has_expired_keys():
            return 0
        await self.encryption.reload()
        current = self.encryption.fingerprints()[0]
        passes = [event async for event in self._reencrypt_all() if isinstance(event, Pass)]
        if total := sum(found.reencrypted for found in passes):
            # A process wrote these long after the rotation. Others like it may still be under way.
            log.warning("encryption.late", reencrypted=total)
            await self.encryption.retire(current)
        else:
            await self.encryption.drop_expired_keys()
            log.info("encryption.dropped")
        return 0

    async def _rotate(self, *, force: bool) -> AsyncIterator[RotationEvent]:
        names = await self.encryption.publish()
        # Without names no other process has the keys.
        new, others = (names[0], self.coordination) if names else ("", None)
        await self._tell(others)
        async for wait in self._members(others, "load", lambda one: {*names} <= {*one.keys}):
            yield wait
        await self.encryption.promote(new)
        await self._tell(others)
        async for wait in self._members(others, "use", lambda one: one.keys[:1] == (new,)):
            yield wait
        # A cancelled request leaves its `writing()` block while its commit may still be queued in
        # the engine. The engine writes in order, so that commit is done when this one is.
        await self.metadata.commit()
        total, unreadable = 0, list[str]()
        async for event in self._reencrypt_all():
            if isinstance(event, Pass):
                total, unreadable = total + event.reencrypted, event.unreadable
            else:
                yield event
        is_retired = force or not unreadable
        counts = {"reencrypted": total, "unreadable": len(unreadable)}
        if is_retired:
            await self.encryption.retire(new)
            await self._tell(others)
            log.info("encryption.rotated", **counts)
        else:
            log.error("encryption.unreadable", rows=unreadable[:20], **counts)
        yield RotationResult(
            total, tuple(unreadable), is_retired, RETIRED_FOR if names else timedelta()
        )

    async def _tell(self, others: Coordination | None) -> None:
        """Have other processes load the keys at once. Those that miss it load them within 10 s."""
        if others:
            with suppress(Unavailable):
                await others.notify(Topic.ENCRYPTION_KEYS, [FROM_NO_MEMBER])

    async def _members(
        self, others: Coordination | None, what: str, is_done: Callable[[Member], bool]
    ) -> AsyncIterator[RotationWait]:
        """Wait until all live processes have done something; yield those that have not."""
        while others:
            late = [one for one in await others.members() if not is_done(one)]
            if not late:
                return
            yield RotationWait(what, tuple(f"{one.role} {one.id} on {one.host}" for one in late))
            await asyncio.sleep(LOOK_AGAIN)

    async def _reencrypt_all(self) -> AsyncIterator[RotationProgress | RotationWait | Pass]:
        """Repeat passes until they find nothing; yield each pass after its progress."""
        is_clean = False
        while True:
            found = Pass()
            async for event in self._pass(found):
                yield event
            yield found
            if not found.reencrypted and (is_clean or not self.lag):
                return
            is_clean = not found.reencrypted
            if is_clean:
                yield RotationWait("settle", ())
                await asyncio.sleep(self.lag.total_seconds())

    async def _pass(self, found: Pass) -> AsyncIterator[RotationProgress]:
        await self.encryption.reload()
        for kind, read in self._kinds().items():
            examined, before = 0, found.reencrypted
            async for rows in pages(read, start=None, key=key_of):
                async with self.encryption.writing():
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
        return self.encryption.reencrypted(encrypted, context=context)

    async def _stored(self, row: CredentialRow) -> CredentialRow | None:
        """Read the row again; None when it was removed."""
        return await self.metadata.get(type(row), key_of(row))
