"""The commands for people, in pipes: each against a real service, each form of list, each end."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from conveyor.testing.local.ports import free_port
from tests.e2e.conftest import FAST_RETRIES, client_of
from tests.e2e.polling import ended, until
from tests.harness.programs import Program, service
from tests.seed import sampled

SECRET = "an-api-key"
OK = "https://ok.example/"
SLOW = "https://slow.example/?ms=1000&page="
SCRIPT = Path(sys.executable).with_name("conveyor")
# A background job ignores the signal, and so do the programs that it starts.
HEEDS_CTRL_C = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from conveyor.cli.main import main
main()
"""
PERMANENT = "https://permanent.example/"

Told = subprocess.CompletedProcess[str]
Run = Callable[..., Told]


@pytest.fixture
def environ(running: Program, tmp_path: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("CONVEYOR_")}
    return {**own, "HOME": str(tmp_path), "CONVEYOR_URL": running.url, "CONVEYOR_KEY": SECRET}


@pytest.fixture
def run(environ: dict[str, str], tmp_path: Path) -> Run:
    """Run a command; whatever it tells, it is not the key and no traceback."""

    def run(*arguments: str, given: str = "", code: int = 0, **variables: str) -> Told:
        told = subprocess.run(
            [sys.executable, "-m", "conveyor", *arguments],
            input=given,
            capture_output=True,
            check=False,
            text=True,
            timeout=200,
            cwd=tmp_path,
            env={**environ, **variables},
        )
        assert told.returncode == code, told.stderr
        for secret in (SECRET, "Traceback", "\x1b"):
            assert secret not in told.stdout + told.stderr
        return told

    return run


def test_a_scheduled_job_tells_when_it_runs(run: Run, api: httpx.Client) -> None:
    schedule = {
        "calendar": {"times_of_day": ["09:00"], "cadence": {"weekly": {"days": ["mon", "fri"]}}},
        "timezone": "Europe/Berlin",
    }
    body = {"type": "scheduled", "schedule": schedule, "tasks": [{"url": f"{OK}1"}]}
    job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
    facts = _facts(run("status", job_id).stdout)
    assert facts["schedule"] == "weekly mon fri at 09:00 Europe/Berlin"
    assert (facts["schedule_state"], facts["run_status"]) == ("active", "no run")
    assert facts["next_scheduled_run"].startswith("20")
    assert "skipped_fires" not in facts
    assert job_id in run("jobs").stdout
    told = run("status", job_id, "--follow", code=3)
    assert "runs next at 20" in told.stderr
    for command in ("failures", "results", "errors"):
        told = run(command, job_id, code=1)
        assert "has no run: it runs next at 20" in told.stderr
        assert f"conveyor rerun {job_id}" in told.stderr
        assert "--url" not in told.stderr
    assert "No such run" in run("failures", job_id, "--run", job_id, code=1).stderr
    facts = _facts(run("rerun", job_id, "--follow").stdout)
    assert (facts["run_status"], facts["schedule_state"]) == ("completed", "active")


def test_a_list_of_urls_is_submitted_and_followed_to_its_end(
    run: Run, api: httpx.Client, tmp_path: Path
) -> None:
    (tmp_path / "urls.txt").write_text(f"# pages\n{OK}1\n\n{PERMANENT}2\n")
    told = run("submit", "urls.txt", "--name", "two", "--external-id", "A-1", "--follow")
    assert told.stderr == ""
    job_id, *lines = told.stdout.splitlines()
    facts = _facts("\n".join(lines))
    assert facts["job"] == job_id
    assert facts["run_status"] == "completed"
    assert (facts["total"], facts["successful"], facts["failed"]) == ("2", "1", "1")
    assert facts["failed.bad_target"] == "1"
    job = api.get(f"/jobs/{job_id}").json()
    assert (job["name"], job["external_id"]) == ("two", "A-1")


