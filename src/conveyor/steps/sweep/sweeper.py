"""The sweeper: makes up for steps that a crash left out, and removes what has expired.

No leader is needed: each action is one conditional write, so two sweepers repair a thing once.

- A thing is repaired only when it looked broken in the previous pass too: a step that is merely
  under way is left alone. At the start of an embedded engine every earlier process is known to be
  dead, and things are repaired at once. In a run without faults nothing is repaired.
- A round ends however much there is: long listings are swept in parts, each round continuing where
  the last one ended.
- Nothing starves: an entry that cannot be judged or repaired is logged and skipped.
- Judging is separate from acting: the doctor lists what a round would do.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import structlog

from conveyor.domain.audit import MissedStep
from conveyor.domain.ids import JobId, RunId, ulid
from conveyor.domain.run import Run
from conveyor.errors import Unavailable
from conveyor.ports.bodies import Bodies, BodyName
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Held, Work
from conveyor.steps.shared.pagination import rows
from conveyor.steps.sweep.checks import (
    Entry,
    Judge,
    Removal,
    Repair,
    SweepAction,
    SweepCheck,
    SweepCursor,
)

OVERDUE = timedelta(seconds=30)  # past the end of a lease: a live worker would have taken it over
FOREVER = timedelta(days=36_500)  # longer than any lease
RECENT = timedelta(days=1)  # what a crash left is mostly of the last day
PAGE = 500
CHUNK = 5_000
ROUND = 2_000  # entries of a long listing that one round judges
AT_ONCE = {"lapsed_lease", "orphan_list", "orphan_pin"}  # repaired at first sight

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
    cursors: dict[str, SweepCursor] = field(default_factory=dict)  # by check

    async def step(self) -> None:
        """Make one round: over all live work, and over a part of each long listing.

        It is patient: it repairs what looked broken in the previous pass as well.
        """
        await self._round(patient=True)

    async def at_start(self, dead: Sequence[Held]) -> None:
        """Make the first round of a process that knows all earlier ones to be dead."""
        # Bodies before the claims that name them: after a crash in between both are found again.
        await self.remove_bodies(dead)
        while len(await self.work.release_lapsed(overdue=-FOREVER, limit=CHUNK)) == CHUNK:
            pass
        await self._round(patient=False)

    async def remove_bodies(self, dead: Sequence[Held]) -> None:
        """Remove bodies that dead claims wrote and never settled."""
        names = [name async for name in self._body_names(dead)]
        if names:
            self._repaired("orphan_body", await self.bodies.discard(names))

    async def findings(self, *, patient: bool) -> AsyncIterator[MissedStep]:
        """What rounds would repair, with nothing done about it.

        A patient sweeper repairs a thing on its second sighting; here it is listed on its first.
        """
        overdue = OVERDUE if patient else -FOREVER
        for held in await self.tasks.lapsed(overdue=overdue, limit=CHUNK):
            run = await self.metadata.get(Run, held.run_id)
            yield _lapsed_lease(held, run.job_id if run else None)
        for check in self.checks:
            entries = rows(partial(_read, check), start="", key=lambda entry: entry[0])
            async for position, judge in entries:
                action = await self._judged(judge, position, patient=patient)
                if isinstance(action, Repair):
                    yield action.step

    def when(self, missed: MissedStep) -> str:
        """When a missed step is repaired, in words."""
        is_suspect = any(missed.key in cursor.suspects for cursor in self.cursors.values())
        if is_suspect or missed.action in AT_ONCE:
            return "in its next round"
        return "in the round after the next, if nothing has changed"

    async def _round(self, *, patient: bool) -> None:
        """Sweep everything even if an engine is away; raise its error at the end of the round."""
        away: list[Unavailable] = []
        parts: list[Callable[[], Awaitable[None]]] = [
            self._release_lapsed,
            *(partial(self._sweep, check, patient=patient) for check in self.checks),
            self._remove_idempotency_records,
        ]
        for part in parts:
            try:
                await part()
            except Unavailable as error:
                away.append(error)
            except Exception:
                log.exception("sweeper.failed", place="")
        if away:
            raise away[0]

    async def _release_lapsed(self) -> None:
        released = await self.work.release_lapsed(overdue=OVERDUE, limit=CHUNK)
        self._repaired("lapsed_lease", len(released))
        await self.remove_bodies(released)

    async def _remove_idempotency_records(self) -> None:
        await self.metadata.clear_expired(limit=CHUNK)

    async def _sweep(self, check: SweepCheck, *, patient: bool) -> None:
        """Continue with a listing: to its end, or for `ROUND` entries if it is a long one."""
        cursor = self.cursors.setdefault(check.name, SweepCursor())
        left = ROUND
        if check.long and not patient:
            # The last day first: the start must find what the crash left without reading all.
            cursor.after = check.prefix + self._recent_id()
            left = await self._continue(check, cursor, left, patient=patient)
        if left:
            await self._continue(check, cursor, left, patient=patient)

    async def _continue(
        self, check: SweepCheck, cursor: SweepCursor, left: int, *, patient: bool
    ) -> int:
        """Judge entries up to the end of the listing, or `left` of a long one; return the rest."""
        budget = check.most
        while left > 0:
            page = await check.listing(cursor.after, min(CHUNK, left) if check.long else PAGE)
            for position, judge in page:
                # Advance first: an entry that fails must not be met again by the next round.
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
            # A bug that one entry brings out must not keep the others from being judged.
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
            if key in cursor.suspects or action.at_once or not patient:
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


async def _read(check: SweepCheck, after: str) -> Sequence[Entry]:
    return await check.listing(after, PAGE)


def _lapsed_lease(held: Held, job_id: JobId | None) -> MissedStep:
    return MissedStep(
        action="lapsed_lease",
        key=f"lease {held.run_id} {held.task_id} {held.claim_no}",
        what=f"its claim {held.claim_no} has lapsed: the worker died or stood still",
        job_id=job_id,
        run_id=held.run_id,
        task_id=held.task_id,
    )
