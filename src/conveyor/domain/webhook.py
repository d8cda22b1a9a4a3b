"""Webhooks: which URLs may receive events, what is sent to them, and when it is sent again."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import can_ada
import msgspec
from msgspec import UNSET, UnsetType

from conveyor.domain.json_bodies import field_error
from conveyor.domain.run import Stats
from conveyor.errors import CallbackUrlMustBeHttps

SCHEMA = "conveyor.event.v1"  # changes when a field changes its meaning, not when one is added
NO_RUN = "test"  # the job and run of a test event
LONGEST_URL = 2048
URL_FIELD = "webhook.url"
FIELD = {"field": URL_FIELD}
PORTS = {"http:": 80, "https:": 443}
# The wait before each attempt, counted from the one before it.
WAITS = tuple(
    timedelta(seconds=seconds)
    for seconds in (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
)
JITTER = 0.1  # of a wait, longer or shorter
LONGEST_WAIT = timedelta(hours=24)  # that `Retry-After` can ask for


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """Where the events of a job are sent."""

    url: str
    signature: bool = False
    disabled_at: datetime | None = None  # when the receiver answered 410 Gone

    @property
    def is_on(self) -> bool:
        return self.disabled_at is None


class NewWebhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook as a submission or a test asks for it."""

    url: str
    signature: bool | None = False


class WebhookSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook as it is replaced: both fields are required, so that none changes by omission."""

    url: str
    signature: bool


class WebhookPayload(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a delivery."""

    schema: str = SCHEMA
    event_id: str
    event_type: str
    occurred_at: datetime
    job_id: str
    external_id: str | UnsetType = UNSET
    metadata: msgspec.Raw | UnsetType = UNSET
    run_id: str
    run_sequence: int
    stats: Stats | UnsetType = UNSET
    failure_reason: str | UnsetType = UNSET
    failure_detail: str | UnsetType = UNSET

    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()


def payload_of_test(event_id: str, event_type: str, now: datetime) -> str:
    """The body of a test event, which belongs to no run."""
    return WebhookPayload(
        event_id=event_id,
        event_type=event_type,
        occurred_at=now,
        job_id=NO_RUN,
        run_id=NO_RUN,
        run_sequence=1,
    ).encoded()


class Target(NamedTuple):
    """The parts of an allowed URL."""

    host: str
    port: int
    named: str  # the value of `Host`
    is_safe: bool  # https
    path: str  # with the query

    @property
    def origin(self) -> str:
        """The receiver: deliveries to other ports of the host do not compete with it."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class WebhookRules:
    """Which URLs may receive events."""

    ports: Collection[int] = (443,)
    allow_http: bool = False

    def target(self, url: str) -> Target:
        """Raises `CallbackUrlMustBeHttps` and `InvalidArgument`; neither quotes the URL."""
        if len(url) > LONGEST_URL:
            raise field_error(
                URL_FIELD, f"must have at most {LONGEST_URL} characters, got {len(url)}"
            )
        try:
            parts = can_ada.parse(url)
        except ValueError:
            raise field_error(URL_FIELD, "must be an absolute URL") from None
        return self._allowed(parts)

    def _allowed(self, parts: can_ada.URL) -> Target:
        scheme = str(parts.protocol)
        if scheme != "https:" and not (self.allow_http and scheme == "http:"):
            raise CallbackUrlMustBeHttps("`webhook.url` must begin with https://", extras=FIELD)
        if parts.username or parts.password:
            raise field_error(
                URL_FIELD, "must not contain a user or password: use `signature` instead"
            )
        port = int(parts.port) if parts.port else PORTS[scheme]
        if port not in self.ports:
            allowed = ", ".join(map(str, sorted(self.ports)))
            raise field_error(
                URL_FIELD, f"must be on one of the allowed ports ({allowed}), got {port}"
            )
        path = f"{parts.pathname}{parts.search}"
        host = str(parts.hostname).strip("[]")
        return Target(host, port, str(parts.host), scheme == "https:", path)


def next_wait(tries: int, chance: float, asked: timedelta | None = None) -> timedelta | None:
    """The wait after the latest of `tries` failures; None when the event is given up.

    `chance`, from 0 to 1, spreads events that failed together. The receiver's `Retry-After`
    counts if it is longer.
    """
    if tries >= len(WAITS):
        return None
    wait = WAITS[tries] * (1 - JITTER + 2 * JITTER * chance)
    return max(wait, min(asked, LONGEST_WAIT)) if asked else wait
