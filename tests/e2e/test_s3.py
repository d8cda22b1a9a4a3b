"""Lists, results and exports on S3: `conveyor serve` and the official client, with a real server."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from zenrows.batch import ZenRowsBatchClient
from zenrows.batch.models import TaskResult

from conveyor.adapters.s3.address import S3Address, parse_address
from conveyor.client import Conveyor
from tests.e2e.conftest import client_of, problem_of
from tests.e2e.polling import ended, until
from tests.harness.programs import Program, service
from tests.s3_server import S3Server

KEY = "an-api-key"
FIELDS: dict[str, int | str] = {"url": "url", "external_id": "id"}
MANY = 300
QUICK: dict[str, Any] = {"timeout": 200.0, "poll_interval": 0.05}


@contextmanager
def _served(
    server: S3Server, gateway: Program, data: Path, layout: str = "objects", **environ: str
) -> Iterator[tuple[Program, S3Address]]:
    """A service whose results, lists and exports are at one address."""
    address = server.new_address()
    given = {
        **server.environ,
        "CONVEYOR_BODIES": f"s3:{address}&layout={layout}",
        "CONVEYOR_BLOBS": f"s3:{address}",
        "CONVEYOR_CONCURRENCY": "100",
        **environ,
    }
    place = parse_address(address, {})
    assert place
    with service(data=data, gateway=gateway.url, environ=given) as program:
        yield program, place


@pytest.mark.parametrize("layout", ["objects", "segments"])
def test_the_official_client_uploads_scrapes_downloads_exports_and_deletes(
    seaweedfs: S3Server, gateway: Program, tmp_path: Path, layout: str
) -> None:
    with (
        _served(seaweedfs, gateway, tmp_path / "data", layout) as (program, place),
        ZenRowsBatchClient(KEY, base_url=program.url) as client,
    ):
        rows = "".join(f"{n},https://ok.example/{n}\n" for n in range(30))
        list_id = client.upload_csv(BytesIO(f"id,url\n{rows}".encode()), fields=FIELDS, header=True)
        job = client.submit_regular(file_input_id=list_id)
        job.run.wait(**QUICK)

        results = list(job.run.results())
        assert sorted(str(row.external_id) for row in results) == sorted(map(str, range(30)))
        for row in results:
            page = _fetched(row)
            assert f"https://ok.example/{row.external_id}".encode() in page.content
            assert page.headers["content-type"].startswith("text/html")
        hosts = {urlsplit(row.result_url or "").netloc for row in results}
        if layout == "objects":
            assert hosts == {urlsplit(seaweedfs.url).netloc}
            saved_as = {_fetched(row).headers["content-disposition"] for row in results}
            assert saved_as == {f'attachment; filename="{row.task_id}.html"' for row in results}
            assert _local_requests(program) == []
        else:
            assert urlsplit(program.url).netloc in hosts
        assert job.run.download_to_dir(tmp_path / "pages") == 30

        archive = client.download_all_results(
            job.job_id, results[0].run_id, tmp_path / "all.zip", poll_interval=0.05
        )
        assert len(zipfile.ZipFile(archive).namelist()) == 31
        assert not [line for line in _local_requests(program) if "/_local/results/" not in line]
        assert (tmp_path / "data" / "blobs").exists()
        assert not [path for path in (tmp_path / "data" / "blobs").rglob("*") if path.is_file()]
        assert not [path for path in (tmp_path / "data" / "bodies").rglob("*") if path.is_file()]

        client.job(job.job_id).delete()
        left = f"inputs/{list_id}/"  # the list was read at once, so no job holds it
        until(lambda: all(key.startswith(left) for key in seaweedfs.keys(place)))


def test_a_list_that_is_ingested_later_bypasses_the_service(
    seaweedfs: S3Server, gateway: Program, tmp_path: Path
) -> None:
    with (
        _served(seaweedfs, gateway, tmp_path) as (program, place),
        client_of(program) as api,
    ):
        created = api.post("/job_inputs", json={"type": "txt"}).raise_for_status().json()
        upload = created["upload"]
        assert upload["url"].startswith(f"{seaweedfs.url}/")
        assert upload["headers"] == {"Content-Type": "text/plain", "If-None-Match": "*"}
        asked = {"file_input_id": created["file_input_id"], "on_invalid": "skip"}
        problem_of(api.post("/jobs", json=asked), 409, "file_input_not_uploaded")

        content = b"".join(b"https://ok.example/%d\n" % n for n in range(MANY))
        put = httpx.put(upload["url"], content=content, headers=upload["headers"])
        assert put.status_code == 200
        answer = api.post("/jobs", json=asked)
        assert answer.status_code == 202, answer.text
        job_id = answer.json()["job_id"]
        run = ended(api, job_id)
        assert (run["status"], run["stats"]["successful"]) == ("completed", MANY)

        api.delete(f"/jobs/{job_id}").raise_for_status()
        # The file input lives on for its day: another job may name it.
        until(lambda: len(seaweedfs.keys(place)) == 1)


def test_a_list_that_is_too_large_is_refused_at_the_submit(
    seaweedfs: S3Server, gateway: Program, tmp_path: Path
) -> None:
    limits = {"CONVEYOR_LIST_BYTES": "1000"}
    with (
        _served(seaweedfs, gateway, tmp_path, **limits) as (program, _),
        client_of(program) as api,
    ):
        refused = api.post("/job_inputs", json={"type": "txt", "size": 1001})
        problem_of(refused, 413, "payload_too_large")
        created = api.post("/job_inputs", json={"type": "txt"}).raise_for_status().json()
        upload = created["upload"]
        httpx.put(upload["url"], content=b"#" * 1001, headers=upload["headers"]).raise_for_status()
        refused = api.post("/jobs", json={"file_input_id": created["file_input_id"]})
        assert "at most 1000 bytes" in problem_of(refused, 413, "payload_too_large")["detail"]


def test_with_credentials_that_expire_soon_links_lead_to_the_service_and_last(
    seaweedfs: S3Server, gateway: Program, tmp_path: Path
) -> None:
    """A presigned URL ends with the credentials that signed it, whatever it says itself."""
    end = datetime.now(UTC) + timedelta(minutes=20)
    environ = {"AWS_CREDENTIAL_EXPIRATION": end.strftime("%Y-%m-%dT%H:%M:%SZ")}
    with (
        _served(seaweedfs, gateway, tmp_path, **environ) as (program, _),
        ZenRowsBatchClient(KEY, base_url=program.url) as client,
        client_of(program) as api,
    ):
        created = api.post("/job_inputs", json={"type": "txt"}).raise_for_status().json()
        assert created["upload"]["url"].startswith(_origin(program))
        content = BytesIO(b"1,https://ok.example/1\n")
        list_id = client.upload_csv(content, fields={"url": 1, "external_id": 0})
        job = client.submit_regular(file_input_id=list_id)
        job.run.wait(**QUICK)

        [row] = job.run.results()
        assert str(row.result_url).startswith(_origin(program))
        assert b"https://ok.example/1" in _fetched(row).content
        done = job.run.start_export().wait(**QUICK)
        assert str(done.data.download_url).startswith(_origin(program))
        assert zipfile.is_zipfile(done.download_to_path(tmp_path / "one.zip"))
        for kind in ("inputs", "results", "exports"):
            assert any(f"/_local/{kind}/" in line for line in _local_requests(program))


def test_our_own_client_sends_a_file_or_a_pipe_and_downloads_an_export(
    seaweedfs: S3Server, gateway: Program, tmp_path: Path
) -> None:
    with _served(seaweedfs, gateway, tmp_path / "data") as (program, _):
        with Conveyor(program.url, KEY) as client:
            content = b"https://ok.example/1\n"
            client.wait(client.submit_file(BytesIO(content), on_invalid="skip").job_id)
        submitted = _conveyor(program, "submit", "-", "--follow", given=content)
        assert b"completed" in submitted.stdout + submitted.stderr
        [job] = _conveyor(program, "jobs").stdout.split(b"\n")[:1]
        job_id = job.split(b"\t")[0].decode()
        _conveyor(program, "export", job_id, "--out", str(tmp_path / "all.zip"))
        doctor = [sys.executable, "-m", "conveyor", "doctor", "--data", str(tmp_path / "data")]
        told = subprocess.run([*doctor, "--json"], capture_output=True, check=True, timeout=200)
        assert b'"bodies":2' in told.stdout.replace(b" ", b"")
        assert len(zipfile.ZipFile(tmp_path / "all.zip").namelist()) == 2
        assert _local_requests(program) == []


def _fetched(row: TaskResult) -> httpx.Response:
    """As the official client fetches it: without redirects."""
    answer = httpx.get(str(row.result_url))
    assert answer.status_code == 200, answer.text
    return answer


def _local_requests(program: Program) -> list[str]:
    """The counts of requests by which content passed through the service."""
    told = httpx.get(f"{_origin(program)}/metrics").raise_for_status().text
    counts = [line for line in told.splitlines() if line.startswith("conveyor_requests_total{")]
    return [line for line in counts if 'route="/_local/' in line]


def _origin(program: Program) -> str:
    return program.url.removesuffix("/v1")


def _conveyor(
    program: Program, *arguments: str, given: bytes = b""
) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "conveyor", *arguments, "--url", program.url, "--key", KEY]
    return subprocess.run(command, input=given, capture_output=True, check=True, timeout=200)
