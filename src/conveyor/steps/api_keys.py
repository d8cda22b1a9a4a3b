"""Create, list and revoke API keys, for operators.

Each is one write. A crash after it and before the key was shown leaves a key whose secret is lost:
it is in the list and can be revoked.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from conveyor.domain import api_key
from conveyor.domain.api_key import ApiKey, KeyStatus, NewKey, Scope
from conveyor.domain.credentials import context
from conveyor.domain.ids import ApiKeyId, CallerId
from conveyor.domain.job import Job, JobType, pause_without_key
from conveyor.domain.run import Run
from conveyor.errors import Stale, Unavailable
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata
from conveyor.steps.shared.pagination import rows

PAGE = 500

log = structlog.get_logger()


class ApiKeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without its secret."""

    id: ApiKeyId
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
    """A new key with its secret, which is shown only once."""

    key: str
    about: ApiKeyInfo
    auth: str  # the service's mode of authentication: it may not ask for API keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyAdmin:
    metadata: Metadata
    encryption: KeyRing | None  # None where no gateway key will be stored
    clock: Clock
    ids: Ids
    new_secret: Callable[[], str]
    auth: str

    async def create(self, wanted: NewKey) -> CreatedApiKey:
        now = self.clock.now()
        api_key.check_new_key(wanted, now)
        key_id = ApiKeyId(self.ids.new())
        text = api_key.written(key_id, self.new_secret())
        caller = CallerId(wanted.caller or key_id)
        key = ApiKey(
            id=key_id,
            caller=caller,
            digest=api_key.digest(text),
            created_at=now,
            name=wanted.name,
            scopes=wanted.scopes,
            expires_at=wanted.expires_at,
        )
        key = await self._stored(key, wanted.gateway_key)
        log.info("key.created", key_id=key_id, caller=caller, scopes=" ".join(key.scopes))
        return CreatedApiKey(key=text, about=self._info(key), auth=self.auth)

    async def _stored(self, key: ApiKey, gateway_key: str | None) -> ApiKey:
        if gateway_key is None:
            await self.metadata.commit(key)
            return key
        if self.encryption is None:
            raise Unavailable("the encryption key is not open, and a gateway key is to be stored")
        async with self.encryption.writing():
            where = context(key.caller, key.id)
            encrypted = self.encryption.encrypt(gateway_key, context=where)
            key = msgspec.structs.replace(key, encrypted_gateway_key=encrypted)
            await self.metadata.commit(key)
            return key

    async def revoke(self, key_id: ApiKeyId) -> ApiKeyInfo | None:
        """Revoke a key from the next request on; None when there is no such key."""
        while key := await self.metadata.get(ApiKey, key_id):
            if key.revoked_at:
                await self._pause_schedules(key)
                return self._info(key)
            revoked = api_key.revoke(key, self.clock.now())
            with suppress(Stale):  # its last use was recorded meanwhile
                await self.metadata.commit(revoked)
                log.info("key.revoked", key_id=key_id, caller=key.caller)
                await self._pause_schedules(revoked)
                return self._info(revoked)
        return None

    async def _pause_schedules(self, key: ApiKey) -> None:
        """Pause schedules that fire under a revoked key. One that a crash left out is paused when it
        is due.
        """

        async def scheduled(before: str | None) -> Sequence[tuple[Job, Run | None]]:
            return await self.metadata.jobs(
                key.caller, limit=PAGE, before=before, kind=JobType.SCHEDULED
            )

        async for job, _ in rows(scheduled, start=None, key=lambda row: row[0].id):
            if job.api_key_id == key.id:
                await self._pause_schedule(job, key)

    async def _pause_schedule(self, job: Job, key: ApiKey) -> None:
        paused = pause_without_key(job, key, self.clock.now())
        if paused is job:
            return
        with suppress(Stale):  # it changed meanwhile: its next fire pauses it
            await self.metadata.commit(paused)
            log.warning("schedule.paused", job_id=job.id, why=paused.pause_reason)

    async def page(self, *, limit: int, after: str = "") -> Sequence[ApiKeyInfo]:
        """Return keys in order of id, which is that of their age, from above `after`."""
        return [
            self._info(key) for key in await self.metadata.page(ApiKey, limit=limit, after=after)
        ]

    def _info(self, key: ApiKey) -> ApiKeyInfo:
        return ApiKeyInfo(
            id=key.id,
            caller=key.caller,
            name=key.name,
            status=api_key.status(key, self.clock.now()),
            scopes=key.scopes,
            created_at=key.created_at,
            expires_at=key.expires_at,
            revoked_at=key.revoked_at,
            last_used_at=key.last_used_at,
            has_gateway_key=key.encrypted_gateway_key is not None,
        )
