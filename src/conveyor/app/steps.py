"""Steps over engines: every step of the service is constructed here, in the order work travels."""

from dataclasses import dataclass

from conveyor.api import render
from conveyor.app.background_steps import (
    build_complete,
    build_control_worker,
    build_deliver,
    build_export,
    build_manage_webhooks,
    build_purge,
    build_rotate_signing_keys,
    build_sweep,
    build_webhook_sender,
)
from conveyor.app.engines import Engines, Stores
from conveyor.domain.ids import CallerId
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.webhook import NewWebhook, Webhook
from conveyor.settings import Settings
from conveyor.steps.add_tasks import AddTasks
from conveyor.steps.auth import Authenticate
from conveyor.steps.complete import Complete
from conveyor.steps.control import ControlWorker
from conveyor.steps.delete import Delete
from conveyor.steps.deliver.sender import OutboxSender
from conveyor.steps.dispatch.config import DispatchConfig
from conveyor.steps.dispatch.dispatcher import Dispatcher
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
from conveyor.steps.shared.idempotency import Idempotency
from conveyor.steps.shared.key_check import KeyCheck
from conveyor.steps.shared.loop_slices import LoopSlices
from conveyor.steps.shared.quotas import Quotas
from conveyor.steps.shared.work_limits import DEFAULT_SIZES, Sizes
from conveyor.steps.submit import SubmitJob
from conveyor.steps.sweep.sweeper import Sweeper
from conveyor.steps.webhooks import ManageWebhooks, RotateSigningKeys
from conveyor.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Every step over one set of engines."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What the steps behind several calls have in common."""

    settings: Settings
    engines: Engines
    sizes: Sizes
    complete: Complete
    dispatcher: Dispatcher
    ingest: Ingest
    idempotency: Idempotency
    slices: LoopSlices
    quotas: Quotas
    key_check: KeyCheck


def build_steps(
    settings: Settings, engines: Engines, metrics: Metrics, sizes: Sizes = DEFAULT_SIZES
) -> Steps:
    """Construct the steps. Those that wake another are given its `wake`, and so come after it."""
    sender = build_webhook_sender(engines)
    deliver = build_deliver(settings, engines, metrics, sender)
    complete = build_complete(engines, deliver.wake)
    settle, dispatcher = _dispatch(settings, engines, complete)
    shared = _shared(settings, engines, complete, dispatcher, sizes)
    authenticate = _authenticate(engines)
    purge, export = build_purge(engines), build_export(settings, engines, shared.quotas)
    delete = _delete(shared)
    manage_webhooks = build_manage_webhooks(engines, sender, deliver)
    return Steps(
        authenticate=authenticate,
        file_inputs=_file_inputs(shared),
        submit=_submit(shared, manage_webhooks),
        add_tasks=_add_tasks(shared),
        rerun=_rerun(shared),
        lifecycle=_lifecycle(shared),
        delete=delete,
        manage_schedules=_manage_schedules(engines),
        fire=_fire(engines, metrics),
        ingest=shared.ingest,
        purge=purge,
        export=export,
        control_worker=build_control_worker(engines, shared.ingest, purge, export),
        dispatcher=dispatcher,
        settle=settle,
        complete=complete,
        deliver=deliver,
        manage_webhooks=manage_webhooks,
        rotate_signing_keys=build_rotate_signing_keys(engines),
        read=_read(shared),
        progress=_progress(shared, metrics, authenticate),
        sweep=build_sweep(
            settings, engines, complete, metrics.swept, metrics.cleared, delete_run=delete.run
        ),
    )


def _shared(
    settings: Settings, engines: Engines, complete: Complete, dispatcher: Dispatcher, sizes: Sizes
) -> _Shared:
    return _Shared(
        settings=settings,
        engines=engines,
        sizes=sizes,
        complete=complete,
        dispatcher=dispatcher,
        ingest=Ingest(
            metadata=engines.metadata,
            tasks=engines.tasks,
            work=engines.work,
            blobs=engines.blobs,
            clock=engines.clock,
            ids=engines.ids,
            limits=settings.limits,
            check=complete.check,
            wake=dispatcher.wake,
            wake_sender=complete.wake_sender,
            sizes=sizes,
        ),
        idempotency=Idempotency(metadata=engines.metadata, clock=engines.clock),
        slices=LoopSlices(clock=engines.clock),
        quotas=Quotas(
            metadata=engines.metadata,
            tasks=engines.tasks,
            active_jobs=settings.active_jobs,
            scheduled_jobs=settings.scheduled_jobs,
            open_tasks=settings.open_tasks,
            unused_file_inputs=settings.unused_file_inputs,
            active_exports=settings.active_exports,
        ),
        key_check=KeyCheck(
            gateway=engines.gateway,
            keys=dispatcher.refused_keys,
            encryption=engines.encryption,
            clock=engines.clock,
            reopen=dispatcher.discovery.reopen,
        ),
    )


# Calls of the API: who asks, and what is asked for.


def _authenticate(engines: Engines) -> Authenticate:
    return Authenticate(
        metadata=engines.metadata, encryption=engines.encryption, clock=engines.clock
    )


def _file_inputs(shared: _Shared) -> FileInputs:
    engines = shared.engines
    return FileInputs(
        metadata=engines.metadata,
        blobs=engines.blobs,
        clock=engines.clock,
        ids=engines.ids,
        most_bytes=shared.settings.list_bytes,
        quota=shared.quotas.check,
    )


