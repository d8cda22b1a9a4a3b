"""Each fault of the proxy is seen by the client as intended, and its retries survive it."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from conveyor.adapters.aws import client as client_module
from conveyor.adapters.aws.attribute_values import encode
from conveyor.adapters.aws.client import AwsClient
from conveyor.adapters.aws.credentials import RefreshedKeys
from conveyor.adapters.aws.dynamodb.batches import DynamoDbBatches
from conveyor.adapters.aws.faults import ConditionFailed, OutcomeUnknown, ServiceRefusal
from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.adapters.system.clock import SystemClock
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.testing.clock import FakeClock
from conveyor.testing.dynamodb.engine import Knobs
from conveyor.testing.dynamodb.proxy import FaultProxy, ProxyFaults, fault_proxy
from conveyor.testing.dynamodb.server import DynamoDbServer, dynamodb_server
from tests.emulators import Emulator
from tests.harness.aws_server import client_of
from tests.harness.dynamodb_tables import TABLE, key, table_request
from tests.harness.random_calls import RandomCalls
from tests.seed import run_seed

SHORT = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_PAUSE", 0.002)


@dataclass(frozen=True, slots=True)
class Disturbed:
    """A client whose requests reach the fake through the proxy."""

    client: AwsClient
    proxy: FaultProxy
    clock: FakeClock  # of the proxy
    fake: DynamoDbServer

    @property
    def faults(self) -> ProxyFaults:
        return self.proxy.faults

    async def item(self, sk: str) -> dict[str, Any] | None:
        stored = self.fake.engine.tables[TABLE].get(key("p", sk))
        return None if stored is None else dict(stored)

    async def put(self, request: dict[str, Any]) -> Any:
        """Put an item on a condition; where it fails after a lost answer, give what is stored."""
        try:
            await self.client.call("PutItem", request, repeatable=True)
        except ConditionFailed as failed:
            if not failed.follows_unknown:
                raise
            return failed.item
        return None

    async def add(self, sk: str, **more: Any) -> object:
        """Add 1 to a counter."""
        request = {
            "TableName": TABLE,
            "Key": key("p", sk),
            "UpdateExpression": "ADD c :one",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
        return await self.client.call("UpdateItem", request, **more)


def some_keys() -> RefreshedKeys:
    return RefreshedKeys(lambda: Keys("test", "test"), SystemClock())


@asynccontextmanager
async def proxied(url: str, clock: Clock) -> AsyncIterator[FaultProxy]:
    async with fault_proxy(url, keys=some_keys(), clock=clock) as proxy:
        yield proxy


@pytest.fixture
async def disturbed() -> AsyncIterator[Disturbed]:
    async with AsyncExitStack() as stack:
        knobs = Knobs(writes_per_second=None, reads_per_second=None)
        fake = await stack.enter_async_context(dynamodb_server(SystemClock(), knobs))
        clock = FakeClock()
        proxy = await stack.enter_async_context(proxied(fake.url, clock))
        client = await stack.enter_async_context(client_of(proxy.url))
        await client.call("CreateTable", table_request())
        yield Disturbed(client, proxy, clock, fake)


def put_of(sk: str, pk: str = "p") -> dict[str, Any]:
    return {"TableName": TABLE, "Item": key(pk, sk)}


async def test_an_answer_lost_before_the_effect_leaves_nothing(disturbed: Disturbed) -> None:
    disturbed.faults.lost_before = 1
    with pytest.raises(OutcomeUnknown):
        await disturbed.add("1")
    assert await disturbed.item("1") is None
    assert disturbed.proxy.made["lost_before"] == 1


async def test_an_answer_lost_after_the_effect_is_not_repeated(disturbed: Disturbed) -> None:
    disturbed.faults.lost_after = 1
    with pytest.raises(OutcomeUnknown):
        await disturbed.add("1")
    assert await disturbed.item("1") == key("p", "1") | {"c": {"N": "1"}}


async def test_a_conditional_put_recognises_its_own_effect(disturbed: Disturbed) -> None:
    disturbed.faults.lost_after = 0.5
    for n in range(20):
        request = put_of(str(n)) | {
            "ConditionExpression": "attribute_not_exists(pk)",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        request["Item"] = request["Item"] | {"token": {"S": f"mine-{n}"}}
        stored = await disturbed.put(request)
        assert stored is None or stored["token"] == {"S": f"mine-{n}"}
    assert disturbed.proxy.made["lost_after"] > 2


async def test_transactions_count_once_through_lost_answers_and_conflicts(
    disturbed: Disturbed,
) -> None:
    disturbed.faults.lost_before = disturbed.faults.lost_after = 0.25
    disturbed.faults.conflicts = disturbed.faults.throttled = 0.2
    for n in range(20):
        add = {
            "TableName": TABLE,
            "Key": key("p", "counter"),
            "UpdateExpression": "ADD c :one",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
        actions = [{"Put": put_of(str(n))}, {"Update": add}]
        request = {"TransactItems": actions, "ClientRequestToken": f"token-{n}"}
        await disturbed.client.call("TransactWriteItems", request)
    assert await disturbed.item("counter") == key("p", "counter") | {"c": {"N": "20"}}
    made = disturbed.proxy.made
    assert all(made[name] for name in ("lost_before", "lost_after", "conflicts", "throttled"))
    assert disturbed.proxy.disagreements == 0


@pytest.mark.parametrize("fault", ["throttled", "conflicts"])
async def test_refusals_without_effect_are_repeated(fault: str, disturbed: Disturbed) -> None:
    setattr(disturbed.faults, fault, 0.5)
    for _ in range(20):
        await disturbed.add("1")
    assert await disturbed.item("1") == key("p", "1") | {"c": {"N": "20"}}
    setattr(disturbed.faults, fault, 1)
    with pytest.raises(Unavailable):
        await disturbed.add("1", deadline=SHORT)


async def test_unprocessed_items_and_keys_are_sent_again(disturbed: Disturbed) -> None:
    disturbed.faults.unprocessed = 0.5
    batches = DynamoDbBatches(disturbed.client)
    puts = [{"PutRequest": {"Item": key("p", str(n))}} for n in range(25)]
    await batches.write(TABLE, puts)
    keys = [key("p", str(n)) for n in range(30)]
    found = await batches.get(TABLE, keys, consistent=True)
    assert sorted(item["sk"]["S"] for item in found) == sorted(str(n) for n in range(25))
    assert disturbed.proxy.made["unprocessed"] > 10


async def test_errors_of_statements_are_repeated(disturbed: Disturbed) -> None:
    disturbed.faults.entry_errors = 0.5
    insert = f"INSERT INTO \"{TABLE}\" VALUE {{'pk': ?, 'sk': ?}}"
    statements = [
        {"Statement": insert, "Parameters": [encode("p"), encode(str(n))]} for n in range(25)
    ]
    results = await DynamoDbBatches(disturbed.client).execute(statements, repeatable=True)
    for n, result in enumerate(results):
        assert await disturbed.item(str(n)) is not None
        # The first answer said `InternalServerError`, although the row was inserted.
        assert not result.error or (result.error == "DuplicateItem" and result.follows_unknown)
    assert disturbed.proxy.made["entry_errors"] > 5
    assert disturbed.proxy.disagreements == 0


async def test_partitions_are_throttled_one_by_one(disturbed: Disturbed) -> None:
    disturbed.faults.writes_per_second = 5
    client, batches = disturbed.client, DynamoDbBatches(disturbed.client)
    for n in range(5):
        await client.call("PutItem", put_of(str(n), "hot"))
    with pytest.raises(Unavailable, match="Throttling"):
        await client.call("PutItem", put_of("6", "hot"), deadline=SHORT)
    await client.call("PutItem", put_of("1", "cold"))
    puts = [{"PutRequest": {"Item": key(pk, "x")}} for pk in ("hot", "cold")]
    with pytest.raises(Unavailable, match=r"1 items were not written|Throttling"):
        await batches.write(TABLE, puts, deadline=SHORT)
    deletes = [
        {"Statement": f"DELETE FROM {TABLE} WHERE pk = '{pk}' AND sk = '1'"}
        for pk in ("hot", "cold")
    ]
    results = await batches.execute(deletes, repeatable=True, deadline=SHORT)
    assert [result.error for result in results] == ["ThrottlingError", ""]
    request = {"TransactItems": [{"Put": put_of("6", "hot")}], "ClientRequestToken": "t"}
    with pytest.raises(Unavailable, match=r"TransactionCanceled.*ThrottlingError"):
        await client.call("TransactWriteItems", request, deadline=SHORT)
    disturbed.clock.advance(timedelta(seconds=1))
    await client.call("TransactWriteItems", request)
    await batches.write(TABLE, puts)


async def test_slow_answers_are_waited_for_until_the_deadline(disturbed: Disturbed) -> None:
    disturbed.faults.slow, disturbed.faults.delay = 1, timedelta(seconds=0.05)
    await disturbed.add("1")
    disturbed.faults.delay = timedelta(minutes=1)
    with pytest.raises(OutcomeUnknown):
        await disturbed.add("1", deadline=timedelta(seconds=0.1))


async def test_an_index_is_late_and_the_table_is_not(disturbed: Disturbed) -> None:
    disturbed.faults.index_lag = timedelta(hours=10)
    item = key("p", "1") | {"g": encode("g"), "n": encode(1)}
    await disturbed.client.call("PutItem", {"TableName": TABLE, "Item": item})
    request: dict[str, Any] = {
        "TableName": TABLE,
        "KeyConditionExpression": "g = :g",
        "ExpressionAttributeValues": {":g": encode("g")},
        "IndexName": "by-g",
    }
    assert (await disturbed.client.call("Query", request))["Count"] == 0
    found = await disturbed.client.call("GetItem", {"TableName": TABLE, "Key": key("p", "1")})
    assert found["Item"] == item
    disturbed.clock.advance(timedelta(hours=11))
    assert (await disturbed.client.call("Query", request))["Count"] == 1


# Counting.


async def test_the_proxy_counts_what_the_fake_counts(disturbed: Disturbed) -> None:
    calls = RandomCalls(TABLE, f"{run_seed()} proxy")
    for _ in range(200):
        operation, request = calls.next()
        with suppress(ServiceRefusal):
            await disturbed.client.call(operation, request)
    ours, theirs = disturbed.proxy.counts(), disturbed.fake.engine.meter.summary()
    assert {name: ours[name] for name in theirs} == theirs
    assert ours["disagreements"] == 0
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"{disturbed.proxy.url}/meter")).json() == ours


async def test_the_copy_follows_an_emulator(ministack: Emulator) -> None:
    table = f"table-{uuid4()}"
    calls = RandomCalls(table, f"{run_seed()} copy")
    async with proxied(ministack.url, SystemClock()) as proxy, client_of(proxy.url) as client:
        await client.call("CreateTable", table_request(table))
        for _ in range(200):
            operation, request = calls.next()
            with suppress(ServiceRefusal):
                await client.call(operation, request)
        await client.call("DeleteTable", {"TableName": table})
    assert proxy.counts()["disagreements"] == 0
    assert proxy.counts()["wcu"] > 100


async def test_a_table_that_exists_is_read_once(ministack: Emulator) -> None:
    table = f"table-{uuid4()}"
    async with client_of(ministack.url) as client:
        await client.call("CreateTable", table_request(table))
        item = key("p", "1") | {"a": encode("x" * 5_000)}
        await client.call("PutItem", {"TableName": table, "Item": item})
    async with proxied(ministack.url, SystemClock()) as proxy, client_of(proxy.url) as client:
        text = f"UPDATE \"{table}\" SET b = 1 WHERE pk = 'p' AND sk = '1'"
        statements = [{"Statement": text}]
        await DynamoDbBatches(client).execute(statements, repeatable=True)
        await client.call("DeleteTable", {"TableName": table})
    assert proxy.counts()["wcu"] == 5
    assert proxy.counts()["requests"] == {"BatchExecuteStatement UPDATE": 1, "DeleteTable": 1}


async def test_both_can_be_used_by_hand() -> None:
    async with (
        by_hand("fake", "--index-lag", "0.1", "--seed", "3") as fake,
        by_hand("proxy", "--upstream", fake.url, "--slow", "0.5", "--delay", "0") as proxy,
    ):
        async with client_of(proxy.url) as client:
            await client.call("CreateTable", table_request())
            await client.call("PutItem", put_of("1"))
        async with httpx.AsyncClient() as http:
            counts = (await http.get(f"{fake.url}/meter")).json()
        assert counts["requests"] == {"CreateTable": 1, "PutItem": 1}
        assert counts["wcu_by_kind"]["PutItem"] == 1
    for told in (proxy.told, fake.told):
        assert re.search(r"^PutItem +1 +1 +1.0 +0.0$", told, re.MULTILINE), told
        assert re.search(r"^all +2 +1 +1.0 +0.0$", told, re.MULTILINE), told


@dataclass(slots=True)
class ByHand:
    url: str
    told: str = ""  # at its end


@asynccontextmanager
async def by_hand(*arguments: str) -> AsyncIterator[ByHand]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "conveyor.testing.dynamodb", *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **Emulator("fake", "").environ},
    )
    assert process.stdout is not None
    program = ByHand((await process.stdout.readline()).decode().strip())
    try:
        yield program
    finally:
        process.send_signal(signal.SIGTERM)
        program.told = (await process.communicate())[0].decode()
    assert process.returncode == 0
