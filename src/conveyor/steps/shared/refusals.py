"""Refused calls in the log: the first of a run and code at once, then one line a minute with a count.

Not a station of its own: scrape writes its log by it. In an outage a line for each call would fill
the disk; each call is still logged at `debug`, and kept in the history of its task.
"""

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from conveyor.domain.failure import Handling
from conveyor.domain.ids import RunId

EVERY = 60.0  # seconds
MOST_KINDS = 1_000  # counted apart; what is beyond is counted without its run
LONGEST_CODE = 64  # of what a log line says of a refusal

log = structlog.get_logger()


class Kind(NamedTuple):
    run_id: RunId
    status: int
    code: str
    handling: Handling


@dataclass(slots=True)
class Refusals:
    counts: dict[Kind, int] = field(default_factory=dict)  # since the last line of each kind
    latest: dict[Kind, dict[str, str | None]] = field(default_factory=dict)  # ids of a call
    timer: asyncio.TimerHandle | None = None

    def note(self, kind: Kind, ids: dict[str, str | None]) -> None:
        """Count a refused call; `ids` are what it goes by."""
        kind = kind._replace(code=kind.code[:LONGEST_CODE])
        log.debug("gateway.refusal", **kind._asdict() | ids)
        if kind not in self.counts and len(self.counts) >= MOST_KINDS:
            kind = kind._replace(run_id=RunId(""), code="")
        self.latest[kind] = ids
        if kind in self.counts:
            self.counts[kind] += 1
            return
        self.counts[kind] = 0
        self._write(kind, 1)
        if self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(EVERY, self._summarise)

    def _summarise(self) -> None:
        counts, self.counts, self.timer = self.counts, {}, None
        for kind, times in counts.items():
            if times:
                self.counts[kind] = 0  # it goes on: still one line a minute
                self._write(kind, times)
            else:
                del self.latest[kind]
        if self.counts:
            self.timer = asyncio.get_running_loop().call_later(EVERY, self._summarise)

    def _write(self, kind: Kind, times: int) -> None:
        log.info("gateway.refused", times=times, **kind._asdict() | self.latest[kind])
