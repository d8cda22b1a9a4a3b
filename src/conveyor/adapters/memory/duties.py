"""Duties in memory."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count

import msgspec

from conveyor.domain.message import Line, Message
from conveyor.errors import Stale
from conveyor.ports.clock import Clock
from conveyor.ports.duties import Duty
from conveyor.ports.graves import BuriedDuty


class MemoryDuties:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = count(1)
        self._waiting: dict[str, _Waiting] = {}
        self.buried: dict[str, BuriedDuty] = {}
        self.messages: dict[str, Message] = {}  # of those

    async def send(self, message: Message) -> bool:
        if await self.is_live(message.kind, message.subject):
            return False
        self._add(message)
        return True

    async def is_live(self, kind: str, subject: str) -> bool:
        return any(
            (one.duty.kind, one.duty.subject) == (kind, subject) for one in self._waiting.values()
        )

    async def receive(
        self,
        limit: int,
        *,
        lease: timedelta,
        kinds: Collection[str] | None = None,
        barred: Collection[Line] = (),
        served: Sequence[Line] = (),
    ) -> Sequence[Duty]:
        now = self._clock.now()
        turns = {line: turn for turn, line in enumerate(served)}
        due = [
            waiting
            for waiting in self._waiting.values()
            if waiting.due_at <= now
            and (kinds is None or waiting.duty.kind in kinds)
            and waiting.duty.line not in barred
        ]
        due.sort(key=lambda one: (turns.get(one.duty.line, -1), one.due_at))
        return [self._deliver(one.duty, lease) for one in due[:limit]]

    async def extend(self, duty: Duty, *, lease: timedelta) -> None:
        self._postpone(duty, lease)

    async def ack(self, duty: Duty) -> None:
        self._check_held(duty)
        del self._waiting[duty.id]

    async def retry_later(self, duty: Duty, *, delay: timedelta) -> None:
        self._postpone(duty, delay)

    async def resend(self, duty: Duty, about: Mapping[str, str]) -> None:
        await self.ack(duty)
        self._add(msgspec.structs.replace(duty, about=dict(about)))

    async def bury(self, duty: Duty, reason: str) -> None:
        await self.ack(duty)
        self.messages[duty.id] = duty
        self.buried[duty.id] = BuriedDuty(
            id=duty.id,
            kind=duty.kind,
            about=duty.about,
            reason=reason,
            buried_at=self._clock.now(),
        )

    def _add(self, message: Message) -> None:
        name = str(next(self._numbers))
        duty = Duty(
            id=name,
            kind=message.kind,
            subject=message.subject,
            caller=message.caller,
            about=dict(message.about),
            deliveries=0,
            receipt="",
        )
        self._waiting[name] = _Waiting(duty, self._clock.now())

    def _deliver(self, duty: Duty, lease: timedelta) -> Duty:
        nth = duty.deliveries + 1
        delivered = msgspec.structs.replace(duty, deliveries=nth, receipt=f"{duty.id}/{nth}")
        self._waiting[duty.id] = _Waiting(delivered, self._clock.now() + lease)
        return delivered

    def _postpone(self, duty: Duty, delay: timedelta) -> None:
        self._check_held(duty)
        self._waiting[duty.id] = _Waiting(duty, self._clock.now() + delay)

    def _check_held(self, duty: Duty) -> None:
        waiting = self._waiting.get(duty.id)
        if waiting is None or waiting.duty.receipt != duty.receipt:
            raise Stale(f"duty {duty.id}: delivery {duty.deliveries} no longer holds it")


class _Waiting(msgspec.Struct, frozen=True):
    duty: Duty
    due_at: datetime
