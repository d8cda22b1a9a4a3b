"""Jobs by `@last` and by the beginning of their ids; names, shares of failures, and help."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import typer

from conveyor.cli.connect import Endpoint, complete_job, connect, full_job_id
from conveyor.cli.main import EXAMPLES, GROUPS, build_app
from conveyor.cli.submit import failures_allowed
from conveyor.client import Run, Stats
from conveyor.errors import RefusedToStart

IDS = [
    "01M7GNPVD0697FEM6F7VYWRK5F",
    "01M7GNPVD1AAAAAAAAAAAAAAAA",
    "01M6000000AAAAAAAAAAAAAAAA",
]


class _Jobs(BaseHTTPRequestHandler):
    """Lists the jobs of the server, whatever it is asked."""

    def do_GET(self) -> None:
        jobs = [{"job_id": one, "status": "closed"} for one in self.server.ids]  # type: ignore[attr-defined]
        body = json.dumps({"jobs": jobs, "next_cursor": None}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Callable[[list[str]], Endpoint]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Jobs) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def with_jobs(ids: list[str]) -> Endpoint:
            server.ids = ids  # type: ignore[attr-defined]
            return Endpoint(f"http://127.0.0.1:{server.server_port}/v1", "key")

        yield with_jobs
        server.shutdown()
        thread.join()


Service = Callable[[list[str]], Endpoint]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@last", IDS[0]),
        ("01M600", IDS[2]),
        ("01m7gnpvd1", IDS[1]),
        ("01M999", "01M999"),  # the service says that there is none
        ("nope", "nope"),
        (IDS[0], IDS[0]),
    ],
)
def test_a_job_is_found_by_what_stands_for_it(service: Service, text: str, found: str) -> None:
    assert full_job_id(service(IDS), text) == found


def test_what_stands_for_several_jobs_or_for_none_is_refused(service: Service) -> None:
    with pytest.raises(RefusedToStart, match="give more of the id"):
        full_job_id(service(IDS), "01M7GN")
    with pytest.raises(RefusedToStart, match="no job yet"):
        full_job_id(service([]), "@last")


def test_ids_are_completed_and_an_unreachable_service_completes_none(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVEYOR_URL", service(IDS).url)
    assert complete_job("01m7") == IDS[:2]
    monkeypatch.setenv("CONVEYOR_URL", "http://127.0.0.1:1/v1")
    assert complete_job("01m7") == []


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://127.0.0.1:8080/v1", "my-key"),
        ("http://localhost:8080/v1", "my-key"),
        ("http://[::1]:8080/v1", "my-key"),
        ("https://localhost.example.com/v1", None),
        ("https://127.0.0.1.example.com/v1", None),
    ],
)
def test_only_a_service_of_this_machine_gets_a_key_by_default(url: str, key: str | None) -> None:
    assert connect(url, None, None, environ={}).key == key
    assert connect(url, "mine", None, environ={}).key == "mine"


@pytest.mark.parametrize(
    ("share", "failed", "allowed"),
    [("5%", 5, True), ("5%", 6, False), ("0", 0, True), ("0", 1, False), ("2.5%", 3, False)],
)
def test_a_share_of_failures_is_allowed(share: str, failed: int, *, allowed: bool) -> None:
    run = Run(run_id="r", status="completed", stats=Stats(total=100, failed=failed))
    assert failures_allowed(share, follow=True)(run) is allowed


@pytest.mark.parametrize(("share", "follow"), [("5%", False), ("101%", True), ("few", True)])
def test_other_shares_are_refused(share: str, *, follow: bool) -> None:
    with pytest.raises(RefusedToStart, match="--max-failed"):
        failures_allowed(share, follow=follow)


def test_help_is_whole_and_its_examples_are_of_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = typer.main.get_command(build_app())
    with pytest.raises(SystemExit):
        command(["--help"])
    assert "..." not in capsys.readouterr().out.replace("[OPTIONS] COMMAND [ARGS]...", "")
    known = {name for names in GROUPS.values() for name in names}
    for name, lines in EXAMPLES.items():
        assert name in known
        assert all(line.startswith(f"conveyor {name} ") for line in lines)
    with pytest.raises(SystemExit):
        command(["rerun", "--help"])
    assert f"  {EXAMPLES['rerun'][0]}\n" in capsys.readouterr().out
