"""What is owed to the outside. It is written by `Metadata.commit`, beside what happened."""

from collections.abc import Sequence
from typing import Protocol

from conveyor.domain.ids import EventId, JobId
from conveyor.domain.outbox import Channel, OutboxEvent


class Outbox(Protocol):
    """Raises `Unavailable`."""

    async def find(self, event_id: EventId) -> OutboxEvent | None: ...

    async def due(self, channel: Channel, *, limit: int) -> Sequence[OutboxEvent]:
        """Events of a channel that are due, the longest due first."""
        ...

    async def of_job(
        self, job_id: JobId, *, limit: int, before: str | None = None
    ) -> Sequence[OutboxEvent]:
        """A job's events, newest first, with ids below `before`."""
        ...

    async def page(self, *, limit: int, after: str = "") -> Sequence[OutboxEvent]:
        """Events in order of id, from above `after`."""
        ...
