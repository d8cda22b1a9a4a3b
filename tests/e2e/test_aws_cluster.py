"""One api and two workers on DynamoDB and SQS: how fast they react, and what they outlive."""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.polling import ended, every_row, until
from tests.e2e.test_lists import TXT, sent, submit, urls
from tests.e2e.test_processes import check_outcome, submitted_under_kills, urls_of
from tests.emulators import Emulator
from tests.harness.aws_cluster import (
    aws_cluster,
    first_task_takes,
    pause_takes,
    reacting_cluster,
)
from tests.harness.aws_gate import AwsGate, aws_gate
from tests.harness.cluster import Cluster
from tests.harness.postgres import TestDatabases
from tests.harness.programs import Program
from tests.harness.stacks import a_name
from tests.harness.valkey import Valkey
from tests.s3_server import S3Server

pytestmark = pytest.mark.long

KEY = {"X-API-Key": "an-api-key"}
PAUSED_WITHIN, PAUSED_UNNOTIFIED = 1.0, 10.0  # seconds
STARTED_WITHIN = 3.0
COUNT = 400
AWAY = 60.0  # seconds
WITHOUT_VALKEY = 15.0
LONG_LIST = 200_000


@pytest.fixture
def gate(ministack: Emulator) -> Iterator[AwsGate]:
    with aws_gate(ministack.url) as opened:
        yield opened


@pytest.fixture
def beside(valkey: Valkey, seaweedfs: S3Server, gateway: Program) -> dict[str, Any]:
    """What a cluster has beside DynamoDB and SQS."""
    return {"valkey": valkey, "s3": seaweedfs, "gateway": gateway}


def test_workers_learn_of_a_pause_and_of_a_new_run_by_notification(
    ministack: Emulator, beside: dict[str, Any], tmp_path: Path
) -> None:
    with reacting_cluster(tmp_path, url=ministack.url, **beside) as (api, gateways):
        started = [first_task_takes(api, gateways) for _ in range(5)]
        paused = [pause_takes(api, gateways) for _ in range(3)]
    # A machine that other tests keep busy may be late now and then.
    assert statistics.median(started) <= STARTED_WITHIN, started
    assert statistics.median(paused) <= PAUSED_WITHIN, paused


def test_workers_learn_of_a_pause_without_a_notification(
    ministack: Emulator, beside: dict[str, Any], tmp_path: Path
) -> None:
    with reacting_cluster(tmp_path, url=ministack.url, notified=False, **beside) as (api, gateways):
        paused = [pause_takes(api, gateways) for _ in range(3)]
    assert statistics.median(paused) <= PAUSED_UNNOTIFIED, paused
    assert max(paused) > PAUSED_WITHIN, "or there were notifications"


def test_an_outage_of_a_minute_changes_nothing_in_the_outcome(
    gate: AwsGate, beside: dict[str, Any], tmp_path: Path
) -> None:
    """Neither DynamoDB nor SQS answers, while tasks of one run are in flight."""
    with (
        aws_cluster(tmp_path, url=gate.url, **beside) as group,
        client_of(group) as api,
    ):
        job_id = submitted(api)
        until(lambda: completed(api, job_id) > COUNT // 10)
        gate.is_cut = True
        time.sleep(AWAY)  # an outage that lasts: this is no wait for anything
        gate.is_cut = False
        until(lambda: api.get("/jobs").status_code == 200)
        group.start_ended()
        after = submitted(api, "after/")
        check_outcome(api, job_id, COUNT)
        check_outcome(api, after, COUNT, "after/")


def test_kills_and_an_outage_of_valkey_change_nothing_in_the_outcome(
    ministack: Emulator,
    own_valkey: Valkey,
    seaweedfs: S3Server,
    gateway: Program,
    tmp_path: Path,
) -> None:
    with (
        aws_cluster(
            tmp_path, url=ministack.url, valkey=own_valkey, s3=seaweedfs, gateway=gateway
        ) as group,
        client_of(group) as api,
    ):
        jobs = submitted_under_kills(group, api, count=COUNT, jobs=4, rounds=15)
        own_valkey.kill()
        jobs.append(submitted(api, "4/"))  # nothing of it can start
        time.sleep(WITHOUT_VALKEY)  # an outage that lasts: this is no wait for anything
        assert completed(api, jobs[-1]) == 0
        own_valkey.start()
        for number, job_id in enumerate(jobs):
            ended(api, job_id, within=600)  # claims of the dead lapse, and messages come back
            check_outcome(api, job_id, COUNT, f"{number}/")


def _delete(sqs: Any, url: str) -> None:
    sqs.delete_queue(QueueUrl=url)


def _purge(sqs: Any, url: str) -> None:
    sqs.purge_queue(QueueUrl=url)


@pytest.mark.parametrize("lose", [_delete, _purge])
def test_messages_that_an_operator_removes_are_sent_again(
    ministack: Emulator,
    beside: dict[str, Any],
    tmp_path: Path,
    lose: Callable[[Any, str], None],
) -> None:
    sqs, name = ministack.client("sqs"), a_name()
    with (
        aws_cluster(tmp_path, url=ministack.url, name=name, **beside) as group,
        client_of(group) as api,
    ):
        job_id = submitted(api, max_inflight=5)
        until(lambda: completed(api, job_id) > COUNT // 10)
        [url] = sqs.list_queues(QueueNamePrefix=f"{name}-run-")["QueueUrls"]
        lose(sqs, url)
        assert completed(api, job_id) < COUNT, "too late"
        ended(api, job_id, within=600)  # the sweeper waits until the run stood still for 2 minutes
        check_outcome(api, job_id, COUNT)


@pytest.mark.parametrize("tasks", ["postgresql", "dynamodb"])
def test_metadata_in_postgresql_work_with_queues_of_sqs(
    tasks: str,
    ministack: Emulator,
    postgres_18: TestDatabases,
    beside: dict[str, Any],
    tmp_path: Path,
) -> None:
    """With tasks in PostgreSQL too SQS has control messages alone, here of a long list."""
    rows = asyncio.run(postgres_18.empty_url())
    environ = {"CONVEYOR_METADATA": rows}
    if tasks == "postgresql":
        environ |= {"CONVEYOR_TASKS": rows, "CONVEYOR_QUEUES": ""}
    count = LONG_LIST if tasks == "postgresql" else COUNT
    with (
        aws_cluster(tmp_path, url=ministack.url, environ=environ, **beside) as group,
        client_of(group) as api,
    ):
        answer = submit(api, sent(api, TXT, urls(count)), max_inflight=500)
        job_id = answer.raise_for_status().json()["job_id"]
        run = ended(api, job_id, within=1_500)
        stats = run["stats"]
        assert (run["status"], stats["total"], stats["successful"]) == ("completed", count, count)
        rows_of_run = every_row(api, job_id, limit="1000")
        assert len({row["task_id"] for row in rows_of_run}) == len(rows_of_run) == count


def submitted(api: httpx.Client, folder: str = "", **options: object) -> str:
    tasks = [{"url": url} for url in urls_of(COUNT, folder)]
    answer = api.post("/jobs", json={"tasks": tasks, "max_inflight": 20, **options})
    return str(answer.raise_for_status().json()["job_id"])


def completed(api: httpx.Client, job_id: str) -> int:
    job = api.get(f"/jobs/{job_id}").raise_for_status().json()
    return int(job["latest_run"]["stats"]["completed"])


def client_of(group: Cluster) -> httpx.Client:
    return httpx.Client(base_url=group.url, headers=KEY, timeout=200)
