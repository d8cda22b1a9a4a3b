"""`make up-aws` and `make up-postgres`: the whole on loopback, of which every process is killed while it works."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conveyor.client import Conveyor, Patience
from tests.e2e.polling import until

PATIENT = Patience(first=0.1, longest=1.0, attempts=200)
PAGES = 300


@contextmanager
def deployed(stack: str, folder: Path) -> Iterator[str]:
    """A deployment that is ready; the base URL of its api."""
    command = ["-m", "conveyor.testing.local", stack, "--folder", str(folder), "--port", "0"]
    with (
        (folder / "err").open("wb") as errors,
        subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout
            last = ""
            for line in process.stdout:
                last = line
                if line.startswith("ready "):
                    break
            assert last.startswith("ready "), (folder / "err").read_text()
            yield last.split()[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=200)


@pytest.mark.long
@pytest.mark.parametrize(
    ("stack", "engines"),
    [
        ("postgres", ["postgres", "valkey", "s3", "gateway"]),
        ("aws", ["valkey", "s3", "gateway"]),  # the emulator keeps nothing when it is killed
    ],
)
def test_every_process_may_be_killed_while_tasks_are_scraped(
    stack: str, engines: list[str], tmp_path: Path
) -> None:
    with deployed(stack, tmp_path) as url, Conveyor(url, "any-key", patience=PATIENT) as client:
        for name in ("worker-1", "worker-2", "api", *engines):
            urls = [f"https://slow.example/{name}/{n}?ms=50" for n in range(PAGES)]
            job = client.submit(urls, retries=20)
            kill(tmp_path, name)
            run = client.wait(job.job_id)
            assert (run.status, run.stats.successful, run.stats.total) == (
                "completed",
                PAGES,
                PAGES,
            )
            assert len(list(client.results(job.job_id, bodies=False))) == PAGES
    assert not list(tmp_path.glob("*.pid"))


def test_a_second_deployment_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["-m", "conveyor.testing.local", "postgres", "--folder", str(tmp_path)]
        told = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, timeout=200
        )
    assert told.returncode == 1
    assert "is running: stop it, or choose --folder" in told.stderr


def kill(folder: Path, name: str) -> None:
    """Kill a process, and wait for the one that takes its place."""
    before = pid_of(folder, name)
    os.kill(before, signal.SIGKILL)
    until(lambda: pid_of(folder, name) != before)


def pid_of(folder: Path, name: str) -> int:
    try:
        return int((folder / f"{name}.pid").read_text())
    except FileNotFoundError:
        return 0