def test_every_option_of_submit_arrives(run: Run, api: httpx.Client) -> None:
    options = ["--max-inflight", "7", "--retries", "0", "--open"]
    options += ["--max-per-host", "2", "--result-ttl-days", "3", "--metadata", "team=news"]
    params = ["--param", "wait=50", "--param", 'custom_headers={"Referer":"https://a.example"}']
    job_id = run("submit", "-", *options, *params, given=OK).stdout.strip()
    job = api.get(f"/jobs/{job_id}").json()
    assert (job["max_inflight"], job["retries"], job["status"]) == (7, 0, "open")
    assert (job["max_per_host"], job["result_ttl_days"]) == (2, 3)
    assert job["metadata"] == {"team": "news"}
    assert job["zenrows_params"]["wait"] == "50"
    assert json.loads(job["zenrows_params"]["custom_headers"]) == {"Referer": "https://a.example"}


def test_ndjson_and_csv_bear_more_than_urls(run: Run, api: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(f'{{"url": "{OK}", "metadata": {{"a": "b"}}}}\n')
    (tmp_path / "tasks.csv").write_text(f"url,external_id\n{OK},row-1\n")
    [row] = _rows(api, run("submit", "tasks.jsonl").stdout.strip())
    assert row["metadata"] == {"a": "b"}
    [row] = _rows(api, run("submit", "tasks.csv").stdout.strip())
    assert row["external_id"] == "row-1"


def test_the_same_idempotency_key_is_the_same_job(run: Run) -> None:
    once, again = (
        run("submit", "-", "--idempotency-key", "k-1", given=OK).stdout for _ in range(2)
    )
    assert once == again
    told = run("submit", "-", "--idempotency-key", "k-1", given=OK + "2", code=1)
    assert "409 idempotency_key_conflict" in told.stderr
    run("submit", "-", "--idempotency-key", "k 1", given=OK, code=2)


def test_bad_tasks_are_named_by_their_lines(run: Run, tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text(f"# head\n{OK}\nnonsense\nftp://a.example/\n" + "x\n" * 20)
    told = run("submit", "urls.txt", code=1)
    assert "urls.txt, line 3: malformed_url nonsense" in told.stderr
    assert "--on-invalid skip" in told.stderr
    assert "urls.txt, line 4: unsupported_scheme" in told.stderr
    assert "urls.txt, line 24: malformed_url x" in told.stderr
    assert "every URL begins with https:// or http://" in told.stderr
    assert told.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "given", "words"),
    [
        (["submit", "nowhere.txt"], "", ["nowhere.txt", "No such file"]),
        (["submit", "-"], "# nothing\n\n", ["standard input", "at least one URL"]),
        (["submit", "-", "--open"], "x\n" * 100_001, ["at most 100,000 tasks", "conveyor add"]),
        (["submit", "-", "--param", "js_render"], OK, ["name=value", "js_render"]),
        (["submit", "-", "--param", "custom_headers=x"], OK, ["JSON object"]),
        (["submit", "-", "--retries", "many"], OK, ["--retries"]),
        (["submit"], "", ["FILE"]),
        (["add", "some-job", "-"], "", ["at least one URL"]),
        (["results", "some-job", "--out", "x", "--ndjson"], "", ["not both"]),
        (["jobs", "--limit", "0"], "", ["--limit"]),
        (["jobs", "--url", "localhost"], "", ["http://127.0.0.1:8080/v1"]),
        (["jobs", "--config", "nowhere.toml"], "", ["nowhere.toml"]),
        (["statsu"], "", ["Did you mean", "status"]),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_right(
    run: Run, arguments: list[str], given: str, words: list[str]
) -> None:
    told = run(*arguments, given=given, code=2)
    assert told.stdout == ""
    for word in words:
        assert word in told.stderr


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["status", "nope"], {}, ["404 not_found", "conveyor jobs"]),
        (["results", "nope", "--json"], {}, ["404 not_found"]),
        (["jobs", "--status", "fine"], {}, ["open, closed, deleted"]),
        (["jobs"], {"CONVEYOR_URL": "http://127.0.0.1:1/v1"}, ["is it running", "conveyor dev"]),
    ],
)
def test_a_refused_or_failed_call_ends_with_1_and_says_what_to_do(
    run: Run, arguments: list[str], variables: dict[str, str], words: list[str]
) -> None:
    told = run(*arguments, code=1, **variables)
    assert told.stdout == ""
    assert told.stderr.startswith("conveyor: ")
    for word in words:
        assert word in told.stderr


