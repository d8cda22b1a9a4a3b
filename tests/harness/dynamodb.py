"""Tables on DynamoDB for tests: on the fake, on emulators, and on either behind the fault proxy."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from enum import StrEnum
from random import Random
from uuid import uuid4

import pytest

from conveyor.adapters.aws.credentials import RefreshedKeys
from conveyor.adapters.aws.dynamodb.setup import set_up_table
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.adapters.system.clock import SystemClock
from conveyor.ports.clock import Clock
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.in_process import client_in_process
from conveyor.testing.dynamodb.proxy import ProxyFaults, fault_proxy
from conveyor.testing.dynamodb.server import dynamodb_server
from tests.emulators import Emulator
from tests.harness.aws_server import client_of
from tests.seed import run_seed

# Where a table can be. The first is without sockets, and fast.
PLACES = ("dynamodb", "dynamodb-http", "dynamodb-faults", "ministack", "ministack-faults", "moto")
NO_LATENCY = timedelta()


class Capability(StrEnum):
    """What an engine needs of DynamoDB, and an emulator may lack."""

    STATEMENTS = "statements (PartiQL) in batches"
    TOKENS = "a transaction that is repeated under its token takes effect once"
    HUNDRED = "transactions of 100 actions"
    REASONS = "a cancelled transaction shows the rows that cancelled it"
    ISOLATION = "transactions at the same time see each other whole or not at all"


# tests/aws/test_dynamodb_capabilities.py asks the emulators.
CAPABILITIES: Mapping[str, frozenset[Capability]] = {
    "": frozenset(Capability),  # the fake
    "ministack": frozenset(Capability),
    "moto": frozenset({Capability.HUNDRED, Capability.REASONS}),
}
# What single tests of contracts need.
NEEDED = {"test_concurrent_calls_of_processes_stay_below_the_cap": Capability.ISOLATION}


def skip_without(emulator: str, *needed: Capability) -> None:
    """Skip a test that needs what an emulator lacks."""
    for capability in needed:
        if capability not in CAPABILITIES[emulator]:
            pytest.skip(f"{emulator} lacks: {capability}")


UNLIMITED = Knobs(writes_per_second=None, reads_per_second=None)


def some_faults(seed: str) -> ProxyFaults:
    """Faults that the client or the adapter survives within the deadline of a call."""
    return ProxyFaults(
        seed=Random(seed).getrandbits(32),
        lost_before=0.03,
        lost_after=0.03,
        throttled=0.03,
        conflicts=0.03,
        unprocessed=0.1,
        entry_errors=0.1,
    )


@asynccontextmanager
async def a_table(
    place: str,
    request: pytest.FixtureRequest,
    clock: Clock,
    *,
    index_lag: timedelta = NO_LATENCY,
) -> AsyncIterator[DynamoTable]:
    """An empty table. The fake has the given clock. Behind the fault proxy indexes lag."""
    name = f"table-{uuid4()}"
    if place == "moto" and (needed := NEEDED.get(request.node.originalname)):
        skip_without(place, needed)
    async with AsyncExitStack() as stack:
        if place == "dynamodb":
            client = client_in_process(DynamoDbEngine(clock, UNLIMITED), latency=NO_LATENCY)
        else:
            url = await _url(place, request, stack, clock, index_lag)
            client = await stack.enter_async_context(client_of(url))
        await set_up_table(client, name)
        yield DynamoTable(client, name)


async def _url(
    place: str,
    request: pytest.FixtureRequest,
    stack: AsyncExitStack,
    clock: Clock,
    index_lag: timedelta,
) -> str:
    engine, _, disturbed = place.partition("-")
    if engine in {"ministack", "moto"}:
        emulator: Emulator = request.getfixturevalue(engine)
        url = emulator.url
    else:
        url = (await stack.enter_async_context(dynamodb_server(clock, UNLIMITED))).url
    if disturbed != "faults":
        return url
    real = SystemClock()
    keys = RefreshedKeys(lambda: Keys("test", "test"), real)
    faults = some_faults(f"{run_seed()} {request.node.name}")
    faults.index_lag = index_lag
    proxy = await stack.enter_async_context(fault_proxy(url, keys=keys, clock=real, faults=faults))
    return proxy.url
