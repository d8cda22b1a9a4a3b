"""One api and two workers as real processes: the official client, and kills at any moment."""

import random
import signal
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from zenrows.batch import ZenRowsBatchClient
from zenrows.batch._typed_dicts import WebhookDict
from zenrows.batch.models import RunStatus

from tests.certificates import Authority
from tests.e2e.polling import ended, every_row, until
from tests.e2e.receiver import receiving
from tests.harness.cluster import Cluster, cluster
from tests.harness.programs import Program
from tests.harness.valkey import Valkey
from tests.s3_server import S3Server
from tests.seed import run_seed, sampled

KEY = "an-api-key"
QUICK: dict[str, Any] = {"timeout": 200.0, "poll_interval": 0.05}
KINDS = ["ok", "ok", "ok", "flaky", "ok", "permanent", "ok", "slow"]
GRACE = 3
OPTIONS = {"flaky": "fails=1", "slow": "ms=40"}


@pytest.mark.parametrize("queued", [False, True])
def test_the_official_client_does_everything_with_an_api_and_two_workers(
    seaweedfs: S3Server, valkey: Valkey, gateway: Program, tmp_path: Path, queued: bool
) -> None:
    with (
        receiving(Authority(tmp_path)) as receiver,
        cluster(
            tmp_path,
            gateway=gateway,
            valkey=valkey,
            s3=seaweedfs,
            queued=queued,
            environ=receiver.environ,
        ) as group,
        ZenRowsBatchClient(KEY, base_url=group.url) as client,
        _http(group) as api,
    ):
        webhook: WebhookDict = {"url": receiver.url()}
        inline = client.submit_regular([*urls_of(16)], webhook=webhook)
        rows = "".join(f"{n},https://ok.example/{n}\n" for n in range(30))
        list_id = client.upload_csv(
            BytesIO(f"id,url\n{rows}".encode()),
            fields={"url": "url", "external_id": "id"},
            header=True,
        )
        listed = client.submit_regular(file_input_id=list_id)
        run = inline.run.wait(**QUICK)
        assert (run.data.status, run.data.stats.successful) == (RunStatus.COMPLETED, 14)
        assert run.data.stats.failed == 2
        listed_run = listed.run.wait(**QUICK)
        assert listed_run.data.stats.successful == 30
        assert listed.run.download_to_dir(tmp_path / "pages") == 30
        archive = client.download_all_results(
            listed.job_id, listed_run.run_id, tmp_path / "all.zip", poll_interval=0.05
        )
        assert len(zipfile.ZipFile(archive).namelist()) == 31

        again = client.job(inline.job_id).rerun(status="failed")
        assert again.wait(**QUICK).data.stats.total == 16

        held = client.submit_regular([f"https://slow.example/{n}?ms=100" for n in range(400)])
        held.run.pause()
        until(lambda: _stats(gateway)["in_flight"] == 0)
        assert api.get(f"/jobs/{held.job_id}").json()["latest_run"]["status"] == "running"
        held.run.resume()
        held.run.stop()
        assert ended(api, held.job_id)["status"] == "stopped"
        for job in (inline, listed, held):
            client.job(job.job_id).delete()
            assert api.get(f"/jobs/{job.job_id}").status_code == 404
        until(lambda: len(receiver.told) >= 2)  # of the first run and of its rerun
        assert len({told.event_id for told in receiver.told}) == 2
        assert all(process.exit_code is None for process in group.processes)


def test_a_kill_of_each_process_changes_nothing_in_the_outcome(
    seaweedfs: S3Server, valkey: Valkey, gateway: Program, tmp_path: Path
) -> None:
    with (
        cluster(tmp_path, gateway=gateway, valkey=valkey, s3=seaweedfs) as group,
        _http(group) as api,
    ):
        count = 800
        answer = api.post("/jobs", json={"tasks": [{"url": url} for url in urls_of(count)]})
        job_id = str(answer.raise_for_status().json()["job_id"])
        for process in group.processes:
            before = _completed(api, job_id)
            until(lambda: _completed(api, job_id) in {count, *range(before + 1, count)})  # noqa: B023
            process.kill()
            group.start(process)
        check_outcome(api, job_id, count)


@pytest.mark.parametrize("queued", sampled([False, True], 1, of="kills over a store that fails"))
def test_a_kill_of_each_process_changes_nothing_over_a_store_that_fails(
    seaweedfs: S3Server, valkey: Valkey, gateway: Program, tmp_path: Path, queued: bool
) -> None:
    """Calls of the store are slow, throttled and not answered; its listings and queues misbehave."""
    with (
        cluster(
            tmp_path,
            gateway=gateway,
            valkey=valkey,
            s3=seaweedfs,
            queued=queued,
            faults=run_seed(),
        ) as group,
        repeating_client(group) as api,
    ):
        count = 200
        body = {"tasks": [{"url": url} for url in urls_of(count)]}
        job_id = _submit(api, body, {"Idempotency-Key": "the-job"})
        for process in group.processes:
            before = _completed(api, job_id)
            until(lambda: _completed(api, job_id) in {count, *range(before + 1, count)})  # noqa: B023
            process.kill()
            group.start(process)
        check_outcome(api, job_id, count)


