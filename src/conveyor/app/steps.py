"""The composition of the steps: every step of the service, built over the opened engines."""

from dataclasses import dataclass, replace
from datetime import timedelta
from random import SystemRandom

from conveyor.adapters.crypto.key_ring import new_signing_secret
from conveyor.api import render
from conveyor.app.control_handlers import build_control_worker
from conveyor.app.engines import Engines, Stores
from conveyor.app.port_groups import RowPorts, base_ports, row_ports, task_row_ports
from conveyor.app.wakeups import Wakeups, build_notifier, wake_by
from conveyor.domain.delivery_queue import DeliveryQueue
from conveyor.domain.ids import CallerId
from conveyor.domain.outbox import Channel
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.submission import Limits
from conveyor.domain.webhook import NewWebhook, Webhook
from conveyor.ports.blobs import Blobs
from conveyor.ports.control_queue import ControlQueue
from conveyor.settings import Settings
from conveyor.steps.add_tasks import AddTasks
from conveyor.steps.auth import Authenticate
from conveyor.steps.complete import Complete
from conveyor.steps.control import ControlWorker
from conveyor.steps.delete import Delete
from conveyor.steps.deliver.channels import (
    SendCallback,
    StepFunctionsChannel,
    WebhookChannel,
    callback_queue,
)
from conveyor.steps.deliver.sender import ChannelSender, OutboxSender
from conveyor.steps.dispatch.config import DispatchConfig, config_over_queues
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.dispatch.run_waits import RunWaits
from conveyor.steps.export import ExportRuns
from conveyor.steps.file_inputs import FileInputs
from conveyor.steps.ingest import Ingest
from conveyor.steps.lifecycle import Lifecycle
from conveyor.steps.progress import ProgressFeed
from conveyor.steps.purge import Purge
from conveyor.steps.read import Read
from conveyor.steps.rerun import RerunJob
from conveyor.steps.schedules import FireSchedules, ManageSchedules
from conveyor.steps.scrape import Scrape
from conveyor.steps.settle import Settle
from conveyor.steps.shared.failure_reads import MOST_SHARED, FailureReader
from conveyor.steps.shared.gateway_key_check import GatewayKeyCheck
from conveyor.steps.shared.idempotency import Idempotency
from conveyor.steps.shared.loop_slices import LoopSlices
from conveyor.steps.shared.notifier import Notifier
from conveyor.steps.shared.open_counts import FindOpenCounts, OpenCountReader
from conveyor.steps.shared.quotas import CheckQuota, Quotas
from conveyor.steps.shared.run_waits import FindWaits
from conveyor.steps.shared.shared_readings import SharedReadings
from conveyor.steps.shared.timeline_reads import MOST_KEPT, TimelineReader
from conveyor.steps.shared.webhook_sender import WebhookSender
from conveyor.steps.shared.work_limits import DEFAULT_SIZES, Sizes
from conveyor.steps.submit import SubmitJob
from conveyor.steps.sweep.lost_messages import STILL, LostMessages
from conveyor.steps.sweep.orphans import Orphans
from conveyor.steps.sweep.permit import SweeperPermit
from conveyor.steps.sweep.retire import DeleteRun, RetireRuns
from conveyor.steps.sweep.saved_cursors import SavedCursors
from conveyor.steps.sweep.stalled import StalledWork
from conveyor.steps.sweep.sweeper import Count, Sweeper
from conveyor.steps.webhooks import ManageWebhooks, RotateSigningKeys
from conveyor.steps.zip_export import ZipExport
from conveyor.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Every step over one set of engines."""

    notifier: Notifier
    wakeups: Wakeups
    authenticate: Authenticate
    file_inputs: FileInputs
    submit: SubmitJob
    add_tasks: AddTasks
    rerun: RerunJob
    lifecycle: Lifecycle
    delete: Delete
    manage_schedules: ManageSchedules
    fire: FireSchedules
    ingest: Ingest
    purge: Purge
    export: ExportRuns
    control_worker: ControlWorker
    dispatcher: Dispatcher
    settle: Settle
    complete: Complete
    deliver: OutboxSender
    manage_webhooks: ManageWebhooks
    rotate_signing_keys: RotateSigningKeys
    read: Read
    progress: ProgressFeed
    sweep: Sweeper


class _TaskCall(RowPorts):
    """For calls that bring tasks."""

    notifier: Notifier
    blobs: Blobs
    control_queue: ControlQueue
    idempotency: Idempotency
    limits: Limits
    check_quota: CheckQuota


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What steps have in common beyond the engines."""

    settings: Settings
    engines: Engines
    notifier: Notifier
    dispatcher: Dispatcher
    quotas: Quotas
    ingest: Ingest
    waits: FindWaits
    open_counts: FindOpenCounts


