"""The commands for people on a terminal: bars that are drawn and end, tables, Ctrl-C."""

import fcntl
import gzip
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from conveyor.testing.local.ports import free_port
from tests.e2e.polling import ended, until
from tests.harness.programs import Program, service
from tests.harness.scripted_server import Answer, Answers, served
from tests.seed import sampled

SECRET = "an-api-key"
OK = "https://ok.example/"
SLOW = "https://slow.example/?ms=1500"
BAR = "━"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PATIENCE = 200.0  # seconds


class Terminal:
    """A pseudo-terminal with a command at it."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self.process = process
        self.text = ""
        self._master = master

    def until(self, word: str) -> None:
        """Read on until a word has been shown."""
        deadline = time.monotonic() + PATIENCE
        while word not in self.text:
            assert time.monotonic() < deadline, self.text
            assert self._read(), f"ended without {word!r}: {self.text}"

    def to_the_end(self) -> int:
        """Read everything; the exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read():
            assert time.monotonic() < deadline, self.text
        return self.process.wait(timeout=PATIENCE)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], PATIENCE)
        assert ready, f"nothing more came after: {self.text}"
        try:
            chunk = os.read(self._master, 65_536)
        except OSError:  # Linux answers so when the other side is gone
            return False
        self.text += chunk.decode(errors="replace")
        return bool(chunk)


@pytest.fixture
def environ(running: Program, tmp_path: Path) -> dict[str, str]:
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("CONVEYOR_") and name not in {"COLUMNS", "LINES", "NO_COLOR"}
    }
    at = {"HOME": str(tmp_path), "CONVEYOR_URL": running.url, "CONVEYOR_KEY": SECRET}
    return {**own, **at, "TERM": "xterm-256color"}


