"""Calls to SQS, in batches of any size.

SQS takes ten messages in a call, and answers with 200 although some of them failed. Those that failed
by its own fault are repeated; those that it refuses, such as an old receipt, are returned.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import count
from typing import Any

import msgspec

from conveyor.adapters.aws.client import DEADLINE, AwsClient
from conveyor.adapters.aws.faults import ServiceRefusal
from conveyor.errors import Unavailable

MOST_ENTRIES = 10
MOST_AT_ONCE = 8  # batches of one call
MOST_NAMES = 1_000  # in a page of ListQueues
LONGEST_DELAY = timedelta(minutes=15)
LONGEST_HIDING = timedelta(hours=12)  # since the receive

# The names that the JSON protocol has for errors, and those of the older one, which some servers use.
MISSING = frozenset(
    {"QueueDoesNotExist", "NonExistentQueue", "AWS.SimpleQueueService.NonExistentQueue"}
)
TAKEN = frozenset({"QueueNameExists", "QueueAlreadyExists"})
IN_FLIGHT_LIMIT = frozenset({"OverLimit"})

Failures = Sequence[Mapping[str, Any]]


class MissingQueue(Exception):
    """The queue of a call does not exist."""


class OutgoingMessage(msgspec.Struct, frozen=True):
    body: str
    delay: timedelta = timedelta()
    group: str = ""  # SQS serves groups with few messages before those with many


class SqsDelivery(msgspec.Struct, frozen=True):
    body: str
    handle: str
    receives: int  # how often the message was received, this time included; approximate


class SqsCalls:
    def __init__(self, client: AwsClient) -> None:
        self._client = client

    async def create(self, name: str, attributes: Mapping[str, str]) -> str:
        """Create a queue and return its URL. One that exists keeps its attributes."""
        try:
            answer = await self._call("CreateQueue", {"QueueName": name, "Attributes": attributes})
        except ServiceRefusal as refusal:
            if refusal.error not in TAKEN:
                raise Unavailable(str(refusal)) from None
            return await self.url(name)
        return str(answer["QueueUrl"])

    async def url(self, name: str) -> str:
        """Return the URL of a queue; `MissingQueue` if there is none."""
        return str((await self._call("GetQueueUrl", {"QueueName": name}))["QueueUrl"])

    async def arn(self, url: str) -> str:
        request = {"QueueUrl": url, "AttributeNames": ["QueueArn"]}
        return str((await self._call("GetQueueAttributes", request))["Attributes"]["QueueArn"])

    async def remove(self, url: str) -> None:
        """Delete a queue with its messages."""
        await self._call("DeleteQueue", {"QueueUrl": url})

    async def names(self, prefix: str) -> list[str]:
        """The names of all queues that begin with a prefix, in no order."""
        found, request = list[str](), {"QueueNamePrefix": prefix, "MaxResults": MOST_NAMES}
        while True:
            answer = await self._call("ListQueues", request)
            found += (url.rpartition("/")[2] for url in answer.get("QueueUrls") or ())
            if not (token := answer.get("NextToken")):
                return found
            request = {**request, "NextToken": token}

    async def send(self, url: str, messages: Sequence[OutgoingMessage]) -> None:
        """Send messages. If it raises, some of them may have been sent."""
        entries = [
            {
                "MessageBody": message.body,
                "DelaySeconds": seconds(message.delay, LONGEST_DELAY),
                **({"MessageGroupId": message.group} if message.group else {}),
            }
            for message in messages
        ]
        if refused := await self._batches("SendMessageBatch", url, entries):
            raise Unavailable(f"sqs SendMessageBatch: {refused[0].get('Code')}: {refused[0]}")

    async def receive(
        self,
        url: str,
        limit: int,
        *,
        visibility: timedelta,
        wait: timedelta = timedelta(),
    ) -> list[SqsDelivery]:
        """Receive up to ten messages; with `wait`, wait so long for the first."""
        request = {
            "QueueUrl": url,
            "MaxNumberOfMessages": min(limit, MOST_ENTRIES),
            "VisibilityTimeout": seconds(visibility, LONGEST_HIDING),
            "WaitTimeSeconds": seconds(wait, timedelta(seconds=20)),
            "MessageSystemAttributeNames": ["ApproximateReceiveCount"],
        }
        try:
            answer = await self._call("ReceiveMessage", request, waits=wait)
        except ServiceRefusal as refusal:
            # So many messages are in flight that none is delivered until some of them are deleted.
            if refusal.error in IN_FLIGHT_LIMIT:
                return []
            raise Unavailable(str(refusal)) from None
        return [_delivery(message) for message in answer.get("Messages") or ()]

    async def acknowledge(self, url: str, handles: Sequence[str]) -> Failures:
        """Delete received messages; return those that SQS refuses."""
        return await self._batches(
            "DeleteMessageBatch", url, [{"ReceiptHandle": handle} for handle in handles]
        )

    async def hide(self, url: str, delays: Mapping[str, timedelta]) -> Failures:
        """Hide received messages, each for its delay from now on; return those that SQS refuses."""
        entries = [
            {"ReceiptHandle": handle, "VisibilityTimeout": seconds(delay, LONGEST_HIDING)}
            for handle, delay in delays.items()
        ]
        return await self._batches("ChangeMessageVisibilityBatch", url, entries)

    async def _batches(
        self, operation: str, url: str, entries: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """Make calls of ten entries, some of them at a time; return what SQS refuses."""
        batches = [
            entries[start : start + MOST_ENTRIES] for start in range(0, len(entries), MOST_ENTRIES)
        ]
        if len(batches) == 1:
            return await self._batch(operation, url, batches[0])
        places, refused = asyncio.Semaphore(MOST_AT_ONCE), list[Mapping[str, Any]]()

        async def make(batch: Sequence[Mapping[str, Any]]) -> None:
            async with places:
                refused.extend(await self._batch(operation, url, batch))

        try:
            async with asyncio.TaskGroup() as group:
                for batch in batches:
                    group.create_task(make(batch))
        except ExceptionGroup as errors:
            # The first is the cause; the others are of batches that were under way.
            raise errors.exceptions[0] from None
        return refused

    async def _batch(
        self, operation: str, url: str, entries: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        refused = list[Mapping[str, Any]]()
        left = {str(number): entry for number, entry in enumerate(entries)}
        loop = asyncio.get_running_loop()
        end = loop.time() + DEADLINE.total_seconds()
        for attempt in count():
            named = [{"Id": name, **entry} for name, entry in left.items()]
            answer = await self._call(operation, {"QueueUrl": url, "Entries": named})
            failed: Failures = answer.get("Failed") or []
            refused += (one for one in failed if one.get("SenderFault"))
            left = {one["Id"]: left[one["Id"]] for one in failed if not one.get("SenderFault")}
            if not left:
                break
            if loop.time() >= end:
                raise Unavailable(f"sqs {operation}: {failed[0].get('Code')}: {failed[0]}")
            await self._client.pause(attempt)
        return refused

    async def _call(
        self, operation: str, request: Mapping[str, Any], *, waits: timedelta = timedelta()
    ) -> dict[str, Any]:
        try:
            return await self._client.call(operation, request, waits=waits)
        except ServiceRefusal as refusal:
            if refusal.error in MISSING:
                raise MissingQueue from None
            if refusal.error in TAKEN | IN_FLIGHT_LIMIT:
                raise
            # The others are of configuration, such as a key that SQS may not use.
            raise Unavailable(str(refusal)) from None


def seconds(time: timedelta, longest: timedelta) -> int:
    """A time in whole seconds, rounded up: SQS knows no shorter ones."""
    return math.ceil(min(max(time, timedelta()), longest).total_seconds())


def _delivery(message: Mapping[str, Any]) -> SqsDelivery:
    attributes = message.get("Attributes") or {}
    return SqsDelivery(
        message["Body"], message["ReceiptHandle"], int(attributes.get("ApproximateReceiveCount", 1))
    )
