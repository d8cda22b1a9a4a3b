"""Schedules: who fires them, and who answers calls about them."""

from datetime import timedelta

from conveyor.api.schedules import Schedules
from conveyor.operating import Engines, Stores
from conveyor.steps.fire import Fire
from conveyor.steps.read import Read
from conveyor.steps.reschedule import Reschedule
from conveyor.telemetry import Metrics

FIRE_IDLE = timedelta(seconds=1)


def wire_fire(stores: Stores, metrics: Metrics) -> Fire:
    return Fire(
        metadata=stores.metadata,
        control_queue=stores.control_queue,
        clock=stores.clock,
        ids=stores.ids,
        count=lambda fired: metrics.fires.labels(fired).inc(),
    )


def wire_schedules(engines: Engines, read: Read) -> Schedules:
    rescheduling = Reschedule(
        metadata=engines.metadata, encryption=engines.encryption, clock=engines.clock
    )
    return Schedules(rescheduling=rescheduling, read=read)
