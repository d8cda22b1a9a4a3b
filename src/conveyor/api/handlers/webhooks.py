"""The handlers of webhooks, and of the keys that sign deliveries."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from conveyor import wire
from conveyor.api import render
from conveyor.api.auth import caller_of
from conveyor.api.handlers.common import caller_and_job, json_response, page
from conveyor.api.intake import LARGEST_SMALL_BODY, read_body
from conveyor.domain.ids import EventId
from conveyor.domain.json_bodies import decode_body, fault_within
from conveyor.domain.webhook import NewWebhook, WebhookSetting
from conveyor.steps.webhooks import ManageWebhooks, RotateSigningKeys

# A field has the same name in every call: `webhook.url`, as in a submission.
FAULT = fault_within("webhook")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookHandlers:
    webhooks: ManageWebhooks
    signing_keys: RotateSigningKeys

    async def get_webhook(self, request: Request) -> Response:
        webhook = await self.webhooks.get(*caller_and_job(request))
        return json_response(render.webhook_shown(webhook))

    async def put_webhook(self, request: Request) -> Response:
        asked = decode_body(await read_body(request, LARGEST_SMALL_BODY), WebhookSetting, FAULT)
        webhook = await self.webhooks.put(
            *caller_and_job(request), asked.url, signature=asked.signature
        )
        return json_response(render.webhook_shown(webhook))

    async def delete_webhook(self, request: Request) -> Response:
        await self.webhooks.clear(*caller_and_job(request))
        return Response(status_code=204)

    async def test_webhook(self, request: Request) -> Response:
        asked = decode_body(await read_body(request, LARGEST_SMALL_BODY), NewWebhook, FAULT)
        event_id, delivery = await self.webhooks.test(
            caller_of(request), asked.url, signature=bool(asked.signature)
        )
        return json_response(render.tested_shown(event_id, delivery))

    async def list_deliveries(self, request: Request) -> Response:
        events, after = await self.webhooks.deliveries(*caller_and_job(request), **page(request))
        return json_response(wire.WireEvents(list(map(render.webhook_event_shown, events)), after))

    async def redeliver(self, request: Request) -> Response:
        event_id = EventId(request.path_params["event"])
        event = await self.webhooks.redeliver(*caller_and_job(request), event_id)
        return json_response(render.webhook_event_shown(event), 202)

    async def list_keys(self, request: Request) -> Response:
        keys = await self.signing_keys.keys(caller_of(request))
        return json_response(render.signing_keys_shown(keys))

    async def rotate_key(self, request: Request) -> Response:
        key, secret = await self.signing_keys.begin(caller_of(request))
        return json_response(wire.WireNewKey(key.kid, secret, key.created_at), 201)

    async def finish_rotation(self, request: Request) -> Response:
        key = await self.signing_keys.finish(caller_of(request))
        return json_response(wire.WireKeyInUse(key.kid, key.created_at))

    async def give_up_rotation(self, request: Request) -> Response:
        await self.signing_keys.give_up(caller_of(request))
        return Response(status_code=204)