def _submit(shared: _Shared, webhooks: ManageWebhooks) -> SubmitJob:
    async def check_webhook(caller: CallerId, asked: NewWebhook) -> Webhook:
        """Return the webhook of a submission, if it can be delivered to."""
        return await webhooks.check(caller, asked.url, signature=bool(asked.signature))

    engines = shared.engines
    return SubmitJob(
        metadata=engines.metadata,
        tasks=engines.tasks,
        work=engines.work,
        blobs=engines.blobs,
        control_queue=engines.control_queue,
        encryption=engines.encryption,
        idempotency=shared.idempotency,
        clock=engines.clock,
        ids=engines.ids,
        limits=shared.settings.limits,
        slices=shared.slices,
        check_webhook=check_webhook,
        wake=shared.dispatcher.wake,
        takes_tokens=bool(shared.settings.step_functions),
        quota=shared.quotas.check,
        check_key=shared.key_check.check,
        sizes=shared.sizes,
    )


def _add_tasks(shared: _Shared) -> AddTasks:
    engines = shared.engines
    return AddTasks(
        metadata=engines.metadata,
        blobs=engines.blobs,
        control_queue=engines.control_queue,
        idempotency=shared.idempotency,
        clock=engines.clock,
        ids=engines.ids,
        limits=shared.settings.limits,
        slices=shared.slices,
        ingest=shared.ingest.run,
        quota=shared.quotas.check,
        check_key=shared.key_check.check_job,
    )


def _rerun(shared: _Shared) -> RerunJob:
    engines = shared.engines
    return RerunJob(
        metadata=engines.metadata,
        tasks=engines.tasks,
        work=engines.work,
        blobs=engines.blobs,
        control_queue=engines.control_queue,
        encryption=engines.encryption,
        idempotency=shared.idempotency,
        clock=engines.clock,
        ids=engines.ids,
        limits=shared.settings.limits,
        check=shared.complete.check,
        wake=shared.dispatcher.wake,
        quota=shared.quotas.check,
        check_key=shared.key_check.check,
        sizes=shared.sizes,
    )


def _lifecycle(shared: _Shared) -> Lifecycle:
    engines = shared.engines
    return Lifecycle(
        metadata=engines.metadata,
        work=engines.work,
        clock=engines.clock,
        ids=engines.ids,
        check=shared.complete.check,
        wake=shared.dispatcher.wake,
        wake_sender=shared.complete.wake_sender,
        check_key=shared.key_check.check_job,
    )


def _delete(shared: _Shared) -> Delete:
    engines = shared.engines
    return Delete(
        metadata=engines.metadata,
        work=engines.work,
        control_queue=engines.control_queue,
        clock=engines.clock,
        ids=engines.ids,
        wake=shared.dispatcher.wake,
        wake_sender=shared.complete.wake_sender,
    )


def _read(shared: _Shared) -> Read:
    engines = shared.engines
    return Read(
        metadata=engines.metadata,
        tasks=engines.tasks,
        bodies=engines.bodies,
        blobs=engines.blobs,
        coordination=engines.coordination,
        clock=engines.clock,
        waiting=shared.dispatcher.waiting,
    )


def _progress(shared: _Shared, metrics: Metrics, authenticate: Authenticate) -> ProgressFeed:
    engines = shared.engines
    progress = ProgressFeed(
        metadata=engines.metadata,
        tasks=engines.tasks,
        clock=engines.clock,
        render=render.event_shown,
        count=metrics.watch_reads.inc,
        is_good=authenticate.is_good,
        most=shared.settings.event_listeners,
        waiting=shared.dispatcher.waiting,
    )
    metrics.listeners.set_function(lambda: progress.listeners)
    return progress


def _manage_schedules(engines: Engines) -> ManageSchedules:
    return ManageSchedules(
        metadata=engines.metadata, encryption=engines.encryption, clock=engines.clock
    )


def _fire(stores: Stores, metrics: Metrics) -> FireSchedules:
    return FireSchedules(
        metadata=stores.metadata,
        control_queue=stores.control_queue,
        clock=stores.clock,
        ids=stores.ids,
        count=lambda fired: metrics.fires.labels(fired).inc(),
    )


# Tasks.


def _dispatch(
    settings: Settings, engines: Engines, complete: Complete
) -> tuple[Settle, Dispatcher]:
    scrape = Scrape(gateway=engines.gateway, bodies=engines.bodies)
    settle = Settle(
        metadata=engines.metadata,
        tasks=engines.tasks,
        work=engines.work,
        bodies=engines.bodies,
        clock=engines.clock,
        ids=engines.ids,
        check=complete.check,
        wake_sender=complete.wake_sender,
        # The dispatcher settles, and settling wakes the dispatcher.
        wake=lambda run_id: dispatcher.wake(run_id),  # noqa: PLW0108 - it is made below
        same_key=lambda run_id: dispatcher.discovery.sharing_key(run_id),  # noqa: PLW0108 - the same
    )
    dispatcher = Dispatcher(
        metadata=engines.metadata,
        work=engines.work,
        coordination=engines.coordination,
        encryption=engines.encryption,
        clock=engines.clock,
        attempt=scrape.attempt,
        settle=settle.settle,
        settle_final=settle.settle_final,
        check=engines.gateway.check,
        policy=RetryPolicy(
            first_delay=settings.retry_first_delay, longest_delay=settings.retry_longest_delay
        ),
        config=DispatchConfig(
            concurrency=settings.concurrency, renewal=settings.renewal, grace=settings.grace
        ),
    )
    return settle, dispatcher
