"""The control queue on SQS: a queue for each kind of message, beside records in DynamoDB.

SQS can neither tell whether a message is live nor choose a caller, and cannot list dead letters. So the
record of a message decides (`control_records`), and a message in a queue only says that one of its kind
and subject may be due (`control_messages`):

| the record | what happens to a received message |
|---|---|
| is due | the delivery claims it, and gets its payload |
| is not due: another worker holds it, or it waits | it is hidden until then |
| does not exist | it is deleted |

A record whose message was lost is overdue; after `LOST_AFTER` it no longer counts as live, and the next
`send` sends another message for it. Two messages of one record do no harm.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import structlog

from conveyor.adapters.aws.sqs.calls import LONGEST_DELAY, LONGEST_HIDING, SqsDelivery
from conveyor.adapters.aws.sqs.control_messages import (
    Arrival,
    MessagePointer,
    PointerQueues,
    pointer_of,
)
from conveyor.adapters.aws.sqs.control_records import (
    ControlRecords,
    DeadRecord,
    MessageRecord,
    moment,
    stamp,
)
from conveyor.domain.control_queue import MESSAGE_VERSION, ControlMessage, MessageGroup
from conveyor.errors import Stale, Unavailable
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.control_queue import DeadLetter, ReceivedMessage

LOST_AFTER = timedelta(minutes=15)
RENEW_AFTER = LONGEST_HIDING - timedelta(hours=1)  # of a delivery: a new message takes its place
DRAIN_EVERY = 600.0  # seconds
MOST_DRAINS = 10  # receives of dead messages in one call
GIVEN_UP = "its message was received 1,000 times and not handled"

log = structlog.get_logger()


class SqsControlQueue:
    def __init__(
        self, messages: PointerQueues, records: ControlRecords, clock: Clock, ids: Ids
    ) -> None:
        self._messages, self._records = messages, records
        self._clock, self._ids = clock, ids
        self._held: dict[str, Arrival] = {}  # receipt of a record -> its message
        self._drained_at = -DRAIN_EVERY

    # Sending.

    async def send(self, message: ControlMessage) -> bool:
        record = self._new_record(message)
        found = await self._records.add(record)
        if found is None:
            try:
                await self._send(message)
            except Unavailable:
                # Otherwise it would count as live, and nothing would send it.
                with suppress(Unavailable):
                    await self._records.remove(record)
                raise
            return True
        if not self._is_lost(found):
            return False
        _, is_first = await self._records.change(
            found, {"id": found.id, "due_at": found.due_at}, due_at=self._now()
        )
        if is_first:
            await self._send(found)
        return is_first

    async def is_live(self, kind: str, subject: str) -> bool:
        found = await self._records.find(kind, subject)
        return found is not None and not self._is_lost(found)

    # Receiving.

    async def receive(
        self,
        limit: int,
        *,
        lease: timedelta,
        kinds: Collection[str] | None = None,
        excluded: Collection[MessageGroup] = (),
        served: Sequence[MessageGroup] = (),
    ) -> Sequence[ReceivedMessage]:
        await self._drain_now_and_then()
        arrived = await self._messages.receive(kinds, lease)
        wanted, others = list[Arrival](), list[Arrival]()
        for one in arrived:
            is_wanted = (
                one.pointer.v <= MESSAGE_VERSION
                and (kinds is None or one.pointer.kind in kinds)
                and one.pointer.group not in excluded
            )
            (wanted if is_wanted else others).append(one)
        turns = {group: turn for turn, group in enumerate(served)}
        wanted.sort(key=lambda one: (turns.get(one.pointer.group, -1), one.pointer.at))
        claimed, left = list[ReceivedMessage](), iter(wanted)
        for one in left:
            if (message := await self._claim(one, lease)) is not None:
                claimed.append(message)
            if len(claimed) == limit:
                break
        await self._messages.put_back({one: timedelta() for one in left})
        await self._messages.put_back({one: self._messages.bounce(one) for one in others})
        return claimed

    async def extend(self, message: ReceivedMessage, *, lease: timedelta) -> None:
        await self._postpone(message, lease)

    async def ack(self, message: ReceivedMessage) -> None:
        if not await self._records.remove(_record_of(message)):
            raise _stale(message)
        await self._forget(message)

    async def retry_later(self, message: ReceivedMessage, *, delay: timedelta) -> None:
        await self._postpone(message, delay)

    async def resend(
        self, message: ReceivedMessage, payload: Mapping[str, str], *, deliveries: int = 0
    ) -> None:
        record = _record_of(message)
        _, is_done = await self._records.change(
            record,
            {"id": record.id, "receipt": record.receipt},
            id=self._ids.new(),
            payload=dict(payload),
            deliveries=deliveries,
            due_at=self._now(),
            receipt="",
        )
        if not is_done:
            raise _stale(message)
        try:
            # A new message: its receives begin again, and it is behind those of other callers.
            await self._send(message)
        except Unavailable:
            if arrival := self._held.pop(message.receipt, None):
                await self._messages.put_back({arrival: timedelta()})
            return
        await self._forget(message)

    async def dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        if not await self._make_dead_letter(_record_of(message), reason):
            raise _stale(message)
        await self._forget(message)

    # Dead letters.

    async def dead_letters(self, *, limit: int, after: str = "") -> Sequence[DeadLetter]:
        if not after:
            with suppress(Unavailable):
                await self._drain()
        return [_dead_letter(dead) for dead in await self._records.dead(limit=limit, after=after)]

    async def find_dead_letter(self, message_id: str) -> DeadLetter | None:
        dead = await self._records.find_dead(message_id)
        return _dead_letter(dead) if dead else None

    async def redrive(self, message_id: str) -> bool:
        dead = await self._records.find_dead(message_id)
        if dead is None:
            return False
        message = ControlMessage(
            kind=dead.kind, subject=dead.subject, caller=dead.caller, payload=dead.payload, v=dead.v
        )
        if await self._records.redrive(dead, self._new_record(message), self._ids.new()):
            await self._send(message)
            return True
        # It is gone, or its subject has a live message, which does the work.
        return await self._records.drop(message_id)

    async def drop(self, message_id: str) -> bool:
        return await self._records.drop(message_id)

    # Records.

    def _new_record(self, message: ControlMessage) -> MessageRecord:
        return MessageRecord(
            id=self._ids.new(),
            kind=message.kind,
            subject=message.subject,
            caller=message.caller,
            payload=dict(message.payload),
            v=message.v,
            due_at=self._now(),
        )

    async def _claim(self, arrival: Arrival, lease: timedelta) -> ReceivedMessage | None:
        """Claim the record of a message, if it is due; otherwise hide or delete the message."""
        pointer, now = arrival.pointer, self._now()
        found = await self._records.find(pointer.kind, pointer.subject)
        if found is None:
            await self._messages.delete(arrival)
            return None
        if found.due_at > now or found.v > MESSAGE_VERSION:
            until_due = moment(found.due_at) - self._clock.now()
            await self._messages.put_back({arrival: max(until_due, self._messages.bounce(arrival))})
            return None
        claimed, is_mine = await self._records.change(
            found,
            {"id": found.id, "deliveries": found.deliveries, "due_at": found.due_at},
            deliveries=found.deliveries + 1,
            due_at=stamp(self._clock.now() + lease),
            receipt=self._ids.new(),
        )
        if not is_mine or claimed is None:
            await self._messages.put_back({arrival: self._messages.bounce(arrival)})
            return None
        self._held[claimed.receipt] = arrival
        return ReceivedMessage(
            id=claimed.id,
            kind=claimed.kind,
            subject=claimed.subject,
            caller=claimed.caller,
            payload=claimed.payload,
            v=claimed.v,
            deliveries=claimed.deliveries,
            receipt=claimed.receipt,
        )

    async def _postpone(self, message: ReceivedMessage, delay: timedelta) -> None:
        record = _record_of(message)
        _, is_done = await self._records.change(
            record,
            {"id": record.id, "receipt": record.receipt},
            due_at=stamp(self._clock.now() + delay),
        )
        if not is_done:
            raise _stale(message)
        arrival = self._held.get(message.receipt)
        if arrival is None:
            return
        age = timedelta(seconds=self._clock.monotonic() - arrival.received_at)
        if age + delay < RENEW_AFTER:
            await self._messages.put_back({arrival: delay})
            return
        # SQS hides a message for 12 hours at most. The new one is hidden by the first that sees it.
        del self._held[message.receipt]
        with suppress(Unavailable):
            await self._send(message, delay=delay)
            await self._messages.delete(arrival)

    async def _make_dead_letter(self, record: MessageRecord, reason: str) -> bool:
        dead = DeadRecord(
            id=record.id,
            kind=record.kind,
            subject=record.subject,
            caller=record.caller,
            payload=record.payload,
            v=record.v,
            reason=reason,
            dead_lettered_at=self._now(),
        )
        return await self._records.dead_letter(record, dead, self._ids.new())

    def _is_lost(self, record: MessageRecord) -> bool:
        return moment(record.due_at) + LOST_AFTER <= self._clock.now()

    def _now(self) -> int:
        return stamp(self._clock.now())

    # Messages.

    async def _send(
        self, message: ControlMessage | MessageRecord, delay: timedelta = timedelta()
    ) -> None:
        pointer = MessagePointer(
            kind=message.kind,
            subject=message.subject,
            caller=message.caller,
            at=self._now(),
            v=message.v,
        )
        await self._messages.send(pointer, delay)

    async def _forget(self, message: ReceivedMessage) -> None:
        """Delete the message of a record that is settled."""
        if arrival := self._held.pop(message.receipt, None):
            await self._messages.delete(arrival)

    # Messages that SQS gave up.

    async def _drain_now_and_then(self) -> None:
        if self._clock.monotonic() - self._drained_at >= DRAIN_EVERY:
            self._drained_at = self._clock.monotonic()
            with suppress(Unavailable):
                await self._drain()

    async def _drain(self) -> None:
        """Make dead letters of live messages that SQS gave up."""
        for _ in range(MOST_DRAINS):
            if not (found := await self._messages.dead()):
                return
            for delivery in found:
                await self._dead_letter_given_up(delivery)
            await self._messages.delete_dead(found)

    async def _dead_letter_given_up(self, delivery: SqsDelivery) -> None:
        pointer = pointer_of(delivery)
        if pointer is None:
            return  # of a run queue: the sweeper enqueues the task again, if its row is still due
        record = await self._records.find(pointer.kind, pointer.subject)
        if record is None:
            return
        if record.due_at > self._now():  # a worker has it, and it may lapse
            await self._send(record, min(moment(record.due_at) - self._clock.now(), LONGEST_DELAY))
            return
        log.error("control.dead_lettered", message_id=record.id, kind=record.kind, why=GIVEN_UP)
        await self._make_dead_letter(record, GIVEN_UP)


@asynccontextmanager
async def open_control_queue(
    messages: PointerQueues, records: ControlRecords, clock: Clock, ids: Ids
) -> AsyncIterator[SqsControlQueue]:
    try:
        yield SqsControlQueue(messages, records, clock, ids)
    finally:
        await messages.close()


def _record_of(message: ReceivedMessage) -> MessageRecord:
    return MessageRecord(
        id=message.id,
        kind=message.kind,
        subject=message.subject,
        caller=message.caller,
        payload=message.payload,
        v=message.v,
        deliveries=message.deliveries,
        due_at=0,
        receipt=message.receipt,
    )


def _dead_letter(dead: DeadRecord) -> DeadLetter:
    return DeadLetter(
        id=dead.id,
        kind=dead.kind,
        payload=dead.payload,
        reason=dead.reason,
        dead_lettered_at=moment(dead.dead_lettered_at),
    )


def _stale(message: ReceivedMessage) -> Stale:
    return Stale(f"message {message.id}: another worker has received it since")
