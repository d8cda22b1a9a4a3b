"""The `conveyor` command as people run it: what it refuses, what it heeds, how it ends."""

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from conveyor import __version__
from conveyor.testing.local.ports import free_port
from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of, problem_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, service

SECRET = "tell/nobody+this key=4711"


def test_the_version_is_told() -> None:
    told = _run("--version")
    assert (told.returncode, told.stdout) == (0, f"conveyor {__version__}\n")


def test_without_a_command_or_a_role_there_is_help() -> None:
    told = _run()
    assert told.returncode == 2
    for command in ("serve", "dev", "api", "worker", "mock-gateway", "demo"):
        assert command in told.stdout


def test_a_role_that_is_none_is_refused() -> None:
    _assert_refused(
        _run(environ={"CONVEYOR_ROLE": "nonsense"}), "api, worker, serve or dev", "nonsense"
    )


def test_the_role_can_come_from_the_environment(
    gateway: Program, tmp_path: Path, log: Path
) -> None:
    environ = {
        "CONVEYOR_ROLE": "dev",
        "CONVEYOR_PORT": "0",
        "CONVEYOR_DATA": str(tmp_path / "data"),
        "CONVEYOR_GATEWAY": gateway.url,
    }
    with _started([], log, environ) as url, _client(url) as api:
        assert ended(api, _submit(api))["stats"]["successful"] == 1


@pytest.mark.parametrize("role", ["api", "worker"])
@pytest.mark.parametrize("by_variable", [True, False])
def test_a_role_of_its_own_refuses_state_that_one_process_holds(
    role: str, *, by_variable: bool
) -> None:
    told = _run(environ={"CONVEYOR_ROLE": role}) if by_variable else _run(role)
    _assert_refused(told, f"conveyor {role}", "'sqlite:'", "conveyor serve")


def test_an_open_address_without_keys_is_refused(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::"):
        told = _run("dev", "--host", host, "--data", str(tmp_path))
        _assert_refused(told, host, "CONVEYOR_API_KEYS")
    assert list(tmp_path.iterdir()) == []


def test_listed_keys_are_the_only_ones_that_work(gateway: Program, tmp_path: Path) -> None:
    keys = {"CONVEYOR_API_KEYS": "first-key, second-key"}
    with service(data=tmp_path, gateway=gateway.url, environ=keys) as program:
        for key in ("first-key", "second-key"):
            with client_of(program, key=key) as api:
                assert ended(api, _submit(api))["stats"]["successful"] == 1
        for key in ("third-key", "first-ke", "first-key,", "FIRST-KEY"):
            with client_of(program, key=key) as api:
                problem_of(api.get("/jobs"), 401, "unauthenticated")


def test_a_data_folder_has_one_process(gateway: Program, tmp_path: Path) -> None:
    with service(data=tmp_path, gateway=gateway.url) as program:
        told = _run("dev", "--data", str(tmp_path), "--port", "0")
        _assert_refused(told, str(tmp_path), "in use", str(program.process.pid))
        with client_of(program) as api:
            assert api.get("/jobs").status_code == 200


def test_a_port_that_is_taken_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        told = _run("dev", "--data", str(tmp_path / "data"), "--port", port)
        _assert_refused(told, f"127.0.0.1:{port}", "--port")
        _assert_refused(_run("mock-gateway", "--port", port), f"127.0.0.1:{port}")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null"])
def test_a_data_folder_that_cannot_be_made_is_refused(folder: str) -> None:
    _assert_refused(_run("dev", "--data", folder, "--port", "0"), folder)


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        ([], {"CONVEYOR_PROT": "1"}, ["prot", "did you mean 'port'"]),
        ([], {"CONVEYOR_METADATA": "redis://x"}, ["metadata", "redis", "sqlite"]),
        ([], {"CONVEYOR_CONFIG": "/nowhere.toml"}, ["/nowhere.toml"]),
        (["--durability", "hope"], {}, ["durability", "power, process"]),
    ],
)
def test_settings_that_will_not_do_are_named(
    arguments: list[str], environ: dict[str, str], words: list[str]
) -> None:
    _assert_refused(_run("dev", *arguments, environ=environ), *words)


