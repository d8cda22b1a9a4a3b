"""Schedules: who fires them, and who answers calls about them."""

from datetime import timedelta

from conveyor.api.schedules import Schedules
from conveyor.operating import Engines, Stores
from conveyor.steps.read import Read
from conveyor.steps.schedules import FireSchedules, ManageSchedules
from conveyor.telemetry import Metrics

FIRE_IDLE = timedelta(seconds=1)


def wire_fire(stores: Stores, metrics: Metrics) -> FireSchedules:
    return FireSchedules(
        metadata=stores.metadata,
        control_queue=stores.control_queue,
        clock=stores.clock,
        ids=stores.ids,
        count=lambda fired: metrics.fires.labels(fired).inc(),
    )


def wire_schedules(engines: Engines, read: Read) -> Schedules:
    rescheduling = ManageSchedules(
        metadata=engines.metadata, encryption=engines.encryption, clock=engines.clock
    )
    return Schedules(rescheduling=rescheduling, read=read)
