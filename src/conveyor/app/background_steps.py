"""Steps that no call waits for: the control worker, the outbox and the sweeper."""

from collections.abc import Callable, Mapping
from random import SystemRandom

from conveyor.adapters.crypto.key_ring import new_signing_secret
from conveyor.app.engines import Engines, Stores
from conveyor.domain.batch import INGEST, ingest_payload
from conveyor.domain.control_queue import SlotLimits
from conveyor.domain.delivery_queue import DeliveryQueue
from conveyor.domain.export import EXPORT
from conveyor.domain.ids import ExportId, RunId
from conveyor.domain.job import PURGE
from conveyor.domain.outbox import Channel
from conveyor.domain.webhook import Webhook
from conveyor.settings import Settings
from conveyor.steps.complete import Complete
from conveyor.steps.control import ControlWorker, Handler, WorkStatus
from conveyor.steps.deliver.channels import (
    Call,
    StepFunctionsChannel,
    WebhookChannel,
    callback_queue,
)
from conveyor.steps.deliver.sender import ChannelSender, OutboxSender
from conveyor.steps.export import ExportRuns
from conveyor.steps.ingest import Ingest
from conveyor.steps.purge import Purge
from conveyor.steps.shared.quotas import Quotas
from conveyor.steps.shared.webhook_sender import WebhookSender
from conveyor.steps.shared.work_limits import Turn
from conveyor.steps.sweep.orphans import Orphans
from conveyor.steps.sweep.retire import DeleteRun, RetireRuns
from conveyor.steps.sweep.stalled import StalledWork
from conveyor.steps.sweep.sweeper import Count, Sweeper
from conveyor.steps.webhooks import ManageWebhooks, RotateSigningKeys
from conveyor.steps.zip_export import ZipExport
from conveyor.telemetry.metrics import Metrics

# Slots of one process. An export keeps its slot for hours, so one caller has one of them.
INGESTS = SlotLimits(slots=4, per_caller=2)
PURGES = SlotLimits(slots=2, per_caller=1)
EXPORTS = SlotLimits(slots=4, per_caller=1)


# The control queue.


def build_control_worker(
    stores: Stores, ingest: Ingest, purge: Purge, export: ExportRuns
) -> ControlWorker:
    handlers = {
        INGEST: _ingest_handler(ingest),
        PURGE: _purge_handler(purge),
        EXPORT: _export_handler(export),
    }
    return ControlWorker(stores.control_queue, handlers, stores.clock)


def _ingest_handler(ingest: Ingest) -> Handler:
    async def handle(payload: Mapping[str, str], turn: Turn) -> Mapping[str, str] | None:
        rest = await ingest.run(RunId(payload["run_id"]), int(payload["first"]), turn)
        return ingest_payload(rest) if rest else None

    async def give_up(payload: Mapping[str, str]) -> None:
        await ingest.abandon(RunId(payload["run_id"]), int(payload["first"]))

    async def status(payload: Mapping[str, str]) -> WorkStatus:
        is_done, batch = await ingest.progress(
            RunId(payload["run_id"]), int(payload["first"]), int(payload.get("version", 0))
        )
        return WorkStatus(is_done=is_done, resend=ingest_payload(batch) if batch else None)

    return Handler(handle, give_up, status, limits=INGESTS)


def build_purge(stores: Stores) -> Purge:
    return Purge(
        metadata=stores.metadata,
        tasks=stores.tasks,
        work=stores.work,
        bodies=stores.bodies,
        blobs=stores.blobs,
        clock=stores.clock,
    )


def _purge_handler(purge: Purge) -> Handler:
    async def handle(payload: Mapping[str, str], turn: Turn) -> Mapping[str, str] | None:
        return None if await purge.run(payload["id"], turn) else payload

    async def give_up(payload: Mapping[str, str]) -> None:
        """Do nothing: the sweeper sends what is left of the deletion again."""

    return Handler(handle, give_up, limits=PURGES)


