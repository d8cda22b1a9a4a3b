"""Each of these runs on the loop that the program uses, and on that of the standard library."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.gateway.stage import Opened
from tests.harness import gateways


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=["zenrows", "direct"])
def opened(request: pytest.FixtureRequest) -> Opened:
    """Opens each gateway in turn on a server's address, which is the page to ask for as well."""
    each: dict[str, Opened] = {
        "zenrows": gateways.opened,
        "direct": gateways.opened_directly,
    }
    return each[request.param]
