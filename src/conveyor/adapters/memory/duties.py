"""Duties in memory."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count, islice

import msgspec

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

    async def send(self, kind: str, about: Mapping[str, str]) -> None:
        name = str(next(self._numbers))
        duty = Duty(id=name, kind=kind, about=dict(about), deliveries=0, receipt="")
        self._waiting[name] = _Waiting(duty, self._clock.now())

    async def receive(
        self, limit: int, *, lease: timedelta, kinds: Collection[str] | None = None
    ) -> Sequence[Duty]:
        now = self._clock.now()
        due = [
            waiting.duty
            for waiting in self._waiting.values()
            if waiting.due_at <= now and (kinds is None or waiting.duty.kind in kinds)
        ]
        return [self._deliver(duty, lease) for duty in islice(due, limit)]

    async def extend(self, duty: Duty, *, lease: timedelta) -> None:
        self._postpone(duty, lease)

    async def ack(self, duty: Duty) -> None:
        self._check_held(duty)
        del self._waiting[duty.id]

    async def retry_later(self, duty: Duty, *, delay: timedelta) -> None:
        self._postpone(duty, delay)

    async def bury(self, duty: Duty, reason: str) -> None:
        await self.ack(duty)
        self.buried[duty.id] = BuriedDuty(
            id=duty.id,
            kind=duty.kind,
            about=duty.about,
            reason=reason,
            buried_at=self._clock.now(),
        )

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
