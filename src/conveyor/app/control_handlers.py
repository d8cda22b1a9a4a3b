"""The handlers of the control queue: what the control worker does with each kind of message.

A handler turns the payload of a message into a call of a step. Its `give_up` leaves stored state
consistent before the message becomes a dead letter.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta

from conveyor.app.engines import Engines
from conveyor.domain.batch import INGEST, ingest_payload
from conveyor.domain.control_queue import SlotLimits
from conveyor.domain.export import EXPORT
from conveyor.domain.ids import ExportId, RunId
from conveyor.domain.job import PURGE
from conveyor.steps.control import ControlWorker, Handler, SharedSlots, WorkStatus
from conveyor.steps.export import ExportRuns
from conveyor.steps.ingest import Ingest
from conveyor.steps.purge import Purge
from conveyor.steps.shared.work_limits import Turn

# Slots of one process. An export keeps its slot for hours, so a caller gets one export at a time.
INGESTS = SlotLimits(slots=4, per_caller=2)
PURGES = SlotLimits(slots=2, per_caller=1)
EXPORTS = SlotLimits(slots=4, per_caller=1)
LONGEST_OUTAGE = timedelta(days=1)  # a run must not lose its list because S3 is away for a night


def build_control_worker(
    engines: Engines,
    steps: tuple[Ingest, Purge, ExportRuns],
    wake_next: Callable[[], None],
    permit_lease: timedelta,
) -> ControlWorker:
    """Build the worker of the control queue, with a handler for each kind of message."""
    ingest, purge, export = steps
    handlers = {
        INGEST: _ingest_handler(ingest),
        PURGE: _purge_handler(purge),
        EXPORT: _export_handler(export),
    }
    shared_slots = None
    if engines.shares_coordination:
        shared_slots = SharedSlots(engines.coordination, lease=permit_lease)
    return ControlWorker(
        engines.control_queue, handlers, engines.clock, wake_next, shared_slots=shared_slots
    )


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

    return Handler(handle, give_up, status, limits=INGESTS, longest_outage=LONGEST_OUTAGE)


def _purge_handler(purge: Purge) -> Handler:
    async def handle(payload: Mapping[str, str], turn: Turn) -> Mapping[str, str] | None:
        return None if await purge.run(payload["id"], turn) else payload

    async def give_up(payload: Mapping[str, str]) -> None:
        """Do nothing: the sweeper sends another message for an unfinished deletion."""

    return Handler(handle, give_up, limits=PURGES, longest_outage=LONGEST_OUTAGE)


def _export_handler(export: ExportRuns) -> Handler:
    async def handle(payload: Mapping[str, str], _: Turn) -> None:
        # An export writes its file in one go, so it keeps its slot to the end.
        await export.run(ExportId(payload["id"]))

    async def give_up(payload: Mapping[str, str]) -> None:
        await export.abandon(ExportId(payload["id"]))

    # No patience with outages: its caller waits for it, and can start another one.
    return Handler(handle, give_up, limits=EXPORTS)
