"""The state that services share: rows, records, queues and messages, in memory."""

from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeVar, cast

from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.adapters.memory.queues import CALM, Habits, MemoryQueues
from conveyor.adapters.queued.work import QueuedWork
from conveyor.ports.claims import Claims
from conveyor.ports.clock import Clock
from conveyor.ports.control_queue import ControlQueue
from conveyor.ports.metadata import Metadata
from conveyor.ports.queues import Queues
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Work
from conveyor.testing.memory.claims import MemoryClaims
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.tasks import MemoryTasks
from conveyor.testing.memory.work import MemoryWork
from conveyor.testing.shared.faults import FaultInjector, FaultyPort, LaggingMetadata

LEASE = timedelta(seconds=30)

Part = TypeVar("Part", MemoryMetadata, Rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPorts:
    """The ports of the store, as one service sees them."""

    metadata: Metadata
    tasks: Tasks
    work: Work  # the rows are the queue
    claims: Claims
    queues: Queues
    control_queue: ControlQueue

    def queued_work(self, clock: Clock, lease: timedelta, *, holder: str = "") -> Work:
        """Return work that is made of the claims and the queues instead."""
        return QueuedWork(self.claims, self.queues, clock=clock, lease=lease, holder=holder)


class SkewedClock:
    """The clock of a service that is ahead of the store's, or behind it."""

    def __init__(self, clock: Clock, ahead: timedelta) -> None:
        self._clock = clock
        self.ahead = ahead

    def now(self) -> datetime:
        return self._clock.now() + self.ahead

    def monotonic(self) -> float:
        return self._clock.monotonic()


class SharedStore:
    """One state, opened by any number of services at the same time.

    With an `injector`, calls fail, indexes lag and, with `habits`, queues misbehave. As with DynamoDB and SQS, due times of rows are written and compared by the clock of the service
    that makes the call, and queues use the clock of the store.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        lease: timedelta = LEASE,
        injector: FaultInjector | None = None,
        habits: Habits = CALM,
    ) -> None:
        self.clock = clock
        self.lease = lease
        self._injector = injector
        self.metadata = LaggingMetadata(clock, injector) if injector else MemoryMetadata(clock)
        self._rows = Rows(clock, lease)
        self._work = MemoryWork(self._rows)
        self._control_queue = MemoryControlQueue(clock)
        random = injector.random if injector else Random(0)  # noqa: S311 - not for secrets
        self.queues = MemoryQueues(clock, visibility=lease, random=random, habits=habits)

    def open(
        self, *, clock: Clock | None = None, holder: str = "", faulty: bool = True
    ) -> SharedPorts:
        """Open the store for one service, whose clock may differ from the store's.

        Services that open it at the same time must have different names (`holder`). Without
        `faulty` every call is answered: for a test that looks at what is stored.
        """
        clock = clock or self.clock
        rows = _seen_by(self._rows, clock)
        ports = SharedPorts(
            metadata=_seen_by(self.metadata, clock),
            tasks=MemoryTasks(rows),
            work=self._work.over(rows, holder),
            claims=MemoryClaims(rows, holder),
            queues=self.queues,
            control_queue=self._control_queue,
        )
        if not self._injector or not faulty:
            return ports
        return SharedPorts(
            **{
                name: cast("Any", FaultyPort(getattr(ports, name), self._injector))
                for name in SharedPorts.__slots__
            }
        )


def _seen_by(part: Part, clock: Clock) -> Part:
    """Return the same state by another clock. All state is in containers, which a copy shares."""
    seen = copy(part)
    seen.clock = clock
    return seen
