"""What the outside is told: who owes it, who sends it, and who says where it goes."""

from dataclasses import dataclass
from random import SystemRandom

import structlog

from conveyor import __version__
from conveyor.adapters.crypto.key_ring import new_signing_secret
from conveyor.adapters.http.webhooks import HttpWebhooks
from conveyor.api.webhooks import WebhookHandlers
from conveyor.domain.delivery_queue import DeliveryQueue
from conveyor.domain.ids import CallerId
from conveyor.domain.public_address import Reach, networks
from conveyor.domain.webhook import NewWebhook, Webhook, WebhookRules
from conveyor.operating import Engines, Stores
from conveyor.settings import Settings
from conveyor.steps.complete import Complete
from conveyor.steps.courier import Courier
from conveyor.steps.notify import Notify
from conveyor.steps.rotate import Rotate
from conveyor.steps.shared.owing import Owing
from conveyor.steps.webhooks import ManageWebhooks
from conveyor.telemetry import Metrics

log = structlog.get_logger()


def open_webhooks(settings: Settings) -> HttpWebhooks:
    """Not yet entered."""
    opened = settings.webhook_allow_private
    if opened:
        log.warning(
            "webhook.private.allowed",
            networks=", ".join(opened),
            why="whoever may submit jobs can have requests sent to servers there",
        )
    return HttpWebhooks(
        WebhookRules(settings.webhook_ports, settings.webhook_allow_http),
        timeout=settings.webhook_timeout,
        reach=Reach(networks(opened)),
        agent=f"Conveyor/{__version__}",
    )


def _notify(settings: Settings, engines: Engines, metrics: Metrics) -> Notify:
    notify = Notify(
        metadata=engines.metadata,
        webhooks=engines.webhooks,
        clock=engines.clock,
        courier=_courier(engines),
        lines=DeliveryQueue(SystemRandom().random),
        lease=settings.webhook_timeout * 2,
    )
    metrics.delivering.set_function(lambda: notify.lines.under_way)
    metrics.in_line.set_function(lambda: notify.lines.waiting)
    return notify


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifying:
    notify: Notify
    complete: Complete
    handlers: WebhookHandlers

    async def vet(self, caller: CallerId, asked: NewWebhook) -> Webhook:
        """A webhook of a submission, if it can be delivered to."""
        signature = bool(asked.signature)
        return await self.handlers.subscribing.vet(caller, asked.url, signature=signature)


def wire_notifying(settings: Settings, engines: Engines, metrics: Metrics) -> Notifying:
    notify = _notify(settings, engines, metrics)
    return Notifying(
        notify=notify, complete=_complete(engines, notify), handlers=_handlers(engines, notify)
    )


def _complete(stores: Stores, notify: Notify) -> Complete:
    return Complete(
        metadata=stores.metadata,
        tasks=stores.tasks,
        work=stores.work,
        clock=stores.clock,
        owing=Owing(ids=stores.ids, wake=notify.wake),
    )


def _handlers(engines: Engines, notify: Notify) -> WebhookHandlers:
    return WebhookHandlers(
        subscribing=ManageWebhooks(
            metadata=engines.metadata,
            webhooks=engines.webhooks,
            courier=_courier(engines),
            clock=engines.clock,
            ids=engines.ids,
            wake=notify.wake,
        ),
        rotating=Rotate(
            metadata=engines.metadata,
            encryption=engines.encryption,
            clock=engines.clock,
            ids=engines.ids,
            secret=new_signing_secret,
        ),
    )


def _courier(engines: Engines) -> Courier:
    return Courier(
        metadata=engines.metadata,
        webhooks=engines.webhooks,
        encryption=engines.encryption,
        clock=engines.clock,
    )
