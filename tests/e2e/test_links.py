"""Signed links: they open one result, for a while, without a key, and nothing else."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import pytest

from tests.e2e.conftest import client_of, problem_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, service


@pytest.fixture
def rows(api: httpx.Client) -> list[dict[str, Any]]:
    return _scraped(api, 2)


def test_a_link_is_absolute_and_opens_without_a_key(
    running: Program, api: httpx.Client, rows: list[dict[str, Any]]
) -> None:
    root = running.url.removesuffix("/v1")
    for row in rows:
        assert row["result_url"].startswith(root + "/")
        linked = httpx.get(row["result_url"]).raise_for_status()
        asked = api.get(f"/jobs/{row['job_id']}/tasks/{row['task_id']}/content")
        assert linked.content == asked.content
        assert linked.headers["etag"] == asked.headers["etag"]
        assert row["url"].encode() in linked.content


def test_a_link_can_be_asked_for_its_head(rows: list[dict[str, Any]]) -> None:
    [link, _] = [row["result_url"] for row in rows]
    assert httpx.head(link).headers["content-length"] == str(len(httpx.get(link).content))


def test_a_link_takes_no_other_method(rows: list[dict[str, Any]]) -> None:
    for method in ("POST", "PUT", "DELETE"):
        answer = httpx.request(method, rows[0]["result_url"])
        problem_of(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "GET, HEAD"


def test_a_link_names_no_storage_and_no_key(rows: list[dict[str, Any]]) -> None:
    link = urlsplit(rows[0]["result_url"])
    named = {rows[0]["job_id"], rows[0]["run_id"], rows[0]["task_id"]}
    assert named < set(link.path.split("/"))
    assert dict(parse_qsl(link.query)).keys() == {"expires", "signature"}
    assert "an-api-key" not in rows[0]["result_url"]


@pytest.mark.parametrize("part", ["job_id", "run_id", "task_id"])
def test_a_link_with_another_path_is_refused(rows: list[dict[str, Any]], part: str) -> None:
    link: str = rows[0]["result_url"]
    for other in (rows[1]["task_id"], "01ARZ3NDEKTSV4RRFFQ69G5FAV", "x", "%00"):
        _assert_refused(link.replace(f"/{rows[0][part]}", f"/{other}"))


def test_a_link_to_one_task_does_not_open_another(
    api: httpx.Client, rows: list[dict[str, Any]]
) -> None:
    [first, second] = [urlsplit(row["result_url"]) for row in rows]
    _assert_refused(first._replace(path=second.path).geturl())
    [elsewhere, _] = _scraped(api, 2)
    _assert_refused(first._replace(path=urlsplit(elsewhere["result_url"]).path).geturl())


@pytest.mark.parametrize("expires", ["0", "1", "9999999999", "", "-1", "1e10", "٣", "9" * 400])
def test_a_link_with_another_expiry_is_refused(rows: list[dict[str, Any]], expires: str) -> None:
    _assert_refused(_changed(rows[0]["result_url"], {"expires": expires}))


def test_a_link_with_another_signature_is_refused(rows: list[dict[str, Any]]) -> None:
    link: str = rows[0]["result_url"]
    good = dict(parse_qsl(urlsplit(link).query))["signature"]
    flipped = ("0" if good[0] != "0" else "1") + good[1:]
    for bad in ("", "x", "ä", "\x00", good[:-1], good + "0", good.upper(), flipped, "0" * 64):
        if bad != good:
            _assert_refused(_changed(link, {"signature": bad}))
    _assert_refused(link.partition("?")[0])


def test_a_link_can_be_told_nothing_by_a_key(
    running: Program, api: httpx.Client, rows: list[dict[str, Any]]
) -> None:
    bare = rows[0]["result_url"].partition("?")[0]
    problem_of(api.get(bare), 404, "not_found")


def test_two_links_to_one_result_work_beside_each_other(api: httpx.Client) -> None:
    [row, _] = _scraped(api, 2)
    [again, _] = every_row(api, row["job_id"])
    for link in (row["result_url"], again["result_url"]):
        assert httpx.get(link).status_code == 200


def test_links_lead_to_the_public_address_of_the_service(gateway: Program, tmp_path: Path) -> None:
    public = {
        "CONVEYOR_PUBLIC_URL": "https://scrape.example/conveyor/",
        "CONVEYOR_AUTH": "forward",
    }
    with (
        service(data=tmp_path, gateway=gateway.url, environ=public) as program,
        client_of(program) as api,
    ):
        [row, _] = _scraped(api, 2)
        link: str = row["result_url"]
        assert link.startswith("https://scrape.example/conveyor/_local/results/")
        local = link.replace("https://scrape.example/conveyor", program.url.removesuffix("/v1"))
        assert httpx.get(local).status_code == 200


def test_a_link_outlives_the_process_that_gave_it(gateway: Program, tmp_path: Path) -> None:
    with (
        service(data=tmp_path, gateway=gateway.url) as program,
        client_of(program) as api,
    ):
        link: str = _scraped(api, 2)[0]["result_url"]
        port = urlsplit(program.url).port
        program.kill()
    with service(data=tmp_path, gateway=gateway.url, port=port):
        assert httpx.get(link).status_code == 200


def test_a_link_of_another_service_is_refused(
    gateway: Program, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    with service(data=tmp_path, gateway=gateway.url) as program:
        there = urlsplit(program.url).netloc
        _assert_refused(urlsplit(rows[0]["result_url"])._replace(netloc=there).geturl())


def test_a_link_expires_and_a_fresh_listing_gives_a_fresh_one(
    gateway: Program, tmp_path: Path
) -> None:
    short = {"CONVEYOR_RESULT_URL_LIFE": "1s"}
    with (
        service(data=tmp_path, gateway=gateway.url, environ=short) as program,
        client_of(program) as api,
    ):
        [row, _] = _scraped(api, 2)
        assert httpx.get(row["result_url"]).status_code == 200
        until(lambda: httpx.get(row["result_url"]).status_code == 404)
        problem = problem_of(httpx.get(row["result_url"]), 404, "not_found")
        assert "expired" in problem["detail"]
        [fresh, _] = every_row(api, row["job_id"])
        assert httpx.get(fresh["result_url"]).status_code == 200


def _scraped(api: httpx.Client, count: int) -> list[dict[str, Any]]:
    tasks = [{"url": f"https://ok.example/link/{number}"} for number in range(count)]
    job_id = api.post("/jobs", json={"tasks": tasks}).raise_for_status().json()["job_id"]
    ended(api, job_id)
    return [{**row, "job_id": job_id} for row in every_row(api, job_id)]


def _changed(link: str, query: dict[str, str]) -> str:
    parts = urlsplit(link)
    return parts._replace(query=urlencode(dict(parse_qsl(parts.query)) | query)).geturl()


def _assert_refused(link: str) -> None:
    problem_of(httpx.get(link), 404, "not_found")
