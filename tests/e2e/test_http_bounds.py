"""What the service makes of requests that are too large, too slow, too many or not meant for it."""

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.conftest import client_of, problem_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, service

MB = 1024 * 1024
BODY = {"tasks": [{"url": "https://ok.example/bounds"}]}


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("a" * 9_000, {}, 414, "uri_too_long"),
        ("jobs?cursor=" + "a" * 9_000, {}, 414, "uri_too_long"),
        ("jobs", {"A": "a" * 40_000}, 431, "head_too_large"),
        ("jobs", {f"A{number}": "a" for number in range(101)}, 431, "head_too_large"),
    ],
)
def test_a_head_out_of_all_proportion_is_refused(
    api: httpx.Client, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    answer = api.get(f"/{path}", headers={"X-Request-ID": "mine", **headers})
    problem_of(answer, status, code)
    assert answer.headers["x-request-id"] == "mine"
    assert len(answer.content) < 2_000


@pytest.mark.parametrize("path", ["/jobs", "/job_inputs"])
def test_a_body_that_is_plainly_no_json_is_refused(api: httpx.Client, path: str) -> None:
    answer = api.post(path, files={"tasks": b"[]"})
    problem_of(answer, 415, "unsupported_media_type")
    packed = api.post(path, content=b"x", headers={"Content-Encoding": "gzip"})
    problem_of(packed, 415, "unsupported_media_type")


def test_a_body_is_taken_as_curl_and_browsers_send_it(api: httpx.Client) -> None:
    content = json.dumps(BODY).encode()
    for kind in ("application/x-www-form-urlencoded", "text/plain;charset=UTF-8", None):
        headers = {"Content-Type": kind} if kind else {}
        assert api.post("/jobs", content=content, headers=headers).status_code == 201


@pytest.mark.parametrize("depth", [100, 10_000, 1_000_000])
@pytest.mark.parametrize("form", ['{"a":%s', "[%s"])
def test_deep_json_is_refused_wherever_it_stands(api: httpx.Client, depth: int, form: str) -> None:
    opening, closing = form.removesuffix("%s"), "}" if form[0] == "{" else "]"
    deep = opening * depth + "1" + closing * depth
    task = '{"url":"https://ok.example/","method":"POST","body":%s}'
    for content in (
        deep,
        f'{{"tasks":[{task % deep}]}}',
        f'{{"tasks":[{task % 1}],"zenrows_params":{{"custom_headers":{deep}}}}}',
        f'{{"tasks":[{task % 1}],"metadata":{deep}}}',
    ):
        problem_of(api.post("/jobs", content=content), 400, "invalid_argument")
    if depth < 10_000:  # more than a file input's form may have in bytes
        problem_of(api.post("/job_inputs", content=deep), 400, "invalid_argument")


@pytest.mark.parametrize(("depth", "status"), [(32, 201), (33, 400)])
def test_a_tasks_body_may_be_so_deep_and_no_deeper(
    api: httpx.Client, depth: int, status: int
) -> None:
    body: object = "[[[ in a text they do not count"
    for _ in range(depth):
        body = [body]
    task = {"url": "https://ok.example/", "method": "POST", "body": body}
    answer = api.post("/jobs", json={"tasks": [task]})
    assert answer.status_code == status
    if status == 400:
        [bad] = problem_of(answer, 400, "invalid_argument")["invalid_tasks"]
        assert bad == {"index": 0, "reason": "body_malformed", "value": "deeper than 32 levels"}


def test_other_sites_are_given_no_leave(api: httpx.Client) -> None:
    asking = {"Origin": "https://other.example", "Access-Control-Request-Method": "POST"}
    answer = api.options("/jobs", headers=asking)
    problem_of(answer, 405, "method_not_allowed")
    for one in (answer, api.get("/jobs", headers=asking)):
        assert not [name for name in one.headers if name.startswith("access-control")]


def test_answers_say_how_they_may_be_used(running: Program, api: httpx.Client) -> None:
    job_id = api.post("/jobs", json=BODY).raise_for_status().json()["job_id"]
    ended(api, job_id)
    [row] = every_row(api, job_id)
    root = running.url.removesuffix("/v1")
    private = [
        api.get("/jobs"),
        api.get("/jobs/nope"),
        api.put("/jobs"),
        api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/content"),
        httpx.get(row["result_url"]),
        httpx.get(root + "/healthz"),
        httpx.get(root + "/nowhere"),
    ]
    files = ("/docs", "/docs/assets/docs.css", "/docs/assets/docs.js")
    public = [httpx.get(root + path).raise_for_status() for path in files]
    for answer in (*private, *public):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert {answer.headers["cache-control"] for answer in private} == {"no-store"}
    assert {answer.headers["cache-control"] for answer in public} == {"no-cache"}
    assert "default-src 'none'" in public[0].headers["content-security-policy"]
    current = {"If-None-Match": public[2].headers["etag"]}
    assert httpx.get(root + files[2], headers=current).status_code == 304


def test_no_path_or_query_of_a_request_is_logged(
    gateway: Program, tmp_path: Path, log: Path
) -> None:
    debug = ("--log-level", "debug")
    with (
        service(data=tmp_path, gateway=gateway.url, log=log, flags=debug) as program,
        client_of(program) as api,
    ):
        job_id = api.post("/jobs", json=BODY).raise_for_status().json()["job_id"]
        ended(api, job_id)
        [row] = every_row(api, job_id)
        httpx.get(row["result_url"]).raise_for_status()
        api.get("/jobs/canary-in-path?cursor=canary-in-query")
        _raw(program, b"GET /canary-in-line\xff HTTP/1.1\r\nX-A: canary-in-header\r\n\r\n")
        api.get("/jobs", headers={"X-Request-ID": "the-last"})
    text = log.read_text()
    assert "the-last" in text
    assert f"/_local/results/{job_id}" in text
    assert "canary" not in text
    assert "signature" not in text


def _raw(program: Program, content: bytes) -> bytes:
    with _connected(program) as connection:
        connection.sendall(content)
        return _rest(connection)


def _connected(program: Program) -> socket.socket:
    address = urlsplit(program.url)
    return socket.create_connection((address.hostname, address.port), timeout=200)


def _rest(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65_536), b""))


