"""Schemes: how the engine of one kind of state is opened, by the scheme of its URL."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from conveyor.adapters.files.disk import IsAbandoned
from conveyor.adapters.sqlite.database import Durability
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.queues import Queues
from conveyor.settings import Settings

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What an opener gets: the settings, the stack that closes what it opens, and the mode."""

    settings: Settings
    stack: AsyncExitStack
    clock: Clock
    ids: Ids
    incarnation: str  # of this process: unique over all processes, new at each start, in time order
    is_offline: bool = False  # for an operator: the opener repairs, frees and sweeps nothing
    writable: bool = True
    opened: dict[tuple[object, str], Any] = field(default_factory=dict)
    # Remove unfinished files from folders that other processes may use too.
    sweep_unfinished: list[Callable[[IsAbandoned], None]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.settings.folder

    @property
    def sync(self) -> bool:
        return Durability(self.settings.durability) is Durability.POWER

    async def once(
        self, open_it: Callable[["Opening", str], AbstractAsyncContextManager[P]], address: str
    ) -> P:
        """Open what several kinds of state share, such as a database, when the first asks for it.

        Each address is opened once.
        """
        key = (open_it, address)
        if key not in self.opened:
            self.opened[key] = await self.stack.enter_async_context(open_it(self, address))
        found: P = self.opened[key]
        return found


class QueueEngine(NamedTuple):
    """What an engine of run queues provides."""

    queues: Queues
    visibility: timedelta  # for which it hides a received message
    is_billed: bool = False  # whether each call costs money, so that messages should share calls


class Location(StrEnum):
    """Where an engine keeps its state, and so which processes can use it."""

    MEMORY = "memory of the process"
    FOLDER = "data folder"
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme(Generic[P]):
    """One engine of one kind of state."""

    open: Callable[[Opening, str], Awaitable[P]]  # with the address
    is_shared: bool = False  # whether several processes may use it at once
    needs_address: bool = False  # to be shared: without a place in it, the data folder is meant
    in_memory: bool = False  # of one process
    takes_queues: bool = False  # of tasks: whether their messages can be in a queue beside the rows
    has_queue: bool = True  # of tasks: whether the rows are a queue by themselves
    is_offline: bool = True  # whether operators can open it while no service runs
    address: Callable[[str], bool] = lambda rest: not rest  # what may follow `scheme:`
    form: str = ""  # of the address, for refusals and the docs
    # Creates or upgrades what the engine at an address needs for the given kinds of state, and says
    # what it did; None if that is nothing.
    migrate: Callable[[Settings, str, Sequence[str]], Awaitable[Sequence[str]]] | None = None
    # Says what `migrate` would add to a schema, and changes nothing; None if it has no schema.
    missing: Callable[[Settings, str], Awaitable[Sequence[str]]] | None = None

    def location(self, address: str) -> Location:
        place = address.partition("?")[0]
        if self.is_shared and (place or not self.needs_address):
            return Location.SHARED
        return Location.MEMORY if self.in_memory else Location.FOLDER
