"""The outbox: its sender, its channels, and the calls about webhooks."""

from dataclasses import dataclass
from random import SystemRandom

import structlog

from conveyor import __version__
from conveyor.adapters.crypto.key_ring import new_signing_secret
from conveyor.adapters.http.webhooks import HttpWebhooks
from conveyor.api.webhooks import WebhookHandlers
from conveyor.domain.delivery_queue import DeliveryQueue
from conveyor.domain.ids import CallerId
from conveyor.domain.outbox import Channel
from conveyor.domain.public_address import Reach, networks
from conveyor.domain.webhook import NewWebhook, Webhook, WebhookRules
from conveyor.operating import Engines
from conveyor.settings import Settings
from conveyor.steps.deliver.channels import (
    Call,
    StepFunctionsChannel,
    WebhookChannel,
    callback_queue,
)
from conveyor.steps.deliver.sender import ChannelSender, OutboxSender
from conveyor.steps.shared.webhook_sender import WebhookSender
from conveyor.steps.webhooks import ManageWebhooks, RotateSigningKeys
from conveyor.telemetry import Metrics

log = structlog.get_logger()


def open_webhooks(settings: Settings) -> HttpWebhooks:
    """Not entered yet."""
    opened = settings.webhook_allow_private
    if opened:
        log.warning(
            "webhook.private.allowed",
            networks=", ".join(opened),
            why="every caller who may submit jobs can send requests to servers there",
        )
    return HttpWebhooks(
        WebhookRules(settings.webhook_ports, settings.webhook_allow_http),
        timeout=settings.webhook_timeout,
        reach=Reach(networks(opened)),
        agent=f"Conveyor/{__version__}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifying:
    deliver: OutboxSender
    handlers: WebhookHandlers

    async def vet(self, caller: CallerId, asked: NewWebhook) -> Webhook:
        """The webhook of a submission, if it can be delivered to."""
        signature = bool(asked.signature)
        return await self.handlers.webhooks.vet(caller, asked.url, signature=signature)


def wire_notifying(settings: Settings, engines: Engines, metrics: Metrics) -> Notifying:
    sender = WebhookSender(
        webhooks=engines.webhooks,
        metadata=engines.metadata,
        encryption=engines.encryption,
        clock=engines.clock,
    )
    deliver = OutboxSender(
        [
            _wire_webhook_channel(settings, engines, metrics, sender),
            _wire_step_functions_channel(engines, Channel.STEP_FUNCTIONS),
            _wire_step_functions_channel(engines, Channel.HEARTBEAT),
        ]
    )
    return Notifying(deliver=deliver, handlers=_wire_handlers(engines, sender, deliver))


def _wire_webhook_channel(
    settings: Settings, engines: Engines, metrics: Metrics, sender: WebhookSender
) -> ChannelSender[Webhook]:
    chance = SystemRandom().random
    queue = DeliveryQueue(chance=chance)
    metrics.delivering.set_function(lambda: queue.in_flight)
    metrics.in_line.set_function(lambda: queue.waiting)
    channel = WebhookChannel(
        metadata=engines.metadata,
        clock=engines.clock,
        sender=sender,
        chance=chance,
        lasting=settings.webhook_timeout * 2,
    )
    return ChannelSender(
        metadata=engines.metadata,
        clock=engines.clock,
        channel=channel,
        queue=queue,
    )


def _wire_step_functions_channel(engines: Engines, name: Channel) -> ChannelSender[Call]:
    channel = StepFunctionsChannel(
        metadata=engines.metadata,
        clock=engines.clock,
        encryption=engines.encryption,
        step_functions=engines.step_functions,
        name=name,
    )
    return ChannelSender(
        metadata=engines.metadata,
        clock=engines.clock,
        channel=channel,
        queue=callback_queue(name),
    )


def _wire_handlers(
    engines: Engines, sender: WebhookSender, deliver: OutboxSender
) -> WebhookHandlers:
    return WebhookHandlers(
        webhooks=ManageWebhooks(
            metadata=engines.metadata,
            sender=sender,
            clock=engines.clock,
            ids=engines.ids,
            wake_sender=deliver.wake,
        ),
        signing_keys=RotateSigningKeys(
            metadata=engines.metadata,
            encryption=engines.encryption,
            clock=engines.clock,
            ids=engines.ids,
            secret=new_signing_secret,
        ),
    )