def test_a_file_or_a_flag_can_say_where_and_who(run: Run, running: Program, tmp_path: Path) -> None:
    kept = tmp_path / ".config" / "conveyor" / "cli.toml"
    kept.parent.mkdir(parents=True)
    kept.write_text(f'url = "{running.url}"\nkey = "{SECRET}"\n')
    unset = {"CONVEYOR_URL": "", "CONVEYOR_KEY": ""}
    job_id = run("submit", "-", given=OK, **unset).stdout.strip()
    run("status", job_id, **unset)
    run("status", job_id, "--key", "another-key", code=1, **unset)
    run("status", job_id, "--url", "http://127.0.0.1:1/v1", code=1, **unset)


def test_an_open_job_is_added_to_and_closed(run: Run, api: httpx.Client) -> None:
    job_id = run("submit", "-", "--open").stdout.strip()
    assert run("add", job_id, "-", given=OK).stdout == "accepted_tasks\t1\n"
    told = run("add", job_id, "-", given="".join(f"{SLOW}{number}\n" for number in range(10_001)))
    assert told.stdout == "accepted_tasks\t10001\n"
    assert _facts(run("close", job_id).stdout)["job_status"] == "closed"
    told = run("add", job_id, "-", given=OK, code=1)
    assert "409 job_not_open" in told.stderr
    assert api.get(f"/jobs/{job_id}").json()["latest_run"]["stats"]["total"] == 10_002
    run("stop", job_id)


def test_the_last_batch_closes_and_only_the_last(run: Run, api: httpx.Client) -> None:
    job_id = run("submit", "-", "--open").stdout.strip()
    given = "".join(f"{SLOW}{number}\n" for number in range(10_001))
    lines = run("add", job_id, "-", "--last-batch", "--json", given=given).stdout.splitlines()
    answers = [json.loads(line) for line in lines]
    assert [answer["accepted_tasks"] for answer in answers] == [10_000, 1]
    assert [answer["job_status"] for answer in answers] == ["open", "closed"]
    run("stop", job_id)


def test_every_bad_line_is_named_with_a_way_to_submit_the_others(run: Run, tmp_path: Path) -> None:
    skip = "repeat the command with --on-invalid skip"
    (tmp_path / "bad.ndjson").write_text(f'{{"url": "{OK}"}}\nnot json\n\n{{bad\n{{}}\n')
    told = run("submit", "bad.ndjson", code=2).stderr.splitlines()
    assert told[0] == "conveyor: bad.ndjson: 3 bad lines"
    assert [line.partition(":")[0] for line in told[1:4]] == [
        f"  bad.ndjson, line {number}" for number in (2, 4, 5)
    ]
    assert skip in told[4]
    job_id = run("submit", "bad.ndjson", "--on-invalid", "skip").stdout.strip()
    state = run("status", job_id, "--follow").stdout
    assert ("total\t1" in state, "ingest_errors\t3" in state) == (True, True)
    # An open job cannot be uploaded, so its bad lines cannot be skipped.
    assert skip not in run("submit", "bad.ndjson", "--open", code=2).stderr
    assert skip not in run("submit", "-", "--open", given="nope\n", code=1).stderr
    deep = '{"url": "https://ok.example/", "metadata": ' + '{"a": ' * 5_000 + "1" + "}" * 5_001
    (tmp_path / "deep.ndjson").write_text(deep)
    assert "deep.ndjson, line 1: must be" in run("submit", "deep.ndjson", code=2).stderr
    (tmp_path / "bad.csv").write_text("link\nhttps://a.example/\n")
    assert "--url-column" in run("submit", "bad.csv", code=2).stderr


