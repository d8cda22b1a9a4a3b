"""ApiKeyAdmin: keys are made, listed and revoked, for those who look after the service.

Each is one write. Whoever dies after it, and before the key was shown, leaves a key that nobody
has: it is in the list, and can be revoked.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from conveyor.domain import api_key as life
from conveyor.domain.api_key import ApiKey, KeyStatus, NewKey, Scope
from conveyor.domain.credentials import context
from conveyor.domain.ids import CallerId, KeyId
from conveyor.domain.job import Job, JobType, pause_without_key
from conveyor.domain.run import Run
from conveyor.errors import Stale, Unavailable
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata

PAGE = 500

log = structlog.get_logger()


class ApiKeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What operators see of a key."""

    id: KeyId
    caller: CallerId
    name: str
    status: KeyStatus
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    has_gateway_key: bool


class CreatedApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key: this is the only time it is told."""

    key: str
    about: ApiKeyInfo
    auth: str  # how the service tells callers: whether it asks for such keys at all


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyAdmin:
    metadata: Metadata
    encryption: KeyRing | None  # None where no gateway key is going to be stored
    clock: Clock
    ids: Ids
    new_secret: Callable[[], str]
    auth: str

    async def create(self, wanted: NewKey) -> CreatedApiKey:
        now = self.clock.now()
        life.check(wanted, now)
        key_id = KeyId(self.ids.new())
        text = life.written(key_id, self.new_secret())
        caller = CallerId(wanted.caller or key_id)
        key = ApiKey(
            id=key_id,
            caller=caller,
            digest=life.digest(text),
            created_at=now,
            name=wanted.name,
            scopes=wanted.scopes,
            expires_at=wanted.expires_at,
            encrypted_gateway_key=self._encrypted(wanted.gateway_key, context(caller, key_id)),
        )
        await self.metadata.commit(key)
        log.info("key.created", key_id=key_id, caller=caller, scopes=" ".join(key.scopes))
        return CreatedApiKey(key=text, about=self._shown(key), auth=self.auth)

    async def revoke(self, key_id: KeyId) -> ApiKeyInfo | None:
        """The key, which opens nothing from now on; None when there is none of that id."""
        while key := await self.metadata.get(ApiKey, key_id):
            if key.revoked_at:
                await self._pause_schedules(key)
                return self._shown(key)
            revoked = life.revoke(key, self.clock.now())
            with suppress(Stale):  # it was used just now, and that was noted
                await self.metadata.commit(revoked)
                log.info("key.revoked", key_id=key_id, caller=key.caller)
                await self._pause_schedules(revoked)
                return self._shown(revoked)
        return None

    async def _pause_schedules(self, key: ApiKey) -> None:
        """Pause what would fire under a revoked key. Whatever a crash leaves out is paused when it
        is due.
        """
        before = None
        while page := await self._scheduled(key.caller, before):
            for job, _ in page:
                if job.api_key_id == key.id:
                    await self._pause_schedule(job, key)
            before = page[-1][0].id

    async def _scheduled(
        self, caller: CallerId, before: str | None
    ) -> Sequence[tuple[Job, Run | None]]:
        kind = JobType.SCHEDULED
        return await self.metadata.jobs(caller, limit=PAGE, before=before, kind=kind)

    async def _pause_schedule(self, job: Job, key: ApiKey) -> None:
        paused = pause_without_key(job, key, self.clock.now())
        if paused is job:
            return
        with suppress(Stale):  # it changed this very moment: its next fire pauses it
            await self.metadata.commit(paused)
            log.warning("schedule.paused", job_id=job.id, why=paused.pause_reason)

    async def page(self, *, limit: int, after: str = "") -> Sequence[ApiKeyInfo]:
        """Keys in order of id, from above `after`: the oldest first."""
        return [
            self._shown(key) for key in await self.metadata.page(ApiKey, limit=limit, after=after)
        ]

    def _encrypted(self, gateway_key: str | None, where: str) -> bytes | None:
        if gateway_key is None:
            return None
        if self.encryption is None:
            raise Unavailable("the encryption key is not open, and a gateway key is to be stored")
        return self.encryption.encrypt(gateway_key, context=where)

    def _shown(self, key: ApiKey) -> ApiKeyInfo:
        return ApiKeyInfo(
            id=key.id,
            caller=key.caller,
            name=key.name,
            status=life.status(key, self.clock.now()),
            scopes=key.scopes,
            created_at=key.created_at,
            expires_at=key.expires_at,
            revoked_at=key.revoked_at,
            last_used_at=key.last_used_at,
            has_gateway_key=key.encrypted_gateway_key is not None,
        )
