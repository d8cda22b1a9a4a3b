"""Duties: which there are, and which step does each."""

from collections.abc import Mapping

from conveyor.domain.batch import INGEST, SCRUB, ingest_duty
from conveyor.domain.export import EXPORT
from conveyor.domain.ids import ExportId, RunId
from conveyor.operating import Stores
from conveyor.settings import Settings
from conveyor.steps.attend import Attend, Handler, Standing
from conveyor.steps.export import Export
from conveyor.steps.ingest import Ingest
from conveyor.steps.pack import Pack
from conveyor.steps.scrub import Scrub


def wire_attend(stores: Stores, ingest: Ingest, exporting: Export) -> Attend:
    return Attend(
        duties=stores.duties,
        handlers={
            INGEST: ingest_handler(ingest),
            SCRUB: scrub_handler(_scrub(stores)),
            EXPORT: export_handler(exporting),
        },
        long=frozenset({EXPORT}),
    )


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
    async def do(about: Mapping[str, str]) -> None:
        await ingest.run(RunId(about["run_id"]), int(about["first"]))

    async def give_up(about: Mapping[str, str]) -> None:
        await ingest.abandon(RunId(about["run_id"]), int(about["first"]))

    async def standing(about: Mapping[str, str]) -> Standing:
        is_over, ahead = await ingest.standing(
            RunId(about["run_id"]), int(about["first"]), int(about.get("version", 0))
        )
        return Standing(is_over=is_over, again=ingest_duty(ahead)[1] if ahead else None)

    return Handler(do, give_up, standing)


def _scrub(stores: Stores) -> Scrub:
    return Scrub(
        metadata=stores.metadata,
        inputs=stores.inputs,
        outbox=stores.outbox,
        tasks=stores.tasks,
        work=stores.work,
        bodies=stores.bodies,
        blobs=stores.blobs,
        clock=stores.clock,
    )


def scrub_handler(scrub: Scrub) -> Handler:
    async def do(about: Mapping[str, str]) -> None:
        await scrub.run(about["id"])

    async def give_up(about: Mapping[str, str]) -> None:
        """Nothing is left half done that the sweeper would not have done again."""

    return Handler(do, give_up)


def export_handler(exporting: Export) -> Handler:
    async def do(about: Mapping[str, str]) -> None:
        await exporting.run(ExportId(about["id"]))

    async def give_up(about: Mapping[str, str]) -> None:
        await exporting.abandon(ExportId(about["id"]))

    return Handler(do, give_up)
