"""The options of commands arrive in the call that they make."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer

from conveyor.cli.main import build_app
from conveyor.client import Conveyor
from conveyor.errors import ConveyorError

JOB, RUN = "01M7GNPVD0697FEM6F7VYWRK5F", "01M7GNPVD1AAAAAAAAAAAAAAAA"
TASK = "00000000-447211db4d2c3d63b14dce68"
Options = list[str]


class Enough(ConveyorError):
    """The call is made."""


def _call_of(command: Sequence[str], patch: pytest.MonkeyPatch) -> tuple[tuple[str, ...], Any]:
    """The path of the first call of a command, and what goes with it."""
    calls: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def request(_: Conveyor, *path: str, **given: Any) -> bytes:
        calls.append((path, given))
        raise Enough

    patch.setattr(Conveyor, "request", request)
    where = ["--url", "http://127.0.0.1:1/v1", "--key", "a-key"]
    with pytest.raises(Enough):
        typer.main.get_command(build_app(command[0]))([*command, *where], standalone_mode=False)
    [call] = calls
    return call


RERUN = ("POST", "jobs", JOB, "rerun")


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ([], None),
        (["--status", "failed,pending"], {"status": ["failed", "pending"]}),
        (["--reason", "blocked", "--reason", "timeout"], {"reason": ["blocked", "timeout"]}),
        (["--code", "RESP001", "--code", "x"], {"code": ["RESP001", "x"]}),
        (["--host", "a.example", "--host", "b.example"], {"host": ["a.example", "b.example"]}),
        (["--task", TASK], {"task_ids": [TASK]}),
        (
            ["--older-than", "2026-01-31"],
            {"scraped_before": datetime(2026, 1, 31, tzinfo=UTC)},
        ),
        (
            ["--param", "premium_proxy=true", "--param", "wait="],
            {"zenrows_params": {"premium_proxy": "true", "wait": None}},
        ),
    ],
)
def test_the_conditions_of_a_rerun_arrive(
    options: Options, body: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, given = _call_of(["rerun", JOB, *options, "--idempotency-key", "k"], monkeypatch)
    assert (path, given) == (RERUN, {"body": body, "idempotency_key": "k"})


LISTS = [
    (
        ["jobs", "--status", "open", "--type", "scheduled", "--name", "x", "--limit", "5"],
        ("jobs",),
        {"status": "open", "type": "scheduled", "name": "x", "limit": 5, "cursor": None},
    ),
    (
        ["operator", "jobs", "ann", "--status", "open", "--type", "regular", "--name", "x"],
        ("operator", "callers", "ann", "jobs"),
        {"status": "open", "type": "regular", "name": "x", "limit": 20, "cursor": None},
    ),
    (
        ["operator", "runs", "--caller", "ann"],
        ("operator", "runs"),
        {"caller": "ann", "limit": 20, "cursor": None},
    ),
    (
        ["failures", JOB, "--run", RUN, "--limit", "7"],
        ("jobs", JOB, "runs", RUN, "failures"),
        {"limit": 7},
    ),
    (
        ["history", JOB, TASK, "--run", RUN],
        ("jobs", JOB, "runs", RUN, "tasks", TASK, "history"),
        None,
    ),
]


@pytest.mark.parametrize(("command", "path", "query"), LISTS, ids=lambda one: str(one)[:20])
def test_the_filters_of_listings_arrive(
    command: Options, path: tuple[str, ...], query: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, given = _call_of(command, monkeypatch)
    assert (found, given.get("query")) == (("GET", *path), query)


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (["--every", "15m"], {"rate": {"every": 15, "unit": "minute"}}),
        (["--cron", "0 6 * * *"], {"cron": "0 6 * * *", "timezone": "UTC"}),
        (
            ["--at", "2027-01-31T09:00:00", "--timezone", "Asia/Tokyo"],
            {"at": "2027-01-31T09:00:00", "timezone": "Asia/Tokyo"},
        ),
    ],
)
def test_a_schedule_arrives_of_a_submission_and_of_a_change(
    options: Options, body: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, given = _call_of(["schedule", "set", JOB, *options], monkeypatch)
    assert (path, given["body"]) == (("PUT", "jobs", JOB, "schedule"), body)
    list_ = tmp_path / f"{'n' * 120}.txt"
    list_.write_text("https://a.example/")
    path, given = _call_of(["submit", str(list_), *options], monkeypatch)
    assert path == ("POST", "jobs")
    assert given["body"] == {
        "type": "scheduled",
        "schedule": body,
        "name": "n" * 100,
        "tasks": [{"url": "https://a.example/"}],
    }
