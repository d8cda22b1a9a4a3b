"""The whole service without a scraping gateway: it asks a site itself, on this machine."""

import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import httpx
import msgspec
import pytest
from zenrows.batch import ZenRowsBatchClient
from zenrows.batch.models import RunStatus, TaskStatus

from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of
from tests.e2e.polling import ended, every_row, until
from tests.harness.programs import Program, service

KEY = "an-api-key-of-nobody"

# What the site serves under /typed/<name>: its Content-Type, and what results say of it.
TYPED: dict[str, tuple[str | None, str, str, str]] = {
    "latin": ("text/html; charset=ISO-8859-1", "html", "text/html; charset=iso-8859-1", "html"),
    "bare": ("text/html", "html", "text/html", "html"),
    "data": ("application/ld+json", "json", "application/ld+json", "json"),
    "table": ("text/csv; header=present", "other", "text/csv", "csv"),
    "picture": ("image/png", "other", "image/png", "png"),
    "drawing": ("image/svg+xml", "other", "image/svg+xml", "svg"),
    "script": ("text/javascript", "other", "text/javascript", "js"),
    "nothing": (None, "other", "application/octet-stream", "bin"),
    "nonsense": ("<script>", "other", "application/octet-stream", "bin"),
}


class Site(BaseHTTPRequestHandler):
    """Pages by their paths; each request it got is kept by its server."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._keep(b"")
        if self.path == "/robots.txt":
            self._say(200, b"user-agent: *\ndisallow: /secret\n")
        elif self.path.startswith("/page"):
            self._say(200, f"<html>{self.path}</html>".encode())
        elif self.path.startswith("/typed/"):
            label = TYPED[self.path.rpartition("/")[2]][0]
            self._say(200, self.path.encode(), **({"content_type": label} if label else {}))
        elif self.path == "/away":
            self._say(302, b"", location="http://169.254.169.254/latest/meta-data/")
        elif self.path == "/old":
            self._say(301, b"", location="/page/new")
        elif self.path == "/large":
            self._say(200, b"x" * 700_000)
        elif self.path == "/busy":
            first = not any(path == "/busy" for path in self.server.paths[:-1])  # type: ignore[attr-defined]
            self._say(429 if first else 200, b"at last", retry_after="1")
        else:
            self._say({"/login": 401, "/broken": 500}.get(self.path, 404), b"no")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._keep(body)
        self._say(200, b"got " + body)

    def _keep(self, body: bytes) -> None:
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        self.server.seen.append(str(self.headers).encode() + body)  # type: ignore[attr-defined]

    def _say(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-").title(), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        pass


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Site)
        self.paths: list[str] = []
        self.seen: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture(scope="module")
def site() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def direct(site: Server, data: Path, log: Path, **more: str) -> Iterator[Program]:
    environ = {
        **FAST_RETRIES,
        **SHORT_GRACE,
        "CONVEYOR_DIRECT_PORTS": f"80, {site.server_port}",
        "CONVEYOR_DIRECT_DELAY": "5ms",
        **more,
    }
    with service(data=data, gateway="direct:", environ=environ, log=log) as program:
        yield program


def logged(log: Path, event: str) -> list[dict[str, str]]:
    lines = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    return [line for line in lines if line["event"] == event]


def test_hosts_that_are_dead_fail_by_themselves_while_a_live_site_can_be_reached(
    site: Server, tmp_path: Path, log: Path
) -> None:
    allowed = "127.0.0.0/8"
    with (
        direct(site, tmp_path / "data", log, CONVEYOR_DIRECT_ALLOW_PRIVATE=allowed) as program,
        client_of(program) as api,
    ):
        live = [{"url": f"{site.url}/page/{number}"} for number in range(3)]
        job_id = api.post("/jobs", json={"tasks": live}).json()["job_id"]
        assert ended(api, job_id)["stats"]["successful"] == len(live)

        dead = [{"url": f"http://127.0.0.{n}:{site.server_port}/"} for n in range(2, 8)]
        job_id = api.post("/jobs", json={"tasks": dead, "retries": 0}).json()["job_id"]
        run = ended(api, job_id)
        assert (run["status"], run["stats"]["failed"]) == ("completed", len(dead))
        assert {row["error"]["code"] for row in every_row(api, job_id)} == {"gateway_unreachable"}
        job_id = api.post("/jobs", json={"tasks": live}).json()["job_id"]
        assert ended(api, job_id)["stats"]["successful"] == len(live)
    assert not logged(log, "gateway.unavailable")


def test_a_job_is_scraped_without_a_gateway(site: Server, tmp_path: Path, log: Path) -> None:
    paths = [f"/page/{number}" for number in range(60)]
    robots_before = site.paths.count("/robots.txt")  # of services of other tests
    others = ["/old", "/large", "/busy", "/gone", "/login", "/broken", "/secret/1", "/away"]
    with (
        direct(site, tmp_path / "data", log, CONVEYOR_DIRECT_ALLOW_PRIVATE="127.0.0.1") as program,
        ZenRowsBatchClient(KEY, base_url=program.url) as client,
    ):
        job = client.submit_regular(
            [
                *(f"{site.url}{path}" for path in (*paths, *others)),
                {"url": f"{site.url}/form", "method": "POST", "body": {"a": 1}},
            ]
        )
        run = job.run.wait(timeout=200, poll_interval=0.05)
        assert run.data.status is RunStatus.COMPLETED
        results = list(client.iter_results(job.job_id))
        bodies = [
            job.run.download_task_to_memory(one)
            for one in results
            if one.status is TaskStatus.SUCCESSFUL
        ]
    assert bodies[:60] == [f"<html>{path}</html>".encode() for path in paths]
    assert bodies[60:] == [
        b"<html>/page/new</html>", b"x" * 700_000, b"at last", b'got {"a": 1}'
    ]  # fmt: skip
    codes = [one.error.code for one in results if one.error]
    assert codes == [
        "target_missing",
        "target_refused",
        "target_failed",
        "robots_disallowed",
        "target_not_allowed",
    ]
    assert run.data.stats.failure_reasons == {"bad_target": 3, "blocked": 2}
    assert run.data.stats.spend is None or run.data.stats.spend.credits == 0
    assert not any(KEY.encode() in one for one in site.seen), "no site is told the key"
    assert site.paths.count("/robots.txt") == robots_before + 1
    [warning] = logged(log, "gateway.private.allowed")
    assert (warning["level"], warning["networks"]) == ("warning", "127.0.0.1")


def test_parameters_it_cannot_honour_are_refused_by_name(
    site: Server, tmp_path: Path, log: Path
) -> None:
    page = f"{site.url}/page"
    good: dict[str, object] = {
        "url": page,
        "zenrows_params": {"js_render": False, "custom_headers": {"A": "b"}},
    }
    bad: dict[str, object] = {"url": page, "zenrows_params": {"js_render": True}}
    named = {"index": 1, "reason": "unsupported_param", "value": "js_render"}
    with direct(site, tmp_path / "data", log) as program, client_of(program, key=KEY) as api:
        of_job = api.post("/jobs", json={"tasks": [good], "zenrows_params": {"wait": 500}})
        assert (of_job.status_code, of_job.json()["field"]) == (400, "zenrows_params.wait")
        assert "unsupported_param" in of_job.json()["detail"]
        inline = api.post("/jobs", json={"tasks": [good, bad]})
        assert inline.status_code == 400
        assert inline.json()["invalid_tasks"] == [named]
        opened = api.post("/jobs", json={"tasks": [good], "status": "open"}).raise_for_status()
        added = api.post(f"/jobs/{opened.json()['job_id']}/tasks", json={"tasks": [good, bad]})
        assert added.json()["invalid_tasks"] == [named]
        for choice in ("fail", "skip"):
            _check_list_refused(api, [good, bad], choice)


def _check_list_refused(api: httpx.Client, tasks: list[dict[str, object]], choice: str) -> None:
    """The bad row of a list is refused with its line, or left out and reported."""
    file_input = api.post("/job_inputs", json={"type": "ndjson"}).raise_for_status().json()
    lines = b"".join(msgspec.json.encode(task) + b"\n" for task in tasks)
    upload = file_input["upload"]
    httpx.put(upload["url"], content=lines, headers=upload["headers"]).raise_for_status()
    body = {"file_input_id": file_input["file_input_id"], "on_invalid": choice}
    answer = api.post("/jobs", json=body)
    if choice == "fail":
        assert answer.status_code == 400
        [row] = answer.json()["invalid_tasks"]
    else:
        job_id = answer.raise_for_status().json()["job_id"]
        run = ended(api, job_id)
        assert (run["stats"]["total"], run["ingest_errors"]) == (1, 1)
        row = msgspec.json.decode(api.get(f"/jobs/{job_id}/ingest_errors").content)
    assert (row["line"], row["reason"], row["value"]) == (2, "unsupported_param", "js_render")


def test_rows_tell_status_duration_size_and_final_url(
    site: Server, tmp_path: Path, log: Path
) -> None:
    with (
        direct(site, tmp_path / "data", log, CONVEYOR_DIRECT_ALLOW_PRIVATE="127.0.0.1") as program,
        client_of(program, key=KEY) as api,
    ):
        job_id = _submit(api, [f"{site.url}/{name}" for name in ("page/1", "old", "gone", "away")])
        ended(api, job_id)
        rows = every_row(api, job_id)
        [line] = api.get(f"/jobs/{job_id}/tasks/{rows[2]['task_id']}/history").json()["events"]
    told = [(row.get("http_status"), row.get("size"), row.get("final_url")) for row in rows]
    assert told == [
        (200, len("<html>/page/1</html>"), None),
        (200, len("<html>/page/new</html>"), f"{site.url}/page/new"),
        (404, None, None),
        (None, None, None),
    ]
    assert all(isinstance(row["duration_ms"], int) for row in rows)
    assert (line["http_status"], line["duration_ms"]) == (404, rows[2]["duration_ms"])


def test_each_page_keeps_its_content_type_and_charset(
    site: Server, tmp_path: Path, log: Path
) -> None:
    with (
        direct(site, tmp_path / "data", log, CONVEYOR_DIRECT_ALLOW_PRIVATE="127.0.0.1") as program,
        client_of(program, key=KEY) as api,
    ):
        job_id = _submit(api, [f"{site.url}/typed/{name}" for name in TYPED])
        ended(api, job_id)
        rows = every_row(api, job_id)
        kinds = [(row["type"], row["content_type"]) for row in rows]
        assert kinds == [(kind, label) for _, kind, label, _ in TYPED.values()]
        for row, (_, kind, label, ending) in zip(rows, TYPED.values(), strict=True):
            for answer in (
                api.get(f"/jobs/{job_id}/tasks/{row['task_id']}/content"),
                httpx.get(row["result_url"]),
            ):
                assert answer.headers["content-type"] == label
                assert answer.headers["content-security-policy"] == "sandbox"
                assert answer.headers["x-content-type-options"] == "nosniff"
                name = f'attachment; filename="{row["task_id"]}.{ending}"'
                shown_as = answer.headers.get("content-disposition")
                assert shown_as == (name if kind == "other" else None)
        again = api.post(f"/jobs/{job_id}/rerun?status=failed,pending")
        assert again.status_code == 409, "nothing to do again"
        named = [f"{row['task_id']}.{of[3]}" for row, of in zip(rows, TYPED.values(), strict=True)]
        _check_saved(program, job_id, tmp_path / "pages", named)
        _check_exported(api, job_id, rows[0]["run_id"], named)


def _check_saved(program: Program, job_id: str, folder: Path, named: list[str]) -> None:
    command = ["results", job_id, "--out", str(folder), "--url", program.url, "--key", KEY]
    subprocess.run([sys.executable, "-m", "conveyor", *command], check=True, capture_output=True)
    assert sorted(named) == sorted(
        path.name for path in folder.iterdir() if path.name.startswith("0000")
    )


def _check_exported(api: httpx.Client, job_id: str, run_id: str, named: list[str]) -> None:
    exports = f"/jobs/{job_id}/runs/{run_id}/exports"
    export_id = api.post(exports).raise_for_status().json()["export_id"]
    link = until(lambda: api.get(f"{exports}/{export_id}").json().get("download_url"))
    with zipfile.ZipFile(BytesIO(httpx.get(link).content)) as file:
        lines = [msgspec.json.decode(line) for line in file.read("manifest.ndjson").splitlines()]
        assert [line["entry"] for line in lines] == named
        assert [line["content_type"] for line in lines] == [of[2] for of in TYPED.values()]
        assert set(file.namelist()) == {*named, "manifest.ndjson"}


def test_unless_it_is_opened_nothing_on_this_machine_is_fetched(
    site: Server, tmp_path: Path, log: Path
) -> None:
    site.paths.clear()
    with direct(site, tmp_path / "data", log) as program, client_of(program, key=KEY) as api:
        hosts = ["127.0.0.1", "localhost", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"]
        tasks = [{"url": f"http://{host}:{site.server_port}/page"} for host in hosts]
        answer = api.post("/jobs", json={"tasks": tasks}).raise_for_status()
        run = ended(api, answer.json()["job_id"])
        rows = every_row(api, answer.json()["job_id"])
    assert run["stats"]["failed"] == len(hosts)
    for row in rows:
        assert (row["status"], row["error"]["code"]) == ("failed", "target_not_allowed")
        assert "not public" in row["error"]["detail"]
    assert site.paths == []
    assert not logged(log, "gateway.private.allowed")


def test_one_slow_host_does_not_hold_up_another(site: Server, tmp_path: Path, log: Path) -> None:
    """Of two jobs, the one whose host is called at long distances lets the other pass."""
    environ = {
        "CONVEYOR_DIRECT_ALLOW_PRIVATE": "127.0.0.0/8",
        "CONVEYOR_DIRECT_DELAY": "20s",
        "CONVEYOR_DIRECT_ROBOTS": "false",
        "CONVEYOR_CONCURRENCY": "5",
    }
    with (
        direct(site, tmp_path / "data", log, **environ) as program,
        client_of(program, key=KEY) as api,
    ):
        many = _submit(api, [f"{site.url}/page/{number}" for number in range(200)])
        others = [f"http://localhost:{site.server_port}/page"]
        ended(api, _submit(api, others))
        run = api.get(f"/jobs/{many}").json()["latest_run"]
        assert run["status"] == "running"
        assert run["stats"]["failed"] == 0
        assert run["stats"]["successful"] <= 5


def _submit(api: httpx.Client, urls: list[str]) -> str:
    answer = api.post("/jobs", json={"tasks": [{"url": url} for url in urls]}).raise_for_status()
    return str(answer.json()["job_id"])