def test_submit_draws_a_bar_that_ends_by_itself(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "urls.txt"
    file.write_text(f"{SLOW}\nhttps://permanent.example/\n" + f"{OK}\n" * 8)
    with _at_terminal(["submit", str(file), "--follow"], environ) as terminal:
        assert terminal.to_the_end() == 0
    shown = ESCAPE.sub("", terminal.text)
    assert "Submitted 10 tasks as job" in shown
    assert f"running {BAR}" in shown
    assert "9/10" in shown
    assert re.search(r"\d+/s 0:00:0\d left:", shown)
    assert "9 successful  1 failed: bad_target 1" in shown
    assert re.search(r"^10 tasks in \d+\.\d s, \d+\.\d/s on average", shown, re.MULTILINE)
    assert re.search(r"^elapsed +\d+\.\d s", shown, re.MULTILINE)
    assert re.search(r"^mean_rate +\d+\.\d/s", shown, re.MULTILINE)
    assert f"completed {BAR}" in shown
    assert shown.rstrip().endswith("failed.bad_target  1")
    assert SECRET not in terminal.text


def test_status_follows_a_run_that_is_stopped_meanwhile(
    environ: dict[str, str], api: httpx.Client
) -> None:
    job_id = _submit(api, status="open")
    with _at_terminal(["status", job_id, "--follow"], environ) as terminal:
        terminal.until("pending")
        api.post(f"/jobs/{job_id}/pause").raise_for_status()
        terminal.until("(paused)")
        terminal.until("Paused: nothing new is started")
        api.post(f"/jobs/{job_id}/stop").raise_for_status()
        assert terminal.to_the_end() == 3
    assert "stopped" in terminal.text


def test_ctrl_c_leaves_the_run_alone_and_says_how_to_come_back(
    environ: dict[str, str], api: httpx.Client
) -> None:
    job_id = _submit(api, status="open")
    with _at_terminal(["status", job_id, "--follow"], environ) as terminal:
        terminal.until("pending")
        terminal.type(b"\x03")
        assert terminal.to_the_end() == 130
    assert f"conveyor status {job_id} --follow" in terminal.text
    assert "\x1b[?25h" in terminal.text, "the cursor is hidden for good"
    assert api.get(f"/jobs/{job_id}").json()["latest_run"]["status"] == "pending"


def test_tables_have_headings_and_steer_nothing(environ: dict[str, str], api: httpx.Client) -> None:
    job_id = _submit(api, name="[red]a\x1b]0;title\x07b[/red]")
    ended(api, job_id)
    with _at_terminal(["jobs", "--limit", "1"], environ) as terminal:
        assert terminal.to_the_end() == 0
    head, row = ESCAPE.sub("", terminal.text).splitlines()[:2]
    assert head.split() == ["job", "name", "status", "run", "done", "total", "failed", "created"]
    assert row.startswith(job_id)
    assert "[red]a ]0;title b[/red]" in row
    assert "\x1b]" not in terminal.text


def test_a_long_listing_shows_its_beginning_and_how_to_get_the_rest(
    environ: dict[str, str], api: httpx.Client
) -> None:
    job_id = _submit(api, count=101)
    with _at_terminal(["results", job_id], environ) as terminal:
        assert terminal.to_the_end() == 0
    assert terminal.text.count(OK) == 100
    assert "--format prints every row" in terminal.text


def test_saving_pages_draws_a_bar(
    environ: dict[str, str], api: httpx.Client, tmp_path: Path
) -> None:
    job_id = _submit(api, count=20)
    ended(api, job_id)
    folder = tmp_path / "pages"
    with _at_terminal(["results", job_id, "--out", str(folder)], environ) as terminal:
        assert terminal.to_the_end() == 0
    assert BAR in terminal.text
    assert "20/20" in ESCAPE.sub("", terminal.text)
    assert len(list(folder.glob("*.html"))) == 20


def test_a_long_list_is_shown_on_its_way_and_as_it_comes_in(
    environ: dict[str, str], api: httpx.Client, tmp_path: Path
) -> None:
    file = tmp_path / "urls.txt.gz"
    file.write_bytes(gzip.compress(b"nonsense\n" + f"{OK}\n".encode() * 200_000))
    with _at_terminal(["submit", str(file), "--follow"], environ) as terminal:
        terminal.until("so far")
        job_id = ESCAPE.sub("", terminal.text).partition("as job ")[2].split()[0]
        until(lambda: "ingest_errors" in api.get(f"/jobs/{job_id}").json()["latest_run"])
        api.post(f"/jobs/{job_id}/stop").raise_for_status()
        assert terminal.to_the_end() == 3
    shown = ESCAPE.sub("", terminal.text)
    assert f"uploading {BAR}" in shown
    assert f"/{len(file.read_bytes()) / 1000:.1f} kB" in shown
    assert f"Submitted {file} as job" in shown
    [coming, *_] = [line for line in shown.splitlines() if "so far" in line]
    assert coming.startswith("running, list coming in")
    assert "left:" not in coming
    assert "ingest_errors" in shown
    assert f"conveyor errors {job_id}" in shown


def test_ctrl_c_at_the_bar_of_an_upload_submits_nothing(environ: dict[str, str]) -> None:
    with _at_terminal(["submit", "/dev/zero", "--type", "txt"], environ) as terminal:
        terminal.until("MB")  # of a list without an end
        terminal.type(b"\x03")
        assert terminal.to_the_end() == 130
    assert "Nothing was submitted" in terminal.text
    assert "\x1b[?25h" in terminal.text, "the cursor is hidden for good"


def test_bad_lines_are_shown_in_columns_and_steer_nothing(
    environ: dict[str, str], api: httpx.Client, tmp_path: Path
) -> None:
    file = tmp_path / "urls.txt"
    file.write_text(f"{OK}\n\x1b]0;title\x07\n")
    with _at_terminal(["submit", str(file), "--on-invalid", "skip", "-f"], environ) as terminal:
        assert terminal.to_the_end() == 0
    job_id = ESCAPE.sub("", terminal.text).partition("as job ")[2].split()[0]
    with _at_terminal(["errors", job_id], environ) as terminal:
        assert terminal.to_the_end() == 0
    head, row = terminal.text.splitlines()
    assert head.split() == ["line", "reason", "value"]
    assert row.split() == ["2", "malformed_url", "]0;title"]
    with _at_terminal(["errors", _submit(api)], environ) as terminal:
        assert terminal.to_the_end() == 0
    assert terminal.text.strip() == "No line of its list is reported."


def test_a_service_that_goes_away_and_comes_back_is_told(
    environ: dict[str, str], tmp_path: Path
) -> None:
    here = partial(service, port=free_port(), data=tmp_path / "data", gateway="http://127.0.0.1:9/")
    key = {"X-API-Key": SECRET}
    with here() as program, httpx.Client(base_url=program.url, headers=key) as api:
        job_id = _submit(api, status="open", count=0)
        environ["CONVEYOR_URL"] = program.url
        with _at_terminal(["status", job_id, "--follow"], environ) as terminal:
            terminal.until("pending")
            program.kill()
            terminal.until("Service unreachable for ")
            terminal.until("Connection refused")
            with here() as again:
                httpx.post(f"{again.url}/jobs/{job_id}/stop", headers=key).raise_for_status()
                assert terminal.to_the_end() == 3


def test_a_run_that_waits_says_for_what_and_since_when(environ: dict[str, str]) -> None:
    now = datetime.now(UTC)
    since = now - timedelta(days=2)  # of a moment of today only the time is shown
    waiting = {
        "reason": "gateway_unavailable",
        "since": since.isoformat(),
        "next_attempt_at": (now + timedelta(hours=1)).isoformat(),
        "detail": "Connection refused",
    }
    held, done = _run_of(status="running", waiting=waiting), _run_of(status="completed")
    table: dict[str, Answer | list[Answer]] = {
        "/v1/jobs/j": [_document({**A_JOB, "latest_run": held})] * 2
        + [_document({**A_JOB, "latest_run": done})],
        "/v1/jobs?limit=20": _document({"jobs": [{**A_JOB, "latest_run": held}]}),
        "/v1/jobs/j/runs/r": [_document(held)] * 9 + [_document(done)],
        "/v1/jobs/j/runs/r/events": NO_EVENTS,
    }
    shown_since = f"{since.astimezone():%Y-%m-%d %H:%M}"
    with _scripted(table, environ):
        shown = _shown(["status", "j"], environ)
        assert "running (waiting for the gateway)" in shown
        assert f"for the gateway since {shown_since}, next attempt in 3" in shown
        shown = _shown(["jobs"], environ)
        assert "running (waiting for the gateway)" in " ".join(shown.split())
        shown = _shown(["status", "j", "--follow"], environ)
        assert f"Waiting for the gateway since {shown_since}, next attempt in 3" in shown
        assert "s (Connection refused)" in shown


NOW = "2026-03-02T12:00:00Z"
ATTEMPT = {"attempt": 1, "started_at": NOW, "ended_at": NOW, "error": {"code": "RESP002"}}


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([ATTEMPT], "Waiting for retries: 2 tasks, the first one failed last with RESP002"),
        ([], "Waiting: 2 tasks: no worker has a free place, or the gateway has put"),
    ],
)
def test_a_run_whose_tasks_wait_says_so(
    environ: dict[str, str], attempts: list[dict[str, Any]], expected: str
) -> None:
    run = _run_of(status="running", stats={"total": 9, "completed": 7, "successful": 7})
    rows = [
        {"task_id": f"t{number}", "run_id": "r", "url": OK, "status": "pending"}
        for number in range(2)
    ]
    at = "/v1/jobs/j/runs/r"
    table: dict[str, Answer | list[Answer]] = {
        "/v1/jobs/j": _document({**A_JOB, "latest_run": run}),
        at: _document(run),
        f"{at}/events": NO_EVENTS,
        f"{at}/results?status=processing&limit=100": _document({"results": rows}),
        f"{at}/tasks/t0/history": _document({"events": attempts}),
    }
    with (
        _scripted(table, environ),
        _at_terminal(["status", "j", "--follow"], environ) as terminal,
    ):
        terminal.until(expected)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_no_bar_and_no_colour_gets_into_a_pipe(
    environ: dict[str, str], api: httpx.Client, flags: list[str]
) -> None:
    """Standard output is a pipe and standard error a terminal: the bar is drawn on the latter."""
    job_id = _submit(api)
    ended(api, job_id)
    command = ["status", job_id, "--follow", *flags]
    with _at_terminal(command, environ, piped=True) as terminal:
        assert terminal.process.stdout
        told = terminal.process.stdout.read().decode()
        assert terminal.to_the_end() == 0
    assert BAR not in told
    assert "\x1b" not in told
    assert job_id in told
    assert (BAR in terminal.text) is not bool(flags)


