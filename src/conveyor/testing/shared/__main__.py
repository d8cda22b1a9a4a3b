"""`python -m conveyor.testing.shared`: serve an empty store until SIGTERM or SIGINT."""

import asyncio
import signal
from argparse import ArgumentParser
from datetime import timedelta
from random import Random

from conveyor.adapters.memory.queues import NASTY
from conveyor.adapters.system.clock import SystemClock
from conveyor.testing.shared.faults import SERVED_ROUGH, FaultInjector
from conveyor.testing.shared.server import HOST, opening, serving
from conveyor.testing.shared.store import LEASE, SharedStore


async def serve(store: SharedStore, port: int) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with serving(opening(store), port=port) as opened:
        print(f"shared://{HOST}:{opened}", flush=True)  # noqa: T201 - its only output
        await stopping.wait()


def main() -> None:
    parser = ArgumentParser(prog="python -m conveyor.testing.shared", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port on loopback; 0 for any free one")
    parser.add_argument("--lease", type=float, default=LEASE.total_seconds(), help="seconds")
    parser.add_argument("--faults", metavar="SEED", help="calls fail and lag, queues misbehave")
    given = parser.parse_args()
    asyncio.run(serve(_store(timedelta(seconds=given.lease), given.faults), given.port))


def _store(lease: timedelta, seed: str | None) -> SharedStore:
    if seed is None:
        return SharedStore(SystemClock(), lease=lease)
    injector = FaultInjector(Random(seed), SERVED_ROUGH)  # noqa: S311 - not for secrets
    return SharedStore(SystemClock(), lease=lease, injector=injector, habits=NASTY)


if __name__ == "__main__":
    main()