def test_a_file_yields_to_variables_and_variables_to_flags(
    gateway: Program, tmp_path: Path, log: Path
) -> None:
    in_file, in_variable, in_flag = free_port(), free_port(), free_port()
    config = tmp_path / "conveyor.toml"
    config.write_text(
        f'port = {in_file}\ndata = "{tmp_path / "of-file"}"\ngateway = "{gateway.url}"\n'
        'api_keys = ["an-api-key"]\n'
    )
    variables = {
        "CONVEYOR_PORT": str(in_variable),
        "CONVEYOR_DATA": str(tmp_path / "of-variable"),
    }
    given: list[tuple[list[str], dict[str, str], int, str]] = [
        ([], {}, in_file, "of-file"),
        ([], variables, in_variable, "of-variable"),
        (["--port", str(in_flag)], variables, in_flag, "of-variable"),
    ]
    for flags, environ, port, folder in given:
        command = ["dev", "--config", str(config), *flags]
        with _started(command, log, environ) as url, _client(url) as api:
            assert urlsplit(url).port == port
            assert (tmp_path / folder / "conveyor.db").exists()
            assert ended(api, _submit(api))["stats"]["successful"] == 1
            problem_of(api.get("/jobs", headers={"X-API-Key": "x"}), 401, "unauthenticated")
        log.unlink()


def test_a_mock_gateway_can_be_started_beside_it(tmp_path: Path, log: Path) -> None:
    command = ["dev", "--mock-gateway", "--port", "0", "--data", str(tmp_path / "data")]
    with _started(command, log) as url, _client(url) as api:
        assert ended(api, _submit(api))["stats"]["successful"] == 1


def test_sigterm_ends_an_idle_process_at_once(gateway: Program, tmp_path: Path, log: Path) -> None:
    with (
        service(data=tmp_path / "data", gateway=gateway.url, log=log) as program,
        client_of(program) as api,
    ):
        ended(api, _submit(api))  # the client keeps its connection open meanwhile
        assert _stop(program, within=15) == 0
    assert "Traceback" not in log.read_text()


def test_sigterm_hands_back_what_is_in_flight_without_charging_it(
    gateway: Program, tmp_path: Path, log: Path
) -> None:
    """Tasks are still under way when the grace ends, and done at their first attempt after."""
    data = tmp_path / "data"
    urls = [f"https://slow.example/handed-back/{number}?ms=2500" for number in range(5)]
    with (
        service(data=data, gateway=gateway.url, environ=SHORT_GRACE, log=log) as program,
        client_of(program) as api,
    ):
        job_id = _submit(api, *urls)
        until(lambda: {row["status"] for row in every_row(api, job_id)} == {"processing"})
        assert _stop(program, within=15) == 0
    assert "Traceback" not in log.read_text()
    with service(data=data, gateway=gateway.url) as program, client_of(program) as api:
        assert ended(api, job_id)["stats"]["successful"] == 5
        for row in every_row(api, job_id):
            [line] = _history(api, job_id, row)
            assert line["attempt"] == 1
            assert "error" not in line


def test_sigterm_lets_what_ends_within_the_grace_finish(gateway: Program, tmp_path: Path) -> None:
    url = "https://slow.example/finished?ms=600"
    with service(data=tmp_path, gateway=gateway.url) as program, client_of(program) as api:
        job_id = _submit(api, url)
        until(lambda: _calls(gateway, url))
        assert _stop(program, within=15) == 0
    assert _calls(gateway, url) == 1
    with service(data=tmp_path, gateway=gateway.url) as program, client_of(program) as api:
        [row] = every_row(api, job_id)
        assert row["status"] == "successful"
        assert _calls(gateway, url) == 1


