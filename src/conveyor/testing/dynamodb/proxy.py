"""A proxy between a client and DynamoDB that counts what requests cost, and makes faults.

It stands before the fake, an emulator or AWS itself, and signs requests with the credentials of its
own environment. Requests are forwarded one after another, so that a copy of the tables in memory
knows every item before and after: the meter takes its sizes from there. A table that exists before
the proxy sees it is read once, by Scan.

By hand: `python -m conveyor.testing.dynamodb proxy --upstream http://127.0.0.1:4566`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from conveyor.adapters.aws.client import DYNAMODB, endpoint_of
from conveyor.adapters.aws.credentials import RefreshedKeys
from conveyor.adapters.aws.faults import CONFLICTS, THROTTLED
from conveyor.adapters.aws.signing import RequestSigner
from conveyor.ports.clock import Clock
from conveyor.testing.dynamodb.batches import (
    BatchEntry,
    entries_of,
    tables_of,
    unprocessed,
    without,
)
from conveyor.testing.dynamodb.capacity import Meter, Units
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.partitions import PartitionLimits
from conveyor.testing.dynamodb.refusals import Refusal, conflict, throttled
from conveyor.testing.dynamodb.server import CONTENT_TYPE, TARGET, serving

SINGLE_WRITES = {"PutItem", "UpdateItem", "DeleteItem", "ExecuteStatement"}
BATCHES = {"BatchWriteItem", "BatchGetItem", "BatchExecuteStatement"}
ENTRY_ERRORS = (
    "ThrottlingError",
    "ProvisionedThroughputExceeded",
    "TransactionConflict",
    "InternalServerError",
)


@dataclass(slots=True)
class ProxyFaults:
    """Shares are of requests, or of the entries of batches; 0 is never, 1 is always."""

    seed: int = 0
    lost_before: float = 0.0  # the connection is closed, and nothing is done
    lost_after: float = 0.0  # it is done, and the connection is closed instead of an answer
    throttled: float = 0.0  # whole requests
    conflicts: float = 0.0  # of single writes, and of actions of transactions
    unprocessed: float = 0.0  # of items and keys of batches
    entry_errors: float = 0.0  # of statements of batches
    slow: float = 0.0
    delay: timedelta = timedelta(milliseconds=200)  # of slow answers
    index_lag: timedelta = timedelta()  # at most
    writes_per_second: float | None = None  # units for each partition key
    reads_per_second: float | None = None


class _Lost(Exception):
    """The connection is to be closed."""


class _Refused(Exception):
    """What the upstream answered with another status than 200."""

    def __init__(self, status: int, body: dict[str, Any], request_id: str) -> None:
        super().__init__(status)
        self.status, self.body, self.request_id = status, body, request_id


class Upstream:
    """Sends requests once, whatever comes of it: repeating them is the client's part."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        url: str,
        region: str,
        keys: RefreshedKeys,
        clock: Clock,
    ) -> None:
        self._session, self._keys, self._clock = session, keys, clock
        self._url = URL(url or endpoint_of(DYNAMODB, region)) / ""
        self._signer = RequestSigner(
            service=DYNAMODB.name,
            region=region,
            host=self._url.host_port_subcomponent or "",
            content_type=CONTENT_TYPE,
        )

    request_id = ""  # of the last answer

    async def call(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        body = msgspec.json.encode(request)
        keys, now = await self._keys.current(), self._clock.now()
        headers = self._signer.headers(f"{TARGET}{operation}", body, keys, now)
        try:
            async with self._session.post(self._url, data=body, headers=headers) as response:
                answer = msgspec.json.decode(await response.read(), type=dict[str, Any])
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError):
            raise _Lost from None
        self.request_id = response.headers.get("x-amzn-RequestId", "")
        if response.status != 200:
            raise _Refused(response.status, answer, self.request_id)
        return answer


