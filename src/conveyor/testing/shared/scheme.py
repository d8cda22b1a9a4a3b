"""The scheme `shared:`, by which commands open a store that another process serves.

The program itself does not know it: `python -m conveyor.testing` adds it to the table of engines.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from conveyor.app.engines import SCHEMES
from conveyor.app.rows import TaskEngine
from conveyor.app.schemes import Opening, Scheme
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.metadata import Metadata
from conveyor.testing.shared.client import connected
from conveyor.testing.shared.store import SharedPorts
from conveyor.testing.shared.wire import Hello

SHARED = "shared"
FORM = "//host:port[?queued=true][&ahead=seconds]"
OPTIONS = {"queued", "ahead"}


def add_shared_scheme() -> None:
    """Let the settings `metadata`, `tasks` and `control_queue` name a served store."""
    openers = {"metadata": _metadata, "tasks": _tasks, "control_queue": _control_queue}
    for kind, open_it in openers.items():
        schemes = cast("dict[str, Scheme[Any]]", SCHEMES[kind])
        schemes[SHARED] = Scheme(open=open_it, is_shared=True, address=_is_address, form=FORM)


async def _metadata(opening: Opening, address: str) -> Metadata:
    return (await opening.once(_store, address)).metadata


async def _tasks(opening: Opening, address: str) -> TaskEngine:
    ports = await opening.once(_store, address)
    is_queued = _option(address, "queued") == "true"
    lease = opening.settings.lease
    holder = opening.incarnation
    work = ports.queued_work(opening.clock, lease, holder=holder) if is_queued else ports.work
    # Other processes may be alive, so no claim is known to be a dead one's.
    return TaskEngine(ports.tasks, work, due_times=None, dead_claims=None)


async def _control_queue(opening: Opening, address: str) -> ControlQueue:
    return (await opening.once(_store, address)).control_queue


@asynccontextmanager
async def _store(opening: Opening, address: str) -> AsyncIterator[SharedPorts]:
    place = urlsplit(address)
    assert place.hostname, "checked by `check_engines`"
    assert place.port, "checked by `check_engines`"
    hello = Hello(opening.incarnation, float(_option(address, "ahead") or 0))
    async with connected(place.hostname, place.port, hello) as ports:
        yield ports


def _option(address: str, name: str) -> str:
    return parse_qs(urlsplit(address).query).get(name, [""])[0]


def _is_address(address: str) -> bool:
    place = urlsplit(address)
    return bool(place.hostname and place.port) and parse_qs(place.query).keys() <= OPTIONS
