"""What the outside is told: who owes it, who sends it, and who says where it goes."""

from dataclasses import dataclass
from random import SystemRandom

import structlog

from conveyor import __version__
from conveyor.adapters.crypto.sealing import new_signing_secret
from conveyor.adapters.http.webhooks import WebhookReceivers
from conveyor.api.notices import Notices
from conveyor.domain.ids import CallerId
from conveyor.domain.public_address import Reach, networks
from conveyor.domain.receiver_lines import Lines
from conveyor.domain.webhook import NewWebhook, Rules, Webhook
from conveyor.operating import Engines, Stores
from conveyor.settings import Settings
from conveyor.steps.complete import Complete
from conveyor.steps.courier import Courier
from conveyor.steps.notify import Notify
from conveyor.steps.owing import Owing
from conveyor.steps.rotate import Rotate
from conveyor.steps.subscribe import Subscribe
from conveyor.telemetry import Metrics

log = structlog.get_logger()


def open_receivers(settings: Settings) -> WebhookReceivers:
    """Not yet entered."""
    opened = settings.webhook_allow_private
    if opened:
        log.warning(
            "webhook.private.allowed",
            networks=", ".join(opened),
            why="whoever may submit jobs can have requests sent to servers there",
        )
    return WebhookReceivers(
        Rules(settings.webhook_ports, settings.webhook_allow_http),
        timeout=settings.webhook_timeout,
        reach=Reach(networks(opened)),
        agent=f"Conveyor/{__version__}",
    )


def _notify(settings: Settings, engines: Engines, metrics: Metrics) -> Notify:
    notify = Notify(
        metadata=engines.metadata,
        outbox=engines.outbox,
        receivers=engines.receivers,
        clock=engines.clock,
        courier=_courier(engines),
        lines=Lines(SystemRandom().random),
        lease=settings.webhook_timeout * 2,
    )
    metrics.delivering.set_function(lambda: notify.lines.under_way)
    metrics.in_line.set_function(lambda: notify.lines.waiting)
    return notify


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifying:
    notify: Notify
    complete: Complete
    notices: Notices

    async def vet(self, caller: CallerId, asked: NewWebhook) -> Webhook:
        """A webhook of a submission, if it can be delivered to."""
        signature = bool(asked.signature)
        return await self.notices.subscribing.vet(caller, asked.url, signature=signature)


def wire_notifying(settings: Settings, engines: Engines, metrics: Metrics) -> Notifying:
    notify = _notify(settings, engines, metrics)
    return Notifying(
        notify=notify, complete=_complete(engines, notify), notices=_notices(engines, notify)
    )


def _complete(stores: Stores, notify: Notify) -> Complete:
    return Complete(
        metadata=stores.metadata,
        tasks=stores.tasks,
        work=stores.work,
        clock=stores.clock,
        owing=Owing(ids=stores.ids, wake=notify.wake),
    )


def _notices(engines: Engines, notify: Notify) -> Notices:
    return Notices(
        subscribing=Subscribe(
            metadata=engines.metadata,
            outbox=engines.outbox,
            signing_keys=engines.signing_keys,
            receivers=engines.receivers,
            courier=_courier(engines),
            clock=engines.clock,
            ids=engines.ids,
            wake=notify.wake,
        ),
        rotating=Rotate(
            metadata=engines.metadata,
            signing_keys=engines.signing_keys,
            sealing=engines.sealing,
            clock=engines.clock,
            ids=engines.ids,
            secret=new_signing_secret,
        ),
    )


def _courier(engines: Engines) -> Courier:
    return Courier(
        receivers=engines.receivers,
        signing_keys=engines.signing_keys,
        sealing=engines.sealing,
        clock=engines.clock,
    )
