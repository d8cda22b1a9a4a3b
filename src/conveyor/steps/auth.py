"""Authenticate: whose key it is that a request bears, and when a key was last used.

Every request reads the key's row, so that a revoked one is refused from the next request on. Uses
are noted in memory and written down by a loop of their own: no request waits for that, or fails
by it.
"""

import hmac
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from conveyor.domain import api_key as life
from conveyor.domain.api_key import ApiKey, KeyStatus
from conveyor.domain.credentials import context
from conveyor.domain.ids import KeyId
from conveyor.errors import Stale
from conveyor.ports.clock import Clock
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata

AT_MOST_EVERY = timedelta(minutes=1)  # a key's use is written down
NOBODY = life.digest("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Authenticate:
    metadata: Metadata
    encryption: KeyRing
    clock: Clock
    uses: dict[KeyId, datetime] = field(default_factory=dict)  # not written down yet

    async def key(self, text: str) -> ApiKey | None:
        """The key, if it was given out here and is good now."""
        key_id = life.id_in(text)
        found = await self.metadata.get(ApiKey, key_id) if key_id else None
        # A key that is not there is compared as well: time does not tell which ids there are.
        is_it = hmac.compare_digest(life.digest(text), found.digest if found else NOBODY)
        now = self.clock.now()
        if found is None or not is_it or life.status(found, now) is not KeyStatus.ACTIVE:
            return None
        if found.last_used_at is None or found.last_used_at + AT_MOST_EVERY <= now:
            self.uses[found.id] = now
        return found

    async def is_good(self, key_id: KeyId) -> bool:
        """Whether a key that was good before still is."""
        found = await self.metadata.get(ApiKey, key_id)
        return found is not None and life.status(found, self.clock.now()) is KeyStatus.ACTIVE

    def gateway_key(self, key: ApiKey) -> str | None:
        """The gateway key that was stored with it, if one was."""
        if key.encrypted_gateway_key is None:
            return None
        return self.encryption.decrypt(
            key.encrypted_gateway_key, context=context(key.caller, key.id)
        )

    async def step(self) -> int:
        """Write down when keys were last used."""
        uses = dict(self.uses)
        for key_id, used_at in uses.items():
            await self._note(key_id, used_at)
            # What was used meanwhile is noted again by its next use.
            self.uses.pop(key_id, None)
        return 0

    async def _note(self, key_id: KeyId, used_at: datetime) -> None:
        key = await self.metadata.get(ApiKey, key_id)
        if key is None or key.revoked_at:
            return
        with suppress(Stale):  # somebody else noted it, or it was revoked
            await self.metadata.commit(msgspec.structs.replace(key, last_used_at=used_at))
