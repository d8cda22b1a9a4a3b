"""`conveyor backup`: one moment of a data folder, while a service works on it."""

import asyncio
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from conveyor.adapters.files.blobs import FileBlobs
from conveyor.adapters.files.bodies import FileBodies
from conveyor.adapters.segments.store import open_segment_store
from conveyor.adapters.shared.folder_lock import locked
from conveyor.adapters.system.clock import SystemClock
from conveyor.app.backup import HELD, MARKER, back_up, remove_links
from conveyor.domain.ids import JobId, RunId
from conveyor.errors import RefusedToStart, StorageFull, Unavailable
from conveyor.settings import Settings
from conveyor.testing.clock import FakeIds
from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of
from tests.e2e.polling import ended, until
from tests.harness.programs import Program, mock_gateway, service

WITHIN = 300  # seconds for a command
ENVIRON = FAST_RETRIES | SHORT_GRACE | {"CONVEYOR_LOG_LEVEL": "warning"}
TASKS = [
    *(f"https://ok.example/{number}?size=4096" for number in range(16)),
    "https://big.example/a?size=700000",  # spooled: a file
    "https://flaky.example/b?fails=1",
    "https://slow.example/c?ms=100",
    "https://permanent.example/d",
]
LONG = 400  # tasks of a job whose list is staged
MOST = 60  # jobs: each must end on the copy too
OTHER_USER = 12_345
PAUSE = 0.02  # seconds between submits


def test_backups_of_a_busy_service_restore_with_exact_counts(tmp_path: Path) -> None:
    _check_backups(tmp_path, kills=2, backups=1)


@pytest.mark.long
def test_many_backups_of_a_busy_service_some_of_them_killed(tmp_path: Path) -> None:
    _check_backups(tmp_path, kills=20, backups=6)