def test_a_refused_task_is_named_by_its_line_and_a_mistyped_name_has_a_hint(run: Run) -> None:
    given = (
        f'{{"url": "{OK}"}}\n\n{{"url": "{OK}", "scraper_params": {{}}}}\n'
        f'{{"url": "{OK}", "zenrows_params": {{"js_rendr": true}}}}\n'
    )
    told = run("submit", "-", given=given, code=1).stderr
    assert "the first is on line 3: unknown_field (did you mean `zenrows_params`?)" in told
    assert "line 3: unknown_field scraper_params; did you mean zenrows_params?" in told
    assert "line 4: unknown_param js_rendr; did you mean js_render?" in told
    assert "tasks[" not in told


def test_a_batch_that_is_refused_says_from_where_to_go_on(run: Run, tmp_path: Path) -> None:
    job_id = run("submit", "-", "--open").stdout.strip()
    given = "".join(f"{SLOW}{number}\n" for number in range(10_000)) + "nonsense\n"
    told = run("add", job_id, "-", given=given, code=1)
    assert "line 10001: malformed_url" in told.stderr
    assert "the 10,000 tasks before line 10001 are accepted" in told.stderr
    given = "".join(f'{{"url": "{SLOW}{number}"}}\n' for number in range(20_000)) + "{bad\n"
    told = run("add", job_id, "-", given=given, code=1)
    assert "line 20001: must be a task" in told.stderr
    assert "the 10,000 tasks before line 10001 are accepted" in told.stderr
    rows = "".join(f"{SLOW}{number}\n" for number in range(9_999))
    (tmp_path / "rows.csv").write_text(f'url,note\n{rows}{SLOW},"on\nthree\nlines"\nnonsense\n')
    told = run("add", job_id, "rows.csv", code=1)
    assert "line 10004: malformed_url" in told.stderr
    assert "the 10,000 tasks before line 10004 are accepted" in told.stderr
    run("stop", job_id)


def test_a_list_that_cannot_be_read_to_its_end_says_from_where_to_go_on(
    run: Run, tmp_path: Path
) -> None:
    job_id = run("submit", "-", "--open").stdout.strip()
    rows = "".join(f"{SLOW}{number}\n" for number in range(25_000)).encode()
    (tmp_path / "latin.txt").write_bytes(rows + b"https://ok.example/\xe9\n")
    told = run("add", job_id, "latin.txt", code=1)
    assert "must be text in UTF-8" in told.stderr
    assert "the 10,000 tasks before line 10001 are accepted: continue from there" in told.stderr
    run("stop", job_id)


