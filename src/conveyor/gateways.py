"""Which gateway the settings choose, and how it is opened."""

from contextlib import AbstractAsyncContextManager

import structlog

from conveyor.adapters.http import direct_wire, zenrows_errors
from conveyor.adapters.http.direct import DirectGateway
from conveyor.adapters.http.page_wire import OWN_CODES
from conveyor.adapters.http.zenrows import ZenrowsGateway
from conveyor.domain.public_address import Reach, networks
from conveyor.ports.gateway import Gateway
from conveyor.settings import DIRECT, Settings

# Every code of a refusal that a gateway here gives a meaning to.
CODES = OWN_CODES | zenrows_errors.BY_CODE | direct_wire.BY_CODE

log = structlog.get_logger()


def open_gateway(settings: Settings) -> AbstractAsyncContextManager[Gateway]:
    """The gateway, not yet entered."""
    if settings.gateway == DIRECT:
        return _direct(settings)
    return ZenrowsGateway(
        settings.gateway,
        deadline=settings.gateway_deadline,
        largest_body=settings.largest_body,
        connections=settings.concurrency,
    )


def _direct(settings: Settings) -> DirectGateway:
    opened = settings.direct_allow_private
    if opened:
        log.warning(
            "gateway.private.allowed",
            networks=", ".join(opened),
            why="whoever may submit tasks can read what is served there",
        )
    return DirectGateway(
        deadline=settings.gateway_deadline,
        largest_body=settings.largest_body,
        connections=settings.concurrency,
        reach=Reach(networks(opened)),
        ports=settings.direct_ports,
        agent=settings.direct_user_agent,
        heeds_robots=settings.direct_robots,
        delay=settings.direct_delay,
    )
