"""What is owed to the outside about a run: it is stored with what happened, and sent afterwards.

owed → delivered | dropped | failed;  delivered | failed → owed, when it is to be sent again
"""

from datetime import datetime
from enum import StrEnum

import msgspec

from conveyor.domain.ids import CallerId, EventId, JobId, RunId


class Channel(StrEnum):
    """The way it goes."""

    WEBHOOK = "webhook"
    TASK_TOKEN = "task_token"  # noqa: S105 - a name, no secret
    HEARTBEAT = "heartbeat"  # for a task token while its run is live


class EventType(StrEnum):
    RUN_COMPLETED = "run.completed"
    RUN_FAILED = "run.failed"
    RUN_STOPPED = "run.stopped"  # for task tokens only
    RUN_DELETED = "run.deleted"  # for task tokens only
    RUN_ALIVE = "run.alive"  # for heartbeats only
    WEBHOOK_TEST = "webhook.test"


class EventStatus(StrEnum):
    OWED = "owed"
    DELIVERED = "delivered"
    DROPPED = "dropped"  # nobody wants it any more
    FAILED = "failed"  # tried often enough


MOVES: dict[EventStatus, frozenset[EventStatus]] = {
    EventStatus.OWED: frozenset({EventStatus.DELIVERED, EventStatus.DROPPED, EventStatus.FAILED}),
    EventStatus.DELIVERED: frozenset({EventStatus.OWED}),
    EventStatus.DROPPED: frozenset({EventStatus.OWED}),
    EventStatus.FAILED: frozenset({EventStatus.OWED}),
}


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to deliver that has ended."""

    attempt: int  # from 1, over all the event's life
    started_at: datetime
    elapsed_ms: int
    status_code: int | None = None  # of the receiver's answer, if there was one
    error: str | None = None  # why it was not taken


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What is owed, to whom, and what came of it so far.

    Whoever is to send it first moves `due_at` on by a lease: that is a conditional write, so one
    sender has it at a time, and if that one dies another finds it due again.
    """

    id: EventId
    caller: CallerId
    job_id: JobId
    run_id: RunId
    channel: Channel
    type: EventType
    occurred_at: datetime
    payload: str  # JSON, as it is sent
    due_at: datetime | None  # None once it is not owed any more
    sealed_token: bytes = b""  # of a task token and a heartbeat, sealed for its caller and run
    every_seconds: int = 0  # between two heartbeats
    status: EventStatus = EventStatus.OWED
    tries: int = 0  # in a row, since it was owed
    deliveries: tuple[Delivery, ...] = ()
    version: int = 0