def test_sigterm_ends_a_worker_within_its_grace_although_the_store_does_not_answer(
    seaweedfs: S3Server, valkey: Valkey, gateway: Program, tmp_path: Path
) -> None:
    environ = {"CONVEYOR_GRACE": f"{GRACE}s"}
    with (
        cluster(
            tmp_path, gateway=gateway, valkey=valkey, s3=seaweedfs, workers=1, environ=environ
        ) as group,
        _http(group) as api,
    ):
        tasks = [{"url": f"https://hang.example/{number}"} for number in range(3)]
        api.post("/jobs", json={"tasks": tasks}).raise_for_status()
        until(lambda: _stats(gateway)["in_flight"] == len(tasks))
        group.store.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        [worker] = group.workers
        assert worker.stop() == 0
        # Without a deadline for all phases it would be 5 s for claims, the grace, and 5 s to settle.
        assert time.monotonic() - began < GRACE + 5


@pytest.mark.long
@pytest.mark.parametrize("queued", [False, True])
def test_random_kills_of_every_process_change_nothing_in_the_outcome(
    seaweedfs: S3Server, own_valkey: Valkey, gateway: Program, tmp_path: Path, queued: bool
) -> None:
    count = 2_000
    with (
        cluster(tmp_path, gateway=gateway, valkey=own_valkey, s3=seaweedfs, queued=queued) as group,
        _http(group) as api,
    ):
        jobs = submitted_under_kills(group, api, count=count, jobs=6)
        for number, job_id in enumerate(jobs):
            check_outcome(api, job_id, count, f"{number}/")


def submitted_under_kills(
    group: Cluster,
    api: httpx.Client,
    *,
    count: int,
    jobs: int,
    rounds: int = 20,
    crash: Callable[[], None] | None = None,
) -> list[str]:
    """Submit jobs while processes are killed, or stand still, in one round after the other.

    With `crash`, an engine is crashed by it in some of the rounds, too.
    """
    dice, submitted = random.Random(11), list[str]()
    for round_ in range(rounds):
        if round_ < jobs:
            key = {"Idempotency-Key": f"job-{round_}"}
            body = {"tasks": [{"url": url} for url in urls_of(count, f"{round_}/")]}
            submitted.append(_submit(api, body, key))
        time.sleep(dice.uniform(0.0, 0.5))  # the moment of death must be any moment
        process = dice.choice(group.processes)
        if dice.random() < 0.25:
            process.suspend()
            time.sleep(dice.uniform(0.0, 6.0))  # longer than a lease, or not
            process.resume()
        else:
            process.kill()
            if crash and dice.random() < 0.5:
                crash()
            group.start(process)
    return submitted


def urls_of(count: int, folder: str = "") -> list[str]:
    return [
        f"https://{kind}.example/{folder}{number}?{OPTIONS.get(kind, 'size=4096')}"
        for number in range(count)
        for kind in [KINDS[number % len(KINDS)]]
    ]


def check_outcome(api: httpx.Client, job_id: str, count: int, folder: str = "") -> None:
    run = ended(api, job_id)
    rows = every_row(api, job_id, limit="1000")
    assert run["status"] == "completed"
    assert [row["url"] for row in rows] == urls_of(count, folder)
    assert len({row["task_id"] for row in rows}) == count
    failed = count // len(KINDS)
    assert Counter(row["status"] for row in rows) == {
        "successful": count - failed,
        "failed": failed,
    }
    stats = run["stats"]
    assert stats["total"] == stats["completed"] == count
    assert (stats["successful"], stats["failed"]) == (count - failed, failed)
    for row in rows[:: count // 20]:
        if row["status"] == "successful":
            page = httpx.get(row["result_url"]).raise_for_status()
            assert str(row["url"]).split("?")[0].encode() in page.content


class _Repeating(httpx.HTTPTransport):
    """What is answered 503, or not at all, is asked again; what has ended by itself is started."""

    def __init__(self, group: Cluster) -> None:
        super().__init__()
        self._group = group

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        def ask() -> httpx.Response | None:
            self._group.start_ended()
            try:
                answer = super(_Repeating, self).handle_request(request)
            except httpx.TransportError:
                return None
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                return answer
            answer.close()
            return None

        return until(ask)


def repeating_client(group: Cluster) -> httpx.Client:
    return _http(group, _Repeating(group))


def _submit(api: httpx.Client, body: object, key: dict[str, str]) -> str:
    """Submit until it is answered; the key makes it one job."""

    def ask() -> str | None:
        try:
            answer = api.post("/jobs", json=body, headers=key)
        except httpx.TransportError:
            return None
        return (
            None if answer.status_code >= 500 else str(answer.raise_for_status().json()["job_id"])
        )

    return until(ask)


def _completed(api: httpx.Client, job_id: str) -> int:
    job = api.get(f"/jobs/{job_id}").raise_for_status().json()
    return int(job["latest_run"]["stats"]["completed"])


def _stats(gateway: Program) -> dict[str, int]:
    stats: dict[str, int] = httpx.get(f"{gateway.url}_mock/stats").json()
    return stats


def _http(group: Cluster, transport: httpx.BaseTransport | None = None) -> httpx.Client:
    headers = {"X-API-Key": KEY}
    return httpx.Client(base_url=group.url, headers=headers, timeout=200, transport=transport)
