"""One request to a webhook: signed, if the webhook asks for it, and sent once."""

from base64 import b64decode
from dataclasses import dataclass

from conveyor.domain import signing
from conveyor.domain.ids import CallerId, EventId
from conveyor.domain.outbox import DeliveryResult
from conveyor.domain.signing import Secret, SigningKey, SigningKeys
from conveyor.domain.webhook import Webhook
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata
from conveyor.ports.webhooks import Webhooks

NO_KEY = DeliveryResult(error="transport_error:there is no key to sign it with")
KEY_AWAY = DeliveryResult(error="transport_error:the key to sign it with cannot be read")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSender:
    webhooks: Webhooks
    metadata: Metadata
    encryption: KeyRing
    clock: Clock

    async def send(
        self, webhook: Webhook, caller: CallerId, event_id: EventId, content: bytes
    ) -> DeliveryResult:
        """Send the content once. A webhook with `signature` never gets an unsigned request."""
        now = self.clock.now()
        try:
            secrets = await self._secrets(caller) if webhook.signature else []
        except Unavailable:
            return KEY_AWAY
        if webhook.signature and not secrets:
            return NO_KEY
        headers = signing.headers(event_id, content, now, secrets)
        return await self.webhooks.post(webhook.url, headers, content)

    async def _secrets(self, caller: CallerId) -> list[Secret]:
        """The secrets of the caller's active key and of its candidate; none without an active key."""
        keys = await self.metadata.get(SigningKeys, caller)
        if keys is None or keys.active is None:
            return []
        return [await self._decrypted(caller, key) for key in (keys.active, keys.candidate) if key]

    async def _decrypted(self, caller: CallerId, key: SigningKey) -> Secret:
        text = await self.encryption.decrypt(
            key.encrypted_secret, context=signing.context(caller, key.kid)
        )
        return Secret(key.kid, b64decode(text))
