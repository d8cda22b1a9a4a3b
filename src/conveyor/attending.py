"""Duties: which there are, and which step does each."""

from collections.abc import Mapping

from conveyor.domain.batch import INGEST, SCRUB, ingest_about
from conveyor.domain.export import EXPORT
from conveyor.domain.ids import ExportId, RunId
from conveyor.domain.places import Share
from conveyor.operating import Stores
from conveyor.settings import Settings
from conveyor.steps.attend import Attend, Handler, Standing
from conveyor.steps.export import Export
from conveyor.steps.ingest import Ingest
from conveyor.steps.pack import Pack
from conveyor.steps.scrub import Scrub
from conveyor.steps.shared.turn import Turn

# Places of one process. Exports keep theirs for hours, so one caller has one of them.
INGESTS = Share(places=4, per_caller=2)
SCRUBS = Share(places=2, per_caller=1)
EXPORTS = Share(places=4, per_caller=1)


def wire_attend(stores: Stores, ingest: Ingest, exporting: Export) -> Attend:
    handlers = {
        INGEST: ingest_handler(ingest),
        SCRUB: scrub_handler(_scrub(stores)),
        EXPORT: export_handler(exporting),
    }
    return Attend(stores.duties, handlers, stores.clock)


def wire_export(settings: Settings, stores: Stores) -> Export:
    pack = Pack(
        tasks=stores.tasks,
        bodies=stores.bodies,
        blobs=stores.blobs,
        clock=stores.clock,
        cap=settings.export_bytes,
    )
    return Export(
        metadata=stores.metadata,
        exports=stores.exports,
        blobs=stores.blobs,
        duties=stores.duties,
        clock=stores.clock,
        ids=stores.ids,
        make=pack.write,
    )


def ingest_handler(ingest: Ingest) -> Handler:
    async def do(about: Mapping[str, str], turn: Turn) -> Mapping[str, str] | None:
        ahead = await ingest.run(RunId(about["run_id"]), int(about["first"]), turn)
        return ingest_about(ahead) if ahead else None

    async def give_up(about: Mapping[str, str]) -> None:
        await ingest.abandon(RunId(about["run_id"]), int(about["first"]))

    async def standing(about: Mapping[str, str]) -> Standing:
        is_over, ahead = await ingest.standing(
            RunId(about["run_id"]), int(about["first"]), int(about.get("version", 0))
        )
        return Standing(is_over=is_over, again=ingest_about(ahead) if ahead else None)

    return Handler(do, give_up, standing, share=INGESTS)


def _scrub(stores: Stores) -> Scrub:
    return Scrub(
        metadata=stores.metadata,
        inputs=stores.inputs,
        exports=stores.exports,
        outbox=stores.outbox,
        tasks=stores.tasks,
        work=stores.work,
        bodies=stores.bodies,
        blobs=stores.blobs,
        clock=stores.clock,
    )


def scrub_handler(scrub: Scrub) -> Handler:
    async def do(about: Mapping[str, str], turn: Turn) -> Mapping[str, str] | None:
        return None if await scrub.run(about["id"], turn) else about

    async def give_up(about: Mapping[str, str]) -> None:
        """Nothing is left half done that the sweeper would not have done again."""

    return Handler(do, give_up, share=SCRUBS)


def export_handler(exporting: Export) -> Handler:
    async def do(about: Mapping[str, str], _: Turn) -> None:
        # A file is written in one go: an export keeps its place to its end.
        await exporting.run(ExportId(about["id"]))

    async def give_up(about: Mapping[str, str]) -> None:
        await exporting.abandon(ExportId(about["id"]))

    return Handler(do, give_up, share=EXPORTS)