@pytest.mark.parametrize("length", [200_000, 4_000_000])
def test_a_refusal_is_heard_however_much_is_still_to_come(running: Program, length: int) -> None:
    """A connection cut off with bytes unread would take the answer with it."""
    told = _raw(running, b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\nA: " + b"a" * length)
    assert told.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"head_too_large"' in told


@pytest.mark.parametrize("head", ["HTTP/1.0", "HTTP/1.1\r\nConnection: close"])
def test_a_refusal_is_heard_where_it_ends_the_connection(running: Program, head: str) -> None:
    length = 8 * MB
    asked = f"POST /v1/jobs {head}\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
    told = _raw(running, asked.encode() + b"a" * length)
    assert told.startswith(b"HTTP/1.1 401 ")
    assert told.endswith(b"}")


def test_who_sends_more_than_is_taken_hears_of_it(gateway: Program, tmp_path: Path) -> None:
    lean = {"CONVEYOR_INLINE_BYTES": "1000"}
    with (
        service(data=tmp_path, gateway=gateway.url, environ=lean) as program,
        client_of(program) as api,
    ):
        for _ in range(2):
            problem_of(api.post("/jobs", content=b" " * 30 * MB), 413, "payload_too_large")
            parts = (b" " * 100_000 for _ in range(300))
            problem_of(api.post("/jobs", content=parts), 413, "payload_too_large")
        assert api.post("/jobs", json=BODY).status_code == 201


def test_a_submit_that_would_upgrade_is_taken_with_its_body(api: httpx.Client) -> None:
    asking = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMA"}
    for _ in range(2):
        assert api.post("/jobs", json=BODY, headers=asking).status_code == 201


# A stop.


@pytest.fixture
def stopping(gateway: Program, tmp_path: Path) -> Iterator[Program]:
    with service(data=tmp_path, gateway=gateway.url) as program:
        yield program


def _stop(program: Program) -> None:
    """Ask it to stop, and wait until it takes no more connections."""
    program.process.send_signal(signal.SIGTERM)
    until(lambda: _is_refused(program))


def _is_refused(program: Program) -> bool:
    try:
        _connected(program).close()
    except ConnectionRefusedError:
        return True
    return False


def test_an_upload_under_way_at_a_stop_is_finished(stopping: Program) -> None:
    content = json.dumps(BODY).encode()
    head = (
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-API-Key: k\r\nContent-Length: %d\r\n\r\n"
        % len(content)
    )
    with _connected(stopping) as connection:
        connection.sendall(head + content[:20])
        until(lambda: _is_taken_up(stopping))
        _stop(stopping)
        connection.sendall(content[20:])
        told = _rest(connection)
    assert told.startswith(b"HTTP/1.1 201 ")
    assert b"connection: close" in told
    assert stopping.process.wait(20) == 0


def _is_taken_up(program: Program) -> bool:
    """A request that came later was answered: the one before is under way."""
    root = program.url.removesuffix("/v1")
    return httpx.get(root + "/healthz").status_code == 200


def test_an_answer_under_way_at_a_stop_is_finished(stopping: Program) -> None:
    size = 30 * MB
    with client_of(stopping) as api:
        body = {"tasks": [{"url": f"https://big.example/?size={size}"}]}
        job_id = api.post("/jobs", json=body).raise_for_status().json()["job_id"]
        ended(api, job_id)
        [row] = every_row(api, job_id)
    with httpx.stream("GET", row["result_url"], timeout=200) as answer:
        pieces = answer.iter_raw()
        length = len(next(pieces))
        _stop(stopping)
        length += sum(len(piece) for piece in pieces)
    assert length == size
    assert stopping.process.wait(20) == 0


HEADS = {
    "no host": (b"GET /v1/jobs HTTP/1.1", b"one Host header, got 0"),
    "two hosts": (b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\nHost: b", b"one Host header, got 2"),
    "two hosts of HTTP/1.0": (b"GET /v1/jobs HTTP/1.0\r\nHost: a\r\nhost: a", b"got 2"),
    "no host but an upgrade": (b"GET /v1/jobs HTTP/1.1\r\nUpgrade: h2c\r\nConnection: upgrade", b"got 0"),
    "packed": (b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked", b"alone"),
    "in two": (
        b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        b"alone",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_others_may_read_otherwise_is_refused(running: Program, name: str) -> None:
    head, said = HEADS[name]
    told = _raw(running, head + b"\r\nX-API-Key: k\r\nX-Request-ID: mine\r\n\r\n0\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 400 ")
    assert b"x-request-id: mine" in told.lower()
    assert said in told
    assert told.count(b"HTTP/1.1 ") == 1


def test_a_request_of_the_old_protocol_needs_no_host(running: Program) -> None:
    assert b" 200 " in _raw(running, b"GET /healthz HTTP/1.0\r\n\r\n").partition(b"\r\n")[0]


# Many at once.


def test_many_large_submits_at_once_take_turns(gateway: Program, tmp_path: Path) -> None:
    size, most, count = 50 * MB, 128 * MB, 10
    environ = {"CONVEYOR_BODIES_IN_FLIGHT": str(most)}
    content = json.dumps(BODY).encode().ljust(size)
    with service(data=tmp_path, gateway=gateway.url, environ=environ) as program:
        assert _submit(program, b"{}").status_code == 400
        before = program.peak_memory
        with ThreadPoolExecutor(count) as pool:
            calls: list[Future[httpx.Response]] = [
                pool.submit(_submit, program, content) for _ in range(count)
            ]
            assert _submit(program, json.dumps(BODY).encode()).status_code == 201
            answers = [call.result() for call in calls]
        assert {answer.status_code for answer in answers} <= {201, 503}
        assert [answer for answer in answers if answer.status_code == 201]
        for answer in answers:
            if answer.status_code == 503:
                problem_of(answer, 503, "overloaded")
                assert answer.headers["retry-after"] == "2"
        # A body takes two to three times its size while it is decoded, and how many are at that
        # point at once depends on the machine. Unbounded, ten bodies took 426 MB and more.
        assert program.peak_memory - before < 2.5 * most / MB


def _submit(program: Program, content: bytes) -> httpx.Response:
    with client_of(program) as api:
        return api.post("/jobs", content=content, timeout=200)


def test_who_finds_no_room_in_time_is_told_when_to_come_again(
    gateway: Program, tmp_path: Path
) -> None:
    environ = {"CONVEYOR_BODIES_IN_FLIGHT": str(MB)}
    with service(data=tmp_path, gateway=gateway.url, environ=environ) as program:
        head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-API-Key: k\r\nContent-Length: %d\r\n\r\n"
        with _connected(program) as hogging:
            hogging.sendall(head % MB + b" " * (MB - 1))
            until(lambda: _is_taken_up(program))
            answer = _submit(program, b" " * MB)
            problem_of(answer, 503, "overloaded")
            assert answer.headers["retry-after"] == "2"
        until(lambda: _submit(program, b" " * MB).status_code == 400)


def test_who_announces_much_and_sends_little_shuts_nobody_out(
    gateway: Program, tmp_path: Path
) -> None:
    environ = {"CONVEYOR_BODIES_IN_FLIGHT": str(MB)}
    with service(data=tmp_path, gateway=gateway.url, environ=environ) as program:
        head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-API-Key: k\r\nContent-Length: %d\r\n\r\n"
        with _connected(program) as one, _connected(program) as other:
            for connection in (one, other):
                connection.sendall(head % MB + b" ")
            until(lambda: _is_taken_up(program))
            assert _submit(program, b" " * MB).status_code == 400


def test_connections_over_the_most_are_told_to_come_later(gateway: Program, tmp_path: Path) -> None:
    environ = {"CONVEYOR_CONNECTIONS": "5"}
    with service(data=tmp_path, gateway=gateway.url, environ=environ) as program:
        held = [_connected(program) for _ in range(5)]
        told = until(lambda: _raw(program, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"))
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"overloaded"' in told
        assert b"retry-after: 2\r\n" in told
        for one in held:
            one.close()
        until(lambda: _is_taken_up(program))
