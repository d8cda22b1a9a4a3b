"""`python -m conveyor.testing.shared`: serve an empty store until SIGTERM or SIGINT."""

import asyncio
import signal
from argparse import ArgumentParser
from datetime import timedelta

from conveyor.adapters.system.clock import SystemClock
from conveyor.testing.shared.server import HOST, plainly, serving
from conveyor.testing.shared.store import LEASE, SharedStore


async def serve(port: int, lease: timedelta) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    store = SharedStore(SystemClock(), lease=lease)
    async with serving(plainly(store), port=port) as opened:
        print(f"shared://{HOST}:{opened}", flush=True)  # noqa: T201 - its only output
        await stopping.wait()


def main() -> None:
    parser = ArgumentParser(prog="python -m conveyor.testing.shared", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port on loopback; 0 for any free one")
    parser.add_argument("--lease", type=float, default=LEASE.total_seconds(), help="seconds")
    given = parser.parse_args()
    asyncio.run(serve(given.port, timedelta(seconds=given.lease)))


if __name__ == "__main__":
    main()
