"""Sweep: every lost step happens later.

No leader is needed: each action is one conditional write, and two sweepers at once repair once.
A thing is repaired only when it looked broken in the sweep before as well, so that a step which
is merely under way is left alone; at the start of an embedded engine, where every earlier process
is known to be dead, it is repaired at once. In a run without faults nothing is done.

Finding and repairing are apart: whoever only wants to know gets the findings alone.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import msgspec
import structlog

from conveyor.domain.batch import TOMBSTONE_LIFE, Batch, Scrub, ingest_duty, scrub_duty
from conveyor.domain.finding import Lost
from conveyor.domain.ids import JobId, RunId, is_ulid, ulid_milliseconds
from conveyor.domain.run import Run, RunStatus
from conveyor.errors import Stale
from conveyor.ports.answers import Answers
from conveyor.ports.blobs import Blobs
from conveyor.ports.bodies import Bodies, BodyName
from conveyor.ports.clock import Clock
from conveyor.ports.duties import Duties
from conveyor.ports.metadata import Metadata, Removed
from conveyor.ports.survey import Survey
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Held, Work

OVERDUE = timedelta(seconds=30)  # past the end of a lease: a live pump would have taken it over
FOREVER = timedelta(days=36_500)  # longer than any lease
YOUNG = timedelta(minutes=10)  # rows and lists of submissions that may still be under way
PAGE = 500
BITE = 5_000
AT_ONCE = {"lapsed_lease", "orphan_list"}  # judged by their age alone

log = structlog.get_logger()

Count = Callable[[str, int], None]
Found = tuple[Lost, Callable[[], Awaitable[int]]]  # and how it is repaired


@dataclass(slots=True, kw_only=True)
class Sweep:
    metadata: Metadata
    answers: Answers
    tasks: Tasks
    work: Work
    duties: Duties
    bodies: Bodies
    blobs: Blobs
    survey: Survey
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

    async def findings(self, *, patient: bool) -> AsyncIterator[Lost]:
        """What a round would see to now, with nothing done about it.

        With patience, what looks broken for the first time is among it: the round after the
        next repairs it, if it then still stands the same way.
        """
        overdue = OVERDUE if patient else -FOREVER
        for held in await self.survey.lapsed(overdue=overdue, limit=BITE):
            yield await self._lapsed(held)
        async for lost, _ in self._lost(patient=patient):
            yield lost

    def when(self, lost: Lost) -> str:
        """When a finding is repaired, for a person."""
        if lost.action in AT_ONCE or lost.mark in self.suspects:
            return "in its next round"
        return "in the round after the next, if it still stands the same way"

    async def _round(self, *, patient: bool) -> None:
        seen: set[str] = set()
        await self._release_lapsed()
        async for lost, repair in self._lost(patient=patient):
            seen.add(lost.mark)
            if lost.mark in self.suspects or not patient or lost.action in AT_ONCE:
                self._did(lost.action, await repair())
        await self._remove_tombstones()
        await self.answers.clear_expired(limit=BITE)
        self.suspects = seen

    async def _release_lapsed(self) -> None:
        released = await self.work.release_lapsed(overdue=OVERDUE, limit=BITE)
        self._did("lapsed_lease", len(released))
        await self.clear_bodies(released)

    async def _lapsed(self, held: Held) -> Lost:
        run = await self.metadata.run(held.run_id)
        return Lost(
            action="lapsed_lease",
            mark=f"lease {held.run_id} {held.task_id} {held.claim_no}",
            what=f"a worker took it (claim {held.claim_no}) and stopped without a word",
            job_id=run.job_id if run else None,
            run_id=held.run_id,
            task_id=held.task_id,
        )

    async def _lost(self, *, patient: bool) -> AsyncIterator[Found]:
        """Each thing that looks lost, with how it is repaired."""
        for check in (self._batches, self._completions, self._scrubs):
            async for found in check(patient=patient):
                yield found
        being_cleared = await self._being_cleared()
        for clear in (self._orphan_rows, self._orphan_bodies):
            async for found in clear(being_cleared, patient=patient):
                yield found
        async for found in self._orphan_lists(patient=patient):
            yield found

    async def _batches(self, *, patient: bool) -> AsyncIterator[Found]:
        """Lists and copies that have waited long and have not moved."""
        after = ("", -1)
        oldest = self.clock.now() - (YOUNG if patient else timedelta())
        while page := await self.metadata.batches(limit=PAGE, after=after):
            for batch in page:
                if batch.created_at <= oldest:
                    yield _unfinished_ingest(batch), partial(self._ingest_again, batch)
            after = (page[-1].run_id, page[-1].first)

    async def _ingest_again(self, batch: Batch) -> int:
        await self.duties.send(*ingest_duty(batch))
        return 1

    async def _completions(self, *, patient: bool) -> AsyncIterator[Found]:  # noqa: ARG002 - as its like
        after = ""
        while page := await self.metadata.live(limit=PAGE, after=after):
            for run, _ in page:
                if await self.is_due(run.id):
                    yield _missed_completion(run), partial(self._complete, run.id)
            after = page[-1][0].id

    async def _complete(self, run_id: RunId) -> int:
        return int(await self.check(run_id))

    async def _scrubs(self, *, patient: bool) -> AsyncIterator[Found]:
        """What was deleted, is not cleared, and has not been told to anyone for long."""
        oldest = self.clock.now() - (YOUNG if patient else timedelta())
        async for scrub in self._every_scrub():
            if scrub.done_at is None and scrub.sent_at <= oldest:
                yield _unfinished_scrub(scrub), partial(self._scrub_again, scrub)

    async def _scrub_again(self, scrub: Scrub) -> int:
        try:
            await self.metadata.commit(msgspec.structs.replace(scrub, sent_at=self.clock.now()))
        except Stale:
            return 0  # it has just been done, or another sweeper saw it too
        await self.duties.send(*scrub_duty(scrub))
        return 1

    async def _being_cleared(self) -> set[str]:
        return {scrub.id async for scrub in self._every_scrub() if scrub.done_at is None}

    async def _remove_tombstones(self) -> None:
        """Tombstones whose time is over go."""
        now = self.clock.now()
        async for scrub in self._every_scrub():
            if scrub.done_at and scrub.done_at + TOMBSTONE_LIFE <= now:
                await self._remove_tombstone(scrub)

    async def _every_scrub(self) -> AsyncIterator[Scrub]:
        after = ""
        while page := await self.metadata.scrubs(limit=PAGE, after=after):
            for scrub in page:
                yield scrub
            after = page[-1].id

    async def _remove_tombstone(self, scrub: Scrub) -> None:
        if scrub.run_id:
            stone = await self.metadata.run(scrub.run_id)
            await self.metadata.commit(Removed(scrub), *([Removed(stone)] if stone else []))
        else:
            job = await self.metadata.job(scrub.job_id)
            await self.metadata.commit(Removed(scrub), *([Removed(job)] if job else []))

    async def _orphan_rows(self, being_cleared: set[str], *, patient: bool) -> AsyncIterator[Found]:
        """Rows of submissions that never came to be, or that came after a delete."""
        after = ""
        while page := await self.tasks.runs_held(limit=PAGE, after=after):
            for run_id in page:
                if self._is_old(run_id, patient=patient) and await self._is_gone(
                    run_id, being_cleared
                ):
                    yield _orphan_rows(run_id), partial(self._discard, run_id)
            after = page[-1]

    async def _orphan_bodies(
        self, being_cleared: set[str], *, patient: bool
    ) -> AsyncIterator[Found]:
        """Bodies of runs that are no more: their writer died before it could remove them."""
        after = ""
        while page := await self.bodies.runs_held(limit=PAGE, after=after):
            for job_id, run_id in page:
                if self._is_old(run_id, patient=patient) and await self._is_gone(
                    run_id, being_cleared
                ):
                    repair = partial(self._delete_bodies, job_id, run_id)
                    yield _orphan_bodies(job_id, run_id), repair
            after = "/".join(page[-1])

    async def _delete_bodies(self, job_id: JobId, run_id: RunId) -> int:
        removed = 0
        while found := await self.bodies.delete_run(job_id, run_id, limit=BITE):
            removed += found
        return removed

    async def _is_gone(self, run_id: RunId, being_cleared: set[str]) -> bool:
        """Whether a run is not on record, or deleted and said to be cleared."""
        run = await self.metadata.run(run_id)
        if run is None:
            return True
        return run.status is RunStatus.DELETED and not being_cleared & {run.id, run.job_id}

    async def _discard(self, run_id: RunId) -> int:
        while await self.tasks.discard(run_id, limit=BITE) == BITE:
            pass
        return 1

    async def _orphan_lists(self, *, patient: bool) -> AsyncIterator[Found]:
        """Staged lists that no unfinished batch refers to."""
        after = ""
        while page := await self.blobs.keys("lists/", limit=PAGE, after=after):
            for key in page:
                run_id, name = key.removesuffix(".ndjson").split("/")[-2:]
                # An added list has a name of its own age: its run may be far older.
                born = name if is_ulid(name) else run_id
                if self._is_old(born, patient=patient) and not await self._is_listed(run_id, key):
                    yield _orphan_list(key), partial(self._delete_list, key)
            after = page[-1]

    async def _delete_list(self, key: str) -> int:
        await self.blobs.delete([key])
        return 1

    async def _is_listed(self, run_id: str, key: str) -> bool:
        job = await self.metadata.job(JobId(key.split("/")[1]))
        if job and job.pinned and job.pinned.blob == key:
            return True
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

    def _is_old(self, name: str, *, patient: bool) -> bool:
        age = self.clock.now().timestamp() * 1000 - ulid_milliseconds(name)
        return not patient or age > YOUNG.total_seconds() * 1000

    def _did(self, action: str, times: int) -> None:
        if times:
            log.warning("sweeper.repaired", action=action, times=times)
            self.count(action, times)


def _unfinished_ingest(batch: Batch) -> Lost:
    return Lost(
        action="unfinished_ingest",
        mark=f"batch {batch.run_id} {batch.first} {batch.version}",
        what=f"{batch.count - batch.written:,} of its rows, from index {batch.first:,} on, are "
        f"promised since {batch.created_at:%Y-%m-%d %H:%M:%S} and not written",
        job_id=batch.job_id,
        run_id=batch.run_id,
    )


def _missed_completion(run: Run) -> Lost:
    return Lost(
        action="missed_completion",
        mark=f"run {run.id}",
        what=f"all is done, and it still is {run.status}",
        job_id=run.job_id,
        run_id=run.id,
    )


def _unfinished_scrub(scrub: Scrub) -> Lost:
    return Lost(
        action="unfinished_scrub",
        mark=f"scrub {scrub.id}",
        what="it is deleted and not cleared away; that was last asked for at "
        f"{scrub.sent_at:%Y-%m-%d %H:%M:%S}",
        job_id=scrub.job_id,
        run_id=scrub.run_id,
    )


def _orphan_rows(run_id: RunId) -> Lost:
    return Lost(
        action="orphan_rows",
        mark=f"rows {run_id}",
        what="there are rows of it, and no such run",
        run_id=run_id,
    )


def _orphan_bodies(job_id: JobId, run_id: RunId) -> Lost:
    return Lost(
        action="orphan_body",
        mark=f"bodies {run_id}",
        what="there are bodies of it, and no such run",
        job_id=job_id,
        run_id=run_id,
    )


def _orphan_list(key: str) -> Lost:
    job_id, run_id = key.split("/")[-3:-1]
    return Lost(
        action="orphan_list",
        mark=f"list {key}",
        what=f"the staged list {key} is of no use to anyone",
        job_id=JobId(job_id),
        run_id=RunId(run_id),
    )
