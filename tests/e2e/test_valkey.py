"""Coordination on a Valkey server that is suspended, killed and restarted empty under a service."""

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.conftest import client_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, mock_gateway, service
from tests.harness.valkey import Valkey

COUNT = 600
NUMBERS = count(1)
CAP = 20
FAILED_RENEWALS = 'port_unavailable_total{method="renew",port="coordination"}'
SITE = "https://slow.example"


def test_a_service_goes_on_while_valkey_is_away_and_counts_exactly_once_it_is_back(
    own_valkey: Valkey, tmp_path: Path
) -> None:
    outages: list[tuple[Callable[[], None], Callable[[], None]]] = [
        (own_valkey.suspend, own_valkey.resume),
        (own_valkey.kill, own_valkey.start),
    ]
    with (
        mock_gateway() as gateway,
        service(data=tmp_path, gateway=gateway.url, environ=_environ(own_valkey)) as program,
        client_of(program) as api,
    ):
        job_ids = list[str]()
        for fail, mend in outages:
            job_ids.append(_submit(api, COUNT))  # the last one may have ended by now
            _wait_for_progress(api, job_ids[-1])
            failed = _metric(program, FAILED_RENEWALS)
            fail()
            # Calls that are in progress end. From the next renewal on none begins.
            until(lambda: _metric(program, FAILED_RENEWALS) > failed)  # noqa: B023 - waited for
            until(lambda: _stats(gateway)["in_flight"] == 0)
            _check_that_only_workers_wait(program, gateway, api, job_ids)
            mend()
            until(lambda: _get(program, "/readyz").status_code == 200)
        _check_outcomes(gateway, api, dict(zip(job_ids, [COUNT, 1] * 2, strict=True)))


def test_a_service_that_is_killed_without_valkey_starts_without_it(
    own_valkey: Valkey, tmp_path: Path
) -> None:
    with mock_gateway() as gateway:
        settings: dict[str, Any] = {"data": tmp_path, "gateway": gateway.url}
        settings["environ"] = _environ(own_valkey)
        with service(**settings) as program, client_of(program) as api:
            first = _submit(api, COUNT)
            _wait_for_progress(api, first)
            own_valkey.kill()
            program.kill()
        with service(**settings) as program, client_of(program) as api:
            assert _get(program, "/readyz").status_code == 503
            second = _submit(api, 1)
            assert _completed(api, second) == 0
            own_valkey.start()
            until(lambda: _get(program, "/readyz").status_code == 200)
            # Pages that were not settled at the kill are fetched again.
            _check_outcomes(gateway, api, {first: COUNT, second: 1}, once=False)


def _environ(valkey: Valkey) -> Mapping[str, str]:
    return {
        "CONVEYOR_COORDINATION": valkey.url,
        "CONVEYOR_RENEWAL": "1s",
        "CONVEYOR_REQUESTS_PER_SECOND": "10000",
    }


def _check_that_only_workers_wait(
    program: Program, gateway: Program, api: httpx.Client, job_ids: list[str]
) -> None:
    until(lambda: _get(program, "/readyz").status_code == 503)
    assert "engine of coordination does not answer" in _get(program, "/readyz").json()["detail"]
    calls = _stats(gateway)["calls"]
    skipped = _metric(program, "rate_limits_skipped_total")

    job_ids.append(_submit(api, 1))
    for job_id in job_ids:
        api.get(f"/jobs/{job_id}").raise_for_status()
        api.get(f"/jobs/{job_id}/results").raise_for_status()
    until(lambda: _metric(program, "rate_limits_skipped_total") >= skipped + 3)
    assert _completed(api, job_ids[-1]) == 0
    assert _stats(gateway)["calls"] == calls
    assert _get(program, "/healthz").status_code == 200


def _check_outcomes(
    gateway: Program, api: httpx.Client, jobs: Mapping[str, int], *, once: bool = True
) -> None:
    for job_id, pages in jobs.items():
        run = ended(api, job_id)
        rows = every_row(api, job_id, limit="1000")
        assert Counter(row["status"] for row in rows) == {"successful": pages}
        assert run["stats"]["total"] == run["stats"]["successful"] == pages
    stats = _stats(gateway)
    fetched = [times for url, times in stats["urls"].items() if url.startswith(SITE)]
    assert len(fetched) == sum(jobs.values())
    if once:
        assert set(fetched) == {1}
        assert stats["most_in_flight"] <= CAP + len(jobs) - 1


def _submit(api: httpx.Client, pages: int) -> str:
    number = next(NUMBERS)
    urls = [f"{SITE}/{number}/{page}?ms=50" for page in range(pages)]
    body = {"tasks": [{"url": url} for url in urls], "max_inflight": CAP if pages > 1 else 1}
    answer = api.post("/jobs", json=body)
    assert answer.status_code in {201, 202}
    return str(answer.json()["job_id"])


def _wait_for_progress(api: httpx.Client, job_id: str) -> None:
    before = _completed(api, job_id)
    until(lambda: _completed(api, job_id) > before)


def _completed(api: httpx.Client, job_id: str) -> int:
    job = api.get(f"/jobs/{job_id}").raise_for_status().json()
    return int(job["latest_run"]["stats"]["completed"])


def _get(program: Program, path: str) -> httpx.Response:
    return httpx.get(program.url.removesuffix("/v1") + path, timeout=200)


def _metric(program: Program, name: str) -> float:
    lines = _get(program, "/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"conveyor_{name}"))


def _stats(gateway: Program) -> dict[str, Any]:
    stats: dict[str, Any] = httpx.get(f"{gateway.url}_mock/stats").json()
    return stats
