"""The channels of the outbox: how an event is sent to a webhook, or to Step Functions."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import msgspec
import structlog

from conveyor.domain import outbox, step_functions, webhook
from conveyor.domain.delivery_queue import DeliveryQueue
from conveyor.domain.ids import JobId
from conveyor.domain.job import Job, JobStatus
from conveyor.domain.outbox import Channel, Delivery, DeliveryResult, EventType, OutboxEvent
from conveyor.domain.run import Run, RunStatus, wiped
from conveyor.domain.webhook import Webhook
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.encryption import KeyRing
from conveyor.ports.metadata import Change, Metadata, Removed
from conveyor.ports.step_functions import CallbackResult, RetryLater, StepFunctions, TaskClosed
from conveyor.steps.deliver.sender import ids_of
from conveyor.steps.shared.webhook_sender import WebhookSender

CALLBACK_LEASE = timedelta(seconds=60)
HEARTBEAT_LEASE = timedelta(seconds=20)
CALLBACK_DEADLINE = timedelta(seconds=15)  # of one call; must be shorter than any lease
CALLBACKS = 12  # concurrent calls
HEARTBEATS = 4  # further concurrent calls, so that many ends of runs do not delay heartbeats

log = structlog.get_logger()

SendCallback = Callable[[str], Awaitable[CallbackResult]]  # of Step Functions, with a token


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookChannel:
    """Events for the webhook of their job, whose target is read again for each attempt."""

    metadata: Metadata
    clock: Clock
    sender: WebhookSender
    chance: Callable[[], float]  # from 0 to 1
    lease_length: timedelta
    name: Channel = Channel.WEBHOOK

    async def origins(self, events: Sequence[OutboxEvent]) -> Sequence[str | None]:
        targets: dict[JobId, str | None] = {}
        for event in events:
            if event.job_id not in targets:
                target = await self.prepare(event)
                origin = self.sender.webhooks.origin(target.url) if target else None
                targets[event.job_id] = origin
        return [targets[event.job_id] for event in events]

    def lease(self, _event: OutboxEvent) -> timedelta:
        return self.lease_length

    async def prepare(self, event: OutboxEvent) -> Webhook | None:
        return _in_use(await self.metadata.get(Job, event.job_id))

    async def send(self, event: OutboxEvent, prepared: Webhook) -> DeliveryResult:
        content = event.payload.encode()
        return await self.sender.send(prepared, event.caller, event.id, content)

    async def judge(
        self, event: OutboxEvent, prepared: Webhook, result: DeliveryResult, delivery: Delivery
    ) -> Sequence[Change]:
        if result.error is None:
            return [outbox.delivered(event, delivery)]
        if result.is_closed:
            return await self._disabled(event, prepared, delivery)
        wait = webhook.next_wait(event.tries + 1, self.chance(), result.retry_after)
        if wait is None:
            return [outbox.failed(event, delivery)]
        return [outbox.schedule_retry(event, delivery, self.clock.now() + wait)]

    def unwanted(self, event: OutboxEvent) -> OutboxEvent:
        return outbox.dropped(event)

    async def recorded(self, event: OutboxEvent, changes: Sequence[Change]) -> Sequence[Change]:
        if any(isinstance(change, Job) for change in changes):
            log.warning("webhook.disabled", **ids_of(event))
        return ()

    async def _disabled(
        self, event: OutboxEvent, used: Webhook, delivery: Delivery
    ) -> Sequence[Change]:
        """The receiver answered 410: disable the webhook, until the caller sets it again.

        If the caller has set another one meanwhile, the event is still owed and due there now.
        """
        job, now = await self.metadata.get(Job, event.job_id), self.clock.now()
        if job and job.webhook == used:
            disabled = msgspec.structs.replace(used, disabled_at=now)
            return [outbox.failed(event, delivery), msgspec.structs.replace(job, webhook=disabled)]
        if _in_use(job):
            return [outbox.repeated(event, delivery, now)]
        return [outbox.failed(event, delivery)]


@dataclass(slots=True, kw_only=True)
class StepFunctionsChannel:
    """Ends of runs, or heartbeats, for the states of Step Functions that wait for them.

    If a process dies after a call and before its record, the next process finds the token closed.
    That ends the event as well.
    """

    metadata: Metadata
    clock: Clock
    encryption: KeyRing
    step_functions: StepFunctions
    name: Channel
    deadline: timedelta = CALLBACK_DEADLINE

    async def origins(self, events: Sequence[OutboxEvent]) -> Sequence[str | None]:
        return [""] * len(events)  # all go to one service

    def lease(self, event: OutboxEvent) -> timedelta:
        if event.channel is Channel.HEARTBEAT:
            # Short: a heartbeat that is sent twice does no harm, one that is late fails the state.
            return max(timedelta(seconds=event.every_seconds), HEARTBEAT_LEASE)
        return CALLBACK_LEASE

    async def prepare(self, event: OutboxEvent) -> SendCallback | None:
        if event.channel is Channel.HEARTBEAT:
            run = await self.metadata.get(Run, event.run_id)
            return self.step_functions.heartbeat if run and run.is_live else None
        return partial(self._end, event)

    async def send(self, event: OutboxEvent, prepared: SendCallback) -> DeliveryResult:
        context = step_functions.token_context(event.caller, event.run_id)
        try:
            token = await self.encryption.decrypt(event.encrypted_token, context=context)
        except Unavailable as error:
            return DeliveryResult(error=str(error))
        try:
            async with asyncio.timeout(self.deadline.total_seconds()):
                answer = await prepared(token)
        except TimeoutError:
            why = f"no answer within {self.deadline.total_seconds():g} s"
            return DeliveryResult(error=why)
        match answer:
            case RetryLater():
                return DeliveryResult(error=answer.why, status_code=answer.status_code)
            case TaskClosed():
                return DeliveryResult(error=answer.why, is_closed=True)
            case _:
                return DeliveryResult()

    async def judge(
        self,
        event: OutboxEvent,
        _prepared: SendCallback,
        result: DeliveryResult,
        delivery: Delivery,
    ) -> Sequence[Change]:
        if result.is_closed:
            return await self._ended(outbox.dropped(event, delivery))
        if result.error is None:
            if event.channel is not Channel.HEARTBEAT:
                return await self._ended(outbox.delivered(event, delivery))
            every = timedelta(seconds=event.every_seconds)
            return [outbox.repeated(event, delivery, delivery.started_at + every)]
        wait = self._wait(event)
        if wait is None:
            return await self._ended(outbox.failed(event, delivery))
        return [outbox.schedule_retry(event, delivery, self.clock.now() + wait)]

    def unwanted(self, event: OutboxEvent) -> Removed:
        return Removed(event)

    async def recorded(self, event: OutboxEvent, changes: Sequence[Change]) -> Sequence[Change]:
        # A purge skips owed events. If it ran after `judge` read the run, it has skipped this one.
        ended = isinstance(changes[0], OutboxEvent) and changes[0].due_at is None
        return [Removed(event)] if ended and await self._kept_run(event) is None else ()

    async def _end(self, event: OutboxEvent, token: str) -> CallbackResult:
        if event.type is EventType.RUN_COMPLETED:
            return await self.step_functions.succeed(token, event.payload)
        failure = step_functions.failure_in(event.payload)
        return await self.step_functions.fail(token, error=failure.error, cause=failure.cause)

    def _wait(self, event: OutboxEvent) -> timedelta | None:
        tries = event.tries + 1
        if event.channel is Channel.HEARTBEAT:
            return step_functions.next_heartbeat_wait(tries, event.every_seconds)
        return step_functions.next_wait(tries, self.clock.now() - event.occurred_at)

    async def _ended(self, event: OutboxEvent) -> Sequence[Change]:
        """The end of an event. The run's token is wiped with it, because it is used up.

        A heartbeat leaves the token for the end of the run. The event of a deleted run is removed
        at once: no caller can read it.
        """
        run = await self._kept_run(event)
        if run is None:
            return [Removed(event)]
        if event.channel is Channel.HEARTBEAT or not run.encrypted_token:
            return [event]
        return [event, wiped(run)]

    async def _kept_run(self, event: OutboxEvent) -> Run | None:
        """The run of an event, unless it or its job is deleted."""
        run = await self.metadata.get(Run, event.run_id)
        if run is None or run.status is RunStatus.DELETED:
            return None
        job = await self.metadata.get(Job, event.job_id)
        return None if job is None or job.status is JobStatus.DELETED else run


def callback_queue(channel: Channel) -> DeliveryQueue:
    """A queue to one service. Events beyond its places wait in storage, not in memory."""
    places = HEARTBEATS if channel is Channel.HEARTBEAT else CALLBACKS
    return DeliveryQueue(
        chance=lambda: 0.0,
        places=places,
        per_origin=places,
        per_caller=places,
        unhealthy=places,
        most_waiting=0,
    )


def _in_use(job: Job | None) -> Webhook | None:
    if job is None or job.status is JobStatus.DELETED:
        return None
    return job.webhook if job.webhook and job.webhook.is_on else None
