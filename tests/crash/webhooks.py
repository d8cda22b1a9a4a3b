"""Receivers of webhooks that answer by their host and by what is noted of an event so far."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from conveyor.domain.webhook import WebhookRules
from conveyor.ports.webhooks import Reply


@dataclass(frozen=True, slots=True)
class ScriptedByHost:
    """`ok` takes everything, `flaky` the second attempt, `gone` nothing for good."""

    attempts: Callable[[str], int]  # that are noted of an event

    async def check(self, url: str) -> None:
        WebhookRules().target(url)

    def host(self, url: str) -> str:
        return WebhookRules().target(url).host

    async def post(self, url: str, headers: Mapping[str, str], content: bytes) -> Reply:
        kind, _, _ = self.host(url).partition(".")
        if kind == "gone":
            return Reply(status=410, error="http_4xx:410")
        if kind == "flaky" and not self.attempts(headers["X-ZenRows-Event-Id"]):
            return Reply(status=503, error="http_5xx:503")
        return Reply(status=204)
