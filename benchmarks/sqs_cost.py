"""How many requests of SQS does a task cost, and how often is its message received?

First in simulated time, over a queue in memory whose calls are counted as SQS bills them: ten messages
in a call. Then, with `--emulator URL`, in real time over the adapter, through a proxy that counts the
requests, for example:

    BIND_HOST=127.0.0.1 GATEWAY_PORT=4566 .venv-emulators/bin/ministack &
    python -m benchmarks.sqs_cost --emulator http://127.0.0.1:4566
"""

import argparse
import asyncio
import logging
from collections import Counter
from datetime import timedelta

import msgspec
import structlog
from tests.harness import time_lapse
from tests.harness.aws_server import client_of
from tests.harness.fleet import Fleet

from conveyor.adapters.aws.client import SQS
from conveyor.adapters.aws.sqs.address import SqsAddress
from conveyor.adapters.aws.sqs.calls import SqsCalls
from conveyor.adapters.aws.sqs.queues import SqsQueues
from conveyor.adapters.aws.sqs.setup import set_up_queues
from conveyor.app.sqs import visibility_for
from conveyor.settings_loader import PRESET_LEASES
from conveyor.testing.sqs.proxy import sqs_proxy

LEASE = PRESET_LEASES["aws"]
GIVEN_UP_AFTER = 10  # receives: what SQS does unless it is told otherwise


class Scene(msgspec.Struct, frozen=True):
    title: str
    tasks: int
    cap: int
    page: float  # seconds, on average
    workers: int = 1
    jobs: int = 1
    retry: bool = False
    goal: float = 0.35


SCENES = (
    Scene("pages of 50 ms", 3_000, 100, 0.05),
    Scene("pages of 1 s", 3_000, 100, 1.0),
    Scene("pages of 5 s", 1_000, 100, 5.0, goal=0.5),
    Scene("pages of 1 s, one retry each", 2_000, 100, 1.0, retry=True, goal=0.5),
    Scene("pages of 5 s, one retry each", 1_000, 100, 5.0, retry=True, goal=0.5),
    Scene("pages of 1 s, two workers", 3_000, 100, 1.0, workers=2),
    Scene("ten jobs at their caps of 5, two workers", 200, 5, 1.0, workers=2, jobs=10),
    Scene("cap 5, 50 workers", 500, 5, 1.0, workers=50),
)
HEAD = f"{'':44}{'a task':>8}{'send':>7}{'receive':>9}{'ack':>7}{'postpone':>10}{'receives':>10}"


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    parser = argparse.ArgumentParser(description="Requests of SQS for a task")
    parser.add_argument("--emulator", help="URL of an emulator of SQS")
    given = parser.parse_args()
    for groups in (False, True):
        print(f"\nin memory, {'messages share calls' if groups else 'each group makes its call'}")
        print(HEAD)
        for scene in SCENES:
            time_lapse.run(_simulated(scene, groups=groups))
    if given.emulator:
        print("\non the emulator\n" + HEAD)
        asyncio.run(_emulated(given.emulator))


def _fleet(scene: Scene, *, groups: bool) -> Fleet:
    fleet = Fleet(
        cap=scene.cap,
        processes=scene.workers,
        places=500,
        lease=LEASE,
        visibility=visibility_for(LEASE),
        most_receives=GIVEN_UP_AFTER,
        groups=groups,
    )
    fleet.gateway.fastest, fleet.gateway.slowest = scene.page * 0.7, scene.page * 1.3
    fleet.gateway.fails_first = scene.retry
    return fleet


async def _simulated(scene: Scene, *, groups: bool) -> None:
    fleet = _fleet(scene, groups=groups)
    await fleet.submit(scene.tasks, scene.jobs)
    async with fleet.at_work():
        await fleet.drained()
    assert fleet.done() == scene.tasks * scene.jobs
    _show(scene, fleet.queues.requests, fleet.receives_a_message())


async def _emulated(url: str) -> None:
    async with sqs_proxy(url) as proxy, client_of(proxy.url, service=SQS, connections=64) as client:
        calls, address = SqsCalls(client), SqsAddress(prefix="cost")
        await set_up_queues(calls, address, None)
        for scene in (SCENES[number] for number in (1, 4, 6, 7)):
            fleet = _fleet(scene, groups=True)
            fleet.elsewhere = SqsQueues(
                calls, address, fleet.clock, visibility=fleet.visibility, close_after=timedelta()
            )
            proxy.requests.clear()
            proxy.entries.clear()
            await fleet.submit(scene.tasks, scene.jobs)
            async with fleet.at_work():
                await fleet.drained()
            names = {
                "SendMessageBatch": "send",
                "ReceiveMessage": "receive",
                "DeleteMessageBatch": "ack",
                "ChangeMessageVisibilityBatch": "postpone",
            }
            other = [name for name in proxy.requests if name not in names]
            requests = Counter({names[name]: proxy.requests[name] for name in names})
            requests["other"] = sum(proxy.requests[name] for name in other)
            received = proxy.entries["ReceiveMessage"] / (scene.tasks * scene.jobs)
            _show(scene, requests, received)


def _show(scene: Scene, requests: Counter[str], receives: float) -> None:
    tasks = scene.tasks * scene.jobs
    cost = requests.total() / tasks
    parts = [requests[name] / tasks for name in ("send", "receive", "ack", "postpone")]
    print(
        f"{scene.title:44}{cost:8.3f}{parts[0]:7.3f}{parts[1]:9.3f}{parts[2]:7.3f}{parts[3]:10.3f}"
        f"{receives:10.3f}  goal {scene.goal}{'' if cost <= scene.goal else ' MISSED'}",
        flush=True,
    )


if __name__ == "__main__":
    main()