@dataclass(slots=True)
class FaultProxy:
    upstream: Upstream
    clock: Clock
    faults: ProxyFaults
    made: Counter[str] = field(default_factory=Counter)  # faults, by kind
    disagreements: int = 0  # answers that the copy of the tables did not expect
    url: str = ""
    _copy: DynamoDbEngine = field(init=False)
    _limits: PartitionLimits = field(init=False)
    _random: Random = field(init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._copy = DynamoDbEngine(self.clock, _knobs())
        self._limits = PartitionLimits(self.clock, None, None)
        self._random = Random(self.faults.seed)  # noqa: S311 - repeatable on purpose

    def counts(self) -> dict[str, Any]:
        return {
            **self.meter.summary(),
            "faults": dict(sorted(self.made.items())),
            "disagreements": self.disagreements,
        }

    @property
    def meter(self) -> Meter:
        return self._copy.meter

    def table(self) -> str:
        made = [f"fault: {name} {times:,}" for name, times in sorted(self.made.items()) if times]
        return "\n".join([self.meter.table(), *made, f"disagreements: {self.disagreements:,}"])

    # Requests.

    async def serve(self, request: web.Request) -> web.StreamResponse:
        operation = request.headers.get("X-Amz-Target", "").removeprefix(TARGET)
        content = msgspec.json.decode(await request.read(), type=dict[str, Any])
        try:
            answer, request_id = await self._answer(operation, content)
            status = 200
        except Refusal as refusal:
            status, answer, request_id = refusal.status, refusal.body, "proxy"
        except _Refused as refused:
            status, answer, request_id = refused.status, refused.body, refused.request_id
        except _Lost:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.Response(
            status=status,
            body=msgspec.json.encode(answer),
            content_type=CONTENT_TYPE,
            headers={"x-amzn-RequestId": request_id},
        )

    async def _answer(self, operation: str, request: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """The answer, and the id that the upstream gave the request."""
        if self._chance("lost_before"):
            raise _Lost
        if self._chance("slow"):
            await asyncio.sleep(self.faults.delay.total_seconds())
        async with self._lock:
            await self._adopt(operation, request)
            entries = entries_of(self._copy, operation, request)
            left_out = self._left_out(operation, entries)
            self._refuse(operation, entries, left_out)
            answer = await self._forward(operation, request, entries, left_out)
            request_id = self.upstream.request_id
        if self._chance("lost_after"):
            raise _Lost
        return answer, request_id

    async def _forward(
        self,
        operation: str,
        request: dict[str, Any],
        entries: Sequence[BatchEntry],
        left_out: Mapping[int, str],
    ) -> dict[str, Any]:
        # A statement with this error is carried out, and only its answer is lost.
        withheld = {n: code for n, code in left_out.items() if code != "InternalServerError"}
        sent = without(operation, request, withheld) if withheld else request
        answer: dict[str, Any] = {}
        if len(withheld) < max(1, len(entries)):
            answer = await self._measured(operation, sent)
            self._charge([one for n, one in enumerate(entries) if n not in withheld])
        if withheld:
            answer = unprocessed(operation, request, withheld, answer)
        for n in left_out.keys() - withheld.keys():
            error = {"Code": left_out[n], "Message": "by the proxy"}
            answer["Responses"] = [*answer["Responses"]]
            answer["Responses"][n] = {"Error": error}
        return answer

    async def _measured(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request on, and carry it out in the copy as well, to know what it costs."""
        self._copy.knobs.index_lag = self.faults.index_lag
        here: dict[str, Any] | None = None
        try:
            there = await self.upstream.call(operation, request)
        except _Refused as refused:
            code = str(refused.body.get("__type", "")).rpartition("#")[2]
            if refused.status < 500 and code not in THROTTLED | CONFLICTS:
                with suppress(Refusal):  # it costs something all the same
                    self._copy.execute(operation, request)
                    self.disagreements += 1
            raise
        try:
            here = self._copy.execute(operation, request)
        except Refusal:
            self.disagreements += 1
        if operation == "Query" and "IndexName" in request and self.faults.index_lag and here:
            self.made["index_lag"] += here.get("Items") != there.get("Items")
            return here
        return there

    # ProxyFaults.

    def _chance(self, name: str) -> bool:
        happens: bool = self._random.random() < getattr(self.faults, name)
        self.made[name] += happens
        return happens

    def _left_out(self, operation: str, entries: Sequence[BatchEntry]) -> dict[int, str]:
        """Entries of a batch that are not done, or not said to be, and with which code."""
        if operation not in BATCHES:
            return {}
        left_out = dict.fromkeys(self._exhausted(entries), "ThrottlingError")
        share = "entry_errors" if operation == "BatchExecuteStatement" else "unprocessed"
        for n in range(len(entries)):
            if n not in left_out and self._chance(share):
                left_out[n] = self._random.choice(ENTRY_ERRORS)
        if operation != "BatchExecuteStatement":
            return dict.fromkeys(left_out, "ThrottlingError")
        return left_out

    def _refuse(
        self, operation: str, entries: Sequence[BatchEntry], left_out: Mapping[int, str]
    ) -> None:
        """Refuse the request as a whole, if it is its turn."""
        if self._chance("throttled"):
            raise throttled("the table")
        if operation in {"BatchWriteItem", "BatchGetItem"} and len(left_out) == len(entries):
            raise throttled("every partition")
        if operation in BATCHES:
            return
        exhausted = self._exhausted(entries)
        if operation == "TransactWriteItems":
            reasons = dict.fromkeys(exhausted, "ThrottlingError")
            if self._chance("conflicts"):
                reasons[self._random.randrange(len(entries))] = "TransactionConflict"
            if reasons:
                raise _canceled(len(entries), reasons)
        elif exhausted:
            raise throttled(repr(entries[exhausted[0]].partition))
        elif operation in SINGLE_WRITES and self._chance("conflicts"):
            raise conflict()

    def _exhausted(self, entries: Sequence[BatchEntry]) -> list[int]:
        self._limits.write, self._limits.read = (
            self.faults.writes_per_second,
            self.faults.reads_per_second,
        )
        found = []
        for n, entry in enumerate(entries):
            try:
                if entry.partition is not None:
                    self._limits.admit(entry.kind, entry.partition)
            except Refusal:
                found.append(n)
        self.made["throttled by partition"] += len(found)
        return found

    def _charge(self, entries: Sequence[BatchEntry]) -> None:
        units: Units = self._copy.charged
        known = [entry for entry in entries if entry.partition is not None]
        for entry in known:
            amount = units.written if entry.kind == "write" else units.consumed
            self._limits.charge(entry.kind, entry.partition, amount / len(known))

    # Tables that were there before.

    async def _adopt(self, operation: str, request: Mapping[str, Any]) -> None:
        if operation in {"CreateTable", "DeleteTable"}:
            return
        for name in tables_of(request) - self._copy.tables.keys():
            with suppress(_Refused):
                await self._read_table(name)

    async def _read_table(self, name: str) -> None:
        described = (await self.upstream.call("DescribeTable", {"TableName": name}))["Table"]
        indexes = described.get("GlobalSecondaryIndexes")
        copied = ("TableName", "KeySchema", "AttributeDefinitions")
        request = {part: described[part] for part in copied}
        if indexes:
            parts = ("IndexName", "KeySchema", "Projection")
            request["GlobalSecondaryIndexes"] = [
                {part: index[part] for part in parts} for index in indexes
            ]
        engine = DynamoDbEngine(self.clock, _knobs())
        engine.execute("CreateTable", request | {"BillingMode": "PAY_PER_REQUEST"})
        self._copy.tables[name] = engine.tables[name]
        start: dict[str, Any] = {}
        while True:
            page = await self.upstream.call("Scan", {"TableName": name, **start})
            for item in page["Items"]:
                engine.execute("PutItem", {"TableName": name, "Item": item})
            if "LastEvaluatedKey" not in page:
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


def _knobs() -> Knobs:
    return Knobs(writes_per_second=None, reads_per_second=None)


def _canceled(count: int, reasons: Mapping[int, str]) -> Refusal:
    told = [{"Code": reasons.get(n, "None")} for n in range(count)]
    codes = ", ".join(reason["Code"] for reason in told)
    return Refusal(
        "TransactionCanceledException",
        f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]",
        fields={"CancellationReasons": told},
    )


@asynccontextmanager
async def fault_proxy(
    upstream: str,
    *,
    keys: RefreshedKeys,
    clock: Clock,
    faults: ProxyFaults | None = None,
    region: str = "eu-west-1",
    port: int = 0,
) -> AsyncIterator[FaultProxy]:
    """Serve a proxy on loopback. `upstream` is a URL, or empty for AWS."""
    async with aiohttp.ClientSession() as session:
        sender = Upstream(session, url=upstream, region=region, keys=keys, clock=clock)
        proxy = FaultProxy(sender, clock, faults or ProxyFaults())
        async with serving(proxy.serve, proxy.counts, port=port) as url:
            proxy.url = url
            yield proxy