@pytest.mark.parametrize(
    "command",
    sampled(
        [
            ["results", "{job}", "--ndjson"],
            ["results", "{job}", "--json"],
            ["results", "{job}"],
            ["results", "{job}", "--out", "{folder}/pages", "--json"],
            ["export", "{job}", "--out", "{folder}/pages.zip"],
            ["submit", "{folder}/urls.txt", "--follow"],
            ["submit", "{folder}/urls.txt", "--follow", "--json"],
            ["rerun", "{job}", "--follow"],
            ["jobs"],
            ["runs", "{job}"],
            ["errors", "{job}", "--json"],
            ["history", "{job}", "{task}"],
        ],
        4,
        of="commands with bars",
    ),
    ids=" ".join,
)
def test_what_is_written_to_a_pipe_is_the_same_with_and_without_a_terminal_for_bars(
    environ: dict[str, str], api: httpx.Client, tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "urls.txt").write_text(f"{OK}\n" * 3)
    job_id = _submit(api, count=3)
    ended(api, job_id)
    task_id = api.get(f"/jobs/{job_id}/results").json()["results"][0]["task_id"]
    named = {"job": job_id, "folder": tmp_path, "task": task_id}
    arguments = [word.format(**named) for word in command]
    with _at_terminal(arguments, environ, piped=True) as terminal:
        assert terminal.process.stdout
        told = terminal.process.stdout.read().decode()
        assert terminal.to_the_end() == 0
    (tmp_path / "pages.zip").unlink(missing_ok=True)
    without = subprocess.run(
        [sys.executable, "-m", "conveyor", *arguments], env=environ, capture_output=True, check=True
    ).stdout.decode()
    assert told.count("\n") == without.count("\n") > 0 or told == without == ""
    assert BAR not in told
    if command[-1] == "--ndjson":
        assert [json.loads(line)["status"] for line in told.splitlines()] == ["successful"] * 3


