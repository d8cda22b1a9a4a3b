"""What is owed to the outside, in memory."""

from collections.abc import Sequence
from datetime import datetime

from conveyor.adapters.memory.metadata import MemoryMetadata
from conveyor.domain.ids import EventId, JobId
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.ports.clock import Clock


class MemoryOutbox:
    def __init__(self, metadata: MemoryMetadata, clock: Clock) -> None:
        self._events = metadata.events
        self._clock = clock

    async def find(self, event_id: EventId) -> OutboxEvent | None:
        return self._events.get(event_id)

    async def due(self, channel: Channel, *, limit: int) -> Sequence[OutboxEvent]:
        now = self._clock.now()
        waiting: list[tuple[datetime, str, OutboxEvent]] = [
            (event.due_at, event.id, event)
            for event in self._events.values()
            if event.channel is channel and event.due_at is not None and event.due_at <= now
        ]
        return [event for _, _, event in sorted(waiting, key=lambda one: one[:2])[:limit]]

    async def of_job(
        self, job_id: JobId, *, limit: int, before: str | None = None
    ) -> Sequence[OutboxEvent]:
        names = sorted(
            (
                name
                for name, event in self._events.items()
                if event.job_id == job_id and (before is None or name < before)
            ),
            reverse=True,
        )
        return [self._events[name] for name in names[:limit]]

    async def page(self, *, limit: int, after: str = "") -> Sequence[OutboxEvent]:
        return [self._events[name] for name in sorted(self._events) if name > after][:limit]
