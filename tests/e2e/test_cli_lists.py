"""Long lists from the command line: uploaded, followed while they come in, their bad lines told."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import client_of
from tests.e2e.polling import every_row, until
from tests.harness.programs import Program, service
from tests.seed import sampled

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SECRET = "an-api-key"
OK = "https://ok.example/"
MANY = 50_000

Told = subprocess.CompletedProcess[bytes]
Run = Callable[..., Told]


@pytest.fixture
def environ(running: Program, tmp_path: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("CONVEYOR_")}
    return {**own, "HOME": str(tmp_path), "CONVEYOR_URL": running.url, "CONVEYOR_KEY": SECRET}


@pytest.fixture
def run(environ: dict[str, str], tmp_path: Path) -> Run:
    """Run a command; whatever it tells, it is not the key and no traceback."""

    def run(*arguments: str, given: bytes = b"", code: int = 0, **variables: str) -> Told:
        told = subprocess.run(
            [sys.executable, "-m", "conveyor", *arguments],
            input=given,
            capture_output=True,
            check=False,
            timeout=200,
            cwd=tmp_path,
            env={**environ, **variables},
        )
        assert told.returncode == code, told.stderr
        for secret in (SECRET.encode(), b"Traceback", b"\x1b"):
            assert secret not in told.stdout + told.stderr
        return told

    return run


def test_a_packed_file_of_many_lines_is_uploaded_and_followed_as_it_comes_in(
    environ: dict[str, str], api: httpx.Client, tmp_path: Path
) -> None:
    lines = [b'{"url": "%s%d"}' % (OK.encode(), number) for number in range(MANY)]
    lines[30_000] = b'{"url": "nowhere"}'
    (tmp_path / "big.ndjson.zst").write_bytes(zstd.compress(b"\n".join(lines)))
    with _started(["submit", "big.ndjson.zst", "--follow"], environ, tmp_path) as following:
        assert following.stdout
        job_id = following.stdout.readline().decode().strip()
        until(
            lambda: api.get(f"/jobs/{job_id}").json()["latest_run"].get("ingest_status") == "done"
        )
        api.post(f"/jobs/{job_id}/stop").raise_for_status()
        told, complaints = following.communicate(timeout=200)
    assert (following.returncode, complaints) == (3, b"")
    facts = _facts(told)
    assert (facts["run_status"], facts["total"]) == ("stopped", str(MANY - 1))
    assert facts["ingest_errors"] == "1"


@pytest.mark.parametrize("name", sampled(["plain.txt", "plain.ndjson"], 1, of="long plain lists"))
def test_a_list_of_more_lines_than_a_call_takes_is_uploaded(
    run: Run, api: httpx.Client, tmp_path: Path, name: str
) -> None:
    line = f"{OK}\n" if name.endswith("txt") else f'{{"url": "{OK}"}}\n'
    (tmp_path / name).write_text(line * 100_001)
    for arguments, given in ([name], b""), (["-"], (tmp_path / name).read_bytes()):
        submitted = json.loads(run("submit", *arguments, "--json", given=given).stdout)
        assert submitted["accepted_tasks"] == 0, "it was handed in by a call"
        job = f"/jobs/{submitted['job_id']}"
        api.post(f"{job}/pause").raise_for_status()  # what is read need not be scraped as well
        if arguments == [name]:
            assert _taken_in(api, submitted["job_id"])["stats"]["total"] == 100_001
        api.post(f"{job}/stop").raise_for_status()


def test_a_packed_list_comes_by_standard_input(run: Run, api: httpx.Client) -> None:
    given = gzip.compress(f"# two\n{OK}1\n{OK}2\n".encode())
    job_id = _text(run("submit", "-", "--name", "piped", given=given).stdout)
    assert [row["url"] for row in every_row(api, job_id)] == [f"{OK}1", f"{OK}2"]
    assert api.get(f"/jobs/{job_id}").json()["name"] == "piped"
    given = gzip.compress(f'{{"url": "{OK}", "external_id": "a"}}\n'.encode())
    [row] = every_row(api, _text(run("submit", "-", given=given).stdout))
    assert row["external_id"] == "a"
    given = gzip.compress(f"external_id,url\nb,{OK}\n".encode())
    [row] = every_row(api, _text(run("submit", "-", "--type", "csv", given=given).stdout))
    assert row["external_id"] == "b"


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (f"url;external_id\n{OK};a\n", ["--delimiter", ";"]),
        (f"n\tlink\na\t{OK}\n", ["--delimiter", "tab", "--url-column", "link", "--id-column", "n"]),
        (f"a,{OK}\n", ["--no-header", "--url-column", "1", "--id-column", "0"]),
    ],
)
def test_csv_may_have_other_columns_and_marks(
    run: Run, api: httpx.Client, tmp_path: Path, content: str, options: list[str]
) -> None:
    for name, raw in ("a.csv", content.encode()), ("a.csv.gz", gzip.compress(content.encode())):
        (tmp_path / name).write_bytes(raw)
        [row] = every_row(api, _text(run("submit", name, *options).stdout))
        assert (row["url"], row["external_id"]) == (OK, "a")


def test_bad_lines_are_left_out_and_reported(run: Run, api: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text(f"{OK}\nnonsense\x1b[31m\n\nftp://a.example/\n")
    told = run("submit", "urls.txt", "--on-invalid", "skip", "--follow")
    job_id, _, rest = _text(told.stdout).partition("\n")
    facts = _facts(rest.encode())
    assert (facts["run_status"], facts["successful"], facts["ingest_errors"]) == (
        "completed",
        "1",
        "2",
    )
    assert _facts(run("status", job_id).stdout)["ingest_errors"] == "2"
    reported = run("errors", job_id).stdout
    rows = [json.loads(line) for line in reported.splitlines()]
    assert [(row["line"], row["reason"]) for row in rows] == [
        (2, "malformed_url"),
        (4, "unsupported_scheme"),
    ]
    run_id = facts["run"]
    assert run("errors", job_id, "--run", run_id, "--json").stdout == reported
    assert "404" in _text(run("errors", job_id, "--run", "nope", code=1).stderr)
    without = _text(run("submit", "-", given=OK.encode()).stdout)
    assert run("errors", without).stdout == b""


def test_bad_lines_of_a_short_upload_are_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "urls.txt.gz").write_bytes(gzip.compress(f"{OK}\nnonsense\n".encode()))
    told = _text(run("submit", "urls.txt.gz", code=1).stderr)
    assert "urls.txt.gz, line 2: malformed_url nonsense" in told


def test_a_key_that_is_used_up_makes_no_second_job(run: Run) -> None:
    command = ["submit", "-", "--type", "txt", "--idempotency-key", "once"]
    run(*command, given=OK.encode())
    told = _text(run(*command, given=OK.encode(), code=1).stderr)
    assert "409 idempotency_key_conflict" in told
    assert "conveyor jobs" in told


def test_one_bad_line_may_stop_it_all(run: Run, api: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text(f"{OK}\n" * 20_000 + "nonsense\n")
    told = run("submit", "urls.txt", "--on-invalid", "fail", "--follow", code=3)
    job_id, _, rest = _text(told.stdout).partition("\n")
    facts = _facts(rest.encode())
    assert (facts["run_status"], facts["total"]) == ("stopped", "0")
    assert facts["ingest_error"].startswith("1 of the 20001 rows")
    assert json.loads(run("errors", job_id).stdout)["line"] == 20_001
    assert every_row(api, job_id) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.csv.gz"], ["a.csv.gz", "no column is named `url`, only id, link", "--url-column"]),
        (["a.csv.gz", "--id-column", "n"], ["no column is named `url`"]),
        (["a.csv.gz", "--no-header", "--url-column", "link"], ["a number from 0"]),
        (["a.csv.gz", "--delimiter", ";;"], ["one character"]),
        (["a.txt", "--delimiter", ";"], ["need a CSV list, got txt", "--type csv"]),
        (["a.csv.gz", "--open"], ["open job must begin with one call", "conveyor add"]),
        (["a.txt", "--open", "--on-invalid", "skip"], ["leave --open out"]),
        (["a.txt", "--on-invalid", "pray"], ["'skip', 'fail'"]),
        (["a.txt", "--type", "xlsx"], ["'csv', 'ndjson', 'txt'"]),
        (["nowhere.gz"], ["nowhere.gz: No such file"]),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_sent(
    run: Run, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(f"id,link\n1,{OK}\n".encode()))
    (tmp_path / "a.txt").write_text(OK)
    told = run("submit", *arguments, code=2, CONVEYOR_URL="http://127.0.0.1:1/v1")
    for word in words:
        assert word in _text(told.stderr)


def test_an_upload_that_is_too_large_is_told(run: Run, gateway: Program, tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text(f"{OK}\n" * 500_000)
    bound = {"CONVEYOR_LIST_BYTES": "1000"}
    with (
        service(data=tmp_path / "data", gateway=gateway.url, environ=bound) as program,
        client_of(program) as api,
    ):
        content = (tmp_path / "urls.txt").read_bytes()
        for arguments, given in (["urls.txt"], b""), (["-"], content):
            told = run("submit", *arguments, given=given, code=1, CONVEYOR_URL=program.url)
            assert "at most 1000 bytes" in _text(told.stderr)
            assert "413 payload_too_large" in _text(told.stderr)
            assert "split" in _text(told.stderr)
        assert api.get("/jobs").json()["jobs"] == []


def test_ctrl_c_during_the_upload_submits_nothing(
    environ: dict[str, str], running: Program, tmp_path: Path
) -> None:
    """The list never ends: whatever was sent of it, there is no job."""
    own = {**environ, "CONVEYOR_KEY": "another-key"}
    with _started(["submit", "-"], own, tmp_path) as submitting:
        assert submitting.stdin
        for _ in range(40):  # more than pipes and sockets hold: the upload has begun
            submitting.stdin.write(f"{OK}{'a' * 100}\n".encode() * 10_000)
        submitting.send_signal(signal.SIGINT)
        told, complaints = submitting.communicate(timeout=200)
    assert (submitting.returncode, told) == (130, b"")
    assert b"Nothing was submitted" in complaints
    with client_of(running, key="another-key") as api:
        assert api.get("/jobs").json()["jobs"] == []


def test_an_upload_holds_nothing_of_the_list(
    environ: dict[str, str], running: Program, tmp_path: Path
) -> None:
    size = 80_000_000
    with (tmp_path / "urls.txt").open("wb") as file:
        line = f"{OK}{'a' * 180}\n".encode()
        for _ in range(size // (len(line) * 1000)):
            file.write(line * 1000)
    own = {**environ, "CONVEYOR_KEY": "key-of-a-large-list"}
    told = subprocess.run(
        [sys.executable, "-c", _MEASURED, "submit", "urls.txt"],
        capture_output=True, check=True, timeout=200, cwd=tmp_path, env=own,
    )  # fmt: skip
    job_id, peak = told.stdout.split()
    assert int(peak) < 120_000, f"{int(peak):,} KB"
    with client_of(running, key="key-of-a-large-list") as api:
        api.post(f"/jobs/{job_id.decode()}/stop").raise_for_status()


# The peak that `getrusage` tells may be that of the process it was forked from.
_MEASURED = """
from pathlib import Path
from conveyor.cli.main import build_app
build_app("submit")(standalone_mode=False)
[peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line]
print(peak.split()[1])
"""


@contextmanager
def _started(
    arguments: list[str], environ: dict[str, str], folder: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """A command under way, and ended with the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "conveyor", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
        cwd=folder,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _taken_in(api: httpx.Client, job_id: str) -> dict[str, Any]:
    def done() -> dict[str, Any] | None:
        run: dict[str, Any] = api.get(f"/jobs/{job_id}").json()["latest_run"]
        return run if run["ingest_status"] == "done" else None

    return until(done)


def _facts(told: bytes) -> dict[str, str]:
    pairs = (line.split("\t") for line in told.decode().splitlines())
    return {pair[0]: pair[1] for pair in pairs}


def _text(told: bytes) -> str:
    return told.decode().strip()
