"""Real state machines that wait for runs of a real service, from submit to the next state."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import httpx
import msgspec
import pytest

from conveyor.adapters.aws.step_functions import AwsStepFunctions
from conveyor.domain.outbox import Channel, EventStatus, OutboxEvent
from conveyor.ports.step_functions import Sent
from tests.aws.endpoint import THROTTLED, Endpoint, an_endpoint, bad_weather
from tests.aws.state_machines import a_machine, until
from tests.emulators import Emulator
from tests.harness.memory_service import A_PAGE, CALLER, House, a_house
from tests.harness.programs import Program, mock_gateway, service

ON = {"CONVEYOR_STEP_FUNCTIONS": "aws:", "CONVEYOR_GRACE": "200ms"}
KEY = {"X-API-Key": "an-api-key"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Program]:
    with mock_gateway() as program:
        yield program


@pytest.fixture
def api(aws: Emulator, gateway: Program, tmp_path: Path) -> Iterator[httpx.Client]:
    environ = ON | dict(aws.environ)
    with (
        service(data=tmp_path, gateway=gateway.url, environ=environ) as program,
        httpx.Client(base_url=program.url, headers=KEY, timeout=120) as client,
    ):
        yield client


def _submit(api: httpx.Client, token: str, host: str = "ok", **given: object) -> dict[str, Any]:
    tasks = [{"url": f"https://{host}.example/{number}"} for number in range(3)]
    body = {"tasks": tasks, "step_functions": {"task_token": token}, **given}
    answer = api.post("/jobs", json=body)
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()
    return job


def test_the_next_state_sees_what_came_of_the_run(aws: Emulator, api: httpx.Client) -> None:
    waiting = a_machine(aws).start()
    job = _submit(api, waiting.token, external_id="mine", metadata={"team": "prices"})

    saw = waiting.outcome()["next_state_saw"]

    run = api.get(f"/jobs/{job['job_id']}").json()["latest_run"]
    assert saw["status"] == run["status"] == "completed"
    assert saw["stats"] == run["stats"]
    assert saw["stats"]["successful"] == 3
    assert (saw["job_id"], saw["run_id"]) == (job["job_id"], run["run_id"])
    assert (saw["external_id"], saw["metadata"]) == ("mine", {"team": "prices"})


def test_the_bare_token_in_a_header_is_enough(aws: Emulator, api: httpx.Client) -> None:
    waiting = a_machine(aws).start()
    header = {"Conveyor-Step-Functions": waiting.token}
    answer = api.post("/jobs", json={"tasks": [{"url": "https://ok.example/"}]}, headers=header)
    assert answer.status_code == 201
    assert waiting.outcome()["next_state_saw"]["status"] == "completed"


def _stop(api: httpx.Client, job: dict[str, Any]) -> None:
    api.post(f"/jobs/{job['job_id']}/stop").raise_for_status()


def _delete_job(api: httpx.Client, job: dict[str, Any]) -> None:
    api.delete(f"/jobs/{job['job_id']}").raise_for_status()


def _delete_run(api: httpx.Client, job: dict[str, Any]) -> None:
    run_id = job["latest_run"]["run_id"]
    api.delete(f"/jobs/{job['job_id']}/runs/{run_id}").raise_for_status()


def _wait(_api: httpx.Client, _job: dict[str, Any]) -> None:
    """The account has no credits, and that is all it takes."""


ENDS = [
    (_stop, "RunStopped", "ok"),
    (_delete_job, "RunDeleted", "ok"),
    (_delete_run, "RunDeleted", "ok"),
    (_wait, "InsufficientCredits", "nocredits"),
]


@pytest.mark.parametrize(("end", "name", "host"), ENDS)
def test_a_failure_is_caught_by_its_name(
    aws: Emulator,
    api: httpx.Client,
    end: Callable[[httpx.Client, dict[str, Any]], None],
    name: str,
    host: str,
) -> None:
    waiting = a_machine(aws).start()
    # An open job does not complete by itself, so that there is something to end.
    given = {} if end is _wait else {"status": "open"}
    job = _submit(api, waiting.token, host, **given)
    end(api, job)

    caught = waiting.outcome()
    assert caught["by_name"] == name
    assert caught["it"]["Error"] == name
    if aws.name == "ministack":  # the other one loses it
        cause = msgspec.json.decode(caught["it"]["Cause"])
        assert cause["job_id"] == job["job_id"]
        assert cause["run_id"] == job["latest_run"]["run_id"]


def test_a_state_that_timed_out_is_left_alone(
    aws: Emulator, api: httpx.Client, tmp_path: Path
) -> None:
    waiting = a_machine(aws, TimeoutSeconds=1).start()
    job = _submit(api, waiting.token, status="open")
    assert waiting.outcome()["by_name"] == "States.Timeout"

    api.post(f"/jobs/{job['job_id']}/close").raise_for_status()

    if aws.name == "moto_server":  # it knows no state that is over: its token is invalid
        event = until(lambda: _tried(tmp_path))
        assert event["deliveries"][-1]["error"] == "InvalidToken"
        return
    event = until(lambda: _over(tmp_path))
    assert event["status"] == EventStatus.DROPPED
    assert event["deliveries"][-1]["error"] in {"TaskTimedOut", "TaskDoesNotExist"}
    assert "encrypted_token" not in event or not event["encrypted_token"]


def _tried(data: Path) -> dict[str, Any] | None:
    events = [one for one in _events(data) if one["channel"] == Channel.STEP_FUNCTIONS]
    return next((one for one in events if one["deliveries"]), None)


def _over(data: Path) -> dict[str, Any] | None:
    """The event for a task token, once it is not owed any more."""
    events = [one for one in _events(data) if one["channel"] == Channel.STEP_FUNCTIONS]
    return next((one for one in events if one["due_at"] is None), None)


def _events(data: Path) -> list[dict[str, Any]]:
    connection = apsw.Connection(str(data / "conveyor.db"), flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(5000)
    try:
        rows = connection.execute("SELECT doc FROM outbox_event ORDER BY id")
        return [msgspec.json.decode(str(doc)) for (doc,) in rows]
    finally:
        connection.close()


# Heartbeats: of the two emulators moto alone minds them.


async def test_heartbeats_keep_a_state_waiting_that_would_time_out_without(
    moto: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    machine = a_machine(moto, HeartbeatSeconds=2)
    kept, left = machine.start(), machine.start()
    house = a_house()
    async with AwsStepFunctions(threads=4) as connected:
        house.connect(connected)
        _, run_id = await house.submit(
            3, step_functions={"task_token": kept.token, "heartbeat_seconds": 30}
        )
        began = time.monotonic()
        while time.monotonic() - began < 5:
            house.clock.advance(timedelta(seconds=30))
            assert await house.callback_sender.step() == 1
            until(_later(0.5))
        assert left.outcome()["by_name"] == "States.Timeout"
        assert kept.is_waiting

        await house.drain(run_id, lambda _task: A_PAGE)
        await house.callback_sender.step()
        assert kept.outcome()["next_state_saw"]["run_id"] == run_id
        assert not isinstance(await connected.heartbeat(left.token), Sent)


async def test_beats_end_when_the_state_is_over(
    aws: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in aws.environ.items():
        monkeypatch.setenv(name, value)
    waiting = a_machine(aws, TimeoutSeconds=2, HeartbeatSeconds=1).start()
    house = a_house()
    await house.submit(3, step_functions={"task_token": waiting.token, "heartbeat_seconds": 30})
    async with AwsStepFunctions(threads=4) as connected:
        house.connect(connected)
        waiting.outcome()
        house.clock.advance(timedelta(seconds=30))
        await house.callback_sender.step()
        [event] = await house.metadata.page(OutboxEvent, limit=9)
        assert event.status is EventStatus.DROPPED or aws.name == "moto_server"
        assert event.deliveries[-1].error


def _later(seconds: float) -> Callable[[], bool | None]:
    at = time.monotonic() + seconds
    return lambda: time.monotonic() >= at or None


@pytest.mark.long
def test_a_real_service_beats_by_itself(moto: Emulator, gateway: Program, tmp_path: Path) -> None:
    machine = a_machine(moto, HeartbeatSeconds=15)
    waiting, left = machine.start(), machine.start()
    environ = ON | dict(moto.environ)
    with (
        service(data=tmp_path, gateway=gateway.url, environ=environ) as program,
        httpx.Client(base_url=program.url, headers=KEY, timeout=120) as api,
    ):
        field = {"task_token": waiting.token, "heartbeat_seconds": 5}
        job = _submit(api, waiting.token, status="open", step_functions=field)
        api.post(f"/jobs/{job['job_id']}/pause").raise_for_status()
        assert left.outcome()["by_name"] == "States.Timeout"
        until(_later(3))
        assert waiting.is_waiting
        api.post(f"/jobs/{job['job_id']}/stop").raise_for_status()
        assert waiting.outcome()["by_name"] == "RunStopped"


# Weather.


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with an_endpoint() as one:
        yield one


def test_what_is_owed_survives_the_death_of_the_service(
    endpoint: Endpoint, gateway: Program, tmp_path: Path
) -> None:
    token = endpoint.start("a-token-of-mine")
    environ = ON | endpoint.environ
    endpoint.weather = lambda: THROTTLED
    with (
        service(data=tmp_path, gateway=gateway.url, environ=environ) as program,
        httpx.Client(base_url=program.url, headers=KEY, timeout=120) as api,
    ):
        job = _submit(api, token)
        until(lambda: endpoint.calls or None)
        api.delete(f"/jobs/{job['job_id']}").raise_for_status()
        program.kill()
    assert token in endpoint.waiting

    endpoint.weather = lambda: None
    with service(data=tmp_path, gateway=gateway.url, environ=environ):
        until(lambda: endpoint.outcomes.get(token), within=90)
        until(lambda: True if not _events(tmp_path) else None)
    assert endpoint.outcomes[token]["output"]["stats"]["successful"] == 3


@pytest.mark.parametrize("seed", range(3))
async def test_in_any_weather_every_state_hears_of_its_own_end_once(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for name, value in endpoint.environ.items():
        monkeypatch.setenv(name, value)
    house = a_house()
    runs = {}
    for number in range(20):
        token = endpoint.start(f"token-{number}")
        job_id, run_id = await house.submit(2, step_functions={"task_token": token})
        runs[token] = (run_id, number % 2 == 0)
        if number % 2:
            await house.lifecycle.stop(CALLER, job_id)
        else:
            await house.drain(run_id, lambda _task: A_PAGE)
    endpoint.weather = bad_weather(seed)
    async with AwsStepFunctions(threads=4) as connected:
        house.connect(connected)
        for _ in range(200):
            await house.callback_sender.step()
            house.clock.advance(timedelta(minutes=1))
            if not await _due(house):
                break
    assert not endpoint.waiting
    for token, (run_id, completed) in runs.items():
        outcome = endpoint.outcomes[token]
        if completed:
            assert outcome["output"]["run_id"] == run_id
        else:
            assert outcome["error"] == "RunStopped"
    statuses = {one.status for one in await house.metadata.page(OutboxEvent, limit=99)}
    assert statuses == {EventStatus.DELIVERED, EventStatus.DROPPED}
    assert len(endpoint.calls) > len(runs)


async def _due(house: House) -> bool:
    return any(one.due_at for one in await house.metadata.page(OutboxEvent, limit=99))


# Secrets.


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_token_is_in_no_row_file_log_answer_or_export(
    endpoint: Endpoint, gateway: Program, tmp_path: Path, form: str
) -> None:
    tokens = [endpoint.start(f"canary-token-{number}-9f3b2e") for number in range(2)]
    endpoint.faults.extend([THROTTLED] * 3)
    data, log = tmp_path / "data", tmp_path / "log"
    environ = ON | endpoint.environ | {"CONVEYOR_LOG_FORMAT": form, "CONVEYOR_LOG_LEVEL": "debug"}
    heard: list[str] = []
    with (
        service(data=data, gateway=gateway.url, environ=environ, log=log) as program,
        httpx.Client(base_url=program.url, headers=KEY, timeout=120) as api,
    ):
        field = {"task_token": tokens[0], "heartbeat_seconds": 5}
        body = {"tasks": [{"url": "https://ok.example/"}], "step_functions": field}
        key = {"Idempotency-Key": "a-key"}
        header = {"Conveyor-Step-Functions": tokens[1]}
        answers = [
            *(api.post("/jobs", json=body, headers=key) for _ in range(2)),
            api.post("/jobs", json={"tasks": body["tasks"]}, headers=header),
            api.post("/jobs", json=body | {"step_functions": field | {"bad": 1}}),
            api.post("/jobs", json=body | {"step_functions": {"task_token": f"{tokens[0]} "}}),
            api.post("/jobs", json=body, headers={"Conveyor-Step-Functions": f"{tokens[1]} x"}),
        ]
        assert [one.status_code for one in answers] == [201, 201, 201, 400, 400, 400]
        until(lambda: True if len(endpoint.outcomes) == 2 else None, within=60)
        job_id = answers[0].json()["job_id"]
        exported = api.post(f"/jobs/{job_id}/exports")
        answers += [exported, api.get(f"/jobs/{job_id}"), api.get("/jobs")]
        heard += [one.text for one in answers]
    held = b"".join(file.read_bytes() for file in data.rglob("*") if file.is_file())
    for token in tokens:
        assert token.encode() not in held
        assert token not in log.read_text()
        assert token not in "".join(heard)
    assert "outbox.retry" in log.read_text()
