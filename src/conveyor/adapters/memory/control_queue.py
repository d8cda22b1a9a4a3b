"""The control queue and its dead letters in memory."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count

import msgspec

from conveyor.domain.control_queue import MESSAGE_VERSION, ControlMessage, MessageGroup
from conveyor.errors import Stale
from conveyor.ports.clock import Clock
from conveyor.ports.control_queue import DeadLetter, ReceivedMessage


class _Queued(msgspec.Struct, frozen=True):
    message: ReceivedMessage
    due_at: datetime


class MemoryControlQueue:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = count(1)
        self._live: dict[str, _Queued] = {}
        self._dead: dict[str, tuple[DeadLetter, ControlMessage]] = {}

    async def send(self, message: ControlMessage) -> bool:
        if await self.is_live(message.kind, message.subject):
            return False
        self._add(message)
        return True

    async def is_live(self, kind: str, subject: str) -> bool:
        live = ((one.message.kind, one.message.subject) for one in self._live.values())
        return (kind, subject) in live

    async def receive(
        self,
        limit: int,
        *,
        lease: timedelta,
        kinds: Collection[str] | None = None,
        excluded: Collection[MessageGroup] = (),
        served: Sequence[MessageGroup] = (),
    ) -> Sequence[ReceivedMessage]:
        now = self._clock.now()
        turns = {group: turn for turn, group in enumerate(served)}
        due = [
            one
            for one in self._live.values()
            if one.due_at <= now
            and one.message.v <= MESSAGE_VERSION
            and (kinds is None or one.message.kind in kinds)
            and one.message.group not in excluded
        ]
        due.sort(key=lambda one: (turns.get(one.message.group, -1), one.due_at))
        return [self._deliver(one.message, lease) for one in due[:limit]]

    async def extend(self, message: ReceivedMessage, *, lease: timedelta) -> None:
        self._postpone(message, lease)

    async def ack(self, message: ReceivedMessage) -> None:
        self._check_held(message)
        del self._live[message.id]

    async def retry_later(self, message: ReceivedMessage, *, delay: timedelta) -> None:
        self._postpone(message, delay)

    async def resend(
        self, message: ReceivedMessage, payload: Mapping[str, str], *, deliveries: int = 0
    ) -> None:
        await self.ack(message)
        self._add(msgspec.structs.replace(message, payload=dict(payload)), deliveries)

    async def dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        await self.ack(message)
        letter = DeadLetter(
            id=message.id,
            kind=message.kind,
            payload=message.payload,
            reason=reason,
            dead_lettered_at=self._clock.now(),
        )
        self._dead[message.id] = letter, message

    async def dead_letters(self, *, limit: int, after: str = "") -> Sequence[DeadLetter]:
        rest = sorted(name for name in self._dead if name > after)
        return [self._dead[name][0] for name in rest[:limit]]

    async def find_dead_letter(self, message_id: str) -> DeadLetter | None:
        letter, _ = self._dead.get(message_id, (None, None))
        return letter

    async def redrive(self, message_id: str) -> bool:
        _, message = self._dead.pop(message_id, (None, None))
        if message is None:
            return False
        await self.send(message)
        return True

    async def drop(self, message_id: str) -> bool:
        return self._dead.pop(message_id, None) is not None

    def _add(self, message: ControlMessage, deliveries: int = 0) -> None:
        name = str(next(self._numbers))
        queued = ReceivedMessage(
            id=name,
            kind=message.kind,
            subject=message.subject,
            caller=message.caller,
            payload=dict(message.payload),
            v=message.v,
            deliveries=deliveries,
            receipt="",
        )
        self._live[name] = _Queued(queued, self._clock.now())

    def _deliver(self, message: ReceivedMessage, lease: timedelta) -> ReceivedMessage:
        nth = message.deliveries + 1
        receipt = f"{message.id}/{nth}"
        delivered = msgspec.structs.replace(message, deliveries=nth, receipt=receipt)
        self._live[message.id] = _Queued(delivered, self._clock.now() + lease)
        return delivered

    def _postpone(self, message: ReceivedMessage, delay: timedelta) -> None:
        self._check_held(message)
        self._live[message.id] = _Queued(message, self._clock.now() + delay)

    def _check_held(self, message: ReceivedMessage) -> None:
        queued = self._live.get(message.id)
        if queued is None or queued.message.receipt != message.receipt:
            raise Stale(f"message {message.id}: another worker has received it since")