def build_steps(
    settings: Settings, engines: Engines, metrics: Metrics, sizes: Sizes = DEFAULT_SIZES
) -> Steps:
    """Build the steps."""
    base, rows, encryption = base_ports(engines), row_ports(engines), engines.encryption
    notifier = build_notifier(engines)
    sender = WebhookSender(**base, webhooks=engines.webhooks, encryption=encryption)
    deliver = _deliver(settings, engines, metrics, sender)
    manage_webhooks = ManageWebhooks(**rows, sender=sender, notifier=notifier)
    complete = build_complete(engines, notifier)
    settle, dispatcher = _dispatch(settings, engines, complete)
    shared = _shared(settings, engines, complete, dispatcher, sizes)
    submit, add_tasks, rerun, lifecycle = _job_calls(shared, manage_webhooks)
    delete = Delete(
        **rows, notifier=notifier, work=engines.work, control_queue=engines.control_queue
    )
    purge, export = _queued_steps(shared)
    authenticate = Authenticate(**base, encryption=encryption)
    progress = _progress(shared, metrics, authenticate)
    wakeups = wake_by(notifier, dispatcher, deliver, progress)
    return Steps(
        notifier=notifier,
        wakeups=wakeups,
        authenticate=authenticate,
        file_inputs=_file_inputs(shared),
        submit=submit,
        add_tasks=add_tasks,
        rerun=rerun,
        lifecycle=lifecycle,
        delete=delete,
        manage_schedules=ManageSchedules(**base, encryption=encryption),
        fire=_fire(engines, metrics, notifier),
        ingest=shared.ingest,
        purge=purge,
        export=export,
        control_worker=build_control_worker(
            engines, (shared.ingest, purge, export), wakeups.control.wake_one, settings.permit_lease
        ),
        dispatcher=dispatcher,
        settle=settle,
        complete=complete,
        deliver=deliver,
        manage_webhooks=manage_webhooks,
        rotate_signing_keys=_rotate_signing_keys(engines),
        read=_read(shared, metrics),
        progress=progress,
        sweep=_sweep(shared, complete, metrics, delete),
    )


def _shared(
    settings: Settings, engines: Engines, complete: Complete, dispatcher: Dispatcher, sizes: Sizes
) -> _Shared:
    return _Shared(
        settings=settings,
        engines=engines,
        notifier=complete.notifier,
        dispatcher=dispatcher,
        waits=RunWaits(dispatcher=dispatcher, encryption=engines.encryption).find,
        open_counts=OpenCountReader(tasks=engines.tasks, clock=engines.clock).find,
        ingest=Ingest(
            **task_row_ports(engines),
            notifier=complete.notifier,
            check_completion=complete.check_completion,
            blobs=engines.blobs,
            limits=settings.limits,
            sizes=sizes,
        ),
        quotas=Quotas(
            metadata=engines.metadata,
            tasks=engines.tasks,
            active_jobs=settings.active_jobs,
            scheduled_jobs=settings.scheduled_jobs,
            open_tasks=settings.open_tasks,
            unused_file_inputs=settings.unused_file_inputs,
            active_exports=settings.active_exports,
        ),
    )


# Calls of the API.


def _file_inputs(shared: _Shared) -> FileInputs:
    return FileInputs(
        **row_ports(shared.engines),
        blobs=shared.engines.blobs,
        most_bytes=shared.settings.list_bytes,
        check_quota=shared.quotas.check_quota,
    )


def _job_calls(
    shared: _Shared, webhooks: ManageWebhooks
) -> tuple[SubmitJob, AddTasks, RerunJob, Lifecycle]:
    async def check_webhook(caller: CallerId, asked: NewWebhook) -> Webhook:
        """Return the webhook of a submission, if it can be delivered to."""
        return await webhooks.check_webhook(caller, asked.url, signature=bool(asked.signature))

    engines, sizes = shared.engines, shared.ingest.sizes
    rows, work, encryption = row_ports(engines), engines.work, engines.encryption
    check, slices = shared.ingest.check_completion, LoopSlices(clock=engines.clock)
    keys, call = _gateway_key_check(shared), _task_call(shared)
    submit = SubmitJob(
        **call,
        tasks=engines.tasks,
        work=work,
        encryption=encryption,
        slices=slices,
        check_webhook=check_webhook,
        takes_tokens=bool(shared.settings.step_functions),
        task_shard_count=engines.task_shard_count,
        check_gateway_key=keys.check_key,
        sizes=sizes,
    )
    rerun = RerunJob(
        **call,
        tasks=engines.tasks,
        work=work,
        encryption=encryption,
        check_completion=check,
        check_gateway_key=keys.check_key,
        sizes=sizes,
    )
    add_tasks = AddTasks(
        **call, slices=slices, ingest=shared.ingest.run, check_job_key=keys.check_job_key
    )
    lifecycle = Lifecycle(
        **rows,
        notifier=shared.notifier,
        work=work,
        check_completion=check,
        check_job_key=keys.check_job_key,
    )
    return submit, add_tasks, rerun, lifecycle


