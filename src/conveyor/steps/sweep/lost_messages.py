"""Lost messages: enqueue the due tasks of runs that stand still, and remove queues without a run.

For engines with queues beside the rows. A queue forgets a message after days, gives it up after too
many receives, or is deleted by hand; the row then waits for ever. A queue that is gone, as those in
memory are after a restart, has lost all messages: every unfinished task gets a new one, and those
that are not due are hidden until they are, when they are received. A run that waits for something
else, such as its gateway, looks the same. Enqueuing a task twice does no harm, and each time doubles
the wait until the next, until as many tasks are done as were enqueued. A run with a task in progress
does not stand still.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from conveyor.domain.audit import MissedStep
from conveyor.domain.counts import Counts
from conveyor.domain.ids import RunId, is_ulid, ulid_milliseconds
from conveyor.domain.run import Run, open_tasks
from conveyor.domain.task import TaskStatus, is_due
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata
from conveyor.ports.queues import Queues
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Work
from conveyor.steps.shared.notifier import Notifier
from conveyor.steps.shared.pagination import pages
from conveyor.steps.sweep.checks import YOUNG, Entry, Repair, SweepAction, SweepCheck

STILL = timedelta(minutes=2)
LONGEST_STILL = timedelta(hours=1)
OPENING = timedelta(minutes=2)  # a queue of a younger run may not be listed yet
CHUNK = 1_000
MOST_READ = 10_000  # rows of a run, in one round
MOST_LOST = 100_000  # the same, if its queue is gone
PENDING = frozenset({TaskStatus.PENDING})
UNFINISHED = frozenset({TaskStatus.PENDING, TaskStatus.PROCESSING})
PROCESSING = frozenset({TaskStatus.PROCESSING})


@dataclass(slots=True)
class Standing:
    """Since when a run has had the same counts, and how far its rows were enqueued again."""

    counts: Counts
    since: float
    wait: timedelta
    after: int = -1
    is_whole: bool = False  # all unfinished tasks are enqueued, not only those that are due
    enough: int = 0  # tasks done at which enqueuing has had its effect


@dataclass(slots=True, kw_only=True)
class LostMessages:
    metadata: Metadata
    tasks: Tasks
    work: Work
    queues: Queues
    clock: Clock
    notifier: Notifier
    still: timedelta = STILL  # longer than a call and a lease take
    standing: dict[RunId, Standing] = field(default_factory=dict)
    opened: set[RunId] = field(default_factory=set)  # queues, as last listed

    def checks(self) -> Sequence[SweepCheck]:
        return (
            SweepCheck(name="messages", listing=self._live_runs),
            SweepCheck(name="queues", listing=self._queues),
        )

    async def _live_runs(self, after: str, limit: int) -> Sequence[Entry]:
        if not after:
            await self._begin_pass()
        page = await self.metadata.live_runs(limit=limit, after=after)
        counts = await self.tasks.counts([run.id for run in page])
        return [(run.id, partial(self._run, run, counts[run.id])) for run in page]

    async def _begin_pass(self) -> None:
        self.opened = {
            run_id
            async for page in pages(self._opened, start="", key=lambda run_id: run_id)
            for run_id in page
        }
        # Of ended runs nothing is kept: their queues are closed.
        known = self.standing.items()
        self.standing = {run_id: one for run_id, one in known if run_id in self.opened}

    async def _opened(self, after: str) -> Sequence[RunId]:
        return await self.queues.opened(limit=CHUNK, after=after)

    async def _run(self, run: Run, counts: Counts, patient: bool) -> SweepAction | None:
        """A run whose counts stand still, or whose queue is gone; at a start any with open tasks."""
        if run.is_paused or not open_tasks(run, counts):
            self.standing.pop(run.id, None)
            return None
        standing = self._standing(run.id, counts)
        is_still = await self._is_still(run.id, standing)
        is_gone = run.id not in self.opened
        if not is_still and not is_gone and patient:
            return None
        missed = MissedStep(
            action="lost_message",
            key=f"messages {run.id}",
            what="its queue is gone" if is_gone else "it has open tasks and makes no progress",
            job_id=run.job_id,
            run_id=run.id,
        )
        act = partial(self._enqueue, run.id, standing, opens=is_gone)
        is_old = self.clock.now() - run.created_at >= OPENING
        return Repair(
            missed,
            act,
            at_first_sight=is_still or (is_gone and is_old),
            is_precaution=not (is_still or is_gone),
        )

    def _standing(self, run_id: RunId, counts: Counts) -> Standing:
        """What is known of a run; its wait starts over if its counts have changed."""
        now = self.clock.monotonic()
        standing = self.standing.get(run_id)
        if standing is None:
            standing = self.standing[run_id] = Standing(counts, now, self.still)
        elif standing.counts != counts:
            standing.counts, standing.since = counts, now
            if counts.done >= standing.enough:
                standing.wait = self.still
        return standing

    async def _is_still(self, run_id: RunId, standing: Standing) -> bool:
        """Whether a run has waited long enough, or has rows left to enqueue as it is large."""
        if standing.after >= 0:
            return True
        waited = self.clock.monotonic() - standing.since
        return waited >= standing.wait.total_seconds() and not await self._is_in_progress(run_id)

    async def _is_in_progress(self, run_id: RunId) -> bool:
        """Whether a worker holds a task of the run."""
        after, now = -1, self.clock.now()
        while True:
            page = await self.tasks.page(run_id, limit=CHUNK, after=after, statuses=PROCESSING)
            if any(not is_due(task, now) for task in page.tasks):
                return True
            if page.cursor is None:
                return False
            after = page.cursor

    async def _enqueue(self, run_id: RunId, standing: Standing, *, opens: bool) -> int:
        """Enqueue tasks, and return how many. A large run is enqueued in several rounds."""
        if opens:
            standing.after, standing.is_whole = -1, True
            # `enqueue` does not open a queue that this process has opened before, and a message that
            # is sent to a missing queue is lost.
            await self.queues.open(run_id)
        if standing.after < 0:
            standing.enough = standing.counts.done
        sent, read, is_whole = 0, 0, standing.is_whole
        statuses = UNFINISHED if is_whole else PENDING
        while read < (MOST_LOST if is_whole else MOST_READ):
            page = await self.tasks.page(
                run_id, limit=CHUNK, after=standing.after, statuses=statuses
            )
            now = self.clock.now()
            due = [task.id for task in page.tasks if is_whole or is_due(task, now)]
            await self.work.enqueue(run_id, due)
            sent, read = sent + len(due), read + max(len(page.tasks), 1)
            if page.cursor is None:
                standing.after, standing.since = -1, self.clock.monotonic()
                standing.is_whole = False
                standing.wait = min(2 * standing.wait, LONGEST_STILL)
                break
            standing.after = page.cursor
        standing.enough += sent
        if sent:
            self.notifier.run_changed(run_id)  # a dispatcher may have set it aside as idle
        return sent

    async def _queues(self, after: str, limit: int) -> Sequence[Entry]:
        page = await self.queues.opened(limit=limit, after=after)
        return [(run_id, partial(self._queue, run_id)) for run_id in page]

    async def _queue(self, run_id: RunId, patient: bool) -> SweepAction | None:
        """The queue of a run that has ended or does not exist."""
        run = await self.metadata.get(Run, run_id)
        if (run and run.is_live) or (patient and self._is_young(run_id)):
            return None
        missed = MissedStep(
            action="orphan_queue",
            key=f"queue {run_id}",
            what="it has a queue, and the run has ended or does not exist",
            job_id=run.job_id if run else None,
            run_id=run_id,
        )
        return Repair(missed, partial(self._close, run_id))

    async def _close(self, run_id: RunId) -> int:
        await self.work.close(run_id)
        return 1

    def _is_young(self, run_id: RunId) -> bool:
        """Whether the run may not be stored yet. A name that is no ULID is not Conveyor's."""
        if not is_ulid(run_id):
            return True
        age = self.clock.now().timestamp() * 1000 - ulid_milliseconds(run_id)
        return age <= YOUNG.total_seconds() * 1000
