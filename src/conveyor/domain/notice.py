"""What the outside is told when a run has ended: the body of a webhook, as it is sent."""

from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType

from conveyor.domain.counts import Counts
from conveyor.domain.ids import EventId
from conveyor.domain.job import Job
from conveyor.domain.outbox import EventType
from conveyor.domain.run import Run
from conveyor.domain.stats import Stats, stats

SCHEMA = "conveyor.event.v1"  # another when a field changes its meaning; not when one is added
TEST = "test"  # stands for job and run where there are none


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = SCHEMA
    event_id: str
    event_type: EventType
    occurred_at: datetime
    job_id: str
    external_id: str | UnsetType = UNSET
    metadata: msgspec.Raw | UnsetType = UNSET
    run_id: str
    run_sequence: int
    stats: Stats | UnsetType = UNSET
    failure_reason: str | UnsetType = UNSET
    failure_detail: str | UnsetType = UNSET


def of_run(job: Job, run: Run, settled: Counts, event_id: EventId, kind: EventType) -> str:
    """Of a run that has ended; `updated_at` is when."""
    return _encoded(
        Notice(
            event_id=event_id,
            event_type=kind,
            occurred_at=run.updated_at,
            job_id=job.id,
            external_id=UNSET if job.external_id is None else job.external_id,
            metadata=UNSET if job.metadata is None else msgspec.Raw(job.metadata.encode()),
            run_id=run.id,
            run_sequence=run.sequence,
            stats=stats(run, settled),
            failure_reason=run.failure_reason or UNSET,
            failure_detail=run.failure_detail or UNSET,
        )
    )


def of_nothing(event_id: EventId, now: datetime) -> str:
    """To see whether a receiver is there."""
    return _encoded(
        Notice(
            event_id=event_id,
            event_type=EventType.WEBHOOK_TEST,
            occurred_at=now,
            job_id=TEST,
            run_id=TEST,
            run_sequence=1,
        )
    )


def _encoded(notice: Notice) -> str:
    return msgspec.json.encode(notice).decode()
