"""Sweep: every lost step happens later.

No leader is needed: each action is one conditional write, and two sweepers at once repair once.
A thing is repaired only when it looked broken in the sweep before as well, so that a step which
is merely under way is left alone; at the start of an embedded engine, where every earlier process
is known to be dead, it is repaired at once. In a run without faults nothing is done.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import structlog

from conveyor.domain.batch import TOMBSTONE_LIFE, Batch, Scrub, ingest_duty, scrub_duty
from conveyor.domain.ids import JobId, RunId, is_ulid, ulid_milliseconds
from conveyor.domain.run import RunStatus
from conveyor.errors import Stale
from conveyor.ports.answers import Answers
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies, BodyName
from conveyor.ports.clock import Clock
from conveyor.ports.duties import Duties
from conveyor.ports.metadata import Metadata, Removed
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Held, Work

OVERDUE = timedelta(seconds=30)  # past the end of a lease: a live pump would have taken it over
FOREVER = timedelta(days=36_500)  # longer than any lease
YOUNG = timedelta(minutes=10)  # rows and lists of submissions that may still be under way
PAGE = 500
BITE = 5_000

log = structlog.get_logger()

Count = Callable[[str, int], None]


@dataclass(slots=True, kw_only=True)
class Sweep:
    metadata: Metadata
    answers: Answers
    tasks: Tasks
    work: Work
    duties: Duties
    bodies: Bodies
    blobs: Blobs
    clock: Clock
    is_due: Callable[[RunId], Awaitable[bool]]
    check: Callable[[RunId], Awaitable[bool]]
    count: Count
    suspects: set[str] = field(default_factory=set)  # what looked broken in the last sweep

    async def step(self) -> None:
        """One round over everything that can be lost."""
        await self._round(patient=True)

    async def at_start(self, dead: Sequence[Held]) -> None:
        """The first round of a process that knows all others to be dead.

        Bodies go before the claims that name them: whoever dies in between finds both again.
        """
        await self.clear_bodies(dead)
        while len(await self.work.release_lapsed(overdue=-FOREVER, limit=BITE)) == BITE:
            pass
        await self._round(patient=False)

    async def clear_bodies(self, dead: Sequence[Held]) -> None:
        """Remove bodies that dead claims wrote and never settled."""
        names = [name async for name in self._names(dead)]
        if names:
            removed = await self.bodies.discard(names)
            self._did("orphan_body", removed)

    async def _round(self, *, patient: bool) -> None:
        seen: set[str] = set()
        await self._release_lapsed()
        await self._finish_batches(seen, patient=patient)
        await self._complete_runs(seen, patient=patient)
        being_cleared = await self._finish_scrubs(seen, patient=patient)
        await self._clear_rows(seen, being_cleared, patient=patient)
        await self._clear_orphan_bodies(seen, being_cleared, patient=patient)
        await self._clear_lists(patient=patient)
        await self.answers.clear_expired(limit=BITE)
        self.suspects = seen

    async def _release_lapsed(self) -> None:
        released = await self.work.release_lapsed(overdue=OVERDUE, limit=BITE)
        self._did("lapsed_lease", len(released))
        await self.clear_bodies(released)

    async def _finish_batches(self, seen: set[str], *, patient: bool) -> None:
        """Send again the duty of a list that has waited long and has not moved."""
        after = ("", -1)
        oldest = self.clock.now() - (YOUNG if patient else timedelta())
        while page := await self.metadata.batches(limit=PAGE, after=after):
            for batch in page:
                if batch.created_at <= oldest and self._is_stuck(
                    _mark(batch), seen, patient=patient
                ):
                    await self.duties.send(*ingest_duty(batch))
                    self._did("unfinished_ingest", 1)
            after = (page[-1].run_id, page[-1].first)

    async def _complete_runs(self, seen: set[str], *, patient: bool) -> None:
        after = ""
        while page := await self.metadata.live(limit=PAGE, after=after):
            for run, _ in page:
                due = await self.is_due(run.id)
                if due and self._is_stuck(f"run {run.id}", seen, patient=patient):
                    self._did("missed_completion", int(await self.check(run.id)))
            after = page[-1][0].id

    async def _finish_scrubs(self, seen: set[str], *, patient: bool) -> set[str]:
        """Send again the duty of what was deleted and is not cleared; say what that is.

        Tombstones whose time is over go.
        """
        after = ""
        being_cleared: set[str] = set()
        while page := await self.metadata.scrubs(limit=PAGE, after=after):
            for scrub in page:
                if scrub.done_at is None:
                    being_cleared.add(scrub.id)
                    await self._scrub_again(scrub, seen, patient=patient)
                elif scrub.done_at + TOMBSTONE_LIFE <= self.clock.now():
                    await self._remove_tombstone(scrub)
            after = page[-1].id
        return being_cleared

    async def _scrub_again(self, scrub: Scrub, seen: set[str], *, patient: bool) -> None:
        now = self.clock.now()
        is_old = scrub.sent_at <= now - (YOUNG if patient else timedelta())
        if not is_old or not self._is_stuck(f"scrub {scrub.id}", seen, patient=patient):
            return
        try:
            await self.metadata.commit(msgspec.structs.replace(scrub, sent_at=now))
        except Stale:
            return  # it has just been done, or another sweeper saw it too
        await self.duties.send(*scrub_duty(scrub))
        self._did("unfinished_scrub", 1)

    async def _remove_tombstone(self, scrub: Scrub) -> None:
        if scrub.run_id:
            stone = await self.metadata.run(scrub.run_id)
            await self.metadata.commit(Removed(scrub), *([Removed(stone)] if stone else []))
        else:
            job = await self.metadata.job(scrub.job_id)
            await self.metadata.commit(Removed(scrub), *([Removed(job)] if job else []))

    async def _clear_rows(self, seen: set[str], being_cleared: set[str], *, patient: bool) -> None:
        """Remove rows of submissions that never came to be, or that came after a delete."""
        after = ""
        while page := await self.tasks.runs_held(limit=PAGE, after=after):
            for run_id in page:
                if (
                    self._is_old(run_id, patient=patient)
                    and await self._is_gone(run_id, being_cleared)
                    and self._is_stuck(f"rows {run_id}", seen, patient=patient)
                ):
                    await self._discard(run_id)
            after = page[-1]

    async def _clear_orphan_bodies(
        self, seen: set[str], being_cleared: set[str], *, patient: bool
    ) -> None:
        """Remove bodies of runs that are no more: their writer died before it could."""
        after = ""
        while page := await self.bodies.runs_held(limit=PAGE, after=after):
            for job_id, run_id in page:
                if (
                    self._is_old(run_id, patient=patient)
                    and await self._is_gone(run_id, being_cleared)
                    and self._is_stuck(f"bodies {run_id}", seen, patient=patient)
                ):
                    while removed := await self.bodies.delete_run(job_id, run_id, limit=BITE):
                        self._did("orphan_body", removed)
            after = "/".join(page[-1])

    async def _is_gone(self, run_id: RunId, being_cleared: set[str]) -> bool:
        """Whether a run is not on record, or deleted and said to be cleared."""
        run = await self.metadata.run(run_id)
        if run is None:
            return True
        return run.status is RunStatus.DELETED and not being_cleared & {run.id, run.job_id}

    async def _discard(self, run_id: RunId) -> None:
        while await self.tasks.discard(run_id, limit=BITE) == BITE:
            pass
        self._did("orphan_rows", 1)

    async def _clear_lists(self, *, patient: bool) -> None:
        """Remove staged lists that no unfinished batch refers to."""
        after = ""
        while page := await self.blobs.keys("lists/", limit=PAGE, after=after):
            for key in page:
                run_id, name = key.removesuffix(".ndjson").split("/")[-2:]
                # An added list has a name of its own age: its run may be far older.
                born = name if is_ulid(name) else run_id
                if self._is_old(born, patient=patient) and not await self._is_listed(run_id, key):
                    await self.blobs.delete([key])
                    self._did("orphan_list", 1)
            after = page[-1]

    async def _is_listed(self, run_id: str, key: str) -> bool:
        after = (run_id, -1)
        while page := await self.metadata.batches(limit=PAGE, after=after):
            if any(batch.blob == key for batch in page):
                return True
            after = (page[-1].run_id, page[-1].first)
            if after[0] != run_id:
                return False
        return False

    async def _names(self, dead: Sequence[Held]) -> AsyncIterator[BodyName]:
        jobs: dict[RunId, JobId] = {}
        for held in dead:
            if held.run_id not in jobs and (run := await self.metadata.run(held.run_id)):
                jobs[held.run_id] = run.job_id
            if held.run_id in jobs:
                yield BodyName(jobs[held.run_id], held.run_id, held.task_id, held.claim_no)

    def _is_stuck(self, mark: str, seen: set[str], *, patient: bool) -> bool:
        seen.add(mark)
        return mark in self.suspects or not patient

    def _is_old(self, name: str, *, patient: bool) -> bool:
        age = self.clock.now().timestamp() * 1000 - ulid_milliseconds(name)
        return not patient or age > YOUNG.total_seconds() * 1000

    def _did(self, action: str, times: int) -> None:
        if times:
            log.warning("sweeper.repaired", action=action, times=times)
            self.count(action, times)


def _mark(batch: Batch) -> str:
    return f"batch {batch.run_id} {batch.first} {batch.version}"
