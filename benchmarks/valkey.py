"""What do permits on Valkey cost the server and the client, and what do two processes share?

The server's time is what it says itself (`INFO commandstats`): the execution of commands, without
the network. Its CPU time is that of its process, with the network.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from tests.harness.memory_service import CALLER, House, a_house
from tests.harness.programs import Program
from tests.harness.valkey import Valkey, a_valkey, coordination_at

from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.adapters.system.clock import SystemClock
from conveyor.domain.ids import JobId
from conveyor.ports.coordination import Coordination, PermitRequest
from conveyor.steps.read import Read

ROUNDS = 5
PAIRS = 400  # calls of reserve and release in a round
SIZES = (1, 10, 50, 200)  # permits in a call
NAMES = (1, 20, 100)  # in a call, each with a few permits
LOOPS = 3  # that reserve at once, as a dispatcher has them
POLLERS = 50  # in each of two processes
POLLING = 2.0  # seconds
GOAL_SERVER, GOAL_RATE = 250, 10_000  # µs of the server for 50 permits, permits a second


class Cost(NamedTuple):
    """Of one call of reserve and one of release."""

    server: float  # µs of execution
    server_cpu: float  # µs of its process
    client_cpu: float  # µs of this process
    rate: float  # pairs a second


def main() -> None:
    print(f"load average before: {_load()}")
    with a_valkey() as server:
        asyncio.run(_permits(server))
        asyncio.run(_polls(server))
    print(f"load average after: {_load()}")


def _load() -> str:
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


async def _permits(server: Valkey) -> None:
    async with coordination_at(server.url) as coordination:

        async def measured(names: int, each: int) -> Cost:
            rounds = [await _round(server, coordination, names, each) for _ in range(ROUNDS)]
            return Cost(*(statistics.median(column) for column in zip(*rounds, strict=True)))

        await measured(1, 1)  # connect, load the scripts
        print("| reserve and release | server µs | server CPU µs | client CPU µs | permits/s |")
        print("|---|---|---|---|---|")
        for names, each in (*((1, size) for size in SIZES), *((count, 5) for count in NAMES[1:])):
            cost = await measured(names, each)
            what = f"{each} permits" if names == 1 else f"{each} permits each of {names} names"
            print(
                f"| {what} | {cost.server:.0f} | {cost.server_cpu:.0f} | {cost.client_cpu:.0f} "
                f"| {cost.rate * names * each:,.0f} |"
            )
        await _renewal(server, coordination)
    print(f"goals: {GOAL_SERVER} µs of the server for 50 permits, {GOAL_RATE:,} permits/s")


async def _round(server: Valkey, coordination: Coordination, names: int, each: int) -> Cost:
    async def pairs(loop: int) -> None:
        wants = {f"job:{loop}-{name}": PermitRequest(each, 1_000) for name in range(names)}
        for _ in range(PAIRS // LOOPS):
            await coordination.release(await coordination.reserve(wants))

    async def all_loops() -> None:
        await asyncio.gather(*(pairs(loop) for loop in range(LOOPS)))

    return await _measured(server, all_loops, PAIRS // LOOPS * LOOPS)


async def _measured(server: Valkey, work: Callable[[], Awaitable[None]], calls: int) -> Cost:
    process = Program(server.process, "")
    with server.client() as client:
        client.config_resetstat()
        server_cpu, client_cpu, began = process.cpu, time.process_time(), time.perf_counter()
        await work()
        took = time.perf_counter() - began
        client_cpu = time.process_time() - client_cpu
        stats = client.info("commandstats")
    # Only what is sent to the server: the commands that scripts run are counted in EVALSHA.
    sent = sum(stats[name]["usec"] for name in ("cmdstat_evalsha", "cmdstat_zrem") if name in stats)
    us = 1_000_000 / calls
    return Cost(sent / calls, (process.cpu - server_cpu) * us, client_cpu * us, calls / took)


async def _renewal(server: Valkey, coordination: Coordination) -> None:
    wants = {f"job:{number}": PermitRequest(50, 50) for number in range(10)}
    permits = await coordination.reserve(wants)

    async def renew() -> None:
        for _ in range(100):
            await coordination.renew(permits)

    cost = await _measured(server, renew, 100)
    print(
        f"| renew 500 permits of 10 names | {cost.server:.0f} | {cost.server_cpu:.0f} "
        f"| {cost.client_cpu:.0f} | {cost.rate * 500:,.0f} |"
    )


async def _polls(server: Valkey) -> None:
    """Status polls of one live run by two processes: how often are its counts read?"""
    house = a_house()
    job_id, _ = await house.submit(3)
    clock = SystemClock()
    alone = [MemoryCoordination(clock), MemoryCoordination(clock)]
    print("| status polls by two processes | polls | reads of counts |")
    print("|---|---|---|")
    await _poll(house, job_id, "a cache each", alone)
    async with coordination_at(server.url) as one, coordination_at(server.url) as other:
        await _poll(house, job_id, "one cache on Valkey", [one, other])


async def _poll(house: House, job_id: JobId, what: str, caches: Sequence[Coordination]) -> None:
    house.trace.forget()
    polls = 0
    ends_at = time.monotonic() + POLLING

    async def poll(read: Read) -> None:
        nonlocal polls
        while time.monotonic() < ends_at:
            await read.job(CALLER, job_id)
            polls += 1
            await asyncio.sleep(0.01)

    processes = [replace(house.read, coordination=cache) for cache in caches]
    await asyncio.gather(*(poll(read) for read in processes for _ in range(POLLERS)))
    reads = len(house.trace.of("tasks.counts"))
    print(f"| {what} | {polls:,} in {timedelta(seconds=POLLING)} | {reads} |")


if __name__ == "__main__":
    main()