def _check_backups(tmp_path: Path, *, kills: int, backups: int) -> None:
    data, dice = tmp_path / "data", random.Random(5)
    made: list[tuple[Path, list[str]]] = []
    with mock_gateway() as gateway:
        with (
            service(data=data, gateway=gateway.url, environ=ENVIRON) as program,
            _load(program) as load,
        ):
            for number in range(backups):
                target = tmp_path / f"copy-{number}"
                for _ in range(kills // backups):
                    _kill_a_backup(data, target, dice)
                    assert not target.exists()
                load.go_on()
                before = load.lasting()
                told = _backup(data, target, "--with-keys")
                assert told["keys"]
                assert not (data / HELD).exists()
                made.append((target, before))
        assert load.failures == []
        for target, before in made:
            _check(target, gateway, load, before)


def _kill_a_backup(data: Path, target: Path, dice: random.Random) -> None:
    """At any moment, and at once if it is already done, so that nothing of it is left."""
    process = subprocess.Popen([*_command(data), str(target)], stdout=subprocess.DEVNULL)
    until(lambda: (data / HELD).exists() or process.poll() is not None)
    time.sleep(dice.uniform(0.0, 0.1))  # the moment of death must be any moment
    process.send_signal(signal.SIGKILL)
    process.wait()
    if target.exists():
        target.rename(target.with_name(f"{target.name}.{time.monotonic_ns()}"))


def _check(target: Path, gateway: Program, load: "Load", before: list[str]) -> None:
    """The copy is in order at rest, its runs end with the right counts, and it stays in order."""
    assert _doctor(target)["wrong"] == 0
    environ = ENVIRON | {"CONVEYOR_SWEEP_EVERY": "1s"}
    with (
        service(data=target, gateway=gateway.url, environ=environ) as program,
        client_of(program) as api,
    ):
        found = _jobs(api)
        assert set(before) <= set(found)
        for job_id in found:
            stats = ended(api, job_id)["stats"]
            total = load.submitted[job_id]
            assert (stats["total"], stats["completed"]) == (total, total)
            assert stats["failed"] == total // len(TASKS)
        until(lambda: _doctor(target)["repairs"] == 0)
        summary = _doctor(target)
        assert (summary["wrong"], summary["jobs"]) == (0, len(found))


class Load:
    """Submits jobs of both sizes, and deletes old ones, until it is stopped."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._stopping = Event()
        self._left = MOST
        self._deleted: set[str] = set()
        self._thread = Thread(target=self._run)
        self.submitted: dict[str, int] = {}
        self.failures: list[str] = []

    def start(self) -> None:
        self._thread.start()
        until(lambda: len(self.submitted) > 4)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def go_on(self) -> None:
        """Submit as many again: the backup must meet some of them half done."""
        self._left = MOST
        until(lambda: self._left < MOST - 4)

    def lasting(self) -> list[str]:
        """Jobs that were submitted by now, and that are not deleted soon."""
        return [one for one in list(self.submitted)[-5:] if one not in self._deleted]

    def _run(self) -> None:
        with client_of(self._program) as api:
            number = 0
            while not self._stopping.wait(PAUSE):
                if not self._left:
                    continue
                self._left -= 1
                count = LONG if number % 10 == 3 else len(TASKS)
                tasks = [{"url": url} for url in TASKS] * (count // len(TASKS))
                answer = api.post("/jobs", json={"tasks": tasks, "async": count == LONG})
                if answer.status_code not in {201, 202}:
                    self.failures.append(answer.text)
                    return
                self.submitted[answer.json()["job_id"]] = count
                old = list(self.submitted)[: max(0, len(self.submitted) - 40)]
                for job_id in set(old) - self._deleted:
                    self._deleted.add(job_id)
                    api.delete(f"/jobs/{job_id}")
                number += 1


@contextmanager
def _load(program: Program) -> Iterator[Load]:
    load = Load(program)
    load.start()
    try:
        yield load
    finally:
        load.stop()


def _jobs(api: httpx.Client) -> list[str]:
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        query = {"limit": "100"} | ({"cursor": cursor} if cursor else {})
        page = api.get("/jobs", params=query).raise_for_status().json()
        found += [job["job_id"] for job in page["jobs"] if job["status"] != "deleted"]
        cursor = page["next_cursor"]
    return found


def _command(data: Path) -> list[str]:
    return [sys.executable, "-m", "conveyor", "backup", "--data", str(data), "--json"]


def _backup(data: Path, target: Path, *flags: str) -> dict[str, Any]:
    done = subprocess.run(
        [*_command(data), str(target), *flags],
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _doctor(data: Path) -> dict[str, Any]:
    """The summary of the doctor, which must have found nothing wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "conveyor", "doctor", "--data", str(data), "--json"],
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


# What happens between the moment and the copy.


@pytest.fixture(scope="module")
def at_rest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, JobId, RunId]:
    """A data folder with a run in segments and files, and a list."""
    data = tmp_path_factory.mktemp("backup") / "data"
    with (
        mock_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=ENVIRON) as program,
        client_of(program) as api,
    ):
        given = {"tasks": [{"url": url} for url in TASKS], "async": True}
        job_id = api.post("/jobs", json=given).raise_for_status().json()["job_id"]
        return data, JobId(job_id), RunId(ended(api, job_id)["run_id"])


def test_what_is_removed_during_the_copy_is_in_the_backup(
    at_rest: tuple[Path, JobId, RunId], tmp_path: Path
) -> None:
    original, job_id, run_id = at_rest
    data, target = tmp_path / "data", tmp_path / "copy"
    back_up(_settings(original), data, with_keys=False, on_progress=lambda _, __: None)
    with open_segment_store(data / "bodies" / "packs", clock=SystemClock()) as store:
        removed = False

        async def remove() -> None:
            assert await store.remove_run(job_id, run_id, limit=100) == 18
            with pytest.raises(Unavailable, match="a backup"):
                await store.reclaim()
            assert (
                await FileBodies(data / "bodies", FakeIds()).delete_run(job_id, run_id, limit=100)
                == 1
            )
            blobs = FileBlobs(data / "blobs")
            await blobs.delete(await blobs.keys("", limit=10))

        def once(_done: int, _all: int) -> None:
            nonlocal removed
            if not removed:
                removed = True
                asyncio.run(remove())

        back_up(_settings(data), target, with_keys=False, on_progress=once)
        asyncio.run(store.reclaim())  # now it may
    assert removed
    assert _doctor(target) == _doctor(original)
    assert _doctor(target)["bodies"] == 19
    assert [path.name for path in (target / "blobs").rglob("*.ndjson")]


