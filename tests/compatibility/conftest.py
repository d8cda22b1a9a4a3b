from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import pytest
from zenrows.batch import ZenRowsBatchClient

from tests.harness.programs import Program, free_port, mock_gateway, service

FAST_RETRIES = {"CONVEYOR_RETRY_FIRST_DELAY": "50ms", "CONVEYOR_RETRY_LONGEST_DELAY": "200ms"}


@pytest.fixture(scope="session")
def receiver() -> Iterator[str]:
    """The URL of somebody who takes every notification."""
    with ThreadingHTTPServer(("127.0.0.1", free_port()), _Taker) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with _service(tmp_path_factory, FAST_RETRIES) as program:
        yield program


@pytest.fixture(scope="session")
def telling(tmp_path_factory: pytest.TempPathFactory, receiver: str) -> Iterator[Program]:
    """A service that may notify this machine."""
    environ = {
        "CONVEYOR_WEBHOOK_ALLOW_HTTP": "true",
        "CONVEYOR_WEBHOOK_ALLOW_PRIVATE": "127.0.0.0/8",
        "CONVEYOR_WEBHOOK_PORTS": str(urlsplit(receiver).port),
    }
    with _service(tmp_path_factory, FAST_RETRIES | environ) as program:
        yield program


@contextmanager
def _service(
    tmp_path_factory: pytest.TempPathFactory, environ: dict[str, str]
) -> Iterator[Program]:
    data = tmp_path_factory.mktemp("data")
    with (
        mock_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=environ) as program,
    ):
        yield program


@pytest.fixture
def client(running: Program) -> Iterator[ZenRowsBatchClient]:
    with ZenRowsBatchClient("an-api-key", base_url=running.url) as client:
        yield client


@pytest.fixture
def stranger(running: Program) -> Iterator[ZenRowsBatchClient]:
    with ZenRowsBatchClient("another-key", base_url=running.url, retries=0) as client:
        yield client


class _Taker(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""
