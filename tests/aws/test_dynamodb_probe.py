"""The probe of a database: the fake agrees with itself, and differences are found."""

from datetime import timedelta
from uuid import uuid4

from conveyor.adapters.system.clock import SystemClock
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.in_process import client_in_process
from conveyor.testing.dynamodb.probe import DatabaseProbe, ProbeResult
from tests.emulators import Emulator
from tests.harness import time_lapse
from tests.harness.aws_server import client_of

REFUSED = {
    "a batch has 25 statements at most",
    "a canceled transaction says why, with rows",
    "a key may not be empty",
    "a key may not be twice in a batch",
    "a put on a condition",
    "a reserved word",
    "a row has 400 KB at most",
    "a token is for one request",
    "a transaction has 100 actions at most",
    "an index has no consistent reads",
    "an item is once in a transaction",
}


def probe_of(engine: DynamoDbEngine) -> DatabaseProbe:
    return DatabaseProbe(client_in_process(engine, latency=timedelta()), SystemClock(), "probe")


async def made(probe: DatabaseProbe) -> list[ProbeResult]:
    try:
        return [one async for one in probe.comparisons()]
    finally:
        await probe.delete()


async def test_the_fake_agrees_with_itself() -> None:
    found = await made(probe_of(DynamoDbEngine(SystemClock())))
    assert [one for one in found if not one.agrees] == []
    answers = [one for one in found if not one.check.endswith(": units")]
    assert {one.check for one in answers if not one.theirs.startswith('["ok"')} == REFUSED


async def test_late_indexes_and_concurrent_transactions_are_measured() -> None:
    knobs = Knobs(index_lag=timedelta(seconds=0.002))
    probe = probe_of(DynamoDbEngine(SystemClock(), knobs))
    await probe.create()
    lags = await probe.index_lags()
    assert 0 < max(lags) < 30
    assert await probe.conflicts() == {"done": 20, "counted": 20}


async def test_it_finds_where_ministack_bills_otherwise_than_aws(ministack: Emulator) -> None:
    async with client_of(ministack.url) as client:
        found = await made(DatabaseProbe(client, SystemClock(), f"probe-{uuid4()}"))
    differing = {one.check for one in found if not one.agrees}
    # Reads and statements are billed whatever their size, and index writes of transactions once.
    assert differing == {
        "a batch of gets rounds each row: units",
        "a cheap count: units",
        "a consistent count: units",
        "a consistent query: units",
        "a key may not be twice in a batch",
        "a statement bills the whole row: units",
        "an entry that comes in a transaction: units",
        "an entry that goes in a transaction: units",
        "an index key that changes in a transaction: units",
    }


def test_eight_partition_keys_take_more_writes_than_one() -> None:
    async def rates() -> list[float]:
        clock = time_lapse.LapseClock()
        engine = DynamoDbEngine(clock, Knobs(writes_per_second=50))
        probe = DatabaseProbe(client_in_process(engine), clock, "probe")
        await probe.create()
        return [(await probe.write_rates(keys, seconds=10))[0] for keys in (1, 8)]

    one, eight = time_lapse.run(rates())
    assert 50 <= one <= 60  # with the units of the first second
    assert eight > 6 * one
