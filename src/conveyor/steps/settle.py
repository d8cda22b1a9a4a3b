"""Settle: results of attempts become bodies, rows and counts, many at a time.

Bodies first, then rows with counts, then the completion check. The writes of a claim
that no longer holds its task have no effect, and its body is removed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from conveyor.domain import run as run_life
from conveyor.domain.ids import RunId
from conveyor.domain.job import Job
from conveyor.domain.outbox import events_at_end
from conveyor.domain.run import Run
from conveyor.domain.task import (
    AccountBlocked,
    Interrupted,
    Outcome,
    Scraped,
    Settlement,
    StoredBody,
    Task,
    decide,
)
from conveyor.errors import Stale, Unavailable
from conveyor.ports.bodies import Bodies, Body, BodyName, Kept
from conveyor.ports.clock import Clock, Ids
from conveyor.ports.metadata import Metadata
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Held, Work
from conveyor.steps.shared.attempt import STORAGE_FULL_WAIT, Fetched, FinishedAttempt

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    metadata: Metadata
    tasks: Tasks
    work: Work
    bodies: Bodies
    clock: Clock
    ids: Ids
    check: Callable[[RunId], Awaitable[bool]]
    wake: Callable[[RunId], None]
    wake_sender: Callable[[], None]  # events were put in the outbox
    same_key: Callable[[RunId], Collection[RunId]] = lambda _: ()  # runs that this process serves
    outage: timedelta = timedelta(seconds=1)  # between tries while an engine is away

    async def settle(self, ended: Sequence[FinishedAttempt]) -> bool | None:
        """Settle finished attempts, and repeat what an unavailable engine did not take.

        The dispatcher renews their leases meanwhile. If one lapses all the same, what is written
        for its claim has no effect. Returns whether all pages could be stored; None when there was
        no page.
        """
        outcomes = await self._keep(ended)
        await self._insist(lambda again: self._record(ended, outcomes, again=again))
        await self._insist(lambda _: self._follow_up(ended, outcomes))
        await self._ack([one.task for one in ended])
        if any(isinstance(one, Interrupted) and one.storage_full for one in outcomes):
            return False
        return True if any(isinstance(one, Scraped) for one in outcomes) else None

    async def settle_final(self, tasks: Sequence[Task]) -> None:
        """Check the runs of tasks that turned out to be final when they were claimed."""
        if not tasks:
            return
        await self._check_all({task.run_id for task in tasks})
        await self._ack(tasks)

    async def _ack(self, tasks: Sequence[Task]) -> None:
        try:
            await self.work.ack([Held(one.run_id, one.id, one.claim_no) for one in tasks])
        except Unavailable as error:
            log.warning("ack.unavailable", why=str(error))  # they are delivered again

    async def _insist(self, write: Callable[[bool], Awaitable[None]]) -> None:
        """Repeat a write until it succeeds; `write` gets whether an earlier try may have taken effect."""
        again = False
        while True:
            try:
                return await write(again)
            except Unavailable as error:
                again = True
                log.warning("settle.unavailable", why=str(error))
                await asyncio.sleep(self.outage.total_seconds())

    async def _keep(self, ended: Sequence[FinishedAttempt]) -> list[Outcome]:
        """Store the bodies of fetched pages. Pages that cannot be stored go back uncharged."""
        fetched = [one for one in ended if isinstance(one.result, Fetched)]
        try:
            stored = iter(await self._store(fetched))
        except Unavailable as error:
            log.warning("bodies.unavailable", why=str(error), tasks=len(fetched))
            await self._discard(fetched)
            stored = iter(())
        return [
            _outcome(one.result, stored) if isinstance(one.result, Fetched) else one.result
            for one in ended
        ]

    async def _record(
        self, ended: Sequence[FinishedAttempt], outcomes: Sequence[Outcome], *, again: bool
    ) -> None:
        """Write decisions, history and counts."""
        settlements = [
            Settlement(
                run_id=one.task.run_id,
                task_id=one.task.id,
                claim_no=one.task.claim_no,
                decision=decide(one.task, outcome, one.assignment.policy),
            )
            for one, outcome in zip(ended, outcomes, strict=True)
        ]
        settled = await self.work.settle(settlements)
        dropped = [one for one, took in zip(ended, settled, strict=True) if not took]
        # After a try without an answer "dropped" may mean "settled by that try": the bodies must stay.
        if dropped and not again:
            await self._drop(dropped)

    async def _follow_up(
        self, ended: Sequence[FinishedAttempt], outcomes: Sequence[Outcome]
    ) -> None:
        """Fail the runs whose account is blocked, and complete those that are done."""
        blocked: dict[RunId, AccountBlocked] = {
            one.task.run_id: outcome
            for one, outcome in zip(ended, outcomes, strict=True)
            if isinstance(outcome, AccountBlocked)
        }
        for run_id, why in blocked.items():
            for sibling in {run_id, *self.same_key(run_id)}:
                await self._fail_run(sibling, why)
        await self._check_all({one.task.run_id for one in ended})

    async def _check_all(self, run_ids: Collection[RunId]) -> None:
        """Check runs for completion side by side, so that their commits share a sync."""
        first, *others = run_ids
        if not others:
            errors = [await self._check(first)]
        else:
            async with asyncio.TaskGroup() as group:
                checks = [group.create_task(self._check(run_id)) for run_id in run_ids]
            errors = [check.result() for check in checks]
        for error in filter(None, errors):
            raise error

    async def _check(self, run_id: RunId) -> Unavailable | None:
        try:
            if await self.check(run_id):
                self.wake(run_id)
        except Unavailable as error:
            return error
        return None

    async def _store(self, fetched: Sequence[FinishedAttempt]) -> list[StoredBody]:
        pages = [one.result for one in fetched if isinstance(one.result, Fetched)]
        if not pages:
            return []
        bodies = [Body(_name(one), page.content) for one, page in zip(fetched, pages, strict=True)]
        kept = await self.bodies.put_many(bodies)
        return [_stored(one, page) for one, page in zip(kept, pages, strict=True)]

    async def _drop(self, dropped: Sequence[FinishedAttempt]) -> None:
        for one in dropped:
            ids = {"run_id": one.task.run_id, "task_id": one.task.id}
            log.warning("task.settle.dropped", claim_no=one.task.claim_no, **ids)
        await self._discard(dropped)

    async def _discard(self, ended: Sequence[FinishedAttempt]) -> None:
        """Remove the bodies that these claims may have stored: no row will refer to them."""
        for one in ended:
            if isinstance(one.result, Fetched) and not isinstance(one.result.content, bytes):
                await one.result.content.discard()
        try:
            await self.bodies.discard([_name(one) for one in ended])
        except Unavailable:
            return  # harmless: the name has the claim's number, so that no other claim uses it

    async def _fail_run(self, run_id: RunId, why: AccountBlocked) -> None:
        while (run := await self.metadata.get(Run, run_id)) and run.is_live:
            failed = run_life.fail(run, why.reason, why.detail, self.clock.now())
            settled = (await self.tasks.counts([run_id]))[run_id]
            job = await self.metadata.get(Job, run.job_id)
            events = events_at_end(failed, self.ids.new, job=job, settled=settled)
            try:
                await self.metadata.commit(failed, *events)
            except Stale:
                continue
            if events:
                self.wake_sender()
            log.warning("run.failed", job_id=run.job_id, run_id=run_id, reason=why.reason)
        await self.work.close(run_id)
        self.wake(run_id)


def _name(ended: FinishedAttempt) -> BodyName:
    task = ended.task
    return BodyName(ended.assignment.job_id, task.run_id, task.id, task.claim_no)


def _outcome(page: Fetched, stored: Iterator[StoredBody]) -> Outcome:
    body = next(stored, None)
    if body is None:
        return Interrupted(STORAGE_FULL_WAIT, page.spend, storage_full=True)
    return Scraped(body, page.spend)


def _stored(kept: Kept, page: Fetched) -> StoredBody:
    return StoredBody(
        locator=kept.locator,
        length=kept.length,
        checksum=kept.checksum,
        format=page.format,
        content_type=page.content_type,
    )
