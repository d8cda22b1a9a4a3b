"""The sweeper: repeats steps that a crash left out, and removes what has expired.

Each action is one conditional write, so two sweepers repair a thing once. A permit (permit.py) saves
the others the reads.

- A thing is repaired only if it looked broken in the previous pass too. So a step that is merely
  under way is left alone. When an embedded engine starts, every earlier process is known to be dead,
  and things are repaired at once. Without crashes nothing is repaired.
- A round is bounded: a long listing is swept in parts, and each round continues where the last one
  ended.
- Nothing starves: an entry that cannot be judged or repaired is logged and skipped.
- Judging is separate from acting: the doctor lists what a round would do.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import structlog

from conveyor.domain.audit import MissedStep
from conveyor.domain.counts import Counts
from conveyor.domain.ids import JobId, RunId, ulid
from conveyor.domain.run import Run, RunStatus, open_tasks
from conveyor.domain.task import Task, TaskStatus, is_due
from conveyor.errors import Unavailable
from conveyor.ports.bodies import Bodies, BodyName
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Held, Work
from conveyor.steps.shared.pagination import every, pages, rows
from conveyor.steps.sweep.checks import (
    Entry,
    Judge,
    Removal,
    Repair,
    SweepAction,
    SweepCheck,
    SweepCursor,
)
from conveyor.steps.sweep.permit import SweeperPermit
from conveyor.steps.sweep.saved_cursors import SavedCursors

OVERDUE = timedelta(seconds=30)  # after the end of a lease: until then a live worker takes it over
FOREVER = timedelta(days=36_500)  # longer than any lease
RECENT = timedelta(days=1)  # most of what a crash leaves is of the last day
PAGE = 500
CHUNK = 5_000
ROUND = 2_000  # entries of a long listing that one round judges
LONGEST_WAIT = 16  # rounds, until a run that stands still is looked at again
PROCESSING = frozenset({TaskStatus.PROCESSING})
CUT_SHORT = frozenset({RunStatus.STOPPED, RunStatus.FAILED})  # may end with tasks in hand
ENDED_RUNS = "ended runs"  # the name of a cursor
NEXT_ROUND = "in its next round"

log = structlog.get_logger()

Count = Callable[[str, int], None]


@dataclass(slots=True, kw_only=True)
class Sweeper:
    metadata: Metadata
    tasks: Tasks
    work: Work
    bodies: Bodies
    clock: Clock
    checks: Sequence[SweepCheck]
    count: Count  # repairs, by action
    cleared: Count  # removals, by kind
    permit: SweeperPermit | None = None  # None if no other process can sweep
    saved: SavedCursors | None = None
    resumed: str | None = None  # the permit with which the saved cursors were read
    cursors: dict[str, SweepCursor] = field(default_factory=dict)  # by check
    counts: dict[RunId, Counts] = field(default_factory=dict)  # of live runs, in the last round
    idle: dict[RunId, int] = field(default_factory=dict)  # rounds in which live runs stood still

    async def step(self) -> None:
        """Make one round: over all live work, and over a part of each long listing.

        It is patient: it repairs only what looked broken in the previous pass as well. A process
        without the permit makes none, and neither does one that cannot ask for it.
        """
        if self.permit is None:
            await self._round(patient=True)
        elif await self.permit.take():
            await self._resume(self.permit)
            try:
                await self._round(patient=True)
            except Unavailable:
                await self._save()
                raise
            await self._save()

    async def at_start(self, dead: Sequence[Held]) -> None:
        """Make the first round of a process that knows all earlier ones to be dead."""
        # Bodies before the claims that name them: after a crash in between both are found again.
        await self.remove_bodies(dead)
        for run_id in {held.run_id for held in dead}:
            while await self.work.release_lapsed(run_id, overdue=-FOREVER, limit=CHUNK):
                pass
        await self._round(patient=False)

    async def remove_bodies(self, dead: Sequence[Held]) -> None:
        """Remove bodies that dead claims wrote and never settled."""
        names = [name async for name in self._body_names(dead)]
        if names:
            self._repaired("orphan_body", await self.bodies.discard(names))

    async def findings(self, *, patient: bool) -> AsyncIterator[tuple[MissedStep, str]]:
        """List what rounds would repair, each with when that is, and repair nothing.

        A patient sweeper repairs what it finds in two passes; here one pass is enough.
        """
        overdue = OVERDUE if patient else -FOREVER
        async for run in every(self.metadata, Run):
            if run.status is not RunStatus.DELETED:
                async for task in self._lapsed(run, overdue):
                    yield _lapsed_lease(task, run.job_id), NEXT_ROUND
        for check in self.checks:
            entries = rows(partial(_read, check), start="", key=lambda entry: entry[0])
            async for position, judge in entries:
                action = await self._judged(judge, position, patient=patient)
                if isinstance(action, Repair) and not action.is_precaution:
                    yield action.step, self._when(action)

    async def _lapsed(self, run: Run, overdue: timedelta) -> AsyncIterator[Task]:
        """Yield the tasks of a run that `Work.release_lapsed` would release."""
        latest, after = self.clock.now() - overdue, -1
        while True:
            page = await self.tasks.page(run.id, limit=PAGE, after=after, statuses=PROCESSING)
            for task in page.tasks:
                if is_due(task, latest):
                    yield task
            if page.cursor is None:
                return
            after = page.cursor

    def _when(self, repair: Repair) -> str:
        """When a patient sweeper makes a repair, in words."""
        key = repair.step.key
        if repair.at_first_sight or any(key in one.suspects for one in self.cursors.values()):
            return NEXT_ROUND
        return "in the round after the next, if nothing has changed"

    async def _resume(self, permit: SweeperPermit) -> None:
        """Go on where the last sweeper ended, if that was another process."""
        if self.saved and permit.permit != self.resumed:
            self.cursors |= await self.saved.load()
            self.resumed = permit.permit

    async def _save(self) -> None:
        if self.saved:
            long = {check.name for check in self.checks if check.long} | {ENDED_RUNS}
            await self.saved.save(
                {name: cursor for name, cursor in self.cursors.items() if name in long}
            )

    async def _round(self, *, patient: bool) -> None:
        """Sweep everything even if an engine is unavailable; raise its error at the end of the round."""
        errors: list[Unavailable] = []
        parts: list[Callable[[], Awaitable[object]]] = [
            self._release_lapsed,
            *(partial(self._sweep, check, patient=patient) for check in self.checks),
            partial(self.metadata.clear_expired, limit=CHUNK),  # idempotency records
        ]
        for part in parts:
            try:
                await part()
            except Unavailable as error:
                errors.append(error)
            except Exception:
                log.exception("sweeper.failed", place="")
        if errors:
            raise errors[0]

    async def _release_lapsed(self) -> None:
        """Release lapsed leases of live runs that stand still, and of runs that ended lately.

        A live run that moves has dispatchers, which take its lapsed leases over. Some engines read
        all rows of a run for that, so a run that stands still is looked at less often each time.
        Paused runs are skipped: their leases are released once they are resumed or have ended.
        """
        left = CHUNK
        async for run_id in self._maybe_held():
            released = await self.work.release_lapsed(run_id, overdue=OVERDUE, limit=left)
            self._repaired("lapsed_lease", len(released))
            await self.remove_bodies(released)
            left -= len(released)
            if released:
                self.idle.pop(run_id, None)  # there may be more
            if left <= 0:
                return

    async def _maybe_held(self) -> AsyncIterator[RunId]:
        before, self.counts = self.counts, {}
        idle, self.idle = self.idle, {}
        async for page in pages(self._live_runs, start="", key=lambda run: run.id):
            counts = await self.tasks.counts([run.id for run in page])
            self.counts |= counts
            for run in page:
                stands_still = before.get(run.id, counts[run.id]) == counts[run.id]
                if run.is_paused or not stands_still or not open_tasks(run, counts[run.id]):
                    continue
                self.idle[run.id] = idle.get(run.id, 0) + 1
                if _has_turn(self.idle[run.id]):
                    yield run.id
        ended = self.cursors.setdefault(ENDED_RUNS, SweepCursor())
        listed = await self.metadata.page(Run, limit=ROUND, after=ended.after)
        ended.after = listed[-1].id if listed else ""
        for run in listed:
            if run.status in CUT_SHORT and run.updated_at >= self.clock.now() - RECENT:
                yield run.id

    async def _live_runs(self, after: str) -> Sequence[Run]:
        return await self.metadata.live_runs(limit=PAGE, after=after)

    async def _sweep(self, check: SweepCheck, *, patient: bool) -> None:
        """Continue with a listing: to its end, or for `ROUND` entries if it is a long one."""
        cursor = self.cursors.setdefault(check.name, SweepCursor())
        left = ROUND
        if check.long and not patient:
            # The last day first: a start must find what the crash left without reading everything.
            cursor.after = check.prefix + self._recent_id()
            left = await self._continue(check, cursor, left, patient=patient)
        if left:
            await self._continue(check, cursor, left, patient=patient)

    async def _continue(
        self, check: SweepCheck, cursor: SweepCursor, left: int, *, patient: bool
    ) -> int:
        """Judge entries to the end of the listing, or `left` of a long one; return how many are left."""
        budget = check.most
        while left > 0:
            page = await check.listing(cursor.after, min(CHUNK, left) if check.long else PAGE)
            for position, judge in page:
                # Advance first: the next round must not begin with an entry that fails.
                before, cursor.after = cursor.after, position
                action = await self._judged(judge, position, patient=patient)
                if action:
                    budget -= await self._act(action, cursor, position, patient=patient)
                if budget <= 0:
                    cursor.after = before  # this entry may hold more of the same
                    return 0
            if not page:
                cursor.end_pass()
                return left
            left -= len(page) if check.long else 0
        return 0

    async def _judged(self, judge: Judge, position: str, *, patient: bool) -> SweepAction | None:
        try:
            return await judge(patient)
        except Unavailable:
            raise
        except Exception:
            # A bug that one entry triggers must not keep the others from being judged.
            log.exception("sweeper.failed", place=position)
            return None

    async def _act(
        self, action: SweepAction, cursor: SweepCursor, position: str, *, patient: bool
    ) -> int:
        """Repair or remove; return how many things."""
        try:
            if isinstance(action, Removal):
                return self._removed(action.kind, await action.act())
            key = action.step.key
            cursor.note(key)
            if key in cursor.suspects or action.at_first_sight or not patient:
                return self._repaired(action.step.action, await action.act())
        except Unavailable:
            raise
        except Exception:
            log.exception("sweeper.failed", place=position)
        return 0

    async def _body_names(self, dead: Sequence[Held]) -> AsyncIterator[BodyName]:
        jobs: dict[RunId, JobId] = {}
        for held in dead:
            if held.run_id not in jobs and (run := await self.metadata.get(Run, held.run_id)):
                jobs[held.run_id] = run.job_id
            if held.run_id in jobs:
                yield BodyName(jobs[held.run_id], held.run_id, held.task_id, held.claim_no)

    def _recent_id(self) -> str:
        """An id below all that were made in the last day."""
        return ulid(int((self.clock.now() - RECENT).timestamp() * 1000), 0)

    def _repaired(self, action: str, times: int) -> int:
        if times:
            log.warning("sweeper.repaired", action=action, times=times)
            self.count(action, times)
        return times

    def _removed(self, kind: str, times: int) -> int:
        if times:
            log.info("sweeper.cleared", kind=kind, times=times)
            self.cleared(kind, times)
        return times


def _has_turn(rounds: int) -> bool:
    """Whether a run that stood still for so many rounds is looked at: the waits double."""
    return rounds & (rounds - 1) == 0 or rounds % LONGEST_WAIT == 0


async def _read(check: SweepCheck, after: str) -> Sequence[Entry]:
    return await check.listing(after, PAGE)


def _lapsed_lease(task: Task, job_id: JobId) -> MissedStep:
    return MissedStep(
        action="lapsed_lease",
        key=f"lease {task.run_id} {task.id} {task.claim_no}",
        what=f"its claim {task.claim_no} has lapsed: the worker died or was suspended",
        job_id=job_id,
        run_id=task.run_id,
        task_id=task.id,
    )
