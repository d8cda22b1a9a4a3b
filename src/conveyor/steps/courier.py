"""One delivery to a webhook: signed if it wants that, sent once, and noted.

Not a station of its own: the steps that send share it.
"""

from base64 import b64decode
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from conveyor.domain import signing
from conveyor.domain.ids import CallerId, EventId
from conveyor.domain.outbox import Delivery
from conveyor.domain.signing import Secret, SigningKey, SigningKeys
from conveyor.domain.webhook import Webhook
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata
from conveyor.ports.webhooks import Reply, Webhooks

GONE = 410
NO_KEY = "transport_error:there is no key to sign it with"
KEY_AWAY = "transport_error:the key to sign it with cannot be read"


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent: the same bytes under the same id at each attempt."""

    caller: CallerId
    event_id: EventId
    content: bytes
    attempt: int = 1


class Carried(msgspec.Struct, frozen=True):
    delivery: Delivery
    retry_after: timedelta | None = None

    @property
    def is_taken(self) -> bool:
        return self.delivery.error is None

    @property
    def is_gone(self) -> bool:
        """The receiver wants nothing any more."""
        return self.delivery.status_code == GONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Courier:
    webhooks: Webhooks
    metadata: Metadata
    encryption: KeyRing
    clock: Clock

    async def carry(self, parcel: Parcel, webhook: Webhook) -> Carried:
        """Send it once. What wants a signature is never sent without one."""
        started_at, started = self.clock.now(), self.clock.monotonic()
        try:
            secrets = await self._secrets(parcel.caller) if webhook.signature else []
        except Unavailable:
            reply = Reply(error=KEY_AWAY)
        else:
            if webhook.signature and not secrets:
                reply = Reply(error=NO_KEY)
            else:
                known = signing.headers(parcel.event_id, parcel.content, started_at, secrets)
                reply = await self.webhooks.post(webhook.url, known, parcel.content)
        delivery = Delivery(
            attempt=parcel.attempt,
            started_at=started_at,
            elapsed_ms=round((self.clock.monotonic() - started) * 1000),
            status_code=reply.status,
            error=reply.error,
        )
        return Carried(delivery, reply.retry_after)

    async def _secrets(self, caller: CallerId) -> list[Secret]:
        """The caller's keys: the one in use, then the one about to be. None without the first."""
        keys = await self.metadata.get(SigningKeys, caller)
        if keys is None or keys.active is None:
            return []
        return [self._opened(caller, key) for key in (keys.active, keys.candidate) if key]

    def _opened(self, caller: CallerId, key: SigningKey) -> Secret:
        text = self.encryption.decrypt(
            key.encrypted_secret, context=signing.context(caller, key.kid)
        )
        return Secret(key.kid, b64decode(text))
