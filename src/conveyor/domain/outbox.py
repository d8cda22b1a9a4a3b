"""The outbox: notifications about a run, stored by the commit that causes them and sent afterwards.

The state machine of an event is the same for all channels:

    owed → delivered | dropped | failed
    delivered, dropped and failed → owed, when its caller asks for a redelivery

While an event is owed, `due_at` says when it may be sent. A sender first moves `due_at` past the
time that it needs (its lease): that is a conditional write, so one sender has the event at a time,
and if that process dies the event becomes due again.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec import UNSET

from conveyor.domain import step_functions
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.ids import CallerId, EventId, JobId, RunId
from conveyor.domain.job import Job
from conveyor.domain.run import Run, RunStatus, stats
from conveyor.domain.webhook import WebhookPayload
from conveyor.errors import IllegalMove


class Channel(StrEnum):
    """Where an event is sent."""

    WEBHOOK = "webhook"
    STEP_FUNCTIONS = "step_functions"  # the end of a run, to the state that waits for it
    HEARTBEAT = "heartbeat"  # to the same state, while the run is live


# The latest deliveries that are kept with an event.
KEPT_DELIVERIES: Mapping[Channel, int] = {
    Channel.WEBHOOK: 100,
    Channel.STEP_FUNCTIONS: 20,
    Channel.HEARTBEAT: 20,
}


class EventType(StrEnum):
    RUN_COMPLETED = "run.completed"
    RUN_FAILED = "run.failed"
    RUN_STOPPED = "run.stopped"  # Step Functions only
    RUN_DELETED = "run.deleted"  # Step Functions only
    RUN_ALIVE = "run.alive"  # heartbeats only
    WEBHOOK_TEST = "webhook.test"  # sent at once, never stored


class EventStatus(StrEnum):
    OWED = "owed"
    DELIVERED = "delivered"
    DROPPED = "dropped"  # no webhook or state waits for it any more
    FAILED = "failed"  # given up


MOVES: Mapping[EventStatus, frozenset[EventStatus]] = {
    EventStatus.OWED: frozenset({EventStatus.DELIVERED, EventStatus.DROPPED, EventStatus.FAILED}),
    EventStatus.DELIVERED: frozenset({EventStatus.OWED}),
    EventStatus.DROPPED: frozenset({EventStatus.OWED}),
    EventStatus.FAILED: frozenset({EventStatus.OWED}),
}
TYPES: Mapping[RunStatus, EventType] = {
    RunStatus.COMPLETED: EventType.RUN_COMPLETED,
    RunStatus.FAILED: EventType.RUN_FAILED,
    RunStatus.STOPPED: EventType.RUN_STOPPED,
    RunStatus.DELETED: EventType.RUN_DELETED,
}
# A stop and a delete are the caller's own action: a webhook gets no event for them.
SENT_TO_WEBHOOKS = frozenset({RunStatus.COMPLETED, RunStatus.FAILED})


class DeliveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt to send came to, as the port that sent it reports."""

    status_code: int | None = None  # of the response, if there was one
    error: str | None = None  # None: delivered
    retry_after: timedelta | None = None  # the receiver asks for this wait
    is_closed: bool = False  # the receiver accepts nothing any more


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to send, as it is stored with its event."""

    attempt: int  # from 1, over the event's whole life
    started_at: datetime
    elapsed_ms: int
    status_code: int | None = None
    error: str | None = None


class OutboxEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A notification with everything that is needed to send it: its run and job may be gone."""

    id: EventId
    caller: CallerId
    job_id: JobId
    run_id: RunId
    channel: Channel
    type: EventType
    occurred_at: datetime
    payload: str  # JSON, exactly as it is sent
    due_at: datetime | None  # None unless it is owed
    # Step Functions: encrypted for the caller and run; empty once the event has ended.
    encrypted_token: bytes = b""
    every_seconds: int = 0  # between two heartbeats
    status: EventStatus = EventStatus.OWED
    tries: int = 0  # that failed in a row, since it became owed
    deliveries: tuple[Delivery, ...] = ()
    version: int = 0


# What a run puts in the outbox.


def events_at_end(
    run: Run, new_id: Callable[[], str], *, job: Job | None = None, settled: Counts = ZERO
) -> list[OutboxEvent]:
    """The events of a run that has just ended, to be written by the commit that ends it.

    A run that completed or failed needs its job and counts. Read the job after the run: setting a
    webhook commits the live run as well, so an end that read the old webhook is stale.
    """
    events = []
    if job and job.webhook and job.webhook.is_on and run.status in SENT_TO_WEBHOOKS:
        event_id = EventId(new_id())
        payload = _webhook_payload(event_id, job, run, settled)
        events.append(_event_at_end(event_id, run, Channel.WEBHOOK, payload))
    if run.encrypted_token:
        payload = step_functions.payload(job, run, settled)
        event_id, token = EventId(new_id()), run.encrypted_token
        events.append(_event_at_end(event_id, run, Channel.STEP_FUNCTIONS, payload, token))
    return events


