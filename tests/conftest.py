"""The seed of a run of the tests, the part of them that it runs, and the deaths it tried."""

import gc
import os
import re
import signal
import ssl
import sys
from collections import Counter
from collections.abc import Generator
from functools import cache
from zlib import crc32

import httpx
import hypothesis
import pytest
import structlog
from httpx._transports import default as httpx_transports

from tests.harness.warm_start import start_warm
from tests.seed import REPEAT, choose_seed

LOGGED: list[structlog.types.Processor] = [
    structlog.processors.add_log_level,
    structlog.processors.format_exc_info,
    structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
]
pytest_plugins = [
    "tests.emulators",
    "tests.harness.postgres",
    "tests.harness.valkey",
    "tests.s3_server",
    "tests.harness.stacks",  # which imports the others
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        choices=("embedded", "aws", "aws-ministack", "postgres", "mixed", "aws-cluster"),
        help="run tests that have a choice of engines on these only",
    )
    parser.addoption("--part", help="run one part of the tests only: 2/4 is the second of four")


def pytest_configure(config: pytest.Config) -> None:
    choose_seed()  # before the workers start: they inherit it
    keep_bytecode()
    # A background job of a shell starts with SIGINT ignored, and so would the programs under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    # The limits of Hypothesis, 200 ms for one example, are for a machine that does nothing else.
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("any machine", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("any machine")
    start_warm()
    vars(httpx_transports)["create_ssl_context"] = _tls_context
    # Its default draws tracebacks with all their locals, which takes seconds where many are logged.
    structlog.configure(processors=LOGGED)


def keep_bytecode() -> None:
    """Let this process and those it starts write bytecode, also where a container forbids it.

    Otherwise each worker rewrites the assertions of 500 modules, and each process that a test
    starts compiles Conveyor: together two minutes of CPU in every run.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def _tls_context(
    verify: ssl.SSLContext | bool = True,
    cert: None = None,
    trust_env: bool = True,
) -> ssl.SSLContext:
    """Share the contexts of httpx: it reads all root certificates for each client, 20 ms of CPU.

    Most tests make a client, nearly all of them for http:// only.
    """
    assert cert is None
    return _tls_context_of(verify, trust_env and os.environ.get("SSL_CERT_FILE"))


@cache
def _tls_context_of(verify: ssl.SSLContext | bool, _trusted: str | bool | None) -> ssl.SSLContext:
    return httpx.create_ssl_context(verify=verify)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from the 20,000 tests, which stay until the end of the run.

    Else it would go through all of them again and again, while they are collected and in each full
    collection from then on, of half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionstart(session: pytest.Session) -> None:
    # Not by `pytest_report_header`: `-q` leaves the header out.
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and not hasattr(session.config, "workerinput"):
        reporter.write_line(REPEAT.format(choose_seed()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := config.getoption("part"):
        number, of = _part(part)
        # By a checksum of the name: a new test moves no other test to another part.
        mine = {item for item in items if crc32(item.nodeid.encode()) % of == number - 1}
        config.hook.pytest_deselected(items=[item for item in items if item not in mine])
        items[:] = [item for item in items if item in mine]


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"--part must be NUMBER/OF, such as 2/4, got {text}")
    return int(found[1]), int(found[2])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            told.update({name: n for name, n in report.user_properties if isinstance(n, int)})
    if told:
        terminalreporter.write_line(", ".join(f"{name}: {n:,}" for name, n in told.items()))
