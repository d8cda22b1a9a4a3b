"""Jobs by `@last` and by the beginning of their ids; names, shares of failures, and help."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
import typer

from conveyor.cli.connect import Endpoint, connect, full_job_id
from conveyor.cli.examples import EXAMPLES
from conveyor.cli.main import build_app
from conveyor.cli.submit import failures_allowed
from conveyor.client import Run, Stats
from conveyor.errors import RefusedToStart

IDS = [
    "01M7GNPVD0697FEM6F7VYWRK5F",
    "01M7GNPVD1AAAAAAAAAAAAAAAA",
    "01M6000000AAAAAAAAAAAAAAAA",
]

COMPLETER = """
import sys
from conveyor.cli.main import main
sys.argv = ["conveyor"]
main()
"""


class _Jobs(BaseHTTPRequestHandler):
    """Lists the jobs of the server, and accepts any key."""

    status = 200
    has_default_key = True

    def do_GET(self) -> None:
        jobs = [{"job_id": one, "status": "closed"} for one in self.server.ids]  # type: ignore[attr-defined]
        of_key = {"caller": "ann", "scopes": [], "has_default_key": self.has_default_key}
        known = self.path == "/v1/caller"
        body = json.dumps(of_key if known else {"jobs": jobs, "next_cursor": None}).encode()
        self.send_response(self.status if known else 200)
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


def _completed(line: str, environ: dict[str, str]) -> list[str]:
    """What a shell offers for the end of a line."""
    asked = {"_CONVEYOR_COMPLETE": "complete_bash", "COMP_WORDS": line}
    words = line.split(" ")
    own = {name: value for name, value in os.environ.items() if "CONVEYOR" not in name}
    told = subprocess.run(
        [sys.executable, "-c", COMPLETER],
        env={**own, **asked, "COMP_CWORD": str(len(words) - 1), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.split()


def test_a_shell_completes_ids_in_the_letters_that_were_typed(service: Service) -> None:
    url = service(IDS).url
    newest = [IDS[0].removeprefix("01M7"), IDS[1].removeprefix("01M7")]
    environ = {"CONVEYOR_URL": url}
    assert _completed("conveyor status ", environ) == ["@last", *IDS]
    assert _completed("conveyor status @", environ) == ["@last"]
    assert _completed("conveyor status 01m7", environ) == [f"01m7{rest}" for rest in newest]
    elsewhere = {"CONVEYOR_URL": "http://127.0.0.1:1/v1"}
    assert _completed("conveyor status 01M7", elsewhere) == []
    given = f"conveyor status --url {url} --key mine 01M7"
    assert _completed(given, elsewhere) == IDS[:2]


def test_an_id_may_be_in_lower_case(service: Service) -> None:
    assert full_job_id(service([]), IDS[0].lower()) == IDS[0]


def test_only_a_service_for_development_on_this_machine_gets_a_key_by_default(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = service([]).url
    for local in (url, url.replace("127.0.0.1", "localhost")):
        assert connect(local, None, None, environ={}).key == "my-key"
        assert connect(local, "mine", None, environ={}).key == "mine"
    monkeypatch.setattr(_Jobs, "has_default_key", False)
    with pytest.raises(RefusedToStart, match="CONVEYOR_KEY"):
        connect(url, None, None, environ={})
    monkeypatch.setattr(_Jobs, "has_default_key", True)
    monkeypatch.setattr(_Jobs, "status", 401)
    with pytest.raises(RefusedToStart, match="CONVEYOR_KEY"):
        connect(url, None, None, environ={})
    for status in (404, 503):  # the command itself reports these
        monkeypatch.setattr(_Jobs, "status", status)
        assert connect(url, None, None, environ={}).key is None
    assert connect("http://127.0.0.1:1/v1", None, None, environ={}).key is None


@pytest.mark.parametrize("name", ["localhost.example.com", "127.0.0.1.example.com"])
def test_another_machine_is_not_asked_for_its_kind(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conveyor.cli.connect._local_key", pytest.fail)
    assert connect(f"https://{name}/v1", None, None, environ={}).key is None


@pytest.mark.parametrize(
    ("share", "failed", "allowed"),
    [
        ("5%", 150, True),
        ("5%", 151, False),
        ("4.1%", 123, True),
        ("4.1%", 124, False),
        ("0", 0, True),
        ("0", 1, False),
        ("20", 20, True),
        ("20", 21, False),
    ],
)
def test_a_share_of_failures_is_allowed(share: str, failed: int, *, allowed: bool) -> None:
    run = Run(run_id="r", status="completed", stats=Stats(total=3_000, failed=failed))
    assert failures_allowed(share, follow=True)(run) is allowed


@pytest.mark.parametrize(
    ("share", "follow"), [("5%", False), ("101%", True), ("few", True), ("0.05", True)]
)
def test_other_shares_are_refused(share: str, *, follow: bool) -> None:
    with pytest.raises(RefusedToStart, match="--max-failed"):
        failures_allowed(share, follow=follow)


def _every_command() -> Iterator[tuple[str, Any]]:
    def walked(path: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield path, command
        for name, verb in getattr(command, "commands", {}).items():
            yield from walked(f"{path} {name}".strip(), verb)

    return walked("", typer.main.get_command(build_app()))


COMMANDS = dict(_every_command())


@pytest.mark.parametrize("path", COMMANDS)
def test_help_is_whole_and_ends_with_examples_that_the_command_takes(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS[path]
    with pytest.raises(SystemExit):
        command(["--help"], prog_name=f"conveyor {path}")
    usage, _, told = capsys.readouterr().out.partition("\n\n")
    assert usage.startswith("Usage:")
    assert "..." not in told.replace("ID...", "")
    for name, verb in getattr(command, "commands", {}).items():
        said = " ".join(told.split())
        assert f"{name} {verb.help.partition(chr(10) * 2)[0].partition('. ')[0]}" in said
    for line in EXAMPLES[path] if path else ():
        assert f"  {line}\n" in told
        words = shlex.split(line.partition(" | ")[0])
        assert words[: 1 + len(path.split())] == ["conveyor", *path.split()]
        command.make_context(path, words[1 + len(path.split()) :], resilient_parsing=False)


def test_no_example_is_of_another_command() -> None:
    assert set(EXAMPLES) == set(COMMANDS) - {""}
