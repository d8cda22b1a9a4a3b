"""Webhooks, signing keys and schedules by command and by client, against a real service."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conveyor.client import ConflictError, Conveyor, NotFoundError
from tests.certificates import Authority
from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE
from tests.e2e.receiver import Receiver, Told, receiving
from tests.e2e.test_cli_people import Run, environ, run  # noqa: F401 - fixtures
from tests.harness.programs import Program, service

KEY = "another-api-key"
OK = "https://ok.example/1"


def _answer(told: Told) -> int:
    return 404 if told.path == "/404" else 200


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    with receiving(Authority(tmp_path_factory.mktemp("certificates")), answer=_answer) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def running(
    gateway: Program, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    settings = FAST_RETRIES | SHORT_GRACE | receiver.environ
    data = tmp_path_factory.mktemp("data")
    with service(data=data, gateway=gateway.url, environ=settings) as program:
        yield program


@pytest.fixture
def client(running: Program) -> Iterator[Conveyor]:
    with Conveyor(running.url, KEY) as client:
        yield client


def _facts(text: str) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in text.splitlines())


def test_commands_set_test_and_repeat_a_webhook(
    run: Run,  # noqa: F811 - a fixture
    receiver: Receiver,
) -> None:
    url = receiver.url("/commands")
    job = run("submit", "-", "--webhook", url, given=OK).stdout.strip()
    run("status", job, "--follow")
    assert _facts(run("webhook", "get", job).stdout) == {"url": url, "signature": "false"}
    assert _facts(run("webhook", "test", url).stdout)["status_code"] == "200"
    refused = _facts(run("webhook", "test", receiver.url("/404"), code=1).stdout)
    assert (refused["delivered"], refused["error"]) == ("false", "http_4xx:404")
    [event] = json.loads(run("webhook", "deliveries", job, "--json").stdout)["events"]
    run("webhook", "set", job, receiver.url("/elsewhere"))
    again = run("webhook", "redeliver", job, event["event_id"])
    assert _facts(again.stdout)["event"] == event["event_id"]
    row = run("webhook", "deliveries", job).stdout.split("\t")
    assert row[:2] == [event["event_id"], "run.completed"]
    assert json.loads(run("webhook", "clear", job, "--json").stdout) == {"cleared": job}
    assert "404" in run("webhook", "get", job, code=1).stderr


def test_commands_rotate_signing_keys(run: Run) -> None:  # noqa: F811 - a fixture
    assert run("signing-keys", "list").stdout == ""
    first = _facts(run("signing-keys", "rotate").stdout)
    assert first["secret"]
    second = _facts(run("signing-keys", "rotate").stdout)
    listed = run("signing-keys", "list").stdout
    assert [row.split("\t")[:2] for row in listed.splitlines()] == [
        [first["key"], "active"],
        [second["key"], "candidate"],
    ]
    run("signing-keys", "cancel")
    assert "no_candidate" in run("signing-keys", "finish", code=1).stderr
    third = _facts(run("signing-keys", "rotate").stdout)
    assert _facts(run("signing-keys", "finish").stdout) == {"active": third["key"]}


def test_commands_change_a_schedule(run: Run, tmp_path: Path) -> None:  # noqa: F811 - a fixture
    (tmp_path / "urls.txt").write_text(OK)
    job = run("submit", "urls.txt", "--every", "6h").stdout.strip()
    assert _facts(run("schedule", "show", job).stdout)["schedule"] == "every 6 hours"
    line = ("--cron", "0 6 * * 1-5", "--timezone", "Europe/Berlin")
    by_cron = _facts(run("schedule", "set", job, *line).stdout)
    assert by_cron["schedule"] == "cron 0 6 * * 1-5 Europe/Berlin"
    at = ("--at", "2099-01-31T09:00:00", "--timezone", "Europe/Berlin")
    changed = _facts(run("schedule", "set", job, *at).stdout)
    assert changed["next_scheduled_run"] == "2099-01-31T08:00:00Z"
    assert _facts(run("schedule", "pause", job).stdout)["schedule_state"] == "paused"
    assert _facts(run("schedule", "resume", job).stdout)["schedule_state"] == "active"
    plain_job = run("submit", "urls.txt").stdout.strip()
    assert "no schedule" in run("schedule", "show", plain_job, code=1).stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--every", "6w"), "15m, 2h or 1d"),
        (("--every", "6h", "--at", "2099-01-31T09:00:00"), "--every and --at"),
        (("--timezone", "Europe/Berlin"), "--timezone needs"),
        (("--every", "6h", "--follow"), "--follow needs a job that runs now"),
        (("--webhook-signature",), "--webhook-signature needs --webhook"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    run: Run,  # noqa: F811 - a fixture
    options: tuple[str, ...],
    words: str,
) -> None:
    assert words in run("submit", "-", *options, given=OK, code=2).stderr


def test_the_client_sets_tests_and_repeats_a_webhook(client: Conveyor, receiver: Receiver) -> None:
    job = client.submit([OK], webhook={"url": receiver.url("/client"), "signature": False})
    client.wait(job.job_id)
    assert client.webhook(job.job_id).url == receiver.url("/client")
    assert client.test_webhook(receiver.url("/client")).delivered
    [event] = client.deliveries(job.job_id)
    assert client.redeliver(job.job_id, event.event_id).event_id == event.event_id
    assert client.set_webhook(job.job_id, receiver.url("/new")).url == receiver.url("/new")
    client.clear_webhook(job.job_id)
    with pytest.raises(NotFoundError):
        client.webhook(job.job_id)


def test_the_client_rotates_signing_keys(client: Conveyor) -> None:
    first = client.rotate_signing_key()
    candidate = client.rotate_signing_key()
    known = client.signing_keys()
    assert known.active
    assert known.candidate
    assert (known.active.kid, known.candidate.kid) == (first.kid, candidate.kid)
    with pytest.raises(ConflictError):
        client.rotate_signing_key()
    client.cancel_rotation()
    newest = client.rotate_signing_key()
    assert client.finish_rotation().active_kid == newest.kid


def test_the_client_submits_and_changes_a_schedule(client: Conveyor) -> None:
    made = client.submit([OK], schedule={"rate": {"every": 2, "unit": "hour"}})
    assert made.latest_run is None
    changed = client.set_schedule(made.job_id, {"rate": {"every": 1, "unit": "day"}})
    assert changed.schedule == {"rate": {"every": 1, "unit": "day"}}
    assert client.pause_schedule(made.job_id).schedule_state == "paused"
    assert client.resume_schedule(made.job_id).schedule_state == "active"
    with pytest.raises(ValueError, match="submit_file"):
        client.submit((OK for _ in range(10_001)), schedule={"rate": {"every": 1, "unit": "day"}})


def test_a_job_is_named_after_its_file_found_by_last_and_judged_by_its_failures(
    run: Run,  # noqa: F811 - a fixture
    tmp_path: Path,
) -> None:
    (tmp_path / "shops.txt").write_text("https://ok.example/1\nhttps://permanent.example/2\n")
    told = run("submit", "shops.txt", "--retries", "0", "--follow", "--max-failed", "40%", code=4)
    assert "1 of 2 tasks failed" in told.stderr
    facts = _facts(run("status", "@last").stdout)
    assert facts["name"] == "shops.txt"
    assert {"created", "ended", "elapsed", "mean_rate", "cost"} <= facts.keys()
    run("submit", "shops.txt", "--retries", "0", "--follow", "--max-failed", "50%")
    assert "CONVEYOR_KEY" in run("jobs", CONVEYOR_KEY="", code=2).stderr


def test_a_service_for_development_needs_no_key(
    run: Run,  # noqa: F811 - a fixture
    gateway: Program,
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with service(data=data, gateway=gateway.url, environ=SHORT_GRACE, role="dev") as program:
        assert run("jobs", CONVEYOR_KEY="", CONVEYOR_URL=program.url).stdout == ""


def test_rows_tell_attempts_and_files_and_are_printed_as_csv(
    run: Run,  # noqa: F811 - a fixture
    tmp_path: Path,
) -> None:
    urls = [f"https://ok.example/{n}" for n in range(40)] + ["https://permanent.example/2"]
    (tmp_path / "pages.txt").write_text("\n".join(urls))
    job = run("submit", "pages.txt", "--retries", "0").stdout.strip()
    run("status", job, "--follow")
    run("results", job, "--out", "pages")
    rows = [
        json.loads(line)
        for line in (tmp_path / "pages" / "results.ndjson").read_text().splitlines()
    ]
    assert [row["url"] for row in rows] == urls
    assert {row["attempts"] for row in rows} == {1}
    for row in rows[:-1]:
        assert (tmp_path / "pages" / row["file"]).stat().st_size == row["size"]
    assert "file" not in rows[-1]
    table = list(csv.DictReader(run("results", job, "--format", "csv").stdout.splitlines()))
    assert [(row["task_id"], row["url"], row["size"], row["attempts"]) for row in table] == [
        (row["task_id"], row["url"], str(row.get("size", "")), "1") for row in rows
    ]
    assert [row["cost"] for row in table] == [str(row["cost"]) for row in rows]
    spend = json.loads(run("status", job, "--json").stdout)["latest_run"]["stats"]["spend"]
    assert sum(row["credits"] for row in rows) == spend["credits"]
    assert round(sum(row["cost"] for row in rows), 9) == spend["cost"] > 0
    assert table[-1]["error_code"] == "RESP002"
