"""Where a job's caller wants to be told of its runs, and when that is tried again."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import can_ada
import msgspec

from conveyor.errors import CallbackUrlMustBeHttps, InvalidArgument

LONGEST_URL = 2048
PORTS = {"http:": 80, "https:": 443}
# Before each attempt, since the one before it.
WAITS = tuple(
    timedelta(seconds=seconds)
    for seconds in (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
)
JITTER = 0.1  # of a wait, either way
LONGEST_WAIT = timedelta(hours=24)  # that a receiver can ask for


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    signature: bool = False
    disabled_at: datetime | None = None  # the receiver said that it is gone for good

    @property
    def is_on(self) -> bool:
        return self.disabled_at is None


class NewWebhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook as a submission or a test asks for it."""

    url: str
    signature: bool | None = False


class WebhookSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook as it is replaced: in full, so that no half of it is changed by silence."""

    url: str
    signature: bool


class Target(NamedTuple):
    """Where a delivery goes."""

    host: str
    port: int
    named: str  # as `Host`
    is_safe: bool
    path: str  # with the query


@dataclass(frozen=True, slots=True)
class WebhookRules:
    """Which URLs may be told anything."""

    ports: Collection[int] = (443,)
    allow_http: bool = False

    def target(self, url: str) -> Target:
        """Raises `CallbackUrlMustBeHttps` and `InvalidArgument`, without the URL's own words."""
        if len(url) > LONGEST_URL:
            raise _at(f"has at most {LONGEST_URL} characters")
        try:
            parts = can_ada.parse(url)
        except ValueError:
            raise _at("is not a URL") from None
        return self._allowed(parts)

    def _allowed(self, parts: can_ada.URL) -> Target:
        scheme = str(parts.protocol)
        if scheme != "https:" and not (self.allow_http and scheme == "http:"):
            raise CallbackUrlMustBeHttps("A webhook's URL begins with https://", extras=FIELD)
        if parts.username or parts.password:
            raise _at("holds no user and no password: sign the deliveries instead")
        port = int(parts.port) if parts.port else PORTS[scheme]
        if port not in self.ports:
            allowed = ", ".join(map(str, sorted(self.ports)))
            raise _at(f"names port {port}; those that are delivered to are {allowed}")
        path = f"{parts.pathname}{parts.search}"
        host = str(parts.hostname).strip("[]")
        return Target(host, port, str(parts.host), scheme == "https:", path)


FIELD = {"field": "webhook.url"}


def _at(what: str) -> InvalidArgument:
    return InvalidArgument(f"`webhook.url` {what}", extras=FIELD)


def next_wait(tries: int, chance: float, asked: timedelta | None = None) -> timedelta | None:
    """How long after its latest failure a delivery is tried again; None when it is not.

    `tries` have failed so far; `chance`, from 0 to 1, spreads those that failed together. What
    the receiver asked for counts if it is longer.
    """
    if tries >= len(WAITS):
        return None
    wait = WAITS[tries] * (1 - JITTER + 2 * JITTER * chance)
    return max(wait, min(asked, LONGEST_WAIT)) if asked else wait
