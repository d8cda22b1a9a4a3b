"""Live progress over HTTP: streams, resuming, the end, and a server that stops or restarts."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from conveyor.testing.local.ports import free_port
from tests.e2e.conftest import SHORT_GRACE, client_of, problem_of
from tests.e2e.polling import ended, until
from tests.harness.programs import Program, service

SLOW = "https://slow.example/{}?ms=30000"
PROMPT = 20.0  # seconds; a stream goes on for as long as its run


class Event(NamedTuple):
    id: str
    kind: str
    data: dict[str, Any]


@contextmanager
def stream(api: httpx.Client, path: str, seen: str | None = None) -> Iterator[Iterator[Event]]:
    headers = {"Last-Event-ID": seen} if seen else {}
    with api.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if not line and fields:
            yield Event(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}
        elif name:
            fields[name] = value


def submit(api: httpx.Client, *urls: str, **fields: Any) -> str:
    body = {"tasks": [{"url": url} for url in urls], **fields}
    return str(api.post("/jobs", json=body).raise_for_status().json()["job_id"])


def test_a_run_is_followed_from_its_state_to_its_end(api: httpx.Client) -> None:
    job_id = submit(api, *(f"https://slow.example/{n}?ms={n * 40}" for n in range(60)))
    with stream(api, f"/jobs/{job_id}/events") as events:
        told = list(events)
    assert [event.kind for event in told] == ["progress"] * (len(told) - 1) + ["end"]
    assert len({event.id for event in told}) == len(told) >= 3
    run = api.get(f"/jobs/{job_id}").json()["latest_run"]
    last = told[-1].data
    assert last["stats"] == run["stats"]
    assert (last["job_id"], last["run_id"]) == (job_id, run["run_id"])
    assert (last["status"], last["pause_state"], last["eta_seconds"]) == (
        "completed", "active", None,
    )  # fmt: skip
    done = [event.data["stats"]["completed"] for event in told]
    assert done == sorted(done)
    assert told[0].data["rate"] is None
    assert any(event.data["rate"] for event in told)
    assert any(event.data["eta_seconds"] for event in told[:-1])


def test_one_who_saw_a_state_is_told_the_next_change_and_the_end_again(api: httpx.Client) -> None:
    job_id = submit(api, SLOW.format(1))
    run_id = api.get(f"/jobs/{job_id}").json()["latest_run"]["run_id"]
    path = f"/jobs/{job_id}/runs/{run_id}/events"
    with stream(api, path) as events:
        first = next(events)
    assert first.data["status"] == "running"
    with stream(api, path, seen="what is this") as events:
        assert next(events).id == first.id
    with stream(api, path, seen=first.id) as events:
        api.post(f"/jobs/{job_id}/pause").raise_for_status()
        paused = next(events)
        assert (paused.kind, paused.data["pause_state"]) == ("progress", "paused")
        api.post(f"/jobs/{job_id}/stop").raise_for_status()
        [end] = events
        assert (end.kind, end.data["status"]) == ("end", "stopped")
    with stream(api, path, seen=end.id) as events:
        assert [event.kind for event in events] == ["end"]


def test_a_job_that_waits_for_tasks_is_told_as_pending(api: httpx.Client) -> None:
    job_id = submit(api, status="open")
    with stream(api, f"/jobs/{job_id}/events") as events:
        assert next(events).data["status"] == "pending"
        api.post(f"/jobs/{job_id}/close").raise_for_status()
        assert [event.data["status"] for event in events] == ["completed"]


@pytest.mark.parametrize("path", ["/jobs/{job}/events", "/jobs/{job}/runs/{run}/events"])
def test_streams_are_for_their_owner_alone(
    running: Program, api: httpx.Client, stranger: httpx.Client, path: str
) -> None:
    job_id = submit(api, "https://ok.example/")
    run_id = ended(api, job_id)["run_id"]
    own = path.format(job=job_id, run=run_id)
    problem_of(stranger.get(own), 404, "not_found")
    problem_of(httpx.get(running.url + own), 401, "unauthenticated")
    problem_of(api.get(path.format(job="nope", run=run_id)), 404, "not_found")
    assert api.get(own).is_success


def test_head_answers_at_once_while_the_run_goes_on(api: httpx.Client) -> None:
    job_id = submit(api, SLOW.format(2))
    answer = api.head(f"/jobs/{job_id}/events")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")
    api.post(f"/jobs/{job_id}/stop").raise_for_status()


def test_listeners_share_what_is_read_and_leave_nothing_behind(
    gateway: Program, tmp_path: Path
) -> None:
    with (
        service(data=tmp_path, gateway=gateway.url, environ=SHORT_GRACE) as program,
        client_of(program) as api,
        ExitStack() as stack,
    ):
        job_id = submit(api, SLOW.format(3))
        many = [
            stack.enter_context(stream(stack.enter_context(client_of(program)), path))
            for path in [f"/jobs/{job_id}/events"] * 30
        ]
        assert len({next(events).id for events in many}) == 1
        assert _metric(program, "conveyor_listeners") == 30
        before, began = _metric(program, "conveyor_watch_reads_total"), time.monotonic()
        until(lambda: _metric(program, "conveyor_watch_reads_total") >= before + 2)
        assert time.monotonic() - began > 0.9  # thirty would have read it at once
        stack.close()
        until(lambda: _metric(program, "conveyor_listeners") == 0)


def test_a_restart_is_survived_by_what_was_seen(gateway: Program, tmp_path: Path) -> None:
    port = free_port()
    with _service(gateway, tmp_path, port) as program, client_of(program) as api:
        job_id = submit(api, SLOW.format(4), SLOW.format(5))
        api.post(f"/jobs/{job_id}/pause").raise_for_status()
        with stream(api, f"/jobs/{job_id}/events") as events:
            seen = next(events)
            program.kill()
            with pytest.raises(httpx.RemoteProtocolError):
                next(events)
    with _service(gateway, tmp_path, port) as program, client_of(program) as api:
        with stream(api, f"/jobs/{job_id}/events", seen=seen.id) as events:
            api.post(f"/jobs/{job_id}/stop").raise_for_status()
            [end] = events
        assert (end.kind, end.data["status"]) == ("end", "stopped")


def test_a_stop_of_the_program_waits_for_no_stream(gateway: Program, tmp_path: Path) -> None:
    with _service(gateway, tmp_path) as program, ExitStack() as stack:
        api = stack.enter_context(client_of(program))
        job_id = submit(api, SLOW.format(6))
        path = f"/jobs/{job_id}/events"
        many = [
            stack.enter_context(stream(stack.enter_context(client_of(program)), path))
            for _ in range(20)
        ]
        for events in many:
            next(events)
        began = time.monotonic()
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(200) == 0
        assert time.monotonic() - began < PROMPT
        for events in many:  # whole, though without an end: whoever resumes is told the rest
            assert list(events) == []


def test_one_who_does_not_read_holds_up_nobody(gateway: Program, tmp_path: Path) -> None:
    with _service(gateway, tmp_path) as program, client_of(program) as api:
        job_id = submit(api, SLOW.format(7))
        address = urlsplit(program.url)
        with socket.create_connection((address.hostname, address.port)) as deaf:
            head = (
                f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\n"
                "Host: localhost\r\nX-API-Key: an-api-key\r\n\r\n"
            )
            deaf.sendall(head.encode())
            until(lambda: _metric(program, "conveyor_listeners") == 1)
            with stream(api, f"/jobs/{job_id}/events") as events:
                next(events)
                api.post(f"/jobs/{job_id}/stop").raise_for_status()
                assert [event.kind for event in events] == ["end"]
            began = time.monotonic()
            program.process.send_signal(signal.SIGTERM)
            assert program.process.wait(200) == 0
            assert time.monotonic() - began < PROMPT


@contextmanager
def _service(gateway: Program, data: Path, port: int | None = None) -> Iterator[Program]:
    with service(data=data, gateway=gateway.url, port=port, environ=SHORT_GRACE) as program:
        yield program


def _metric(program: Program, name: str) -> float:
    text = httpx.get(program.url.removesuffix("/v1") + "/metrics").text
    [line] = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])