def test_keys_are_kept_to_the_owner_and_survive_a_restart(gateway: Program, tmp_path: Path) -> None:
    kept: list[bytes] = []
    for _ in range(2):
        with service(data=tmp_path, gateway=gateway.url):
            files = [tmp_path / "encryption.key", tmp_path / "links.key"]
            for file in files:
                assert stat.S_IMODE(file.stat().st_mode) == 0o600
            kept.append(b"|".join(file.read_bytes() for file in files))
    assert kept[0] == kept[1]


def test_an_api_key_is_nowhere_in_clear(gateway: Program, tmp_path: Path, log: Path) -> None:
    """Neither in files nor in logs, not even when the gateway repeats it in its answer."""
    data = tmp_path / "data"
    loud = {**FAST_RETRIES, **SHORT_GRACE, "CONVEYOR_LOG_LEVEL": "debug"}
    with (
        service(data=data, gateway=gateway.url, environ=loud, log=log) as program,
        client_of(program, key=SECRET) as api,
    ):
        urls = ["https://ok.example/", "https://leaky.example/", "https://flaky.example/secret"]
        job_id = _submit(api, *urls)
        ended(api, job_id)
        leaky = every_row(api, job_id)[1]
        assert leaky["status"] == "failed"
        assert SECRET not in json.dumps(leaky)
        problem_of(api.get("/jobs", params={"apikey": SECRET}), 401, "unauthenticated")
        api.post("/jobs", json={"tasks": [{"url": "x"}], "async": True})
        api.post("/jobs", json={"tasks": [{"url": "https://ok.example/"}], "async": True})
        live = _holding_secret([data, log])
        program.kill()
    with service(data=data, gateway=gateway.url, environ=loud, log=log):
        pass
    assert live == _holding_secret([data, log]) == []


def _run(
    *arguments: str, environ: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "conveyor", *arguments],
        capture_output=True,
        check=False,
        text=True,
        timeout=200,
        env={**os.environ, **(environ or {})},
    )


def _assert_refused(told: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """One line that says why, and no traceback."""
    assert told.returncode == 2, told.stderr
    [line] = told.stderr.splitlines()
    assert line.startswith("conveyor: ")
    for word in words:
        assert word in line


@contextmanager
def _started(
    arguments: list[str], log: Path, environ: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A process on whatever port it chose, by the address in its log."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "conveyor", *arguments],
            stderr=sink,
            env={**os.environ, **(environ or {})},
        )
    try:
        yield until(lambda: _listening(log))
    finally:
        process.terminate()
        assert process.wait(timeout=200) == 0


def _listening(log: Path) -> str | None:
    for line in log.read_text().splitlines():
        if '"http.listening"' in line:
            return str(json.loads(line)["url"])
    return None


def _client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"X-API-Key": "an-api-key"}, timeout=200)


def _submit(api: httpx.Client, *urls: str) -> str:
    tasks = [{"url": url} for url in urls or ["https://ok.example/"]]
    return str(api.post("/jobs", json={"tasks": tasks}).raise_for_status().json()["job_id"])


def _history(api: httpx.Client, job_id: str, row: dict[str, Any]) -> list[dict[str, Any]]:
    answer = api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/history").raise_for_status()
    events: list[dict[str, Any]] = answer.json()["events"]
    return events


def _calls(gateway: Program, url: str) -> int:
    return int(httpx.get(gateway.url + "_mock/stats").json()["urls"].get(url, 0))


def _stop(program: Program, *, within: float) -> int:
    started = time.monotonic()
    program.process.terminate()
    code = program.process.wait(timeout=200)
    assert time.monotonic() - started < within
    return code


def _holding_secret(places: list[Path]) -> list[str]:
    """Files in which the key, as it is or as URLs write it, can be read."""
    spellings = {SECRET, quote(SECRET), quote(SECRET, safe=""), SECRET.replace(" ", "+")}
    forms = {form.encode() for form in spellings} | {SECRET.encode("utf-16-le")}
    files = [file for place in places for file in [place, *place.rglob("*")] if file.is_file()]
    assert len(files) > 4
    return [str(file) for file in files if any(form in file.read_bytes() for form in forms)]
