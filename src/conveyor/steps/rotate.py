"""Rotate: a caller's signing keys, one in use and one about to be. A secret is told once."""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from conveyor.domain import signing
from conveyor.domain.ids import CallerId
from conveyor.domain.signing import SigningKey
from conveyor.domain.signing import SigningKeys as Slots
from conveyor.errors import Stale
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotate:
    metadata: Metadata
    encryption: KeyRing
    clock: Clock
    ids: Ids
    secret: Callable[[], bytes]  # one that nobody can guess

    async def keys(self, caller: CallerId) -> Slots:
        return await self.metadata.get(Slots, caller) or Slots(id=caller)

    async def begin(self, caller: CallerId) -> tuple[SigningKey, str]:
        """A new key and its secret: the first is in use at once, a later one is a candidate."""
        kid, secret = self.ids.new(), b64encode(self.secret()).decode()
        with self.encryption.writing():
            new = SigningKey(
                kid=kid,
                encrypted_secret=self.encryption.encrypt(
                    secret, context=signing.context(caller, kid)
                ),
                created_at=self.clock.now(),
            )
            await self._change(caller, lambda keys: signing.rotated(keys, new))
        log.info("signing.begun", kid=kid)
        return new, secret

    async def finish(self, caller: CallerId) -> SigningKey:
        """The candidate is in use from now on, and the key before it is forgotten."""
        keys = await self._change(caller, signing.finished)
        assert keys.active is not None
        log.info("signing.finished", kid=keys.active.kid)
        return keys.active

    async def give_up(self, caller: CallerId) -> None:
        """The candidate is forgotten. Without one there is nothing to do, and that is no error."""
        if (await self.keys(caller)).candidate is None:
            return
        await self._change(caller, signing.given_up)
        log.info("signing.given_up")

    async def _change(self, caller: CallerId, change: Callable[[Slots], Slots]) -> Slots:
        while True:
            changed = change(await self.keys(caller))
            try:
                await self.metadata.commit(changed)
            except Stale:
                continue
            return changed
