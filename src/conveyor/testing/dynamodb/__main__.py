r"""The fake, the proxy and the probe by hand.

    python -m conveyor.testing.dynamodb fake --port 8000 --index-lag 2
    python -m conveyor.testing.dynamodb proxy --upstream http://127.0.0.1:8000 --lost-after 0.05

The first two print their URL, and at their end (SIGINT or SIGTERM) what the requests cost. `GET /meter` shows the
same counts before, as JSON. The probe compares a database with the fake, in a table that it creates and
deletes:

    python -m conveyor.testing.dynamodb probe --region eu-west-1 --table conveyor-probe
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import timedelta
from typing import TypeVar

from conveyor.adapters.aws.client import DYNAMODB, open_client
from conveyor.adapters.aws.credentials import RefreshedKeys
from conveyor.adapters.shared.aws_credentials import usual_credentials
from conveyor.adapters.system.clock import SystemClock
from conveyor.testing.dynamodb.engine import Knobs
from conveyor.testing.dynamodb.probe import DatabaseProbe
from conveyor.testing.dynamodb.proxy import ProxyFaults, fault_proxy
from conveyor.testing.dynamodb.server import dynamodb_server

Options = TypeVar("Options", Knobs, ProxyFaults)

HELP = {
    "conflicts": "share of single writes, and of transactions, that meet a conflict",
    "creation_time": "of a table, which is not found until then",
    "delay": "of slow answers",
    "entry_errors": "share of the statements of PartiQL batches that get an error of their own",
    "index_lag": "of index entries, at most",
    "lost_after": "share of requests that are carried out and not answered",
    "lost_before": "share of requests that are neither carried out nor answered",
    "reads_per_second": "units for each partition key",
    "seed": "of all chances",
    "slow": "share of answers that are slow",
    "throttled": "share of requests that are throttled as a whole",
    "transaction_time": "for which other writes to the items of a transaction meet a conflict",
    "ttl_delay": "from the expiry of an item to its removal",
    "unprocessed": "share of the items and keys of batches that are left unprocessed",
    "writes_per_second": "units for each partition key",
}


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m conveyor.testing.dynamodb",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    fake = commands.add_parser("fake", help="a strict fake of DynamoDB, on loopback")
    _add_options(fake, Knobs())
    proxy = commands.add_parser(
        "proxy", help="count what requests to DynamoDB cost, and disturb them"
    )
    proxy.add_argument("--upstream", default="", help="URL; without it, AWS")
    proxy.add_argument("--region", default=os.environ.get("AWS_REGION") or "eu-west-1")
    _add_options(proxy, ProxyFaults())
    probe = commands.add_parser("probe", help="compare a database with what the fake does")
    probe.add_argument("--endpoint", default="", help="URL; without it, AWS")
    probe.add_argument("--region", default=os.environ.get("AWS_REGION") or "eu-west-1")
    probe.add_argument("--table", default="conveyor-probe", help="name of a table to create")
    probe.add_argument(
        "--load", type=float, default=0, metavar="SECONDS", help="also write as fast as possible"
    )
    return parser.parse_args()


def _add_options(parser: argparse.ArgumentParser, defaults: Knobs | ProxyFaults) -> None:
    parser.add_argument("--port", type=int, default=0)
    for option in fields(defaults):
        default = getattr(defaults, option.name)
        is_time = isinstance(default, timedelta)
        shown = default.total_seconds() if is_time else default
        parser.add_argument(
            f"--{option.name.replace('_', '-')}",
            type=int if option.name == "seed" else float,
            metavar="SECONDS" if is_time else None,
            help=f"{HELP[option.name]} (default: {'no limit' if shown is None else shown})",
        )


def _filled(options: Options, given: argparse.Namespace) -> Options:
    for option in fields(options):
        if (value := getattr(given, option.name)) is not None:
            is_time = isinstance(getattr(options, option.name), timedelta)
            setattr(options, option.name, timedelta(seconds=value) if is_time else value)
    return options


@asynccontextmanager
async def _served(given: argparse.Namespace) -> AsyncIterator[tuple[str, Callable[[], str]]]:
    """The URL, and what shows the counts."""
    clock = SystemClock()
    if given.command == "fake":
        async with dynamodb_server(clock, _filled(Knobs(), given), port=given.port) as server:
            yield server.url, server.engine.meter.table
        return
    keys = RefreshedKeys(usual_credentials("the proxy"), clock)
    async with fault_proxy(
        given.upstream,
        keys=keys,
        clock=clock,
        faults=_filled(ProxyFaults(), given),
        region=given.region,
        port=given.port,
    ) as proxy:
        yield proxy.url, proxy.table


async def _main(given: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    for signal_ in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_, stopped.set)
    async with _served(given) as (url, table):
        print(url, flush=True)  # noqa: T201
        await stopped.wait()
        print(table(), flush=True)  # noqa: T201


async def _probe(given: argparse.Namespace) -> int:
    """Print what differs; return how much."""
    clock = SystemClock()
    keys = RefreshedKeys(usual_credentials("the probe"), clock)
    async with open_client(
        DYNAMODB, endpoint=given.endpoint, region=given.region, keys=keys, clock=clock
    ) as client:
        probe, differing = DatabaseProbe(client, clock, given.table), 0
        try:
            async for one in probe.comparisons():
                print(f"{'ok     ' if one.agrees else 'DIFFERS'}  {one.check}")  # noqa: T201
                if not one.agrees:
                    differing += 1
                    print(f"    there: {one.theirs}\n    here:  {one.ours}")  # noqa: T201
            lags = sorted(await probe.index_lags())
            middle, longest = lags[len(lags) // 2], lags[-1]
            print(f"index entries: median {middle:.3f} s, longest {longest:.3f} s late")  # noqa: T201
            print(f"transactions on one item: {dict(await probe.conflicts())}")  # noqa: T201
            for partitions in (1, 8) if given.load else ():
                rate, refused = await probe.write_rates(partitions, seconds=given.load)
                where = f"{partitions} partition keys"
                print(f"{where}: {rate:,.0f} units a second, {refused:,} refused")  # noqa: T201
        finally:
            await probe.delete()
    print(f"{differing} differ")  # noqa: T201
    return differing


if __name__ == "__main__":
    arguments = _parsed()
    if arguments.command == "probe":
        sys.exit(bool(asyncio.run(_probe(arguments))))
    asyncio.run(_main(arguments))