def heartbeat_event(run: Run, every_seconds: int, event_id: EventId) -> OutboxEvent:
    """What keeps a state of Step Functions waiting while the run is live."""
    return OutboxEvent(
        id=event_id,
        caller=run.caller,
        job_id=run.job_id,
        run_id=run.id,
        channel=Channel.HEARTBEAT,
        type=EventType.RUN_ALIVE,
        occurred_at=run.created_at,
        payload="",
        due_at=run.created_at + timedelta(seconds=every_seconds),
        encrypted_token=run.encrypted_token,
        every_seconds=every_seconds,
    )


def _event_at_end(
    event_id: EventId, run: Run, channel: Channel, payload: str, token: bytes = b""
) -> OutboxEvent:
    return OutboxEvent(
        id=event_id,
        caller=run.caller,
        job_id=run.job_id,
        run_id=run.id,
        channel=channel,
        type=TYPES[run.status],
        occurred_at=run.updated_at,
        payload=payload,
        due_at=run.updated_at,
        encrypted_token=token,
    )


def _webhook_payload(event_id: EventId, job: Job, run: Run, settled: Counts) -> str:
    return WebhookPayload(
        event_id=event_id,
        event_type=TYPES[run.status],
        occurred_at=run.updated_at,
        job_id=job.id,
        external_id=UNSET if job.external_id is None else job.external_id,
        metadata=UNSET if job.metadata is None else msgspec.Raw(job.metadata.encode()),
        run_id=run.id,
        run_sequence=run.sequence,
        stats=stats(run, settled),
        failure_reason=run.failure_reason or UNSET,
        failure_detail=run.failure_detail or UNSET,
    ).encoded()


# The state machine.


def lease(event: OutboxEvent, until: datetime) -> OutboxEvent:
    """Not due before `until`: a sender has the event, to send it or to let it wait in its queue."""
    return _still_owed(event, due_at=until)


def schedule_retry(event: OutboxEvent, delivery: Delivery, due_at: datetime) -> OutboxEvent:
    """The delivery failed: send the event again."""
    deliveries = _with(event, delivery)
    return _still_owed(event, deliveries=deliveries, due_at=due_at, tries=event.tries + 1)


def repeated(event: OutboxEvent, delivery: Delivery, due_at: datetime) -> OutboxEvent:
    """Due again, with its failures reset: the next heartbeat, or a webhook that was replaced."""
    return _still_owed(event, deliveries=_with(event, delivery), due_at=due_at, tries=0)


def delivered(event: OutboxEvent, delivery: Delivery) -> OutboxEvent:
    return _ended(event, EventStatus.DELIVERED, deliveries=_with(event, delivery), tries=0)


def failed(event: OutboxEvent, delivery: Delivery) -> OutboxEvent:
    """The delivery failed, and the event is not sent again."""
    deliveries = _with(event, delivery)
    return _ended(event, EventStatus.FAILED, deliveries=deliveries, tries=event.tries + 1)


def dropped(event: OutboxEvent, delivery: Delivery | None = None) -> OutboxEvent:
    """Nothing waits for the event any more; a delivery may have found that out."""
    deliveries = _with(event, delivery) if delivery else event.deliveries
    return _ended(event, EventStatus.DROPPED, deliveries=deliveries)


def noted(event: OutboxEvent, delivery: Delivery) -> OutboxEvent:
    """The event with a delivery by a sender that has lost its lease: nothing else changes."""
    return msgspec.structs.replace(event, deliveries=_with(event, delivery))


def redelivered(event: OutboxEvent, now: datetime) -> OutboxEvent:
    """Owed again, and due now, as if nothing had been tried; its deliveries stay on record."""
    if event.status is not EventStatus.OWED:
        _check_move(event, EventStatus.OWED)
    return msgspec.structs.replace(event, status=EventStatus.OWED, tries=0, due_at=now)


def next_attempt(event: OutboxEvent) -> int:
    """The number of the next delivery."""
    return event.deliveries[-1].attempt + 1 if event.deliveries else 1


def last_tried(event: OutboxEvent) -> datetime:
    """The start of the latest delivery, or when the event occurred."""
    return event.deliveries[-1].started_at if event.deliveries else event.occurred_at


def _still_owed(event: OutboxEvent, **changes: object) -> OutboxEvent:
    if event.status is not EventStatus.OWED:
        raise IllegalMove(f"event {event.id} must be owed, is {event.status}")
    return msgspec.structs.replace(event, **changes)


def _ended(event: OutboxEvent, status: EventStatus, **changes: object) -> OutboxEvent:
    """An ended event no longer needs its token: a credential without use is not kept."""
    _check_move(event, status)
    return msgspec.structs.replace(
        event, status=status, due_at=None, encrypted_token=b"", **changes
    )


def _check_move(event: OutboxEvent, status: EventStatus) -> None:
    if status not in MOVES[event.status]:
        raise IllegalMove(f"event {event.id}: {event.status} -> {status}")


def _with(event: OutboxEvent, delivery: Delivery) -> tuple[Delivery, ...]:
    return (*event.deliveries, delivery)[-KEPT_DELIVERIES[event.channel] :]
