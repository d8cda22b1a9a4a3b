"""Commands whose call may have been done, but whose response is lost."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from tests.harness.scripted_server import Answer, Answers, served

OK = "https://ok.example/"
LOST: Answer = (201, {"Content-Length": "1000"}, b"{")
RUN = {"run_id": "r", "status": "running"}
MADE: Answer = (
    201,
    {},
    json.dumps({"job_id": "j", "accepted_tasks": 1, "latest_run": RUN}).encode(),
)
ADDED: Answer = (
    202,
    {},
    json.dumps({"job_id": "j", "accepted_tasks": 10_000, "latest_run": RUN}).encode(),
)


class Scripted(Answers):
    table: ClassVar[dict[str, Answer | list[Answer]]] = {}
    seen: ClassVar[list[str]] = []
    keys: ClassVar[list[str | None]] = []
    hang_up = True

    def do_POST(self) -> None:  # noqa: N802 - the library's name
        self.keys.append(self.headers["Idempotency-Key"])
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()


@contextmanager
def _service(path: str, *answers: Answer) -> Iterator[str]:
    Scripted.table = {f"/v1/{path}": list(answers)}
    Scripted.keys.clear()
    with served(Scripted) as url:
        yield url


def _conveyor(url: str, *arguments: str, given: str, code: int) -> str:
    told = subprocess.run(
        [sys.executable, "-m", "conveyor", *arguments, "--url", url, "--key", "k"],
        input=given,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert told.returncode == code, told.stderr
    return told.stdout + told.stderr


@pytest.mark.parametrize(
    ("path", "arguments"), [("jobs", ["submit", "-"]), ("jobs/j/rerun", ["rerun", "j"])]
)
def test_a_call_whose_response_is_lost_is_repeated_under_its_key(
    path: str, arguments: list[str]
) -> None:
    with _service(path, LOST, MADE) as url:
        _conveyor(url, *arguments, given=f"{OK}\n", code=0)
        assert len(Scripted.keys) == 2
        assert len(set(Scripted.keys)) == 1
    with _service(path, LOST) as url:
        told = _conveyor(url, *arguments, given=f"{OK}\n", code=1)
        assert f"to repeat it safely, add --idempotency-key {Scripted.keys[-1]}" in told
        assert len(set(Scripted.keys)) == 1


@pytest.mark.parametrize(
    ("answers", "code", "expected"),
    [
        ([ADDED, LOST, ADDED], 0, "accepted_tasks\t20000"),
        (
            [ADDED, (500, {}, b"{}")],
            1,
            "the 10,000 tasks before line 10001 are accepted; those of lines 10001 to 20000 may be",
        ),
        (
            [ADDED, (400, {}, b"{}")],
            1,
            "the 10,000 tasks before line 10001 are accepted: continue from there",
        ),
        ([LOST], 1, "no task is known to be accepted; those of lines 1 to 10000 may be"),
    ],
)
def test_an_add_that_ends_early_says_what_is_accepted_and_what_may_be(
    answers: list[Answer], code: int, expected: str
) -> None:
    rows = "".join(f"{OK}{number}\n" for number in range(20_000))
    with _service("jobs/j/tasks", *answers) as url:
        assert expected in _conveyor(url, "add", "j", "-", given=rows, code=code)


def test_an_add_that_is_interrupted_says_from_where_to_go_on(tmp_path: Path) -> None:
    """At a pipe that stays open: the second batch is complete, and the third is waited for."""
    rows = "".join(f"{OK}{number}\n" for number in range(20_000))
    with _service("jobs/j/tasks", ADDED) as url:
        command = [sys.executable, "-m", "conveyor", "add", "j", "-", "--url", url, "--key", "k"]
        adding = subprocess.Popen(
            [*command, "--json"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert adding.stdin
        assert adding.stdout
        adding.stdin.write(rows)
        adding.stdin.flush()
        assert "10000" in adding.stdout.readline()
        adding.send_signal(signal.SIGINT)
        _, told = adding.communicate(timeout=200)
    assert adding.returncode == 130
    assert "the 10,000 tasks before line 10001 are accepted: continue from there" in told
