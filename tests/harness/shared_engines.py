"""Engines in memory that the checks take for shared ones, under the scheme `here:`.

All services and commands of a test that open them use the same state, whatever their data folder.
"""

from base64 import b64encode
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any, cast

import msgspec
import pytest

from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.adapters.memory.queues import MemoryQueues
from conveyor.adapters.system.clock import SystemClock
from conveyor.app.engines import SCHEMES
from conveyor.app.rows import TaskEngine
from conveyor.app.schemes import Opening, QueueEngine, Scheme
from conveyor.settings import Settings
from conveyor.testing.memory.blobs import MemoryBlobs
from conveyor.testing.memory.bodies import MemoryBodies
from conveyor.testing.memory.claims import MemoryClaims
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.tasks import MemoryTasks
from conveyor.testing.memory.work import MemoryWork

LEASE = timedelta(seconds=30)
ROOT_KEY = b64encode(bytes(32)).decode()
KINDS = ("metadata", "tasks", "control_queue", "bodies", "blobs", "coordination")


class SharedEngines:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = SystemClock()
        self.rows = rows = Rows(clock, LEASE)
        self.tasks, self.work = MemoryTasks(rows), MemoryWork(rows)
        self.metadata = MemoryMetadata(clock)
        self.control_queue = MemoryControlQueue(clock)
        self.coordination = MemoryCoordination(clock, lease=LEASE)
        engines = {
            "metadata": self.metadata,
            "tasks": TaskEngine(self.tasks, self.work, due_times=None, dead_claims=None),
            "control_queue": self.control_queue,
            "bodies": MemoryBodies(),
            "blobs": MemoryBlobs(),
            "coordination": self.coordination,
        }
        for kind, engine in engines.items():
            monkeypatch.setitem(cast("Any", SCHEMES[kind]), "here", _opens(engine))

    def use_queues(self, monkeypatch: pytest.MonkeyPatch) -> MemoryQueues:
        """Let tasks be claimed by messages of a queue from now on."""
        queues = MemoryQueues(SystemClock(), visibility=LEASE, random=Random(1))
        claims = MemoryClaims(self.rows)
        tasks = TaskEngine(self.tasks, None, due_times=None, dead_claims=None, claims=claims)
        scheme = replace(_opens(tasks), takes_queues=True, has_queue=False)
        monkeypatch.setitem(cast("Any", SCHEMES["tasks"]), "here", scheme)
        monkeypatch.setitem(
            cast("Any", SCHEMES["queues"]), "here", _opens(QueueEngine(queues, LEASE))
        )
        return queues

    def settings(self, **changes: Any) -> Settings:
        chosen = dict.fromkeys(KINDS, "here:") | {"encryption_key": (ROOT_KEY,)} | changes
        return msgspec.structs.replace(Settings(), **chosen)


def _opens(engine: object) -> Scheme[Any]:
    async def open_it(_opening: Opening, _address: str) -> Any:
        return engine

    return Scheme(open=open_it, is_shared=True)
