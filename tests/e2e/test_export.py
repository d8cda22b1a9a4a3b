"""Exports over HTTP: one file with everything, that any program can open and any caller resume."""

import io
import shutil
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest

from tests.e2e.conftest import client_of, problem_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, service

MIXED = [
    {"url": "https://ok.example/a", "external_id": "etc.passwd"},
    {"url": "https://permanent.example/b"},
    {"url": "https://ok.example/c?size=3000000"},
]


@pytest.fixture
def job(api: httpx.Client) -> dict[str, Any]:
    return _scraped(api, MIXED)


def test_the_file_opens_anywhere_and_holds_every_result(
    api: httpx.Client, job: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "all.zip"
    path.write_bytes(httpx.get(_exported(api, job)["download_url"]).raise_for_status().content)

    if shutil.which("unzip"):
        subprocess.run(["unzip", "-tq", path], check=True)
    rows = every_row(api, job["job_id"])
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        bodies = {name: archive.read(name) for name in archive.namelist()}
    lines = [msgspec.json.decode(line) for line in bodies.pop("manifest.ndjson").splitlines()]
    assert [line["entry"] for line in lines if line["entry"]] == list(bodies)
    for row, line in zip(rows, lines, strict=True):
        assert (line["id"], line["url"], line["status"]) == (
            *(row["task_id"], row["url"], row["status"]),
        )
        assert line["external_id"] == row.get("external_id")
        assert line["error"] == row.get("error")
        if line["entry"]:
            assert line["entry"] == f"{row['task_id']}.html"
            assert bodies[line["entry"]] == httpx.get(row["result_url"]).content
    assert len(bodies) == 2


def test_a_start_is_told_as_the_contract_has_it(api: httpx.Client, job: dict[str, Any]) -> None:
    answer = api.post(_exports(job))
    assert answer.status_code == 202
    assert answer.json().keys() == {"export_id", "status", "created_at", "expires_at"}
    export = _exported(api, job)
    assert export.keys() == {"export_id", "status", "created_at", "expires_at", "download_url"}


def test_a_link_lasts_for_a_day_and_opens_without_a_key(
    api: httpx.Client, running: Program, job: dict[str, Any]
) -> None:
    asked = time.time()
    link: str = _exported(api, job)["download_url"]
    assert link.startswith(running.url.removesuffix("/v1") + "/_local/exports/")
    assert int(parse_qs(urlsplit(link).query)["expires"][0]) >= asked + 24 * 3600
    assert httpx.get(link).status_code == 200
    for bad in (link[:-1] + ("0" if link[-1] != "0" else "1"), link.partition("?")[0]):
        problem_of(httpx.get(bad), 404, "not_found")
    problem_of(httpx.post(link), 405, "method_not_allowed")


def test_a_download_tells_what_it_is(api: httpx.Client, job: dict[str, Any]) -> None:
    link = _exported(api, job)["download_url"]
    whole, head = httpx.get(link), httpx.head(link)
    assert head.content == b""
    for answer in (whole, head):
        assert answer.headers["content-type"] == "application/zip"
        assert answer.headers["content-length"] == str(len(whole.content))
        assert answer.headers["accept-ranges"] == "bytes"
        name = f'attachment; filename="{job["latest_run"]["run_id"]}.zip"'
        assert answer.headers["content-disposition"] == name


def test_a_download_can_be_resumed(api: httpx.Client, job: dict[str, Any]) -> None:
    link = _exported(api, job)["download_url"]
    whole = httpx.get(link)
    length = len(whole.content)
    for asked, start, end in (
        *(("0-0", 0, 1), ("5-", 5, length), ("-7", length - 7, length), ("3-9", 3, 10)),
        *((f"9-{length * 2}", 9, length), (f"{length - 1}-", length - 1, length)),
    ):
        part = httpx.get(
            link, headers={"Range": f"bytes={asked}", "If-Range": whole.headers["etag"]}
        )
        assert part.status_code == 206
        assert part.content == whole.content[start:end]
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{length}"
        assert part.headers["content-length"] == str(end - start)
    for all_of_it in (
        "bytes=0-",
        f"bytes=-{length}",
        "bytes=0-1,3-4",
        "lines=1-2",
        "bytes=9-3",
        "x",
    ):
        answer = httpx.get(link, headers={"Range": all_of_it})
        assert (answer.status_code, len(answer.content)) == (200, length)
    stale = httpx.get(link, headers={"Range": "bytes=5-", "If-Range": '"another"'})
    assert (stale.status_code, len(stale.content)) == (200, length)
    for beyond in (f"bytes={length}-", "bytes=-0", f"bytes={length + 5}-{length + 9}"):
        answer = httpx.get(link, headers={"Range": beyond})
        assert answer.status_code == 416
        assert answer.headers["content-range"] == f"bytes */{length}"


def test_nobody_else_and_no_other_run_has_it(
    api: httpx.Client, stranger: httpx.Client, job: dict[str, Any]
) -> None:
    export_id = _exported(api, job)["export_id"]
    other = _scraped(api, MIXED[:1])
    for caller, path in (
        (stranger, f"{_exports(job)}/{export_id}"),
        (api, f"{_exports(other)}/{export_id}"),
        (api, f"{_exports(job)}/01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        (api, f"{_exports(job)}/x"),
    ):
        problem_of(caller.get(path), 404, "not_found")
    problem_of(stranger.post(_exports(job)), 404, "not_found")
    no_run = f"/jobs/{job['job_id']}/runs/{other['latest_run']['run_id']}/exports"
    problem_of(api.post(no_run), 404, "not_found")
    problem_of(httpx.post(f"{api.base_url}{_exports(job)[1:]}"), 401, "unauthenticated")


def test_a_delete_takes_the_file_along(gateway: Program, tmp_path: Path) -> None:
    with service(data=tmp_path, gateway=gateway.url) as program, client_of(program) as api:
        job = _scraped(api, MIXED)
        link = _exported(api, job)["download_url"]
        files = tmp_path / "blobs" / "exports"
        assert len([one for one in files.rglob("*") if one.is_file()]) == 1

        api.delete(f"/jobs/{job['job_id']}").raise_for_status()

        problem_of(httpx.get(link), 404, "not_found")
        until(lambda: not [one for one in files.rglob("*") if one.is_file()])


def test_results_over_the_cap_are_refused(gateway: Program, tmp_path: Path) -> None:
    cap = {"CONVEYOR_EXPORT_BYTES": str(2**20)}
    with (
        service(data=tmp_path, gateway=gateway.url, environ=cap) as program,
        client_of(program) as api,
    ):
        job = _scraped(api, MIXED)
        export = _ended(api, job)
        assert export["status"] == "failed"
        assert export["error"] == "results are larger than 0.0009765625 gb"
        assert "download_url" not in export
        assert not [one for one in (tmp_path / "blobs").rglob("*") if one.is_file()]


def test_an_export_that_was_cut_off_by_a_kill_is_made_after_it(
    gateway: Program, tmp_path: Path
) -> None:
    with service(data=tmp_path, gateway=gateway.url) as program, client_of(program) as api:
        job = _scraped(api, [{"url": f"https://ok.example/{n}?size=50000"} for n in range(2_000)])
        export_id = api.post(_exports(job)).raise_for_status().json()["export_id"]
        path = f"{_exports(job)}/{export_id}"
        until(lambda: api.get(path).json()["status"] != "pending")
        program.kill()
    with service(data=tmp_path, gateway=gateway.url) as program, client_of(program) as api:
        export = until(lambda: _once_ended(api, path))
        content = httpx.get(export["download_url"]).raise_for_status().content
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            assert len(archive.namelist()) == 2_001
            assert archive.testzip() is None
        assert len([one for one in (tmp_path / "blobs").rglob("*") if one.is_file()]) == 1


def test_no_credential_is_in_the_file(gateway: Program, tmp_path: Path) -> None:
    key = "a-key-to-look-for-0123456789"
    with service(data=tmp_path, gateway=gateway.url) as program, client_of(program, key=key) as api:
        job = _scraped(api, MIXED)
        content = httpx.get(_exported(api, job)["download_url"]).content
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = [content, *(archive.read(name) for name in archive.namelist())]
        assert not [part for part in parts if key.encode() in part]


def _scraped(api: httpx.Client, tasks: list[dict[str, str]]) -> dict[str, Any]:
    job: dict[str, Any] = api.post("/jobs", json={"tasks": tasks}).raise_for_status().json()
    ended(api, job["job_id"])
    return job


def _exports(job: dict[str, Any]) -> str:
    return f"/jobs/{job['job_id']}/runs/{job['latest_run']['run_id']}/exports"


def _exported(api: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    export = _ended(api, job)
    assert export["status"] == "completed", export
    return export


def _ended(api: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    export_id = api.post(_exports(job)).raise_for_status().json()["export_id"]
    return until(lambda: _once_ended(api, f"{_exports(job)}/{export_id}"))


def _once_ended(api: httpx.Client, path: str) -> dict[str, Any] | None:
    export: dict[str, Any] = api.get(path).raise_for_status().json()
    return export if export["status"] in {"completed", "failed"} else None
