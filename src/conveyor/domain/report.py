"""What becomes of an event for a task token when it was sent, or was not."""

from datetime import datetime, timedelta

import msgspec

from conveyor.domain.outbox import Channel, Delivery, EventStatus, OutboxEvent

LEASE = timedelta(seconds=60)  # for one call and its record
BEAT_LEASE = timedelta(seconds=20)
FIRST_WAIT = timedelta(seconds=1)
LONGEST_WAIT = timedelta(minutes=10)
GIVE_UP = timedelta(days=5)
MOST_DELIVERIES = 20  # that are kept of one event, the latest


def leased(event: OutboxEvent, now: datetime) -> OutboxEvent:
    """The event in one sender's hands. A beat is soon due again: sent twice it does no harm."""
    if event.channel is not Channel.HEARTBEAT:
        return msgspec.structs.replace(event, due_at=now + LEASE)
    every = timedelta(seconds=event.every_seconds)
    return msgspec.structs.replace(event, due_at=now + max(every, BEAT_LEASE))


def sent(event: OutboxEvent, delivery: Delivery) -> OutboxEvent:
    """The state has heard it. A heartbeat is owed again."""
    if event.channel is Channel.HEARTBEAT:
        due_at = delivery.started_at + timedelta(seconds=event.every_seconds)
        return _with(event, delivery, due_at=due_at, tries=0)
    return _ended(event, delivery, EventStatus.DELIVERED)


def closed(event: OutboxEvent, delivery: Delivery) -> OutboxEvent:
    """Nobody waits for it any more."""
    return _ended(event, delivery, EventStatus.DROPPED)


def in_trouble(event: OutboxEvent, delivery: Delivery, now: datetime) -> OutboxEvent:
    """It is tried again, later each time, and after some days no more.

    A beat is never given up: it ends with its run. The token of a report that was given up stays,
    encrypted, so that it can be sent again.
    """
    tries = event.tries + 1
    wait = min(FIRST_WAIT * 2 ** min(tries - 1, 20), LONGEST_WAIT)
    if event.channel is Channel.HEARTBEAT:
        wait = min(wait, timedelta(seconds=event.every_seconds))
    elif now - event.occurred_at >= GIVE_UP:
        return _with(event, delivery, due_at=None, tries=tries, status=EventStatus.FAILED)
    return _with(event, delivery, due_at=now + wait, tries=tries)


def _ended(event: OutboxEvent, delivery: Delivery, status: EventStatus) -> OutboxEvent:
    return _with(event, delivery, due_at=None, tries=0, status=status, encrypted_token=b"")


def _with(event: OutboxEvent, delivery: Delivery, **changes: object) -> OutboxEvent:
    deliveries = (*event.deliveries, delivery)[-MOST_DELIVERIES:]
    return msgspec.structs.replace(event, deliveries=deliveries, **changes)
