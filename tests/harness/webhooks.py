"""Webhooks that respond as a test says, without a network."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from conveyor.domain.outbox import DeliveryResult
from conveyor.domain.webhook import WebhookRules

TAKEN = DeliveryResult(status_code=200)
GONE = DeliveryResult(status_code=410, error="http_4xx:410", is_closed=True)


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One delivery, as its receiver saw it."""

    url: str
    headers: Mapping[str, str]
    content: bytes

    @property
    def event_id(self) -> str:
        return self.headers["X-ZenRows-Event-Id"]


@dataclass(slots=True, kw_only=True)
class ScriptedWebhooks:
    """Each receiver accepts every request, unless a test has set other results."""

    rules: WebhookRules = field(default_factory=WebhookRules)
    told: list[ReceivedRequest] = field(default_factory=list)
    results: dict[str, deque[DeliveryResult]] = field(
        default_factory=lambda: defaultdict(deque)
    )  # of the next requests, by host
    always: dict[str, DeliveryResult] = field(default_factory=dict)  # by host
    held: dict[str, asyncio.Event] = field(
        default_factory=dict
    )  # hosts that respond when it is set
    under_way: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    most_under_way: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    refuse: Callable[[str], None] = lambda _: None  # a URL that is handed in

    async def check_url(self, url: str) -> None:
        self.rules.target(url)
        self.refuse(url)

    def origin(self, url: str) -> str:
        return self.rules.target(url).origin

    def host(self, url: str) -> str:
        return self.rules.target(url).host

    async def post(self, url: str, headers: Mapping[str, str], content: bytes) -> DeliveryResult:
        host = self.host(url)
        self.told.append(ReceivedRequest(url, headers, content))
        self.under_way[host] += 1
        self.most_under_way[host] = max(self.most_under_way[host], self.under_way[host])
        try:
            if host in self.held:
                await self.held[host].wait()
        finally:
            self.under_way[host] -= 1
        results = self.results[host]
        return results.popleft() if results else self.always.get(host, TAKEN)

    def told_of(self, host: str) -> list[ReceivedRequest]:
        return [one for one in self.told if self.host(one.url) == host]