def test_keys_are_copied_on_request_only(
    at_rest: tuple[Path, JobId, RunId], tmp_path: Path
) -> None:
    data, *_ = at_rest
    _backup(data, tmp_path / "without")
    _backup(data, tmp_path / "with", "--with-keys")
    keys = {path.name for path in data.glob("*.key")}
    assert keys == {"encryption.key", "links.key"}
    assert not list((tmp_path / "without").glob("*.key"))
    assert {path.name for path in (tmp_path / "with").glob("*.key")} == keys
    assert (tmp_path / "with").stat().st_mode & 0o777 == 0o700
    files = [path for path in (tmp_path / "with").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_a_backup_is_refused_where_it_would_mix_with_something(
    at_rest: tuple[Path, JobId, RunId], tmp_path: Path
) -> None:
    data, *_ = at_rest

    def refused(settings: Settings, target: Path, why: str) -> None:
        with pytest.raises(RefusedToStart, match=why):
            back_up(settings, target, with_keys=False, on_progress=lambda _, __: None)

    refused(Settings(data=str(data)), Path("/proc/backup"), "/proc/backup cannot be created")
    (tmp_path / "there").mkdir()
    refused(_settings(data), tmp_path / "there", "exists")
    refused(_settings(data), data / "copy", "outside the data folder")
    refused(_settings(tmp_path / "nothing"), tmp_path / "copy", "no data of Conveyor")
    elsewhere = Settings(data=str(data), metadata="postgresql://localhost/x")
    refused(elsewhere, tmp_path / "copy", "metadata is in postgresql")


def test_the_next_start_removes_what_a_killed_backup_left(
    at_rest: tuple[Path, JobId, RunId], tmp_path: Path
) -> None:
    original, *_ = at_rest
    data = tmp_path / "data"
    _backup(original, data)
    (data / HELD / "bodies").mkdir(parents=True)
    with (
        mock_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=ENVIRON),
    ):
        assert not (data / HELD).exists()


