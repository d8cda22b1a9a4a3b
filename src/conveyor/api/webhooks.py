"""The calls about webhooks and the keys that deliveries are signed with."""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from conveyor.api.auth import caller_of
from conveyor.api.intake import LARGEST_FORM, read_body
from conveyor.api.render import encode, webhook_shown
from conveyor.domain import cursor
from conveyor.domain.ids import EventId, JobId
from conveyor.domain.json_bodies import message_of, suggestion
from conveyor.domain.outbox import Delivery, OutboxEvent
from conveyor.domain.signing import SigningKey
from conveyor.domain.webhook import NewWebhook, WebhookSetting
from conveyor.errors import InvalidArgument
from conveyor.steps.webhooks import ManageWebhooks, RotateSigningKeys

JSON = "application/json"

Body = TypeVar("Body", WebhookSetting, NewWebhook)


class WireTested(msgspec.Struct, kw_only=True):
    delivered: bool
    event_id: str
    elapsed_ms: int
    status_code: int | UnsetType = UNSET
    error: str | UnsetType = UNSET


class WireDelivery(msgspec.Struct, kw_only=True):
    attempt: int
    started_at: datetime
    elapsed_ms: int
    status_code: int | UnsetType = UNSET
    error: str | UnsetType = UNSET


class WireEvent(msgspec.Struct, kw_only=True):
    """An event and its deliveries so far."""

    event_id: str
    event_type: str
    run_id: str
    occurred_at: datetime
    status: str
    attempts: list[WireDelivery]
    next_attempt_at: datetime | UnsetType = UNSET


class WireEvents(msgspec.Struct):
    events: list[WireEvent]
    next_cursor: str | None


class WireKey(msgspec.Struct):
    kid: str
    created_at: datetime


class WireKeys(msgspec.Struct):
    active: WireKey | UnsetType = UNSET
    candidate: WireKey | UnsetType = UNSET


class WireNewKey(msgspec.Struct):
    kid: str
    secret: str
    created_at: datetime


class WireKeyInUse(msgspec.Struct):
    active_kid: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookHandlers:
    webhooks: ManageWebhooks
    signing_keys: RotateSigningKeys

    async def get_webhook(self, request: Request) -> Response:
        webhook = await self.webhooks.get(caller_of(request), _job(request))
        return _json(webhook_shown(webhook))

    async def put_webhook(self, request: Request) -> Response:
        asked = _decoded(await read_body(request, LARGEST_FORM), WebhookSetting)
        webhook = await self.webhooks.put(
            caller_of(request), _job(request), asked.url, signature=asked.signature
        )
        return _json(webhook_shown(webhook))

    async def delete_webhook(self, request: Request) -> Response:
        await self.webhooks.clear(caller_of(request), _job(request))
        return Response(status_code=204)

    async def test_webhook(self, request: Request) -> Response:
        asked = _decoded(await read_body(request, LARGEST_FORM), NewWebhook)
        event_id, delivery = await self.webhooks.test(
            caller_of(request), asked.url, signature=bool(asked.signature)
        )
        return _json(_tested(event_id, delivery))

    async def list_deliveries(self, request: Request) -> Response:
        query = request.query_params
        events, after = await self.webhooks.deliveries(
            caller_of(request),
            _job(request),
            limit=cursor.limit(
                query.get("limit"), default=cursor.DEFAULT_LIMIT, most=cursor.MOST_LISTED
            ),
            before=cursor.after_id(query.get("cursor")),
        )
        return _json(WireEvents([_event(event) for event in events], after))

    async def redeliver(self, request: Request) -> Response:
        event_id = EventId(request.path_params["event"])
        event = await self.webhooks.redeliver(caller_of(request), _job(request), event_id)
        return _json(_event(event), 202)

    async def list_keys(self, request: Request) -> Response:
        keys = await self.signing_keys.keys(caller_of(request))
        return _json(WireKeys(_key(keys.active), _key(keys.candidate)))

    async def rotate_key(self, request: Request) -> Response:
        key, secret = await self.signing_keys.begin(caller_of(request))
        return _json(WireNewKey(key.kid, secret, key.created_at), 201)

    async def finish_rotation(self, request: Request) -> Response:
        key = await self.signing_keys.finish(caller_of(request))
        return _json(WireKeyInUse(key.kid, key.created_at))

    async def give_up_rotation(self, request: Request) -> Response:
        await self.signing_keys.give_up(caller_of(request))
        return Response(status_code=204)


def _decoded(raw: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as fault:
        raise InvalidArgument(message_of(fault) + suggestion(str(fault), kind)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as odd:
        raise InvalidArgument(f"The body is not valid JSON: {message_of(odd)}") from None


def _tested(event_id: EventId, delivery: Delivery) -> WireTested:
    return WireTested(
        delivered=delivery.error is None,
        event_id=event_id,
        elapsed_ms=delivery.elapsed_ms,
        status_code=UNSET if delivery.status_code is None else delivery.status_code,
        error=UNSET if delivery.error is None else delivery.error,
    )


def _event(event: OutboxEvent) -> WireEvent:
    return WireEvent(
        event_id=event.id,
        event_type=event.type,
        run_id=event.run_id,
        occurred_at=event.occurred_at,
        status=event.status,
        attempts=[_delivery(one) for one in event.deliveries],
        next_attempt_at=UNSET if event.due_at is None else event.due_at,
    )


def _delivery(delivery: Delivery) -> WireDelivery:
    return WireDelivery(
        attempt=delivery.attempt,
        started_at=delivery.started_at,
        elapsed_ms=delivery.elapsed_ms,
        status_code=UNSET if delivery.status_code is None else delivery.status_code,
        error=UNSET if delivery.error is None else delivery.error,
    )


def _key(key: SigningKey | None) -> WireKey | UnsetType:
    return UNSET if key is None else WireKey(key.kid, key.created_at)


def _json(shown: msgspec.Struct, status: int = 200) -> Response:
    return Response(encode(shown), status, media_type=JSON)


def _job(request: Request) -> JobId:
    return JobId(request.path_params["job"])
