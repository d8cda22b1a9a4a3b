from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from zenrows.batch import ZenRowsBatchClient

from conveyor.testing.local.ports import free_port
from tests.harness.programs import Program, mock_gateway, program, service
from tests.harness.stacks import SHARED, STACKS, stack_environ
from tests.seed import sample_items

Environ = Mapping[str, str]

SAMPLED = {
    "aws": 3,
    "aws-ministack": 0,
    "postgres": 1,
    "mixed": 1,
    "aws-cluster": 0,
}  # tests on other stacks that `make test` runs
WAITS = (
    "_wait_for_export_raw",
    "_wait_for_ingest_raw",
    "_wait_for_run_ingest_raw",
    "_wait_for_run_raw",
)
FAST_RETRIES = {"CONVEYOR_RETRY_FIRST_DELAY": "50ms", "CONVEYOR_RETRY_LONGEST_DELAY": "200ms"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run all tests on the embedded engines, and some on others: the rest of those is long."""
    on = {item: case.params["stack"] for item in items if (case := _case(item))}
    if wanted := config.getoption("engine"):
        others = [item for item, stack in on.items() if stack != wanted]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if on.get(item, wanted) == wanted]
        return
    for stack, count in SAMPLED.items():
        costly = [item for item in on if on[item] == stack]
        small = [item for item in costly if "large" not in item.name]
        sample_items(small, count, of=f"compatibility {stack}")
        sample_items(set(costly) - set(small), 0, of="large lists")


def _case(item: pytest.Item) -> Any:
    """The parameters of a test that has a choice of engines."""
    case = getattr(item, "callspec", None)
    return case if case and "stack" in case.params else None


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client wait longer for engines that are slower than the embedded ones."""
    case = _case(request.node)
    factor = STACKS[case.params["stack"]] if case else 1.0

    def patient(wait: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(wait)
        def call(*given: Any, timeout: float, **named: Any) -> Any:
            return wait(*given, timeout=timeout * factor, **named)

        return call

    for name in WAITS if factor > 1 else ():
        monkeypatch.setattr(ZenRowsBatchClient, name, patient(getattr(ZenRowsBatchClient, name)))


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


Stack = Callable[[Environ], AbstractContextManager[Program]]


@pytest.fixture(scope="session", params=STACKS)
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """How to start a service with settings, on new engines."""
    open_it = _processes if request.param in SHARED else _service

    def start(environ: Environ) -> AbstractContextManager[Program]:
        given = {**stack_environ(request.param, request), **FAST_RETRIES, **environ}
        return open_it(tmp_path_factory, given)

    return start


@pytest.fixture(scope="session")
def running(stack: Stack) -> Iterator[Program]:
    with stack({}) as program:
        yield program


@pytest.fixture(scope="session")
def telling(stack: Stack, receiver: str) -> Iterator[Program]:
    """A service that may notify this machine."""
    environ = {
        "CONVEYOR_WEBHOOK_ALLOW_HTTP": "true",
        "CONVEYOR_WEBHOOK_ALLOW_PRIVATE": "127.0.0.0/8",
        "CONVEYOR_WEBHOOK_PORTS": str(urlsplit(receiver).port),
    }
    with stack(environ) as program:
        yield program


@contextmanager
def _service(tmp_path_factory: pytest.TempPathFactory, environ: Environ) -> Iterator[Program]:
    data = tmp_path_factory.mktemp("data")
    with (
        mock_gateway() as gateway,
        service(data=data, gateway=gateway.url, environ=environ) as program,
    ):
        yield program


@contextmanager
def _processes(tmp_path_factory: pytest.TempPathFactory, environ: Environ) -> Iterator[Program]:
    """One api and two workers."""
    with mock_gateway() as gateway, ExitStack() as stack:
        data = str(tmp_path_factory.mktemp("data"))
        given = {**environ, "CONVEYOR_GATEWAY": gateway.url, "CONVEYOR_DATA": data}

        def start(role: str, flag: str) -> Program:
            port = free_port()
            url = f"http://127.0.0.1:{port}/v1"
            return stack.enter_context(program([role, flag, str(port)], url, environ=given))

        api = start("api", "--port")
        for _ in range(2):
            start("worker", "--metrics-port")
        yield api


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