def build_export(settings: Settings, engines: Engines, quotas: Quotas) -> ExportRuns:
    zip_export = ZipExport(
        tasks=engines.tasks,
        bodies=engines.bodies,
        blobs=engines.blobs,
        clock=engines.clock,
        cap=settings.export_bytes,
    )
    return ExportRuns(
        metadata=engines.metadata,
        blobs=engines.blobs,
        control_queue=engines.control_queue,
        clock=engines.clock,
        ids=engines.ids,
        make=zip_export.write,
        quota=quotas.check,
    )


def _export_handler(export: ExportRuns) -> Handler:
    async def handle(payload: Mapping[str, str], _: Turn) -> None:
        # A file is written without a break: an export keeps its slot to its end.
        await export.run(ExportId(payload["id"]))

    async def give_up(payload: Mapping[str, str]) -> None:
        await export.abandon(ExportId(payload["id"]))

    return Handler(handle, give_up, limits=EXPORTS)


# The outbox.


def build_webhook_sender(engines: Engines) -> WebhookSender:
    return WebhookSender(
        webhooks=engines.webhooks,
        metadata=engines.metadata,
        encryption=engines.encryption,
        clock=engines.clock,
    )


def build_deliver(
    settings: Settings, engines: Engines, metrics: Metrics, sender: WebhookSender
) -> OutboxSender:
    return OutboxSender(
        [
            _webhook_channel(settings, engines, metrics, sender),
            _step_functions_channel(engines, Channel.STEP_FUNCTIONS),
            _step_functions_channel(engines, Channel.HEARTBEAT),
        ]
    )


def _webhook_channel(
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
        lease_length=settings.webhook_timeout * 2,
    )
    return ChannelSender(
        metadata=engines.metadata, clock=engines.clock, channel=channel, queue=queue
    )


def _step_functions_channel(engines: Engines, name: Channel) -> ChannelSender[Call]:
    channel = StepFunctionsChannel(
        metadata=engines.metadata,
        clock=engines.clock,
        encryption=engines.encryption,
        step_functions=engines.step_functions,
        name=name,
    )
    queue = callback_queue(name)
    return ChannelSender(
        metadata=engines.metadata, clock=engines.clock, channel=channel, queue=queue
    )


def build_manage_webhooks(
    engines: Engines, sender: WebhookSender, deliver: OutboxSender
) -> ManageWebhooks:
    return ManageWebhooks(
        metadata=engines.metadata,
        sender=sender,
        clock=engines.clock,
        ids=engines.ids,
        wake_sender=deliver.wake,
    )


def build_rotate_signing_keys(engines: Engines) -> RotateSigningKeys:
    return RotateSigningKeys(
        metadata=engines.metadata,
        encryption=engines.encryption,
        clock=engines.clock,
        ids=engines.ids,
        secret=new_signing_secret,
    )


# Completion and repair.


def build_complete(stores: Stores, wake_sender: Callable[[], None]) -> Complete:
    return Complete(
        metadata=stores.metadata,
        tasks=stores.tasks,
        work=stores.work,
        clock=stores.clock,
        ids=stores.ids,
        wake_sender=wake_sender,
    )


def build_sweep(
    settings: Settings,
    stores: Stores,
    complete: Complete,
    count: Count,
    cleared: Count,
    *,
    delete_run: DeleteRun,
) -> Sweeper:
    stalled = StalledWork(
        metadata=stores.metadata,
        control_queue=stores.control_queue,
        blobs=stores.blobs,
        clock=stores.clock,
        is_due=complete.is_due,
        check=complete.check,
    )
    orphans = Orphans(
        metadata=stores.metadata,
        tasks=stores.tasks,
        bodies=stores.bodies,
        blobs=stores.blobs,
        clock=stores.clock,
        body_life=settings.body_life,
    )
    retire = RetireRuns(
        metadata=stores.metadata,
        clock=stores.clock,
        run_life=settings.scheduled_run_life,
        delete_run=delete_run,
    )
    return Sweeper(
        metadata=stores.metadata,
        tasks=stores.tasks,
        work=stores.work,
        bodies=stores.bodies,
        clock=stores.clock,
        checks=(*stalled.checks(), *orphans.checks(), *retire.checks()),
        count=count,
        cleared=cleared,
    )
