"""Report: what is owed to task tokens is sent, from every worker, by leases.

A row is leased by a conditional write, told to the port, and written again with what came of it.
Whoever dies in between leaves a row that is due again when its lease is over; if the state had
heard it by then, the token is found closed, and that is the end of it.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import structlog

from conveyor.domain import report as life
from conveyor.domain.ids import EventId
from conveyor.domain.job import Job, JobStatus
from conveyor.domain.outbox import (
    Channel,
    Delivery,
    EventStatus,
    EventType,
    OutboxEvent,
    next_attempt,
)
from conveyor.domain.run import Run, RunStatus, wiped
from conveyor.domain.step_functions import failure_in, token_context
from conveyor.errors import Stale, Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Metadata, Removed
from conveyor.ports.step_functions import Answer, RetryLater, Sent, StepFunctions, TaskClosed

# So many calls at a time: beats have places of their own, so that no rush of ends stops them.
PLACES: Mapping[Channel, int] = {Channel.TASK_TOKEN: 12, Channel.HEARTBEAT: 4}
IDLE = timedelta(milliseconds=500)
DEADLINE = timedelta(seconds=15)  # of one call: less than any lease

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Report:
    metadata: Metadata
    encryption: KeyRing
    step_functions: StepFunctions
    clock: Clock
    deadline: timedelta = DEADLINE
    under_way: dict[EventId, Channel] = field(default_factory=dict)
    landed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, stopping: asyncio.Event) -> None:
        """Send what is due until told to stop; a slow call holds its own place up, and no more."""
        async with asyncio.TaskGroup() as group:
            while not stopping.is_set():
                self.landed.clear()
                try:
                    await self.start(group)
                except Unavailable as error:
                    log.warning("step.unavailable", step="report", why=str(error))
                except Exception:
                    log.exception("step.bug", step="report")
                await self._rest()

    async def step(self) -> int:
        """Send what is due now, and wait for it; say how many there were."""
        async with asyncio.TaskGroup() as group:
            return await self.start(group)

    async def start(self, group: asyncio.TaskGroup) -> int:
        """Begin to send what is due, as far as there are places."""
        taken = Counter(self.under_way.values())
        started = 0
        for channel, places in PLACES.items():
            free = places - taken[channel]
            due = (
                await self.metadata.due(OutboxEvent, channel=channel, limit=places) if free else ()
            )
            for event in [one for one in due if one.id not in self.under_way][:free]:
                self.under_way[event.id] = channel
                group.create_task(self._carry(event))
                started += 1
        return started

    async def _rest(self) -> None:
        """Until a place is free again, or for a while."""
        try:
            async with asyncio.timeout(IDLE.total_seconds()):
                await self.landed.wait()
        except TimeoutError:
            return

    async def _carry(self, event: OutboxEvent) -> None:
        try:
            await self._send(event)
        except Unavailable as error:
            log.warning("report.unavailable", event_id=event.id, why=str(error))
        except Stale:
            return  # another has it
        except Exception:
            # A bug that one row brings out must not end them all: it is due again after its lease.
            log.exception("report.bug", event_id=event.id, run_id=event.run_id)
        finally:
            del self.under_way[event.id]
            self.landed.set()

    async def _send(self, event: OutboxEvent) -> None:
        held = life.leased(event, self.clock.now())
        await self.metadata.commit(held)
        held = _stored(held)
        if held.channel is Channel.HEARTBEAT and not await self._is_live(held):
            await self.metadata.commit(Removed(held))
            return
        started, began = self.clock.now(), self.clock.monotonic()
        answer = await self._told(held)
        delivery = Delivery(
            attempt=next_attempt(held),
            started_at=started,
            elapsed_ms=round((self.clock.monotonic() - began) * 1000),
            status_code=answer.status_code if isinstance(answer, RetryLater) else None,
            error=None if isinstance(answer, Sent) else answer.why,
        )
        await self._record(self._judged(held, answer, delivery))

    async def _is_live(self, event: OutboxEvent) -> bool:
        run = await self.metadata.get(Run, event.run_id)
        return run is not None and run.is_live

    async def _told(self, event: OutboxEvent) -> Answer:
        context = token_context(event.caller, event.run_id)
        try:
            token = self.encryption.decrypt(event.encrypted_token, context=context)
        except Unavailable as error:
            return RetryLater(str(error))
        try:
            async with asyncio.timeout(self.deadline.total_seconds()):
                return await self._tell(event, token)
        except TimeoutError:
            return RetryLater(f"no answer within {self.deadline.total_seconds():g} s")

    async def _tell(self, event: OutboxEvent, token: str) -> Answer:
        if event.channel is Channel.HEARTBEAT:
            return await self.step_functions.heartbeat(token)
        if event.type is EventType.RUN_COMPLETED:
            return await self.step_functions.succeed(token, event.payload)
        failure = failure_in(event.payload)
        return await self.step_functions.fail(token, error=failure.error, cause=failure.cause)

    def _judged(self, event: OutboxEvent, answer: Answer, delivery: Delivery) -> OutboxEvent:
        about = {"event_id": event.id, "job_id": event.job_id, "run_id": event.run_id}
        match answer:
            case Sent():
                if event.channel is Channel.TASK_TOKEN:
                    log.info("report.sent", type=event.type, **about)
                return life.sent(event, delivery)
            case TaskClosed():
                log.warning("report.closed", channel=event.channel, why=answer.why, **about)
                return life.closed(event, delivery)
            case RetryLater():
                judged = life.in_trouble(event, delivery, self.clock.now())
                if judged.status is EventStatus.FAILED:
                    log.error("report.failed", tries=judged.tries, why=answer.why, **about)
                else:
                    log.warning("report.postponed", tries=judged.tries, why=answer.why, **about)
                return judged

    async def _record(self, event: OutboxEvent) -> None:
        """Write what came of it. Nobody can ask for what a deleted run was owed: it goes.

        A purge leaves what is owed alone. One that came by while this was being written left it,
        and is seen here.
        """
        if event.due_at is not None:
            await self.metadata.commit(event)
            return
        run = await self._kept_run(event)
        if run is None:
            await self.metadata.commit(Removed(event))
            return
        await self._end(event, run)
        if await self._kept_run(event) is None:
            await self.metadata.commit(Removed(event))

    async def _end(self, event: OutboxEvent, run: Run) -> None:
        """Write an event that is not owed any more, and wipe the token of the run it was about.

        A heartbeat that ends leaves the token to the run's end.
        """
        if (
            event.channel is Channel.TASK_TOKEN
            and not event.encrypted_token
            and run.encrypted_token
        ):
            with suppress(Stale):  # the run changed this very moment
                await self.metadata.commit(event, wiped(run))
                return
            again = await self._kept_run(event)
            await self.metadata.commit(event, *([wiped(again)] if again else []))
            return
        await self.metadata.commit(event)

    async def _kept_run(self, event: OutboxEvent) -> Run | None:
        """The run of an event, unless it or its job is deleted."""
        run = await self.metadata.get(Run, event.run_id)
        if run is None or run.status is RunStatus.DELETED:
            return None
        job = await self.metadata.get(Job, event.job_id)
        return None if job is None or job.status is JobStatus.DELETED else run


def _stored(event: OutboxEvent) -> OutboxEvent:
    """As it stands once it is committed."""
    return msgspec.structs.replace(event, version=event.version + 1)