@pytest.mark.parametrize("cause", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_backup_that_fails_leaves_nothing_of_its_copy(
    at_rest: tuple[Path, JobId, RunId], tmp_path: Path, cause: BaseException
) -> None:
    data, *_ = at_rest

    def fail(done: int, everything: int) -> None:
        if done == everything:  # the keys are copied too
            raise cause

    with pytest.raises((StorageFull, KeyboardInterrupt)):
        back_up(_settings(data), tmp_path / "copy", with_keys=True, on_progress=fail)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_only_looks_like_an_unfinished_backup_is_left_alone(
    at_rest: tuple[Path, JobId, RunId], tmp_path: Path
) -> None:
    data, *_ = at_rest
    mine = tmp_path / "copy.partial" / "mine"
    mine.parent.mkdir()
    mine.touch()
    with pytest.raises(RefusedToStart, match="is not an unfinished backup"):
        back_up(_settings(data), tmp_path / "copy", with_keys=False, on_progress=_silent)
    assert mine.exists()


def test_a_killed_backup_is_replaced_by_the_next_but_not_one_under_way(
    at_rest: tuple[Path, JobId, RunId], tmp_path: Path
) -> None:
    data, *_ = at_rest
    draft = tmp_path / "copy.partial"
    (draft / "bodies").mkdir(parents=True)
    (draft / MARKER).touch()
    (draft / "stale").touch()
    with locked(draft), pytest.raises(RefusedToStart, match="under way"):
        back_up(_settings(data), tmp_path / "copy", with_keys=False, on_progress=_silent)
    assert (draft / "stale").exists()
    back_up(_settings(data), tmp_path / "copy", with_keys=False, on_progress=_silent)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
    assert not {"stale", MARKER} & {path.name for path in (tmp_path / "copy").iterdir()}


def test_a_file_that_is_too_short_fails_the_backup(
    at_rest: tuple[Path, JobId, RunId], tmp_path: Path
) -> None:
    original, *_ = at_rest
    data = tmp_path / "data"
    _backup(original, data)
    segment = next((data / "bodies" / "packs").rglob("*.warc"))
    os.truncate(segment, segment.stat().st_size - 10)
    with pytest.raises(Unavailable, match=f"{segment.name} is damaged: 10 of its"):
        back_up(_settings(data), tmp_path / "copy", with_keys=False, on_progress=_silent)
    assert not (tmp_path / "copy").exists()


def test_a_backup_tells_what_is_kept_elsewhere_and_not_in_it(
    at_rest: tuple[Path, JobId, RunId], tmp_path: Path
) -> None:
    data, *_ = at_rest
    environ = os.environ | {
        "CONVEYOR_BODIES": f"files:{tmp_path}/shared",
        "CONVEYOR_BLOBS": "s3://bucket/prefix",
    }
    command = [*_command(data), str(tmp_path / "copy")]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=WITHIN, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["not_copied"] == ["bodies", "blobs"]
    assert "bodies are in another folder and not in this backup" in done.stderr
    assert "blobs are in S3 and not in this backup" in done.stderr
    inside = Settings(data=str(data), bodies=f"files:{data}")
    made = back_up(inside, tmp_path / "whole", with_keys=False, on_progress=_silent)
    assert made.not_copied == ()


def test_results_in_segments_of_a_settle_are_in_the_backup(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "copy"
    environ = ENVIRON | {"CONVEYOR_BODIES": "files:?layout=segments"}
    with (
        mock_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=environ) as program,
        client_of(program) as api,
    ):
        given = {"tasks": [{"url": f"https://ok.example/{number}"} for number in range(60)]}
        ended(api, api.post("/jobs", json=given).raise_for_status().json()["job_id"])
    assert len([path for path in (data / "bodies/jobs").rglob("*") if path.is_file()]) < 60
    chosen = Settings(data=str(data), bodies=environ["CONVEYOR_BODIES"])

    made = back_up(chosen, target, with_keys=False, on_progress=_silent)

    assert made.not_copied == ()
    assert _doctor(target) == _doctor(data)
    assert (_doctor(target)["bodies"], _doctor(target)["wrong"]) == (60, 0)


def _silent(_done: int, _all: int) -> None:
    pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_links_that_root_makes_belong_to_the_user_of_the_service(
    at_rest: tuple[Path, JobId, RunId], tmp_path: Path
) -> None:
    original, *_ = at_rest
    data = tmp_path / "data"
    _backup(original, data)
    os.chown(data, OTHER_USER, OTHER_USER)
    seen: set[tuple[int, int]] = set()

    def look(_done: int, _all: int) -> None:
        folders = [data / HELD, *(path for path in (data / HELD).rglob("*") if path.is_dir())]
        assert len(folders) > 2
        seen.update((one.stat().st_uid, one.stat().st_gid) for one in folders)

    back_up(_settings(data), tmp_path / "copy", with_keys=False, on_progress=look)
    assert seen == {(OTHER_USER, OTHER_USER)}


def test_a_start_goes_on_without_removing_links_that_it_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the user of the service, after root's backup was killed."""
    (tmp_path / HELD).mkdir()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with capture_logs() as logs:
        remove_links(tmp_path)
    assert [line["event"] for line in logs] == ["backup.links.left"]
    assert str(tmp_path / HELD) in logs[0]["hint"]


def _settings(data: Path) -> Settings:
    return Settings(data=str(data))
