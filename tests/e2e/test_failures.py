"""Failed tasks by group, and reruns of a group: with curl's calls, the client and the command."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from conveyor.client import BadRequestError, ConflictError, Conveyor, Failures
from tests.e2e.conftest import client_of
from tests.e2e.polling import ended, every_row
from tests.e2e.test_cli_people import Run, environ, run  # noqa: F401 - fixtures
from tests.harness.programs import Program

URLS = [
    *(f"https://ok.example/{n}" for n in range(4)),
    *(f"https://permanent.example/{n}" for n in range(3)),
    *(f"https://nohost.example/{n}" for n in range(2)),
]
GROUPS = [("permanent.example", "RESP002", 3), ("nohost.example", "RESP007", 2)]


@pytest.fixture
def job(api: httpx.Client) -> str:
    """An ended job: four pages, and five failures in two groups."""
    body = {"tasks": [{"url": url} for url in URLS], "retries": 0}
    job_id: str = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
    assert ended(api, job_id)["stats"]["failed"] == 5
    return job_id


def test_failures_are_grouped_with_an_example_of_each(api: httpx.Client, job: str) -> None:
    told = api.get(f"/jobs/{job}/failures").raise_for_status().json()
    assert (told["failed"], told["groups_total"]) == (5, 2)
    assert [(one["host"], one["code"], one["count"]) for one in told["groups"]] == GROUPS
    rows = {row["task_id"]: row for row in every_row(api, job)}
    for group in told["groups"]:
        example = rows[group["example_task_id"]]
        assert group["example_url"] == example["url"]
        assert (group["title"], group["detail"]) == (
            example["error"]["title"],
            example["error"]["detail"],
        )
    first = api.get(f"/jobs/{job}/failures?limit=1").raise_for_status().json()
    assert (len(first["groups"]), first["groups_total"], first["failed"]) == (1, 2, 5)
    run_id = api.get(f"/jobs/{job}").json()["latest_run"]["run_id"]
    assert api.get(f"/jobs/{job}/runs/{run_id}/failures").json() == told


@pytest.mark.parametrize(
    ("query", "urls"),
    [
        ("host=ok.example", URLS[:4]),
        ("host=ok.example,Nohost.example", [*URLS[:4], *URLS[7:]]),
        ("code=RESP007", URLS[7:]),
        ("reason=bad_target&host=permanent.example&limit=2", URLS[4:7]),
        ("status=failed&host=ok.example", []),
        ("status=successful&code=RESP007", []),
    ],
)
def test_rows_are_listed_by_host_reason_and_code(
    api: httpx.Client, job: str, query: str, urls: list[str]
) -> None:
    run_id = api.get(f"/jobs/{job}").json()["latest_run"]["run_id"]
    for path in (f"/jobs/{job}/results", f"/jobs/{job}/runs/{run_id}/results"):
        found = list[str]()
        cursor: str | None = ""
        while cursor is not None:
            page = api.get(f"{path}?{query}&cursor={cursor}").raise_for_status().json()
            found += [row["url"] for row in page["results"]]
            cursor = page["next_cursor"]
        assert found == urls


def test_a_condition_that_no_row_can_meet_is_refused(
    api: httpx.Client, running: Program, job: str
) -> None:
    refused = api.get(f"/jobs/{job}/results?reason=bloked")
    assert (refused.status_code, refused.json()["field"]) == (400, "reason")
    assert "did you mean `blocked`" in refused.json()["detail"]
    twice = api.get(f"/jobs/{job}/results?reason=blocked&reason=timeout")
    assert (twice.status_code, twice.json()["field"]) == (400, "reason")
    with client_of(running, key="a-stranger") as stranger:
        assert stranger.get(f"/jobs/{job}/results?host=ok.example").status_code == 404


def test_failures_of_others_are_not_found(running: Program, job: str) -> None:
    with client_of(running, key="a-stranger") as stranger:
        assert stranger.get(f"/jobs/{job}/failures").status_code == 404


@pytest.mark.parametrize(
    ("body", "again"),
    [
        ({"code": ["RESP007"]}, URLS[7:]),
        ({"host": ["Permanent.example"]}, URLS[4:7]),
        ({"status": ["failed"], "host": ["ok.example", "nohost.example"]}, URLS[7:]),
        ({"scraped_before": "2001-01-01T00:00:00Z"}, []),
    ],
)
def test_a_group_is_run_again_and_the_rest_is_inherited(
    api: httpx.Client, job: str, body: dict[str, object], again: list[str]
) -> None:
    answer = api.post(f"/jobs/{job}/rerun", json=body)
    if not again:
        assert (answer.status_code, answer.json()["code"]) == (409, "no_matching_tasks")
        return
    told = answer.raise_for_status().json()
    assert (told["retried_tasks"], told["inherited_tasks"]) == (len(again), 9 - len(again))
    assert ended(api, job)["stats"]["completed"] == 9
    rows = every_row(api, job)
    assert [row["url"] for row in rows if "source_run_id" not in row] == again


def test_changed_parameters_reach_the_gateway_for_the_selected_tasks_alone(
    api: httpx.Client,
) -> None:
    body = {"tasks": [{"url": f"https://ok.example/{n}"} for n in range(3)]}
    job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
    ended(api, job_id)
    chosen = every_row(api, job_id)[1]["task_id"]
    asked = {"task_ids": [chosen], "zenrows_params": {"premium_proxy": True}}
    api.post(f"/jobs/{job_id}/rerun", json=asked).raise_for_status()
    ended(api, job_id)
    sent = [
        api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/content").text
        for row in every_row(api, job_id)
    ]
    assert ["premium_proxy" in page for page in sent] == [False, True, False]


def test_removed_parameters_are_not_sent_for_the_selected_tasks(
    api: httpx.Client,
    run: Run,  # noqa: F811
) -> None:
    body = {
        "tasks": [{"url": f"https://ok.example/{n}"} for n in range(3)],
        "zenrows_params": {"mode": "auto", "wait": 1},
    }
    job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
    ended(api, job_id)
    [first, second, third] = [row["task_id"] for row in every_row(api, job_id)]
    asked = {"task_ids": [second], "zenrows_params": {"mode": None, "js_render": True}}
    api.post(f"/jobs/{job_id}/rerun", json=asked).raise_for_status()
    ended(api, job_id)
    run("rerun", job_id, "--task", third, "--param", "wait=", "--follow")
    sent = [api.get(f"/jobs/{job_id}/tasks/{one}/content").text for one in (first, second, third)]
    assert ["mode" in page for page in sent] == [True, False, True]
    assert ["js_render" in page for page in sent] == [False, True, False]
    assert ["wait" in page for page in sent] == [True, True, False]


@pytest.fixture
def client(running: Program) -> Iterator[Conveyor]:
    with Conveyor(running.url, "an-api-key") as client:
        yield client


def test_the_client_groups_failures_and_runs_them_again(client: Conveyor) -> None:
    job = client.submit(URLS, retries=0)
    client.wait(job.job_id)
    found = client.failures(job.job_id)
    assert isinstance(found, Failures)
    assert [(one.host, one.code, one.count) for one in found.groups] == GROUPS
    largest = found.groups[0]
    rows = list(client.results(job.job_id, bodies=False, host=[largest.host or ""]))
    assert [row.url for row in rows] == URLS[4:7]
    again = client.rerun(
        job.job_id, reason=[largest.reason], host=[largest.host or ""], params={"js_render": True}
    )
    assert again.retried_tasks == largest.count
    client.wait(job.job_id)
    with pytest.raises(BadRequestError, match="did you mean `blocked`"):
        client.rerun(job.job_id, reason=["bloked"])
    with pytest.raises(ConflictError, match="no tasks with status failed, code RESP999"):
        client.rerun(job.job_id, code=["RESP999"])


def test_the_command_lists_groups_and_runs_one_again(run: Run, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "urls").write_text("\n".join(URLS))
    job = run("submit", "urls", "--retries", "0").stdout.strip()
    run("status", job, "--follow")
    listed = run("failures", job).stdout.splitlines()
    assert [line.split("\t")[:2] for line in listed] == [
        ["3", "permanent.example"],
        ["2", "nohost.example"],
    ]
    told = json.loads(run("failures", job, "--json", "--limit", "1").stdout)
    assert told["groups_total"] == 2
    rows = run("results", job, "--code", "RESP007", "--ndjson").stdout.splitlines()
    assert [json.loads(row)["url"] for row in rows] == URLS[7:]
    rows = run("results", job, "--host", "ok.example", "--reason", "blocked").stdout.splitlines()
    assert rows == []
    saved = run("results", job, "--host", "ok.example", "--out", "pages", "--json").stdout
    assert json.loads(saved)["saved"] == 4
    again = run("rerun", job, "--code", "RESP007", "--param", "js_render=true", "--json").stdout
    assert json.loads(again)["retried_tasks"] == 2
    run("status", job, "--follow")
    assert "did you mean" in run("rerun", job, "--reason", "tiemout", code=1).stderr
    assert "7d" in run("rerun", job, "--older-than", "soon", code=2).stderr


def test_a_timeline_counts_all_tasks_by_time(
    running: Program, api: httpx.Client, client: Conveyor, job: str
) -> None:
    told = api.get(f"/jobs/{job}/timeline").raise_for_status().json()
    assert sum(one["successful"] for one in told["intervals"]) == 4
    assert sum(one["failed"] for one in told["intervals"]) == 5
    assert (told["estimated"], told["rows"]) == (False, 9)
    assert told["until"] == max(row["updated_at"] for row in every_row(api, job))
    assert api.get(f"/jobs/{job}/runs/{told['run_id']}/timeline").json() == told
    found = client.timeline(job, run_id=told["run_id"])
    assert [one.failed for one in found.intervals] == [one["failed"] for one in told["intervals"]]
    with client_of(running, key="a-stranger") as stranger:
        assert stranger.get(f"/jobs/{job}/timeline").status_code == 404
