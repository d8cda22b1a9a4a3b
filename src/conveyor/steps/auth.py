"""Authenticate: find the API key of a request, and record when each key was last used.

Every request reads the key's row, so a revoked key is refused from the next request on. Uses are
collected in memory and written by a loop, so that no request waits for that write or fails with it.
"""

import hmac
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from conveyor.domain import api_key
from conveyor.domain.api_key import ApiKey, KeyStatus
from conveyor.domain.credentials import context
from conveyor.domain.ids import ApiKeyId
from conveyor.errors import Stale
from conveyor.ports.clock import Clock
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata

RECORD_EVERY = timedelta(minutes=1)  # of one key
NO_KEY = api_key.digest("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Authenticate:
    metadata: Metadata
    encryption: KeyRing
    clock: Clock
    uses: dict[ApiKeyId, datetime] = field(default_factory=dict)  # to be written

    async def key(self, text: str) -> ApiKey | None:
        """Return the API key if it exists and is active."""
        key_id = api_key.id_in(text)
        found = await self.metadata.get(ApiKey, key_id) if key_id else None
        # An unknown id costs a comparison too: response times do not tell which ids exist.
        matches = hmac.compare_digest(api_key.digest(text), found.digest if found else NO_KEY)
        now = self.clock.now()
        if found is None or not matches or api_key.status(found, now) is not KeyStatus.ACTIVE:
            return None
        if found.last_used_at is None or found.last_used_at + RECORD_EVERY <= now:
            self.uses[found.id] = now
        return found

    async def is_good(self, key_id: ApiKeyId) -> bool:
        """Return whether a key is still active."""
        found = await self.metadata.get(ApiKey, key_id)
        return found is not None and api_key.status(found, self.clock.now()) is KeyStatus.ACTIVE

    async def gateway_key(self, key: ApiKey) -> str | None:
        """Return the gateway key that is stored with the API key, if any."""
        if key.encrypted_gateway_key is None:
            return None
        return await self.encryption.decrypt(
            key.encrypted_gateway_key, context=context(key.caller, key.id)
        )

    async def step(self) -> int:
        """Write when keys were last used."""
        uses = dict(self.uses)
        for key_id, used_at in uses.items():
            await self._record(key_id, used_at)
            # A use during this write is lost; the next use of the key records it again.
            self.uses.pop(key_id, None)
        return 0

    async def _record(self, key_id: ApiKeyId, used_at: datetime) -> None:
        key = await self.metadata.get(ApiKey, key_id)
        if key is None or key.revoked_at:
            return
        with suppress(Stale):  # recorded by another process, or revoked
            await self.metadata.commit(msgspec.structs.replace(key, last_used_at=used_at))
