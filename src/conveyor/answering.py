"""What callers ask for: the steps behind each call of the API."""

from dataclasses import replace

from conveyor.api.handlers import Handlers
from conveyor.api.links import Links
from conveyor.operating import Engines
from conveyor.settings import Settings
from conveyor.steps.add_tasks import AddTasks
from conveyor.steps.complete import Complete
from conveyor.steps.delete import Delete
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.export import Export
from conveyor.steps.file_inputs import FileInputs
from conveyor.steps.lifecycle import Lifecycle
from conveyor.steps.progress import ProgressFeed
from conveyor.steps.read import Read
from conveyor.steps.rerun import RerunJob
from conveyor.steps.shared.batch_writer import BatchWriter
from conveyor.steps.shared.idempotency import Idempotency
from conveyor.steps.shared.key_check import KeyCheck
from conveyor.steps.shared.loop_slices import LoopSlices
from conveyor.steps.shared.quotas import Quotas
from conveyor.steps.shared.sizes import Sizes
from conveyor.steps.submit import SubmitJob, Vet
from conveyor.telemetry import Metrics


def wire_handlers(
    settings: Settings,
    engines: Engines,
    metrics: Metrics,
    writer: BatchWriter,
    progress: ProgressFeed,
    *,
    exporting: Export,
    complete: Complete,
    vet: Vet,
    sizes: Sizes,
    dispatcher: Dispatcher,
) -> Handlers:
    idempotency = Idempotency(metadata=engines.metadata, clock=engines.clock)
    quota, key_check = _wire_quotas(settings, engines).check, _wire_key_check(engines, dispatcher)
    slices = LoopSlices(clock=engines.clock)
    return Handlers(
        links=Links(engines.link_secret, engines.clock, life=settings.result_url_life),
        limits=settings.limits,
        metrics=metrics,
        public_url=settings.public_url,
        file_inputs=replace(_wire_file_inputs(settings, engines), quota=quota),
        submit=replace(
            _wire_submit(settings, engines, idempotency, dispatcher, vet=vet, slices=slices),
            quota=quota,
            check_key=key_check.check,
            sizes=sizes,
        ),
        additions=replace(
            _wire_add_tasks(settings, engines, idempotency, writer, slices),
            quota=quota,
            check_key=key_check.check_job,
        ),
        lifecycle=_wire_lifecycle(engines, complete, dispatcher, key_check),
        reruns=replace(
            _wire_rerun(settings, engines, idempotency, complete, dispatcher),
            quota=quota,
            check_key=key_check.check,
            sizes=sizes,
        ),
        deleting=_wire_delete(engines, complete, dispatcher),
        exporting=replace(exporting, quota=quota),
        read=_wire_read(engines, dispatcher),
        progress=progress,
    )


def _wire_read(engines: Engines, dispatcher: Dispatcher) -> Read:
    return Read(
        metadata=engines.metadata,
        tasks=engines.tasks,
        bodies=engines.bodies,
        blobs=engines.blobs,
        coordination=engines.coordination,
        clock=engines.clock,
        waiting=dispatcher.waiting,
    )


def _wire_key_check(engines: Engines, dispatcher: Dispatcher) -> KeyCheck:
    return KeyCheck(
        gateway=engines.gateway,
        keys=dispatcher.refused_keys,
        encryption=engines.encryption,
        clock=engines.clock,
        reopen=dispatcher.discovery.reopen,
    )


def _wire_lifecycle(
    engines: Engines, complete: Complete, dispatcher: Dispatcher, key_check: KeyCheck
) -> Lifecycle:
    return Lifecycle(
        metadata=engines.metadata,
        work=engines.work,
        clock=engines.clock,
        ids=engines.ids,
        check=complete.check,
        wake=dispatcher.wake,
        wake_sender=complete.wake_sender,
        check_key=key_check.check_job,
    )


def _wire_quotas(settings: Settings, engines: Engines) -> Quotas:
    return Quotas(
        metadata=engines.metadata,
        tasks=engines.tasks,
        active_jobs=settings.active_jobs,
        scheduled_jobs=settings.scheduled_jobs,
        open_tasks=settings.open_tasks,
        unused_file_inputs=settings.unused_file_inputs,
        active_exports=settings.active_exports,
    )


def _wire_file_inputs(settings: Settings, engines: Engines) -> FileInputs:
    return FileInputs(
        metadata=engines.metadata,
        blobs=engines.blobs,
        clock=engines.clock,
        ids=engines.ids,
        most_bytes=settings.list_bytes,
    )


def _wire_submit(
    settings: Settings,
    engines: Engines,
    idempotency: Idempotency,
    dispatcher: Dispatcher,
    *,
    vet: Vet,
    slices: LoopSlices,
) -> SubmitJob:
    return SubmitJob(
        metadata=engines.metadata,
        tasks=engines.tasks,
        work=engines.work,
        blobs=engines.blobs,
        control_queue=engines.control_queue,
        encryption=engines.encryption,
        idempotency=idempotency,
        clock=engines.clock,
        ids=engines.ids,
        limits=settings.limits,
        slices=slices,
        vet=vet,
        wake=dispatcher.wake,
        takes_tokens=bool(settings.step_functions),
    )


def _wire_add_tasks(
    settings: Settings,
    engines: Engines,
    idempotency: Idempotency,
    writer: BatchWriter,
    slices: LoopSlices,
) -> AddTasks:
    return AddTasks(
        metadata=engines.metadata,
        blobs=engines.blobs,
        control_queue=engines.control_queue,
        idempotency=idempotency,
        clock=engines.clock,
        ids=engines.ids,
        limits=settings.limits,
        slices=slices,
        writer=writer,
    )


def _wire_rerun(
    settings: Settings,
    engines: Engines,
    idempotency: Idempotency,
    complete: Complete,
    dispatcher: Dispatcher,
) -> RerunJob:
    return RerunJob(
        metadata=engines.metadata,
        tasks=engines.tasks,
        work=engines.work,
        blobs=engines.blobs,
        control_queue=engines.control_queue,
        encryption=engines.encryption,
        idempotency=idempotency,
        clock=engines.clock,
        ids=engines.ids,
        limits=settings.limits,
        check=complete.check,
        wake=dispatcher.wake,
    )


def _wire_delete(engines: Engines, complete: Complete, dispatcher: Dispatcher) -> Delete:
    return Delete(
        metadata=engines.metadata,
        work=engines.work,
        control_queue=engines.control_queue,
        clock=engines.clock,
        ids=engines.ids,
        wake=dispatcher.wake,
        wake_sender=complete.wake_sender,
    )
