"""ProgressFeed: live news of runs, to any number of listeners, from one reading a run a round.

Listeners share what was read, and hold nothing themselves but the number of the news they had
last: whoever is slow misses what lies between, and costs no memory.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import NamedTuple

import structlog

from conveyor.domain import run as run_life
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.ids import CallerId, JobId, KeyId, RunId
from conveyor.domain.progress import ProgressReading, RunProgress, eta, gone, rate, slid
from conveyor.domain.run import Run, RunStatus
from conveyor.domain.waiting import Waiting
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.steps.shared.ownership import own_job, own_run
from conveyor.steps.shared.quotas import check_quota, count_down

ROUND = timedelta(seconds=1)
HEARTBEAT = timedelta(seconds=15)
READ_AT_ONCE = 100  # runs

log = structlog.get_logger()

Render = Callable[[RunProgress], bytes]
News = AsyncGenerator[bytes | None, None]


class Listener(NamedTuple):
    caller: CallerId
    key_id: KeyId | None


class Post:
    """What is known of one run that somebody listens to."""

    def __init__(self, run: Run, render: Render) -> None:
        self.run = run  # as the first listener found it
        self._render = render
        self._window: tuple[ProgressReading, ...] = ()
        self._bell = asyncio.Event()
        self.listeners = 0
        self.progress: RunProgress | None = None
        self.shown = b""
        self.turn = 0  # rises with every news
        self.rung_at = 0.0

    def tell(self, run: Run, settled: Counts, now: float, waiting: Waiting | None = None) -> None:
        """Take up a reading; when it is news, ring."""
        self._window = slid(self._window, ProgressReading(now, run_life.counts(run, settled).done))
        speed = rate(self._window)
        known = self.progress
        left = eta(run, settled, speed)
        self.progress = RunProgress(run=run, settled=settled, rate=speed, eta=left, waiting=waiting)
        self.shown = self._render(self.progress)
        if known is None or self.progress.differs_from(known):
            self.turn += 1
            self.ring(now)

    def ring(self, now: float) -> None:
        """Wake every listener, be it only to show that the line is alive."""
        bell, self._bell, self.rung_at = self._bell, asyncio.Event(), now
        bell.set()

    async def rung(self) -> None:
        await self._bell.wait()

    def is_known_by(self, mark: str | None) -> bool:
        return self.progress is not None and self.progress.mark == mark

    @property
    def is_over(self) -> bool:
        return self.progress is not None and self.progress.is_last


@dataclass(slots=True, kw_only=True)
class ProgressFeed:
    """The posts of this process. A post lives only while somebody listens to its run."""

    metadata: Metadata
    tasks: Tasks
    clock: Clock
    render: Render
    count: Callable[[int], None]  # runs that were read
    is_good: Callable[[KeyId], Awaitable[bool]]  # whether a key may still listen
    most: int = 0  # listeners of one caller; 0 is any number
    waiting: Callable[[RunId], Waiting | None] = lambda _: None
    posts: dict[RunId, Post] = field(default_factory=dict)
    callers: Counter[CallerId] = field(default_factory=Counter)  # how many listen
    keys: Counter[KeyId] = field(default_factory=Counter)
    refused: set[KeyId] = field(default_factory=set)  # revoked or expired while they listened
    closed: bool = False

    @property
    def listeners(self) -> int:
        return sum(post.listeners for post in self.posts.values())

    async def listen(
        self,
        caller: CallerId,
        job_id: JobId,
        run_id: RunId | None,
        *,
        seen: str | None,
        key_id: KeyId | None = None,
    ) -> News:
        """News of a run, of the latest when none is named, from the state it is in to its end.

        None among them shows that the line is alive. `seen` is the mark of the last news the
        caller had: that is not told again, unless it was the end. A mark that says nothing here
        is as good as none. It ends early when the key is not good any more. Raises
        `QuotaExceeded` for a caller that has too many listeners.
        """
        if self.most:
            check_quota("event_listeners", self.callers[caller], 1, self.most)
        job = await own_job(self.metadata, caller, job_id)
        run = await own_run(self.metadata, job, run_id)
        known = run.id in self.posts
        settled = None if known else await self._settled(run.id)
        return self._news(run, settled, seen, Listener(caller, key_id))

    async def step(self) -> None:
        """One round: read each run that has listeners, once, and tell them what is new."""
        await self._check_keys()
        now = self.clock.monotonic()
        for post in self.posts.values():
            if now - post.rung_at >= HEARTBEAT.total_seconds():
                post.ring(now)
        watched = iter(list(self.posts))
        while some := list(islice(watched, READ_AT_ONCE)):
            await self._read(some)

    def close(self) -> None:
        """End all news; whoever resumes finds the place by its mark."""
        self.closed = True
        self._ring_all()

    def _ring_all(self) -> None:
        for post in self.posts.values():
            post.ring(self.clock.monotonic())

    async def _check_keys(self) -> None:
        """End the news of keys that were revoked or have expired."""
        refused = {key_id for key_id in list(self.keys) if not await self.is_good(key_id)}
        if refused - self.refused:
            log.info("listeners.refused", keys=sorted(refused - self.refused))
            self.refused |= refused
            self._ring_all()

    def _is_over(self, listener: Listener) -> bool:
        return self.closed or listener.key_id in self.refused

    async def _news(
        self, run: Run, settled: Counts | None, seen: str | None, listener: Listener
    ) -> News:
        with self._counted(listener), self._at_post(run, settled) as post:
            turn = post.turn if post.is_known_by(seen) and not post.is_over else 0
            while not self._is_over(listener):
                if post.turn != turn:
                    turn, is_over = post.turn, post.is_over
                    yield post.shown
                    if is_over:
                        return
                    continue  # there may be news since
                await post.rung()
                if post.turn == turn and not self._is_over(listener):
                    yield None

    @contextmanager
    def _counted(self, listener: Listener) -> Iterator[None]:
        self.callers[listener.caller] += 1
        if listener.key_id:
            self.keys[listener.key_id] += 1
        try:
            yield
        finally:
            count_down(self.callers, listener.caller)
            if listener.key_id:
                count_down(self.keys, listener.key_id)
                self.refused &= self.keys.keys()

    @contextmanager
    def _at_post(self, run: Run, settled: Counts | None) -> Iterator[Post]:
        """The run's post while one listens; the last to leave takes it down."""
        post = self.posts.setdefault(run.id, Post(run, self.render))
        post.listeners += 1
        if post.progress is None and settled is not None:  # else the next round tells
            post.tell(run, settled, self.clock.monotonic(), self.waiting(run.id))
        try:
            yield post
        finally:
            post.listeners -= 1
            if not post.listeners:
                del self.posts[run.id]

    async def _read(self, run_ids: Sequence[RunId]) -> None:
        self.count(len(run_ids))
        # The counts first: a run must not be seen with more tasks done than it has.
        settled = await self.tasks.counts(run_ids)
        async with asyncio.TaskGroup() as group:
            readings = [group.create_task(self._run(run_id)) for run_id in run_ids]
        now = self.clock.monotonic()
        for run_id, reading in zip(run_ids, readings, strict=True):
            run = reading.result()
            if isinstance(run, Unavailable):
                raise run
            self._tell(run_id, run, settled[run_id], now)

    async def _run(self, run_id: RunId) -> Run | Unavailable | None:
        try:
            return await self.metadata.get(Run, run_id)
        except Unavailable as error:
            return error

    async def _settled(self, run_id: RunId) -> Counts:
        self.count(1)
        return (await self.tasks.counts([run_id]))[run_id]

    def _tell(self, run_id: RunId, run: Run | None, settled: Counts, now: float) -> None:
        post = self.posts.get(run_id)
        if post is None or post.is_over:  # all left meanwhile, or there is no more to tell
            return
        if run and run.status is not RunStatus.DELETED:
            post.tell(run, settled, now, self.waiting(run_id))
        else:  # its counts may be gone already: the last ones stand
            known = post.progress
            post.tell(gone(known.run if known else post.run), known.settled if known else ZERO, now)
