"""Each test runs on both event loops, and with both HTTP clients where it uses one.

`make test` runs a sample of the tests over aiohttp, chosen by the seed; `make test-long` all.
"""

import asyncio
from collections.abc import Callable, Mapping
from random import Random

import pytest
import uvloop

from tests.gateway.stage import Opened
from tests.harness import gateways
from tests.seed import run_seed

SHARE = 0.15  # of the tests over aiohttp, in `make test`


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out those marked long
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None or callspec.params.get("transport") != "aiohttp":
            continue
        if Random(f"{run_seed()} {item.nodeid}").random() > SHARE:
            item.add_marker(pytest.mark.long)


@pytest.fixture(params=["conveyor", "aiohttp"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The HTTP client of the gateways that a test opens."""
    chosen: str = request.param
    monkeypatch.setattr(gateways, "transport", gateways.TRANSPORTS[chosen])
    return chosen


@pytest.fixture(params=["zenrows", "direct"])
def opened(request: pytest.FixtureRequest, transport: str) -> Opened:
    """Opens each gateway in turn on a server's address, which is the page to ask for as well."""
    each: dict[str, Opened] = {
        "zenrows": gateways.opened,
        "direct": gateways.opened_directly,
    }
    return each[request.param]
