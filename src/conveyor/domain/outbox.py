"""What is owed to the outside about a run: it is stored with what happened, and sent afterwards.

owed → delivered | dropped | failed → owed, when it is to be sent again
"""

from datetime import datetime
from enum import StrEnum

import msgspec

from conveyor.domain.ids import CallerId, EventId, JobId, RunId
from conveyor.errors import IllegalMove


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


class OutboxEvent(msgspec.Struct, frozen=True, kw_only=True):
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
    encrypted_token: bytes = (
        b""  # of a task token and a heartbeat, encrypted for its caller and run
    )
    every_seconds: int = 0  # between two heartbeats
    status: EventStatus = EventStatus.OWED
    tries: int = 0  # in a row, since it was owed
    deliveries: tuple[Delivery, ...] = ()
    version: int = 0


MOST_DELIVERIES = 100  # that are kept of one event: the latest


def taken(event: OutboxEvent, until: datetime) -> OutboxEvent:
    """In one sender's hands; if that one dies it is due again."""
    return _due(event, until)


def put_off(event: OutboxEvent, until: datetime) -> OutboxEvent:
    """Not now: nothing was tried."""
    return _due(event, until)


def delivered(event: OutboxEvent, delivery: Delivery) -> OutboxEvent:
    return _moved(event, EventStatus.DELIVERED, deliveries=_with(event, delivery))


def failed(event: OutboxEvent, delivery: Delivery, again_at: datetime | None) -> OutboxEvent:
    """Not taken: to be tried again, or not any more."""
    noted = msgspec.structs.replace(
        event, tries=event.tries + 1, deliveries=_with(event, delivery), due_at=again_at
    )
    return noted if again_at else _moved(noted, EventStatus.FAILED)


def noted(event: OutboxEvent, delivery: Delivery) -> OutboxEvent:
    """Tried by one who has it no more: what is owed, and when, is for others to say."""
    return msgspec.structs.replace(event, deliveries=_with(event, delivery))


def dropped(event: OutboxEvent) -> OutboxEvent:
    """Nobody wants it any more."""
    return _moved(event, EventStatus.DROPPED)


def owed_again(event: OutboxEvent, now: datetime) -> OutboxEvent:
    """To be sent once more, as if nothing had been tried yet."""
    return msgspec.structs.replace(event, status=EventStatus.OWED, tries=0, due_at=now)


def next_attempt(event: OutboxEvent) -> int:
    """The number of the delivery that comes next."""
    return event.deliveries[-1].attempt + 1 if event.deliveries else 1


def last_seen(event: OutboxEvent) -> datetime:
    """When something was last tried for it."""
    return event.deliveries[-1].started_at if event.deliveries else event.occurred_at


def _due(event: OutboxEvent, at: datetime) -> OutboxEvent:
    if event.status is not EventStatus.OWED:
        raise IllegalMove(f"event {event.id} is {event.status}")
    return msgspec.structs.replace(event, due_at=at)


def _with(event: OutboxEvent, delivery: Delivery) -> tuple[Delivery, ...]:
    return (*event.deliveries, delivery)[-MOST_DELIVERIES:]


def _moved(event: OutboxEvent, status: EventStatus, **changes: object) -> OutboxEvent:
    if status not in MOVES[event.status]:
        raise IllegalMove(f"event {event.id}: {event.status} -> {status}")
    return msgspec.structs.replace(event, status=status, due_at=None, **changes)
