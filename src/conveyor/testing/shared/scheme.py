"""The scheme `shared:`, by which commands open a store that another process serves.

The program itself does not know it: `python -m conveyor.testing` adds it to the table of engines.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from conveyor.app.engines import SCHEMES
from conveyor.app.rows import TaskEngine
from conveyor.app.schemes import Opening, QueueEngine, Scheme
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.metadata import Metadata
from conveyor.testing.shared.client import connected
from conveyor.testing.shared.store import SharedPorts
from conveyor.testing.shared.wire import Hello

SHARED = "shared"
FORM = "//host:port[?ahead=seconds]"


def add_shared_scheme() -> None:
    """Let the settings of rows and of queues name a served store."""
    openers = {
        "metadata": _metadata,
        "tasks": _tasks,
        "queues": _queues,
        "control_queue": _control_queue,
    }
    for kind, open_it in openers.items():
        schemes = cast("dict[str, Scheme[Any]]", SCHEMES[kind])
        schemes[SHARED] = Scheme(
            open=open_it, is_shared=True, takes_queues=True, address=_is_address, form=FORM
        )


async def _metadata(opening: Opening, address: str) -> Metadata:
    return (await opening.once(_store, address)).metadata


async def _tasks(opening: Opening, address: str) -> TaskEngine:
    ports = await opening.once(_store, address)
    # Other processes may be alive, so no claim is known to be a dead one's.
    return TaskEngine(
        ports.tasks, ports.work, due_times=None, dead_claims=None, claims=ports.claims
    )


async def _queues(opening: Opening, address: str) -> QueueEngine:
    return QueueEngine((await opening.once(_store, address)).queues, opening.settings.lease)


async def _control_queue(opening: Opening, address: str) -> ControlQueue:
    return (await opening.once(_store, address)).control_queue


@asynccontextmanager
async def _store(opening: Opening, address: str) -> AsyncIterator[SharedPorts]:
    place = urlsplit(address)
    assert place.hostname, "checked by `check_engines`"
    assert place.port, "checked by `check_engines`"
    [ahead] = parse_qs(place.query).get("ahead", ["0"])
    hello = Hello(opening.incarnation, float(ahead))
    async with connected(place.hostname, place.port, hello) as ports:
        yield ports


def _is_address(address: str) -> bool:
    place = urlsplit(address)
    return bool(place.hostname and place.port) and parse_qs(place.query).keys() <= {"ahead"}
