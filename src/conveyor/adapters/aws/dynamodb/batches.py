"""Batches of DynamoDB. Parts that it leaves undone are sent again until the deadline."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

from conveyor.adapters.aws.client import DEADLINE, AwsClient
from conveyor.adapters.aws.dynamodb.calls import ItemCalls
from conveyor.adapters.aws.dynamodb.together import together
from conveyor.adapters.aws.faults import RETRYABLE_ENTRIES
from conveyor.adapters.aws.item_size import Item
from conveyor.errors import Unavailable

MOST_STATEMENTS = 25
MOST_KEYS = 100
MOST_WRITES = 25


@dataclass(frozen=True, slots=True)
class StatementResult:
    """What came of one statement of a batch."""

    item: Item | None = None  # what RETURNING or SELECT gave; with an error, the item as stored
    error: str = ""  # a code, such as `ConditionalCheckFailed`; empty if the statement was done
    # Whether an earlier attempt may have taken effect: then an error may be its consequence.
    follows_unknown: bool = False


class DynamoDbBatches:
    def __init__(self, client: AwsClient | ItemCalls) -> None:
        self._client = client

    async def get(
        self,
        table: str,
        keys: Sequence[Item],
        *,
        consistent: bool = False,
        deadline: timedelta = DEADLINE,
    ) -> Sequence[Item]:
        """Return the items of up to 100 keys, in any order; those that do not exist are left out."""
        found: list[Item] = []
        asked: Mapping[str, Any] = {table: {"Keys": keys, "ConsistentRead": consistent}}
        async for attempt, remaining in self._rounds(deadline):
            request = {"RequestItems": asked}
            answer = await self._client.call("BatchGetItem", request, deadline=remaining)
            found += answer.get("Responses", {}).get(table, [])
            asked = answer.get("UnprocessedKeys") or {}
            if not asked:
                return found
            await self._client.pause(attempt)
        raise Unavailable(f"dynamodb BatchGetItem: {len(asked[table]['Keys'])} keys were not read")

    async def write(
        self, table: str, requests: Sequence[Mapping[str, Any]], *, deadline: timedelta = DEADLINE
    ) -> None:
        """Carry out up to 25 PutRequest and DeleteRequest, in any order."""
        asked: Mapping[str, Any] = {table: requests}
        async for attempt, remaining in self._rounds(deadline):
            # Repeatable: items are replaced or removed as a whole.
            answer = await self._client.call(
                "BatchWriteItem", {"RequestItems": asked}, repeatable=True, deadline=remaining
            )
            asked = answer.get("UnprocessedItems") or {}
            if not asked:
                return
            await self._client.pause(attempt)
        raise Unavailable(f"dynamodb BatchWriteItem: {len(asked[table])} items were not written")

    async def execute(
        self,
        statements: Sequence[Mapping[str, Any]],
        *,
        repeatable: bool,
        deadline: timedelta = DEADLINE,
    ) -> Sequence[StatementResult]:
        """Execute up to 25 PartiQL statements and return their results, in their order.

        `repeatable` means that the caller can tell the effect of a statement from that of others.
        A statement that was not carried out by the deadline has the error it had last. Raises only
        if there is no result at all.
        """
        results: dict[int, StatementResult] = {}
        open_ones = list(range(len(statements)))
        unknown: set[int] = set()
        async for attempt, remaining in self._rounds(deadline):
            try:
                answer = await self._client.call(
                    "BatchExecuteStatement",
                    {"Statements": [statements[n] for n in open_ones]},
                    repeatable=repeatable,
                    deadline=remaining,
                )
            except Unavailable:
                if not results:
                    raise
                break
            for n, entry in zip(open_ones, answer["Responses"], strict=True):
                results[n] = _result(entry, follows_unknown=n in unknown)
            open_ones = [n for n in open_ones if results[n].error in RETRYABLE_ENTRIES]
            unknown |= {n for n in open_ones if results[n].error == "InternalServerError"}
            if not repeatable:
                open_ones = [n for n in open_ones if n not in unknown]
            if not open_ones:
                break
            await self._client.pause(attempt)
        return [results[n] for n in range(len(statements))]

    async def execute_each(self, statements: Sequence[Mapping[str, Any]]) -> list[StatementResult]:
        """Execute any number of statements that may be repeated, each whatever comes of the others."""

        async def execute(batch: Sequence[Mapping[str, Any]]) -> Sequence[StatementResult]:
            try:
                return await self.execute(batch, repeatable=True)
            except Unavailable as error:
                return [StatementResult(error=str(error))] * len(batch)

        batches = [
            statements[at : at + MOST_STATEMENTS]
            for at in range(0, len(statements), MOST_STATEMENTS)
        ]
        groups = await together([partial(execute, batch) for batch in batches])
        return [result for group in groups for result in group]

    async def _rounds(self, deadline: timedelta) -> AsyncIterator[tuple[int, timedelta]]:
        """Number the rounds until the deadline, and say how much time is left for each."""
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline.total_seconds()
        for attempt in count():
            remaining = end - loop.time()
            if remaining <= 0:
                return
            yield attempt, timedelta(seconds=remaining)


def _result(entry: Mapping[str, Any], *, follows_unknown: bool) -> StatementResult:
    if error := entry.get("Error"):
        return StatementResult(error.get("Item"), error["Code"], follows_unknown)
    return StatementResult(entry.get("Item"), follows_unknown=follows_unknown)
