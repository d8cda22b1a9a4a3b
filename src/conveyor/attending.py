"""ControlQueue: which there are, and which step does each."""

from collections.abc import Mapping

from conveyor.domain.batch import INGEST, ingest_payload
from conveyor.domain.control_queue import SlotLimits
from conveyor.domain.deletion import PURGE
from conveyor.domain.export import EXPORT
from conveyor.domain.ids import ExportId, RunId
from conveyor.operating import Engines, Stores
from conveyor.settings import Settings
from conveyor.steps.complete import Complete
from conveyor.steps.control import ControlWorker, Handler, WorkStatus
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.export import Export
from conveyor.steps.ingest import Ingest
from conveyor.steps.purge import Purge
from conveyor.steps.shared.batch_writer import BatchWriter
from conveyor.steps.shared.sizes import Sizes
from conveyor.steps.shared.turn import Turn
from conveyor.steps.zip_export import ZipExport

# Slots of one process. An export keeps its slot for hours, so one caller has one of them.
INGESTS = SlotLimits(slots=4, per_caller=2)
PURGES = SlotLimits(slots=2, per_caller=1)
EXPORTS = SlotLimits(slots=4, per_caller=1)


def wire_control_worker(stores: Stores, writer: BatchWriter, exporting: Export) -> ControlWorker:
    handlers = {
        INGEST: ingest_handler(_ingest(stores, writer)),
        PURGE: purge_handler(_purge(stores)),
        EXPORT: export_handler(exporting),
    }
    return ControlWorker(stores.control_queue, handlers, stores.clock)


def wire_export(settings: Settings, stores: Stores) -> Export:
    zip_export = ZipExport(
        tasks=stores.tasks,
        bodies=stores.bodies,
        blobs=stores.blobs,
        clock=stores.clock,
        cap=settings.export_bytes,
    )
    return Export(
        metadata=stores.metadata,
        blobs=stores.blobs,
        control_queue=stores.control_queue,
        clock=stores.clock,
        ids=stores.ids,
        make=zip_export.write,
    )


def wire_batch_writer(
    settings: Settings, engines: Engines, complete: Complete, dispatcher: Dispatcher, sizes: Sizes
) -> BatchWriter:
    return BatchWriter(
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
    )


def _ingest(stores: Stores, writer: BatchWriter) -> Ingest:
    return Ingest(
        metadata=stores.metadata,
        blobs=stores.blobs,
        clock=stores.clock,
        ids=stores.ids,
        wake_sender=writer.wake_sender,
        writer=writer,
    )


def ingest_handler(ingest: Ingest) -> Handler:
    async def handle(payload: Mapping[str, str], turn: Turn) -> Mapping[str, str] | None:
        ahead = await ingest.run(RunId(payload["run_id"]), int(payload["first"]), turn)
        return ingest_payload(ahead) if ahead else None

    async def give_up(payload: Mapping[str, str]) -> None:
        await ingest.abandon(RunId(payload["run_id"]), int(payload["first"]))

    async def status(payload: Mapping[str, str]) -> WorkStatus:
        is_over, ahead = await ingest.standing(
            RunId(payload["run_id"]), int(payload["first"]), int(payload.get("version", 0))
        )
        return WorkStatus(is_done=is_over, resend=ingest_payload(ahead) if ahead else None)

    return Handler(handle, give_up, status, limits=INGESTS)


def _purge(stores: Stores) -> Purge:
    return Purge(
        metadata=stores.metadata,
        tasks=stores.tasks,
        work=stores.work,
        bodies=stores.bodies,
        blobs=stores.blobs,
        clock=stores.clock,
    )


def purge_handler(purge: Purge) -> Handler:
    async def handle(payload: Mapping[str, str], turn: Turn) -> Mapping[str, str] | None:
        return None if await purge.run(payload["id"], turn) else payload

    async def give_up(payload: Mapping[str, str]) -> None:
        """Nothing is left half done that the sweeper would not have done again."""

    return Handler(handle, give_up, limits=PURGES)


def export_handler(exporting: Export) -> Handler:
    async def handle(payload: Mapping[str, str], _: Turn) -> None:
        # A file is written in one go: an export keeps its place to its end.
        await exporting.run(ExportId(payload["id"]))

    async def give_up(payload: Mapping[str, str]) -> None:
        await exporting.abandon(ExportId(payload["id"]))

    return Handler(handle, give_up, limits=EXPORTS)