@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_a_line_must_not_end_with_a_carriage_return_alone(
    run: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("url\rhttps://a.example/\rhttps://b.example/\r", newline="")
    assert "a carriage return stands alone" in run("submit", name, code=2).stderr


def test_lines_are_those_of_tools_that_cut_a_list(run: Run, tmp_path: Path) -> None:
    text = f'url,note\r\n{OK}1,"a\rb"\r\n{OK}2,"a\r\nb"\r\nnonsense,\r\n'
    (tmp_path / "a.csv").write_text(text, newline="")
    assert "line 5: malformed_url" in run("submit", "a.csv", code=1).stderr


def test_a_run_is_paused_resumed_and_stopped(run: Run) -> None:
    job_id = run("submit", "-", "--open", given=OK).stdout.strip()
    assert "(paused)" in _facts(run("pause", job_id).stdout)["run_status"]
    run("status", job_id)
    assert "(paused)" not in _facts(run("resume", job_id).stdout)["run_status"]
    assert _facts(run("stop", job_id).stdout)["run_status"] == "stopped"
    for follow in ([], ["--follow"]):
        assert _facts(run("status", job_id, *follow, code=3).stdout)["run_status"] == "stopped"
    assert "409" in run("pause", job_id, code=1).stderr


def test_failed_tasks_are_run_again_and_followed(run: Run, api: httpx.Client) -> None:
    job_id = run("submit", "-", given=f"{OK}1\n{PERMANENT}2\n").stdout.strip()
    ended(api, job_id)

    told = run("rerun", job_id, "--status", "failed", "--idempotency-key", job_id, "--follow")

    facts = _facts(told.stdout)
    assert (facts["retried_tasks"], facts["inherited_tasks"]) == ("1", "1")
    assert (facts["run_status"], facts["total"], facts["failed"]) == ("completed", "2", "1")
    again = json.loads(
        run("rerun", job_id, "--status", "failed", "--idempotency-key", job_id, "--json").stdout
    )
    assert again["latest_run"]["run_id"] == facts["run"]
    told = run("rerun", job_id, "--status", "pending", code=1)
    assert "no_matching_tasks" in told.stderr
    assert "no task meets all the given options" in told.stderr
    assert "pending" in run("rerun", job_id, "--status", "done", code=1).stderr


def test_a_job_is_deleted_only_when_one_is_sure(run: Run, api: httpx.Client) -> None:
    job_id = run("submit", "-", given=OK).stdout.strip()
    first = ended(api, job_id)["run_id"]
    second = json.loads(run("rerun", job_id, "--json").stdout)["latest_run"]["run_id"]
    ended(api, job_id)
    assert "--yes" in run("delete", job_id, code=2).stderr
    assert api.get(f"/jobs/{job_id}").status_code == 200

    rows = [line.split("\t") for line in run("runs", job_id).stdout.splitlines()]
    assert [row[:2] for row in rows] == [[second, "2"], [first, "1"]]
    assert {tuple(row[2:7]) for row in rows} == {("completed", "manual", "1", "1", "0")}
    [only] = run("runs", job_id, "--limit", "1").stdout.splitlines()
    assert only.startswith(second)
    assert (
        json.loads(run("runs", job_id, "--json").stdout) == api.get(f"/jobs/{job_id}/runs").json()
    )
    assert "conveyor runs JOB" in run("delete", job_id, "--run", "no", "-y", code=1).stderr

    run("delete", job_id, "--run", second, "--yes")
    assert _facts(run("status", job_id).stdout)["run"] == first
    run("delete", job_id, "--run", first, "--yes")
    assert run("runs", job_id).stdout == ""
    assert _facts(run("status", job_id).stdout)["run_status"] == "no run"
    assert "no run" in run("status", job_id, "--follow", code=3).stderr
    run("delete", job_id, "--yes")
    run("delete", job_id, "--yes")

    assert "404" in run("status", job_id, code=1).stderr


def test_a_run_that_fails_ends_with_3_and_tells_the_reason(run: Run) -> None:
    own = {"CONVEYOR_KEY": "a-key-without-credits"}  # a refused key takes no other work
    told = run("submit", "-", "--follow", given="https://nocredits.example/", code=3, **own)
    facts = _facts(told.stdout.partition("\n")[2])
    assert facts["run_status"] == "failed"
    assert facts["failure_reason"] == "insufficient_credits"


def test_jobs_are_listed_newest_first(run: Run) -> None:
    first, second = (
        run("submit", "-", "--name", name, given=OK).stdout.strip() for name in ("x\ty", "b")
    )
    rows = [line.split("\t") for line in run("jobs", "--limit", "2").stdout.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [(second, "b"), (first, "x y")]
    assert {len(row) for row in rows} == {8}
    [only] = run("jobs", "--limit", "1", "--status", "closed").stdout.splitlines()
    assert only.startswith(second)
    [named] = run("jobs", "--name", "X\tY").stdout.splitlines()
    assert named.startswith(first)


def test_more_jobs_than_a_page_are_listed_page_by_page(run: Run, running: Program) -> None:
    key = "key-of-many-jobs"
    with client_of(running, key=key) as api:
        for _ in range(101):
            api.post("/jobs", json={"status": "open"}).raise_for_status()
    listed = run("jobs", "--limit", "150", CONVEYOR_KEY=key).stdout.splitlines()
    assert len({line.split("\t")[0] for line in listed}) == 101


def test_json_is_the_apis_own(run: Run, api: httpx.Client) -> None:
    submitted = json.loads(run("submit", "-", "--json", given=f"{OK}\n{PERMANENT}").stdout)
    job_id = submitted["job_id"]
    assert submitted["accepted_tasks"] == 2
    ended(api, job_id)
    for follow in ([], ["--follow"]):
        told = json.loads(run("status", job_id, "--json", *follow).stdout)
        assert told == api.get(f"/jobs/{job_id}").json()
    listed = json.loads(run("jobs", "--limit", "1", "--json").stdout)
    assert [job["job_id"] for job in listed["jobs"]] == [job_id]
    assert listed["next_cursor"]
    listing = json.loads(run("results", job_id, "--json").stdout)
    assert [row["status"] for row in listing["results"]] == ["successful", "failed"]
    assert listing["next_cursor"] is None
    task = listing["results"][0]["task_id"]
    history = json.loads(run("history", job_id, task, "--json").stdout)
    assert [event["attempt"] for event in history["events"]] == [1]
    assert json.loads(run("close", job_id, "--json").stdout)["status"] == "closed"


def test_live_runs_answer_in_json_too(run: Run) -> None:
    job_id = json.loads(run("submit", "-", "--open", "--json").stdout)["job_id"]
    assert json.loads(run("pause", job_id, "--json").stdout)["pause_state"] == "paused"
    assert "pause_state" not in json.loads(run("resume", job_id, "--json").stdout)
    assert json.loads(run("stop", job_id, "--json").stdout)["status"] == "stopped"


def test_results_are_listed_as_columns_or_as_rows(run: Run, api: httpx.Client) -> None:
    job_id = run("submit", "-", given=f"{OK}\n{PERMANENT}").stdout.strip()
    ended(api, job_id)
    rows = _rows(api, job_id)
    lines = run("results", job_id).stdout.splitlines()
    assert [line.split("\t") for line in lines] == [
        [rows[0]["task_id"], "successful", OK, "html"],
        [rows[1]["task_id"], "failed", PERMANENT, "RESP002"],
    ]
    [line] = run("results", job_id, "--status", "failed", "--ndjson").stdout.splitlines()
    assert json.loads(line) == rows[1]
    told = run("results", job_id, "--status", "nice", code=1)
    assert "successful" in told.stderr


def test_pages_are_saved_and_only_what_is_missing_is_fetched_again(
    run: Run, api: httpx.Client, tmp_path: Path
) -> None:
    urls = [OK, PERMANENT, "https://big.example/?size=3000000"]
    job_id = run("submit", "-", "--follow", given="\n".join(urls)).stdout.split()[0]
    rows = _rows(api, job_id)
    command = ["results", job_id, "--out", "pages/new"]
    assert _facts(run(*command).stdout) == {
        "folder": "pages/new",
        "saved": "2",
        "already_there": "0",
        "without_page": "1",
    }
    folder = tmp_path / "pages" / "new"
    for row in (rows[0], rows[2]):
        page = api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/content").content
        assert (folder / f"{row['task_id']}.html").read_bytes() == page
    index = (folder / "results.ndjson").read_text().splitlines()
    assert [json.loads(line)["task_id"] for line in index] == [row["task_id"] for row in rows]
    (folder / f"{rows[2]['task_id']}.html").write_bytes(b"half a pa")
    done = json.loads(run(*command, "--json").stdout)
    assert (done["saved"], done["already_there"]) == (1, 1)
    pages = [path for path in folder.iterdir() if path.suffix == ".html"]
    assert len(pages) == 2


def test_a_folder_that_cannot_be_made_is_told(run: Run) -> None:
    job_id = run("submit", "-", "--follow", given=OK).stdout.split()[0]
    assert "/dev/null/x" in run("results", job_id, "--out", "/dev/null/x", code=1).stderr


def test_a_folder_is_for_the_results_of_one_job(run: Run, tmp_path: Path) -> None:
    one, other = (run("submit", "-", "-f", given=OK).stdout.split()[0] for _ in range(2))
    folder = tmp_path / "pages"
    run("results", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--out", str(folder), code=1)
    run("results", one, "--out", str(folder))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    told = run("results", other, "--out", str(folder), code=2).stderr
    assert f"holds the results of job {one}" in told
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    run("results", one, "--out", str(folder))
    (folder / ".conveyor-job").unlink()
    assert "of an unknown job" in run("results", one, "--out", str(folder), code=2).stderr


def test_history_tells_every_attempt(run: Run, api: httpx.Client) -> None:
    url = "https://flaky.example/cli?fails=1"
    job_id = run("submit", "-", "--follow", given=url).stdout.split()[0]
    task = _rows(api, job_id)[0]["task_id"]
    lines = [line.split("\t") for line in run("history", job_id, task).stdout.splitlines()]
    assert [line[0] for line in lines] == ["1", "2"]
    assert lines[0][3] != "ok"
    assert lines[1][3] == "ok"
    assert lines[0][4] == "422"  # of the gateway's error
    assert all(re.fullmatch(r"\d+ ms", line[5]) for line in lines)
    assert [line[6] for line in lines] == ["$0.0000", "$0.0001"]
    run("history", job_id, "nope", code=1)


def test_results_and_attempts_of_an_earlier_run_are_listed(
    run: Run, api: httpx.Client, tmp_path: Path
) -> None:
    job_id = run("submit", "-", "--follow", given=f"{OK}1\n{PERMANENT}2\n").stdout.split()[0]
    before = _rows(api, job_id)
    earlier, task = before[0]["run_id"], before[1]["task_id"]
    run("rerun", job_id, "--status", "failed", "--follow")
    for named, run_id in ((("--run", earlier), earlier), (("--run", "@last"), None), ((), None)):
        listed = run("results", job_id, *named, "--format", "ndjson").stdout.splitlines()
        found = {json.loads(line)["run_id"] for line in listed}
        assert (found == {earlier}) == (run_id == earlier)
        shown = json.loads(run("history", job_id, task, *named, "--json").stdout)
        path = f"/jobs/{job_id}/runs/{run_id}" if run_id else f"/jobs/{job_id}"
        assert shown == api.get(f"{path}/tasks/{task}/history").json()
    saved = json.loads(run("results", job_id, "--run", earlier, "--out", "old", "--json").stdout)
    assert saved["saved"] == 1
    told = run("results", job_id, "--out", "old", code=2).stderr
    assert f"holds the results of job {job_id}, run {earlier}" in told


def test_a_body_that_is_too_large_is_told(run: Run, gateway: Program, tmp_path: Path) -> None:
    small = {"CONVEYOR_INLINE_BYTES": "1000"}
    with service(data=tmp_path / "small", gateway=gateway.url, environ=small) as program:
        given = f"{OK}{'a' * 1000}\n" * 20_000
        told = run("submit", "-", given=given, code=1, CONVEYOR_URL=program.url)
    assert "413 payload_too_large" in told.stderr
    assert "split" in told.stderr


def test_following_outlives_a_restart_of_the_service(
    environ: dict[str, str], gateway: Program, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    first = service(data=tmp_path / "own", gateway=gateway.url, port=port, environ=FAST_RETRIES)
    with first as program, client_of(program) as api:
        following = _started(
            ["submit", "-", "--max-inflight", "1", "--follow"], {**environ, "CONVEYOR_URL": url}
        )
        assert following.stdin
        assert following.stdout
        following.stdin.write("".join(f"https://slow.example/{n}?ms=500\n" for n in range(4)))
        following.stdin.close()
        following.stdin = None
        job_id = following.stdout.readline().strip()
        until(lambda: api.get(f"/jobs/{job_id}").json()["latest_run"]["stats"]["completed"])
        program.kill()
    second = service(data=tmp_path / "own", gateway=gateway.url, port=port, environ=FAST_RETRIES)
    with second:
        told, complaints = following.communicate(timeout=200)
    assert (following.returncode, complaints) == (0, "")
    assert _facts(told)["successful"] == "4"


def test_ctrl_c_while_following_says_how_to_follow_again(
    environ: dict[str, str], api: httpx.Client
) -> None:
    submitting = _started(["submit", "-", "--open", "--follow"], environ)
    assert submitting.stdin
    assert submitting.stdout
    submitting.stdin.close()
    job_id = submitting.stdout.readline().strip()
    submitting.send_signal(signal.SIGINT)
    assert submitting.wait(timeout=200) == 130
    assert submitting.stderr
    assert f"conveyor status {job_id} --follow" in submitting.stderr.read()
    submitting.stdout.close()
    submitting.stderr.close()
    assert api.get(f"/jobs/{job_id}").json()["latest_run"]["status"] == "pending"


def test_a_reader_that_leaves_is_no_traceback(environ: dict[str, str], run: Run) -> None:
    given = "".join(f"{OK}{number}\n" for number in range(2000))
    job_id = run("submit", "-", given=given).stdout.strip()
    told = subprocess.run(
        f"'{sys.executable}' -m conveyor results {job_id} --ndjson | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
        env=environ,
    )
    assert json.loads(told.stdout)["url"] == f"{OK}0"
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize(
    ("redirect", "word"),
    [
        ("> /dev/full", "cannot write to standard output: No space left on device"),
        (">&-", "cannot write to standard output: Bad file descriptor"),
        ("> /dev/full 2>&-", ""),
        ("2>&-", ""),
        ("<&-", ""),
    ],
)
@pytest.mark.parametrize(
    "arguments",
    sampled(["results {job} --ndjson", "results {job}", "status {job}"], 1, of="outputs that fail"),
)
def test_an_output_that_cannot_be_written_is_a_clean_error(
    environ: dict[str, str], run: Run, redirect: str, word: str, arguments: str
) -> None:
    job_id = run("submit", "-", "--follow", given=OK).stdout.split()[0]
    command = f"'{sys.executable}' -m conveyor {arguments.format(job=job_id)} {redirect}"
    told = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=False, timeout=200, env=environ
    )
    assert told.returncode == (1 if ">" in redirect and redirect != "2>&-" else 0)
    assert word in told.stderr
    assert "Traceback" not in told.stderr
    assert "Exception ignored" not in told.stderr
    assert bool(told.stdout) is (told.returncode == 0)


def test_help_groups_the_commands(run: Run) -> None:
    told = run("--help").stdout
    for heading in (
        "Jobs:",
        "Live runs:",
        "Running a service:",
        "Administration:",
        "Trying it out:",
    ):
        assert heading in told
    assert "Other commands" not in told


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_the_commands(environ: dict[str, str], shell: str) -> None:
    asked = {
        "_CONVEYOR_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "conveyor st",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "conveyor st",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    told = _checked([str(SCRIPT)], {**environ, **asked})
    assert "status" in told
    assert "stop" in told
    assert "pause" not in told


def test_completion_is_shown_and_installed_for_the_shell_that_asks(
    environ: dict[str, str], tmp_path: Path
) -> None:
    for option in ("--show-completion", "--install-completion"):
        # More than one command, so that the shell stays and can be told by its name.
        told = _checked(["bash", "-c", f"'{SCRIPT}' {option}; exit $?"], environ)
        assert "completion" in told
    [script] = tmp_path.rglob("conveyor.sh")
    assert "_CONVEYOR_COMPLETE=complete_bash" in script.read_text()


def _checked(command: list[str], environ: dict[str, str]) -> str:
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=200, env=environ
    )
    return told.stdout


def _facts(text: str) -> dict[str, str]:
    pairs = (line.split("\t") for line in text.splitlines())
    return {pair[0]: pair[1] for pair in pairs}


def _rows(api: httpx.Client, job_id: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = api.get(f"/jobs/{job_id}/results").json()["results"]
    return rows


def _started(arguments: list[str], environ: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", HEEDS_CTRL_C, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
