"""Progress: live updates of runs for any number of listeners, from one read of each run a round.

Listeners share the last update of their run, and hold only its number. A slow listener misses the
updates in between, and costs no memory.
"""

import asyncio
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import NamedTuple, TypeGuard

import structlog

from conveyor.domain import run as run_rules
from conveyor.domain.counts import ZERO, Counts, OpenCounts
from conveyor.domain.ids import ApiKeyId, CallerId, JobId, RunId
from conveyor.domain.job import Job
from conveyor.domain.progress import ProgressReading, RunProgress, Waiting, eta, gone, rate, slid
from conveyor.domain.run import Run, RunStatus
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.steps.shared.open_counts import FindOpenCounts, find_no_open_counts
from conveyor.steps.shared.ownership import own_job, own_run
from conveyor.steps.shared.quotas import check_quota, count_down
from conveyor.steps.shared.run_waits import FindWaits, find_no_waits

ROUND = timedelta(seconds=1)
HEARTBEAT = timedelta(seconds=15)
READ_AT_ONCE = 100  # runs

log = structlog.get_logger()

RenderProgress = Callable[[RunProgress], bytes]
Updates = AsyncGenerator[bytes | None, None]
# None if the run has listeners already.
FirstReading = tuple[Counts, Waiting | None, OpenCounts | None] | None


class Listener(NamedTuple):
    caller: CallerId
    api_key_id: ApiKeyId | None


class FollowedRun:
    """The last update of one run that has listeners."""

    def __init__(self, job: Job, run: Run, render: RenderProgress) -> None:
        self.job, self.run = job, run  # as the first listener found them
        self._render = render
        self._window: tuple[ProgressReading, ...] = ()
        self._event = asyncio.Event()
        self.listeners = 0
        self.progress: RunProgress | None = None
        self.shown = b""
        self.number = 0  # of updates so far
        self.woken_at = 0.0

    def update(
        self,
        run: Run,
        settled: Counts,
        now: float,
        waiting: Waiting | None = None,
        open_counts: OpenCounts | None = None,
    ) -> None:
        """Record a reading; wake the listeners if it differs from the last one."""
        self._window = slid(self._window, ProgressReading(now, run_rules.counts(run, settled).done))
        speed = rate(self._window)
        known = self.progress
        left = eta(run, settled, speed)
        self.progress = RunProgress(
            run=run,
            settled=settled,
            rate=speed,
            eta=left,
            waiting=waiting,
            open_counts=open_counts,
        )
        self.shown = self._render(self.progress)
        if known is None or self.progress.differs_from(known):
            self.number += 1
            self.wake(now)

    def wake(self, now: float) -> None:
        """Wake every listener, for an update or for a heartbeat."""
        event, self._event, self.woken_at = self._event, asyncio.Event(), now
        event.set()

    async def woken(self) -> None:
        await self._event.wait()

    def is_known_by(self, mark: str | None) -> bool:
        return self.progress is not None and self.progress.mark == mark

    @property
    def is_over(self) -> bool:
        return self.progress is not None and self.progress.is_last


