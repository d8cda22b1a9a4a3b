"""Run queues on SQS: a standard queue `<prefix>-run-<run id>` for each run.

A body is JSON in ASCII, because SQS refuses some characters: the task's id, the stamp and the version.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import msgspec
import structlog

from conveyor.adapters.aws.sqs.address import SqsAddress
from conveyor.adapters.aws.sqs.calls import (
    LONGEST_DELAY,
    MOST_ENTRIES,
    MissingQueue,
    OutgoingMessage,
    SqsCalls,
    SqsDelivery,
)
from conveyor.domain.ids import RunId, TaskId
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.queues import MOST_RECEIVES, TASK_MESSAGE_VERSION, TaskMessage

DEAD = "dead"  # the queue of messages that were received too often
RUN = "run-"
RETENTION = timedelta(days=14)  # the longest that SQS keeps a message
CLOSE_AFTER = timedelta(minutes=5)
NEW_FOR = 10.0  # seconds in which SQS may not know a queue that it has created
NEW_TRIES = 40
LIST_AGAIN = 30.0  # seconds after which a listing that is read in pages is old
MOST_REMEMBERED = 10_000  # runs

log = structlog.get_logger()
T = TypeVar("T")


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    task: str
    stamp: str = ""
    v: int = TASK_MESSAGE_VERSION


BODY = msgspec.json.Decoder(_Body)


class SqsQueues:
    """`visibility` is how long a received message is hidden, at least a lease.

    A queue is deleted `close_after` its `close`. By then the messages of its last tasks are
    acknowledged, and workers that do not know of the end have stopped to ask. If the process ends
    before, the sweeper finds the queue.
    """

    def __init__(
        self,
        calls: SqsCalls,
        address: SqsAddress,
        clock: Clock,
        *,
        visibility: timedelta,
        close_after: timedelta = CLOSE_AFTER,
    ) -> None:
        self._calls, self._address, self._clock = calls, address, clock
        self.visibility = visibility
        self._close_after = close_after.total_seconds()
        self._redrive = ""  # the policy, once the queue for dead letters is known
        self._urls: dict[RunId, str] = {}
        self._created: dict[RunId, float] = {}  # by this process, when
        self._closed: dict[RunId, None] = {}
        self._closing: deque[tuple[float, RunId]] = deque()  # when to delete which
        self._has_closing = asyncio.Event()
        self._listed: tuple[float, list[RunId]] = (0.0, [])

    async def open(self, run_id: RunId) -> None:
        attributes = {
            "VisibilityTimeout": str(int(self.visibility.total_seconds())),
            "MessageRetentionPeriod": str(int(RETENTION.total_seconds())),
            "RedrivePolicy": await self._redrive_policy(),
        }
        url = await self._calls.create(self._name(run_id), attributes)
        self._closed.pop(run_id, None)
        _remember(self._urls, run_id, url)
        _remember(self._created, run_id, self._clock.monotonic())

    async def close(self, run_id: RunId) -> None:
        if not self._close_after:
            await self._remove(run_id)
        elif run_id not in self._closed:
            self._closing.append((self._clock.monotonic() + self._close_after, run_id))
            self._has_closing.set()
        self._created.pop(run_id, None)
        _remember(self._closed, run_id, None)

    async def opened(self, *, limit: int, after: str = "") -> Sequence[RunId]:
        """SQS lists in no order, so each listing reads all names. Its later pages use the same."""
        listed_at, runs = self._listed
        if not after or self._clock.monotonic() - listed_at >= LIST_AGAIN:
            prefix = self._address.queue(RUN)
            names = await self._calls.names(prefix)
            runs = sorted(RunId(name.removeprefix(prefix)) for name in names)
            self._listed = self._clock.monotonic(), runs
        return [run_id for run_id in runs if run_id > after][:limit]

    async def send(
        self, run_id: RunId, entries: Sequence[tuple[TaskId, timedelta]], *, stamp: str = ""
    ) -> None:
        for _, delay in entries:
            if not timedelta() <= delay <= LONGEST_DELAY:
                raise ValueError(f"delay must be from 0 to {LONGEST_DELAY}, got {delay}")
        if not entries:
            return
        messages = [
            OutgoingMessage(as_ascii(_Body(task_id, stamp)), delay) for task_id, delay in entries
        ]
        for _ in range(NEW_TRIES):
            try:
                await self._calls.send(await self._url(run_id), messages)
            except MissingQueue:
                self._urls.pop(run_id, None)
                if not self._is_new(run_id):
                    return  # it belongs to a closed run, or the sweeper opens it again
                await asyncio.sleep(NEW_FOR / NEW_TRIES)
            else:
                return
        raise Unavailable(f"the new queue {self._name(run_id)} does not appear")

    async def receive(self, run_id: RunId, limit: int) -> Sequence[TaskMessage] | None:
        if not 1 <= limit <= MOST_ENTRIES:
            raise ValueError(f"limit must be from 1 to {MOST_ENTRIES}, got {limit}")
        try:
            url = await self._url(run_id)
            found = await self._calls.receive(url, limit, visibility=self.visibility)
        except MissingQueue:
            self._urls.pop(run_id, None)
            return [] if self._is_new(run_id) else None
        return [message for one in found if (message := self._message(run_id, one))]

    async def ack(self, run_id: RunId, receipts: Sequence[str]) -> None:
        with suppress(MissingQueue):
            if receipts:
                await self._calls.acknowledge(await self._url(run_id), receipts)

    async def postpone(self, run_id: RunId, delays: Mapping[str, timedelta]) -> None:
        with suppress(MissingQueue):
            if delays:
                await self._calls.hide(await self._url(run_id), delays)

    async def run(self) -> None:
        """Delete queues when their time has come, for ever."""
        while True:
            while not self._closing:
                self._has_closing.clear()
                await self._has_closing.wait()
            at, run_id = self._closing[0]
            await asyncio.sleep(max(at - self._clock.monotonic(), 0.0))
            try:
                await self._remove(run_id)
            except Unavailable as error:
                # The sweeper lists the queues of ended runs, and closes them.
                self._closed.pop(run_id, None)
                log.warning("queue.not_deleted", run_id=run_id, why=str(error))
            self._closing.popleft()

    async def _remove(self, run_id: RunId) -> None:
        url = self._urls.pop(run_id, None)
        with suppress(MissingQueue):
            await self._calls.remove(url or await self._calls.url(self._name(run_id)))

    async def _url(self, run_id: RunId) -> str:
        if run_id in self._closed:
            raise MissingQueue
        if run_id not in self._urls:
            _remember(self._urls, run_id, await self._calls.url(self._name(run_id)))
        return self._urls[run_id]

    async def _redrive_policy(self) -> str:
        if not self._redrive:
            name = self._address.queue(DEAD)
            try:
                arn = await self._calls.arn(await self._calls.url(name))
            except MissingQueue:
                raise Unavailable(
                    f"the queue {name} does not exist: run `conveyor migrate`"
                ) from None
            policy = {"deadLetterTargetArn": arn, "maxReceiveCount": str(MOST_RECEIVES)}
            self._redrive = json.dumps(policy)
        return self._redrive

    def _message(self, run_id: RunId, delivery: SqsDelivery) -> TaskMessage | None:
        try:
            body = BODY.decode(delivery.body)
        except msgspec.DecodeError:
            # Not sent by Conveyor. It comes again until the queue is deleted or gives it up.
            log.warning("queue.unreadable_message", run_id=run_id)
            return None
        return TaskMessage(
            TaskId(body.task), delivery.handle, delivery.receives, body.stamp, body.v
        )

    def _is_new(self, run_id: RunId) -> bool:
        """Whether this process has just created the queue, so that it must appear soon."""
        created_at = self._created.get(run_id)
        return created_at is not None and self._clock.monotonic() - created_at < NEW_FOR

    def _name(self, run_id: RunId) -> str:
        return self._address.queue(f"{RUN}{run_id}")


@asynccontextmanager
async def open_queues(
    calls: SqsCalls, address: SqsAddress, clock: Clock, *, visibility: timedelta
) -> AsyncIterator[SqsQueues]:
    queues = SqsQueues(calls, address, clock, visibility=visibility)
    closing = asyncio.create_task(queues.run(), name="close queues")
    try:
        yield queues
    finally:
        closing.cancel()
        await asyncio.wait([closing])


def as_ascii(body: msgspec.Struct) -> str:
    """A body as JSON in which every character is one that SQS accepts."""
    return json.dumps(msgspec.to_builtins(body), separators=(",", ":"))


def _remember(known: dict[RunId, T], run_id: RunId, what: T) -> None:
    known[run_id] = what
    if len(known) > MOST_REMEMBERED:
        del known[next(iter(known))]
