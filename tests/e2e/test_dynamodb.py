"""`conveyor serve` with rows and coordination in one table of DynamoDB, and what operators do beside it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from conveyor.testing.local.ports import free_port
from tests.e2e.polling import ended, until
from tests.harness.programs import Program, program, service
from tests.harness.stacks import aws_environ, migrate
from tests.harness.valkey import Valkey
from tests.s3_server import S3Server

KEY = {"X-API-Key": "an-api-key"}


@pytest.mark.long
def test_a_service_without_redis_scrapes_and_says_when_its_table_is_away(
    seaweedfs: S3Server, valkey: Valkey, gateway: Program, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    fake = ["fake", "--port", str(port)]
    with program(fake, url, module="conveyor.testing.dynamodb") as database:
        environ = dict(aws_environ(seaweedfs, valkey, url))
        environ["CONVEYOR_COORDINATION"] = environ["CONVEYOR_METADATA"]
        environ["CONVEYOR_GRACE"] = "1s"
        migrate(environ)
        migrate(environ)
        with (
            service(data=tmp_path, gateway=gateway.url, environ=environ) as served,
            httpx.Client(base_url=served.url, headers=KEY, timeout=200) as api,
        ):
            tasks = [{"url": f"https://ok.example/{number}"} for number in range(20)]
            job = api.post("/jobs", json={"tasks": tasks}).raise_for_status().json()
            assert ended(api, job["job_id"])["stats"]["successful"] == 20
            ready = served.url.replace("/v1", "/readyz")
            assert httpx.get(ready).status_code == 200
            _check_commands(environ)
            operator = _operator_key(environ)
            _check_pages_for_operators(api, operator)
            database.kill()
            until(lambda: httpx.get(ready, timeout=20).status_code == 503)
            assert "metadata" in httpx.get(ready, timeout=20).text
            # The keys of operators are in the table too.
            assert api.get("/operator/engines", headers=operator).status_code == 503
    assert not list(tmp_path.iterdir())


def _check_commands(environ: Mapping[str, str]) -> None:
    """Operators open the table themselves, while the service uses it."""
    examined = _conveyor(environ, "doctor")
    assert examined.returncode == 0, examined.stdout + examined.stderr
    created = _conveyor(environ, "keys", "create", "--caller", "ann")
    assert created.returncode == 0, created.stderr
    assert "ann" in _conveyor(environ, "keys", "list").stdout
    dead = _conveyor(environ, "dlq", "list")
    assert dead.returncode == 2
    assert "in the memory of the service" in dead.stderr
    assert "test" not in examined.stderr


def _operator_key(environ: Mapping[str, str]) -> dict[str, str]:
    options = ("--caller", "ops", "--scope", "operator", "--json")
    return {"X-API-Key": json.loads(_conveyor(environ, "keys", "create", *options).stdout)["key"]}


def _check_pages_for_operators(api: httpx.Client, operator: Mapping[str, str]) -> None:
    for _ in range(3):
        api.post("/jobs", json={"tasks": [], "status": "open"}).raise_for_status()
    listed = until(lambda: _all_live_runs(api, operator, 3))
    [*others, caller] = sorted(
        _page(api, operator, "callers", "callers"), key=lambda one: one["live_runs"]
    )
    assert {(one["caller"], one["active_keys"]) for one in others} == {("ann", 1), ("ops", 1)}
    assert {one["caller"] for one in listed} == {caller["caller"]}
    assert caller["live_runs"] == 3
    assert all(one["available"] for one in _engines(api, operator))
    [process] = _page(api, operator, "processes", "processes")
    assert process["role"] == "serve"


def _all_live_runs(
    api: httpx.Client, operator: Mapping[str, str], count: int
) -> list[dict[str, Any]] | None:
    """Page by page, once the listing has caught up."""
    found, query = list[dict[str, Any]](), {"limit": "2"}
    while True:
        answer = api.get("/operator/runs", params=query, headers=operator)
        page = answer.raise_for_status().json()
        found += page["runs"]
        if page["next_cursor"] is None:
            return found if len(found) == count else None
        query["cursor"] = page["next_cursor"]


def _engines(api: httpx.Client, operator: Mapping[str, str]) -> list[dict[str, Any]]:
    return _page(api, operator, "engines", "engines")


def _page(
    api: httpx.Client, operator: Mapping[str, str], path: str, field: str
) -> list[dict[str, Any]]:
    answer = api.get(f"/operator/{path}", headers=operator)
    found: list[dict[str, Any]] = answer.raise_for_status().json()[field]
    return found


def _conveyor(environ: Mapping[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "conveyor", *arguments],
        env={**os.environ, **environ},
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_table_that_does_not_exist_is_refused_at_the_start(
    seaweedfs: S3Server, valkey: Valkey, dynamodb_url: str
) -> None:
    environ = aws_environ(seaweedfs, valkey, dynamodb_url)
    refused = _conveyor(environ, "serve", "--port", str(free_port()))
    assert refused.returncode == 2
    assert "does not exist: run `conveyor migrate`" in refused.stderr