def _submit(api: httpx.Client, *, count: int = 1, **fields: str) -> str:
    body = {"tasks": [{"url": f"{OK}{number}"} for number in range(count)], **fields}
    return str(api.post("/jobs", json=body).raise_for_status().json()["job_id"])


A_JOB = {"job_id": "j", "status": "closed", "created_at": NOW}


def _run_of(**fields: object) -> dict[str, object]:
    return {"run_id": "r", **fields}


def _document(body: object) -> Answer:
    return 200, {"Connection": "close"}, json.dumps(body).encode()


NO_EVENTS: Answer = (404, {"Connection": "close"}, b"{}")


@contextmanager
def _scripted(
    answered: dict[str, Answer | list[Answer]], environ: dict[str, str]
) -> Iterator[None]:
    """A service that answers so, in place of the real one."""

    class Scripted(Answers):
        table: ClassVar[dict[str, Answer | list[Answer]]] = answered
        seen: ClassVar[list[str]] = []
        hang_up = False

    with served(Scripted) as url:
        environ["CONVEYOR_URL"] = url
        yield


def _shown(arguments: list[str], environ: dict[str, str]) -> str:
    with _at_terminal(arguments, environ) as terminal:
        assert terminal.to_the_end() == 0
    return ESCAPE.sub("", terminal.text)


@contextmanager
def _at_terminal(
    arguments: list[str], environ: dict[str, str], *, piped: bool = False
) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _AT_THE_TERMINAL, *arguments],
        stdin=slave,
        stdout=subprocess.PIPE if piped else slave,
        stderr=slave,
        start_new_session=True,
        env=environ,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
        os.close(master)


# A session's leader takes up the terminal as its own, so that Ctrl-C on it becomes a signal.
_AT_THE_TERMINAL = """
import fcntl, signal, sys, termios
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from conveyor.cli.main import main
sys.argv[0] = "conveyor"
main()
"""