@dataclass(slots=True, kw_only=True)
class ProgressFeed:
    """The runs that have listeners in this process."""

    metadata: Metadata
    tasks: Tasks
    clock: Clock
    render: RenderProgress
    count: Callable[[int], None]  # runs that were read
    is_good: Callable[[ApiKeyId], Awaitable[bool]]  # whether an API key is still active
    most: int = 0  # listeners of one caller; 0 is any number
    waits: FindWaits = find_no_waits
    open_counts: FindOpenCounts = find_no_open_counts
    followed: dict[RunId, FollowedRun] = field(default_factory=dict)
    callers: Counter[CallerId] = field(default_factory=Counter)  # how many listen
    keys: Counter[ApiKeyId] = field(default_factory=Counter)
    refused: set[ApiKeyId] = field(default_factory=set)  # revoked or expired while they listened
    changed: set[RunId] = field(default_factory=set)  # notified, and not read since
    closed: bool = False

    @property
    def listeners(self) -> int:
        return sum(followed_run.listeners for followed_run in self.followed.values())

    async def listen(
        self,
        caller: CallerId,
        job_id: JobId,
        run_id: RunId | None,
        *,
        seen: str | None,
        api_key_id: ApiKeyId | None = None,
    ) -> Updates:
        """Updates of a run, by default the latest, from its current state to its end.

        None among them is a heartbeat. `seen` is the mark of the last update that the caller got: it
        is not sent again, unless it was the last of the run. An unknown mark has no effect. The
        updates end early when the key is revoked or expires. Raises `QuotaExceeded` for a caller
        that has too many listeners.
        """
        if self.most:
            check_quota("event_listeners", self.callers[caller], 1, self.most)
        job = await own_job(self.metadata, caller, job_id)
        run = await own_run(self.metadata, job, run_id)
        first = None
        if run.id not in self.followed:
            open_counts = await self.open_counts([run])
            settled = await self._settled(run.id)
            waits = await self.waits([(job, run)])
            first = settled, waits.get(run.id), open_counts.get(run.id)
        return self._updates((job, run), first, seen, Listener(caller, api_key_id))

    def notified(self, names: Collection[str] | None) -> bool:
        """Note which followed runs a notification names, all if None; return whether there are any."""
        changed = self.followed.keys() if names is None else self.followed.keys() & names
        self.changed |= changed
        return bool(changed)

    async def step(self) -> None:
        """One round: read each run that has listeners once, and send them what changed."""
        await self._check_keys()
        now = self.clock.monotonic()
        for followed_run in self.followed.values():
            if now - followed_run.woken_at >= HEARTBEAT.total_seconds():
                followed_run.wake(now)
        await self._read_all(self.followed)

    async def read_changed(self) -> None:
        """Read the runs that were notified, and send their listeners what changed."""
        changed, self.changed = self.changed & self.followed.keys(), set()
        await self._read_all(changed)

    async def _read_all(self, run_ids: Iterable[RunId]) -> None:
        watched = iter(list(run_ids))
        while some := list(islice(watched, READ_AT_ONCE)):
            await self._read(some)

    def close(self) -> None:
        """End all updates; a client resumes by its last mark."""
        self.closed = True
        self._wake_all()

    def _wake_all(self) -> None:
        for followed_run in self.followed.values():
            followed_run.wake(self.clock.monotonic())

    async def _check_keys(self) -> None:
        """End the updates of keys that were revoked or have expired."""
        refused = {key for key in list(self.keys) if not await self.is_good(key)}
        if refused - self.refused:
            log.info("listeners.refused", keys=sorted(refused - self.refused))
            self.refused |= refused
            self._wake_all()

    def _is_over(self, listener: Listener) -> bool:
        return self.closed or listener.api_key_id in self.refused

    async def _updates(
        self, of: tuple[Job, Run], first: FirstReading, seen: str | None, listener: Listener
    ) -> Updates:
        with self._counted(listener), self._following(*of, first) as followed_run:
            resumes = followed_run.is_known_by(seen) and not followed_run.is_over
            number = followed_run.number if resumes else 0
            while not self._is_over(listener):
                if followed_run.number != number:
                    number, is_over = followed_run.number, followed_run.is_over
                    yield followed_run.shown
                    if is_over:
                        return
                    continue  # the run may have changed since
                await followed_run.woken()
                if followed_run.number == number and not self._is_over(listener):
                    yield None

    @contextmanager
    def _counted(self, listener: Listener) -> Iterator[None]:
        self.callers[listener.caller] += 1
        if listener.api_key_id:
            self.keys[listener.api_key_id] += 1
        try:
            yield
        finally:
            count_down(self.callers, listener.caller)
            if listener.api_key_id:
                count_down(self.keys, listener.api_key_id)
                self.refused &= self.keys.keys()

    @contextmanager
    def _following(self, job: Job, run: Run, first: FirstReading) -> Iterator[FollowedRun]:
        """A run while a listener follows it; the last to leave removes it."""
        followed_run = self.followed.setdefault(run.id, FollowedRun(job, run, self.render))
        followed_run.listeners += 1
        if followed_run.progress is None and first is not None:  # else the next round updates it
            settled, waiting, open_counts = first
            followed_run.update(run, settled, self.clock.monotonic(), waiting, open_counts)
        try:
            yield followed_run
        finally:
            followed_run.listeners -= 1
            if not followed_run.listeners:
                del self.followed[run.id]

    async def _read(self, run_ids: Sequence[RunId]) -> None:
        self.count(len(run_ids))
        # The counts are read first: a run must not show more tasks done than it has.
        settled = await self.tasks.counts(run_ids)
        async with asyncio.TaskGroup() as group:
            readings = [group.create_task(self._run(run_id)) for run_id in run_ids]
        runs = [reading.result() for reading in readings]
        shown = [run for run in runs if self._is_followed(run)]
        waits = await self.waits([(self.followed[run.id].job, run) for run in shown])
        open_counts = await self.open_counts(shown)
        now = self.clock.monotonic()
        for run_id, run in zip(run_ids, runs, strict=True):
            if isinstance(run, Unavailable):
                raise run
            details = waits.get(run_id), open_counts.get(run_id)
            self._update(run_id, run, settled[run_id], now, details)

    def _is_followed(self, run: Run | Unavailable | None) -> TypeGuard[Run]:
        return isinstance(run, Run) and run.id in self.followed

    async def _run(self, run_id: RunId) -> Run | Unavailable | None:
        try:
            return await self.metadata.get(Run, run_id)
        except Unavailable as error:
            return error

    async def _settled(self, run_id: RunId) -> Counts:
        self.count(1)
        return (await self.tasks.counts([run_id]))[run_id]

    def _update(
        self,
        run_id: RunId,
        run: Run | None,
        settled: Counts,
        now: float,
        details: tuple[Waiting | None, OpenCounts | None],
    ) -> None:
        followed_run = self.followed.get(run_id)
        if followed_run is None or followed_run.is_over:  # no listener is left, or it has ended
            return
        if run and run.status is not RunStatus.DELETED:
            followed_run.update(run, settled, now, *details)
        else:  # its counts may be purged already: the last ones stay
            known = followed_run.progress
            followed_run.update(
                gone(known.run if known else followed_run.run),
                known.settled if known else ZERO,
                now,
            )
