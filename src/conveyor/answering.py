"""What callers ask for: the steps behind each call of the API."""

from dataclasses import replace

from conveyor.api.handlers import Handlers
from conveyor.api.links import Links
from conveyor.operating import Engines
from conveyor.settings import Settings
from conveyor.steps.accept import Accept, Vet
from conveyor.steps.append import Append
from conveyor.steps.close import Close
from conveyor.steps.delete import Delete
from conveyor.steps.dispatch import Pump
from conveyor.steps.export import Export
from conveyor.steps.ingest import Ingest
from conveyor.steps.owing import Owing
from conveyor.steps.pause import Pause
from conveyor.steps.read import Read
from conveyor.steps.rerun import Rerun
from conveyor.steps.shared.idempotency import Replays
from conveyor.steps.shared.loop_slices import LoopSlices
from conveyor.steps.shared.quotas import Quotas
from conveyor.steps.shared.standing import Standing
from conveyor.steps.stage import Stage
from conveyor.steps.watch import Watch
from conveyor.telemetry import Metrics


def wire_handlers(
    settings: Settings,
    engines: Engines,
    metrics: Metrics,
    ingest: Ingest,
    watch: Watch,
    *,
    exporting: Export,
    owing: Owing,
    vet: Vet,
    pump: Pump,
) -> Handlers:
    replays = Replays(answers=engines.answers, clock=engines.clock)
    quota, standing = _wire_quotas(settings, engines).check, _wire_standing(engines, pump)
    slices = LoopSlices(clock=engines.clock)
    return Handlers(
        links=Links(engines.link_secret, engines.clock, life=settings.result_url_life),
        limits=settings.limits,
        metrics=metrics,
        public_url=settings.public_url,
        stage=replace(_wire_stage(settings, engines), quota=quota),
        accept=replace(
            _wire_accept(settings, engines, replays, ingest, vet=vet, slices=slices),
            quota=quota,
            standing=standing.check,
        ),
        append=replace(
            _wire_append(settings, engines, replays, ingest, slices),
            quota=quota,
            standing=standing.check_job,
        ),
        closing=_wire_close(engines, ingest, owing),
        pausing=_wire_pause(engines, ingest, standing),
        rerunning=replace(
            _wire_rerun(settings, engines, replays, ingest), quota=quota, standing=standing.check
        ),
        deleting=_wire_delete(engines, ingest, owing),
        exporting=replace(exporting, quota=quota),
        read=Read(
            metadata=engines.metadata,
            tasks=engines.tasks,
            bodies=engines.bodies,
            blobs=engines.blobs,
            coordination=engines.coordination,
            clock=engines.clock,
            waiting=pump.roster.waiting,
        ),
        watch=watch,
    )


def _wire_standing(engines: Engines, pump: Pump) -> Standing:
    return Standing(
        gateway=engines.gateway,
        keys=pump.keys,
        sealing=engines.sealing,
        clock=engines.clock,
        reopen=pump.roster.reopen,
    )


def _wire_pause(engines: Engines, ingest: Ingest, standing: Standing) -> Pause:
    return Pause(
        metadata=engines.metadata,
        clock=engines.clock,
        wake=ingest.wake,
        standing=standing.check_job,
    )


def _wire_close(engines: Engines, ingest: Ingest, owing: Owing) -> Close:
    return Close(
        metadata=engines.metadata,
        work=engines.work,
        clock=engines.clock,
        owing=owing,
        check=ingest.check,
        wake=ingest.wake,
    )


def _wire_quotas(settings: Settings, engines: Engines) -> Quotas:
    return Quotas(
        census=engines.census,
        tasks=engines.tasks,
        active_jobs=settings.active_jobs,
        scheduled_jobs=settings.scheduled_jobs,
        open_tasks=settings.open_tasks,
        upload_slots=settings.upload_slots,
        active_exports=settings.active_exports,
    )


def _wire_stage(settings: Settings, engines: Engines) -> Stage:
    return Stage(
        metadata=engines.metadata,
        inputs=engines.inputs,
        blobs=engines.blobs,
        clock=engines.clock,
        ids=engines.ids,
        most_bytes=settings.list_bytes,
    )


def _wire_accept(
    settings: Settings,
    engines: Engines,
    replays: Replays,
    ingest: Ingest,
    *,
    vet: Vet,
    slices: LoopSlices,
) -> Accept:
    return Accept(
        metadata=engines.metadata,
        tasks=engines.tasks,
        work=engines.work,
        blobs=engines.blobs,
        duties=engines.duties,
        inputs=engines.inputs,
        sealing=engines.sealing,
        replays=replays,
        clock=engines.clock,
        ids=engines.ids,
        limits=settings.limits,
        slices=slices,
        vet=vet,
        wake=ingest.wake,
        takes_tokens=bool(settings.step_functions),
    )


def _wire_append(
    settings: Settings, engines: Engines, replays: Replays, ingest: Ingest, slices: LoopSlices
) -> Append:
    return Append(
        metadata=engines.metadata,
        blobs=engines.blobs,
        duties=engines.duties,
        replays=replays,
        clock=engines.clock,
        ids=engines.ids,
        limits=settings.limits,
        slices=slices,
        ingest=ingest.run,
    )


def _wire_rerun(settings: Settings, engines: Engines, replays: Replays, ingest: Ingest) -> Rerun:
    return Rerun(
        metadata=engines.metadata,
        tasks=engines.tasks,
        work=engines.work,
        blobs=engines.blobs,
        duties=engines.duties,
        sealing=engines.sealing,
        replays=replays,
        clock=engines.clock,
        ids=engines.ids,
        limits=settings.limits,
        check=ingest.check,
        wake=ingest.wake,
    )


def _wire_delete(engines: Engines, ingest: Ingest, owing: Owing) -> Delete:
    return Delete(
        metadata=engines.metadata,
        work=engines.work,
        duties=engines.duties,
        clock=engines.clock,
        owing=owing,
        wake=ingest.wake,
    )
