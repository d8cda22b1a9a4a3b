"""Receivers of webhooks that answer by their host and by what is noted of an event so far."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from conveyor.domain.outbox import DeliveryResult
from conveyor.domain.webhook import WebhookRules
from tests.harness.webhooks import GONE


@dataclass(frozen=True, slots=True)
class ScriptedByHost:
    """`ok` takes everything, `flaky` the second attempt, `gone` nothing for good."""

    attempts: Callable[[str], int]  # that are noted of an event

    async def check_url(self, url: str) -> None:
        WebhookRules().target(url)

    def origin(self, url: str) -> str:
        return WebhookRules().target(url).origin

    async def post(self, url: str, headers: Mapping[str, str], content: bytes) -> DeliveryResult:
        kind, _, _ = self.origin(url).partition(".")
        if kind == "gone":
            return GONE
        if kind == "flaky" and not self.attempts(headers["X-ZenRows-Event-Id"]):
            return DeliveryResult(status_code=503, error="http_5xx:503")
        return DeliveryResult(status_code=204)