def _task_call(shared: _Shared) -> _TaskCall:
    engines = shared.engines
    return {
        **row_ports(engines),
        "notifier": shared.notifier,
        "blobs": engines.blobs,
        "control_queue": engines.control_queue,
        "idempotency": Idempotency(**base_ports(engines)),
        "limits": shared.settings.limits,
        "check_quota": shared.quotas.check_quota,
    }


def _gateway_key_check(shared: _Shared) -> GatewayKeyCheck:
    engines, limits = shared.engines, shared.dispatcher.shared_limits
    return GatewayKeyCheck(
        gateway=engines.gateway,
        refused_keys=shared.dispatcher.refused_keys,
        encryption=engines.encryption,
        clock=engines.clock,
        notifier=shared.notifier,
        look_at_key=limits.look_at_key if limits else None,
        share_key=limits.share_key if limits else None,
    )


def _rotate_signing_keys(engines: Engines) -> RotateSigningKeys:
    return RotateSigningKeys(
        **row_ports(engines), encryption=engines.encryption, secret=new_signing_secret
    )


def _read(shared: _Shared, metrics: Metrics) -> Read:
    engines = shared.engines
    return Read(
        **base_ports(engines),
        tasks=engines.tasks,
        bodies=engines.bodies,
        blobs=engines.blobs,
        coordination=engines.coordination,
        find_failures=FailureReader(
            tasks=engines.tasks,
            count=metrics.read_rows.inc,
            shared=SharedReadings(clock=engines.clock, most=MOST_SHARED),
        ).find,
        find_timeline=TimelineReader(
            tasks=engines.tasks,
            clock=engines.clock,
            count=metrics.read_rows.inc,
            shared=SharedReadings(clock=engines.clock, most=MOST_KEPT),
        ).find,
        waits=shared.waits,
        open_counts=shared.open_counts,
        count=metrics.read_rows.inc,
    )


def _progress(shared: _Shared, metrics: Metrics, authenticate: Authenticate) -> ProgressFeed:
    progress = ProgressFeed(
        **base_ports(shared.engines),
        tasks=shared.engines.tasks,
        render=render.event_shown,
        count=metrics.watch_reads.inc,
        is_good=authenticate.is_good,
        most=shared.settings.event_listeners,
        waits=shared.waits,
        open_counts=shared.open_counts,
    )
    metrics.listeners.set_function(lambda: progress.listeners)
    return progress


# Loops of a worker.


def _fire(stores: Stores, metrics: Metrics, notifier: Notifier) -> FireSchedules:
    return FireSchedules(
        **row_ports(stores),
        notifier=notifier,
        control_queue=stores.control_queue,
        count=lambda fired: metrics.fires.labels(fired).inc(),
    )


def _dispatch(
    settings: Settings, engines: Engines, complete: Complete
) -> tuple[Settle, Dispatcher]:
    settle = Settle(
        **task_row_ports(engines),
        bodies=engines.bodies,
        check_completion=complete.check_completion,
        notifier=complete.notifier,
        # The dispatcher calls `settle`, which is built first.
        same_key=lambda run_id: dispatcher.discovery.sharing_key(run_id),  # noqa: PLW0108
    )
    places = settings.concurrency
    config = config_over_queues(places) if engines.queues else DispatchConfig(concurrency=places)
    dispatcher = Dispatcher(
        **base_ports(engines),
        work=engines.work,
        coordination=engines.coordination,
        encryption=engines.encryption,
        attempt=Scrape(gateway=engines.gateway, bodies=engines.bodies, clock=engines.clock).attempt,
        settle=settle.settle,
        settle_final=settle.settle_final,
        check_gateway=engines.gateway.check_health,
        policy=RetryPolicy(
            first_delay=settings.retry_first_delay, longest_delay=settings.retry_longest_delay
        ),
        config=replace(
            config,
            renewal=settings.renewal,
            renew_from=settings.lease / 2 if engines.queues else timedelta(),
            lease=settings.permit_lease,
            grace=settings.grace,
            settle_wait=engines.settle_wait,
        ),
        shared_as=engines.incarnation if engines.shares_coordination else "",
    )
    return settle, dispatcher


