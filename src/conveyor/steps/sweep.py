"""Sweep: every lost step happens later, and what is over goes.

No leader is needed: each action is one conditional write, and two sweepers at once repair once.
A thing is repaired only when it looked broken the time before as well, so that a step which is
merely under way is left alone; at the start of an embedded engine, where every earlier process is
known to be dead, it is repaired at once. In a run without faults nothing is repaired.

A round ends, however much there is, and nothing stands in another's way: long listings are gone
through a bite at a time, and what cannot be judged or repaired is passed by.

Finding and repairing are apart: whoever only wants to know gets the findings alone.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import structlog

from conveyor.domain.finding import Lost
from conveyor.domain.ids import JobId, RunId, ulid
from conveyor.domain.lost import lapsed_lease
from conveyor.domain.run import Run
from conveyor.errors import Unavailable
from conveyor.ports.bodies import Bodies, BodyName
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Held, Work
from conveyor.steps.check import Broken, Check, Found, Judge, Over, Walk

OVERDUE = timedelta(
    seconds=30
)  # past the end of a lease: a live dispatcher would have taken it over
FOREVER = timedelta(days=36_500)  # longer than any lease
RECENT = timedelta(days=1)  # what the dead left is mostly of their last day
PAGE = 500
BITE = 5_000
ROUND = 2_000  # entries of a long listing that one round looks at

log = structlog.get_logger()

Count = Callable[[str, int], None]


@dataclass(slots=True, kw_only=True)
class Sweep:
    metadata: Metadata
    tasks: Tasks
    work: Work
    bodies: Bodies
    clock: Clock
    checks: Sequence[Check]
    count: Count  # repairs, by action
    cleared: Count  # what was over, by kind
    walks: dict[str, Walk] = field(default_factory=dict)  # by check

    async def step(self) -> None:
        """One round: over all that is owed, and over a bite of all that lies about."""
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
        """What rounds would see to now, with nothing done about it.

        With patience, what looks broken for the first time is among it: it is repaired when it
        comes by again, if it then still stands the same way.
        """
        overdue = OVERDUE if patient else -FOREVER
        for held in await self.tasks.lapsed(overdue=overdue, limit=BITE):
            run = await self.metadata.get(Run, held.run_id)
            job_id = run.job_id if run else None
            yield lapsed_lease(held.run_id, held.task_id, held.claim_no, job_id)
        for check in self.checks:
            after = ""
            while page := await check.listing(after, PAGE):
                for place, judge in page:
                    found = await self._judged(judge, place, patient=patient)
                    if isinstance(found, Broken):
                        yield found.lost
                    after = place

    def when(self, lost: Lost) -> str:
        """When a finding is repaired, for a person."""
        at_once = lost.action in {"lapsed_lease", "orphan_list", "orphan_pin"}
        if at_once or any(lost.mark in walk.suspects for walk in self.walks.values()):
            return "in its next round"
        return "in the round after the next, if it still stands the same way"

    async def _round(self, *, patient: bool) -> None:
        """Look at everything, even if an engine is away: that is told when the round is over."""
        away: list[Unavailable] = []
        parts: list[Callable[[], Awaitable[None]]] = [
            self._release_lapsed,
            *(partial(self._go_through, check, patient=patient) for check in self.checks),
            self._clear_answers,
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
        released = await self.work.release_lapsed(overdue=OVERDUE, limit=BITE)
        self._did("lapsed_lease", len(released))
        await self.clear_bodies(released)

    async def _clear_answers(self) -> None:
        await self.metadata.clear_expired(limit=BITE)

    async def _go_through(self, check: Check, *, patient: bool) -> None:
        """Go on with a listing: to its end, or for a bite if it is a long one."""
        walk = self.walks.setdefault(check.name, Walk())
        left = ROUND
        if check.long and not patient:
            walk.after = check.prefix + self._recent_id()
            left = await self._go_on(check, walk, left, patient=patient)
        if left:
            await self._go_on(check, walk, left, patient=patient)

    async def _go_on(self, check: Check, walk: Walk, left: int, *, patient: bool) -> int:
        """Take entries up to the end, or so many of a long listing; say how many may still come."""
        room = check.most
        while left > 0:
            page = await check.listing(walk.after, min(BITE, left) if check.long else PAGE)
            for place, judge in page:
                before, walk.after = walk.after, place  # the next is behind it, come what may
                found = await self._judged(judge, place, patient=patient)
                room -= await self._see_to(found, walk, place, patient=patient) if found else 0
                if room <= 0:
                    walk.after = before  # there may be more of the same
                    return 0
            if not page:
                walk.end()
                return left
            left -= len(page) if check.long else 0
        return 0

    async def _judged(self, judge: Judge, place: str, *, patient: bool) -> Found | None:
        try:
            return await judge(patient)
        except Unavailable:
            raise
        except Exception:
            # A bug that one thing brings out must not keep all others from being seen to.
            log.exception("sweeper.failed", place=place)
            return None

    async def _see_to(self, found: Found, walk: Walk, place: str, *, patient: bool) -> int:
        """Do what is to be done about a finding; say how much was removed."""
        try:
            if isinstance(found, Over):
                return self._removed(found.kind, await found.remove())
            walk.note(found.lost.mark)
            if found.lost.mark in walk.suspects or found.at_once or not patient:
                return self._did(found.lost.action, await found.repair())
        except Unavailable:
            raise
        except Exception:
            log.exception("sweeper.failed", place=place)
        return 0

    async def _names(self, dead: Sequence[Held]) -> AsyncIterator[BodyName]:
        jobs: dict[RunId, JobId] = {}
        for held in dead:
            if held.run_id not in jobs and (run := await self.metadata.get(Run, held.run_id)):
                jobs[held.run_id] = run.job_id
            if held.run_id in jobs:
                yield BodyName(jobs[held.run_id], held.run_id, held.task_id, held.claim_no)

    def _recent_id(self) -> str:
        """An id below all that were made in the last day."""
        return ulid(int((self.clock.now() - RECENT).timestamp() * 1000), 0)

    def _did(self, action: str, times: int) -> int:
        if times:
            log.warning("sweeper.repaired", action=action, times=times)
            self.count(action, times)
        return times

    def _removed(self, kind: str, times: int) -> int:
        if times:
            log.info("sweeper.cleared", kind=kind, times=times)
            self.cleared(kind, times)
        return times
