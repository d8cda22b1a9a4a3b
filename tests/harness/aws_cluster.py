"""One api and two workers as real processes on DynamoDB and SQS, and how fast they react."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.harness.cluster import ROOT_KEY, Cluster, cluster
from tests.harness.programs import Program, mock_gateway
from tests.harness.stacks import a_name, engines_at, migrate
from tests.harness.valkey import Valkey, a_prefix
from tests.s3_server import S3Server

LOOK = 0.02  # seconds between looks at a gateway
PAGES = 1_200
SLOW = 0.5  # seconds for a page
INFLIGHT = 40


@contextmanager
def aws_cluster(
    folder: Path,
    *,
    url: str,
    gateway: Program,
    valkey: Valkey,
    s3: S3Server,
    name: str = "",
    environ: Mapping[str, str] | None = None,
    of_each: Callable[[str], Mapping[str, str]] = lambda _name: {},
) -> Iterator[Cluster]:
    engines = engines_at(url, name or a_name())
    place = s3.new_address()
    migrate(
        {
            **s3.environ,
            **engines,
            "CONVEYOR_BODIES": f"s3:{place}",
            "CONVEYOR_BLOBS": f"s3:{place}",
            "CONVEYOR_COORDINATION": valkey.url,
            "CONVEYOR_ENCRYPTION_KEY": ROOT_KEY,
        }
    )
    with cluster(
        folder,
        gateway=gateway,
        valkey=valkey,
        s3=s3,
        environ={**engines, **(environ or {})},
        of_each=of_each,
    ) as group:
        yield group


# How fast they react, as the gateway of each worker sees it.


@contextmanager
def reacting_cluster(
    folder: Path, *, url: str, gateway: Program, valkey: Valkey, s3: S3Server, notified: bool = True
) -> Iterator[tuple[httpx.Client, Sequence[Program]]]:
    """The second worker has a gateway of its own. Without notifications it must find all by looking."""
    shared, other = (f"{valkey.url}?prefix={a_prefix()}" for _ in range(2))

    def of_each(name: str) -> Mapping[str, str]:
        # Nobody reads notifications that the api leaves elsewhere.
        place = other if name == "api" and not notified else shared
        own = {"CONVEYOR_GATEWAY": second.url} if name == "worker-2" else {}
        # So that one worker cannot start all tasks that a job may have in flight.
        return {"CONVEYOR_COORDINATION": place, "CONVEYOR_CONCURRENCY": f"{INFLIGHT // 2}", **own}

    with (
        mock_gateway() as second,
        aws_cluster(
            folder, url=url, gateway=gateway, valkey=valkey, s3=s3, of_each=of_each
        ) as group,
        httpx.Client(base_url=group.url, headers={"X-API-Key": "a-key"}, timeout=200) as api,
    ):
        yield api, (gateway, second)


def pause_takes(api: httpx.Client, gateways: Sequence[Program], *, quiet: float = 1.5) -> float:
    """Seconds from the answer to a pause until no worker starts a task any more."""
    before = [calls(one) for one in gateways]
    tasks = [{"url": f"https://slow.example/{n}?ms={SLOW * 1000:.0f}"} for n in range(PAGES)]
    body = {"tasks": tasks, "max_inflight": INFLIGHT}
    job = api.post("/jobs", json=body).raise_for_status().json()
    while not all(calls(one) > was + 20 for one, was in zip(gateways, before, strict=True)):
        assert sum(map(calls, gateways)) < sum(before) + PAGES, "a worker has nothing to do"
        time.sleep(LOOK)
    api.post(f"/jobs/{job['job_id']}/pause").raise_for_status()
    paused_at = time.monotonic()
    count, last = -1, paused_at
    while time.monotonic() < last + quiet:
        if (now := sum(map(calls, gateways))) != count:
            count, last = now, time.monotonic()
        time.sleep(LOOK)
    run = api.get(f"/jobs/{job['job_id']}").json()["latest_run"]
    assert run["stats"]["completed"] < PAGES, "it came to its end instead"
    api.post(f"/jobs/{job['job_id']}/stop").raise_for_status()
    return last - paused_at


def first_task_takes(api: httpx.Client, gateways: Sequence[Program]) -> float:
    """Seconds from a submit until the first task of its run is at the gateway."""
    before = sum(map(calls, gateways))
    submitted_at = time.monotonic()
    api.post("/jobs", json={"tasks": [{"url": "https://ok.example/"}]}).raise_for_status()
    while sum(map(calls, gateways)) == before:
        time.sleep(LOOK)
    return time.monotonic() - submitted_at


def calls(gateway: Program) -> int:
    count: int = httpx.get(f"{gateway.url}_mock/stats").raise_for_status().json()["calls"]
    return count