def _deliver(
    settings: Settings, engines: Engines, metrics: Metrics, sender: WebhookSender
) -> OutboxSender:
    """Build the sender of the outbox; each channel has its own queue."""
    base, chance = base_ports(engines), SystemRandom().random
    webhooks = DeliveryQueue(chance=chance)
    metrics.delivering.set_function(lambda: webhooks.in_flight)
    metrics.in_line.set_function(lambda: webhooks.waiting)
    lease_length = settings.webhook_timeout * 2
    channel = WebhookChannel(**base, sender=sender, chance=chance, lease_length=lease_length)
    return OutboxSender(
        [
            ChannelSender(**base, channel=channel, queue=webhooks),
            _step_functions_sender(engines, Channel.STEP_FUNCTIONS),
            _step_functions_sender(engines, Channel.HEARTBEAT),
        ]
    )


def _step_functions_sender(engines: Engines, name: Channel) -> ChannelSender[SendCallback]:
    base = base_ports(engines)
    channel = StepFunctionsChannel(
        **base, encryption=engines.encryption, step_functions=engines.step_functions, name=name
    )
    return ChannelSender(**base, channel=channel, queue=callback_queue(name))


def _queued_steps(shared: _Shared) -> tuple[Purge, ExportRuns]:
    """Build the other steps that the control worker calls."""
    engines, base, rows = shared.engines, base_ports(shared.engines), row_ports(shared.engines)
    tasks, bodies, blobs = engines.tasks, engines.bodies, engines.blobs
    cap = shared.settings.export_bytes
    zip_export = ZipExport(tasks=tasks, bodies=bodies, blobs=blobs, clock=engines.clock, cap=cap)
    export = ExportRuns(
        **rows,
        notifier=shared.notifier,
        blobs=blobs,
        control_queue=engines.control_queue,
        make=zip_export.write,
        check_quota=shared.quotas.check_quota,
    )
    return Purge(**base, tasks=tasks, work=engines.work, bodies=bodies, blobs=blobs), export


def _sweep(shared: _Shared, complete: Complete, metrics: Metrics, delete: Delete) -> Sweeper:
    settings, engines = shared.settings, shared.engines
    permit = SweeperPermit(
        coordination=engines.coordination, clock=engines.clock, lease=settings.permit_lease
    )
    return build_sweep(
        settings,
        engines,
        complete,
        metrics.swept,
        metrics.cleared,
        delete_run=delete.run,
        permit=None if engines.is_alone else permit,
        forgets="control_queue" in engines.in_memory,
    )


# Completion and repair. The offline doctor builds these over stores alone.


def build_complete(stores: Stores, notifier: Notifier) -> Complete:
    return Complete(**task_row_ports(stores), notifier=notifier)


def build_sweep(
    settings: Settings,
    stores: Stores,
    complete: Complete,
    count: Count,
    cleared: Count,
    *,
    delete_run: DeleteRun,
    permit: SweeperPermit | None = None,
    forgets: bool = False,
) -> Sweeper:
    base, tasks, bodies, blobs = base_ports(stores), stores.tasks, stores.bodies, stores.blobs
    stalled = StalledWork(
        **base,
        control_queue=stores.control_queue,
        blobs=blobs,
        is_due=complete.is_due,
        check_completion=complete.check_completion,
        forgets=forgets,
    )
    orphans = Orphans(**base, tasks=tasks, bodies=bodies, blobs=blobs, body_life=settings.body_life)
    retire = RetireRuns(**base, run_life=settings.scheduled_run_life, delete_run=delete_run)
    checks = [*stalled.checks(), *orphans.checks(), *retire.checks()]
    if queues := stores.queues:
        # A call may take its deadline, and a lost claim a lease, without a change of the counts.
        still = max(STILL, settings.gateway_deadline + 2 * settings.lease)
        checks += LostMessages(
            **base,
            tasks=tasks,
            work=stores.work,
            queues=queues,
            notifier=complete.notifier,
            still=still,
        ).checks()
    return Sweeper(
        **base,
        tasks=tasks,
        work=stores.work,
        bodies=bodies,
        checks=checks,
        count=count,
        cleared=cleared,
        permit=permit,
        saved=SavedCursors(coordination=permit.coordination) if permit else None,
    )
