"""Settle: store the results of attempts as bodies, rows and counts, many at a time.

The order is bodies, then rows with counts, then the completion check, then the acknowledgement. The
writes of a claim that no longer holds its task have no effect, and its body is removed. Tasks of several
runs share each write; once one has failed, the writes of each run are repeated by themselves.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import structlog

from conveyor.domain import run as run_rules
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
from conveyor.steps.shared.notifier import Notifier

log = structlog.get_logger()

Ended = tuple[FinishedAttempt, Outcome]  # with its page stored, if there is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    metadata: Metadata
    tasks: Tasks
    work: Work
    bodies: Bodies
    clock: Clock
    ids: Ids
    check_completion: Callable[[RunId], Awaitable[bool]]
    notifier: Notifier
    same_key: Callable[[RunId], Collection[RunId]] = (
        lambda _: ()
    )  # live runs with the same gateway key
    outage: timedelta = timedelta(seconds=1)  # between tries while an engine is unavailable

    async def settle(
        self, ended: Sequence[FinishedAttempt], writing: Callable[[bool], None] = lambda _: None
    ) -> bool | None:
        """Settle finished attempts; repeat the writes of a run while an engine is unavailable for it.

        An `AttemptFailed` may arrive up to 5 s after its call ended: `GatewayHealth` holds results
        that may be the gateway's fault. The dispatcher renews the leases meanwhile. If a lease
        lapses nevertheless, what is written for its claim has no effect. `writing` is called with
        True before the first write of the rows, and with False before each repetition. Returns
        whether all pages could be stored; None when there was no page.
        """
        outcomes = await self._store_bodies(ended)
        await self._write(list(zip(ended, outcomes, strict=True)), writing)
        if any(isinstance(outcome, Interrupted) and outcome.not_stored for outcome in outcomes):
            return False
        return True if any(isinstance(outcome, Scraped) for outcome in outcomes) else None

    async def settle_final(self, tasks: Sequence[Task]) -> None:
        """Check the runs of tasks that turned out to be final when they were claimed."""
        if not tasks:
            return
        await self._check_completions({task.run_id for task in tasks})
        await self._ack(tasks)

    async def _ack(self, tasks: Sequence[Task]) -> None:
        try:
            await self.work.ack([Held(task.run_id, task.id, task.claim_no) for task in tasks])
        except Unavailable as error:
            log.warning("ack.unavailable", why=str(error))  # the messages are delivered again

    async def _write(
        self,
        ended: Sequence[Ended],
        writing: Callable[[bool], None],
        *,
        recorded: bool = False,
        again: bool = False,
    ) -> None:
        """Record and follow up until both succeed; `again`: an earlier try may have.

        After a failure each run goes on by itself, so that none waits for a run whose writes are
        refused.
        """
        while True:
            try:
                if not recorded:
                    writing(not again)
                    await self._record(ended, again=again)
                    recorded, again = True, False
                await self._follow_up(ended, again=again)
                break
            except Unavailable as error:
                again = True
                log.warning("settle.unavailable", why=str(error))
                await asyncio.sleep(self.outage.total_seconds())
            except Exception:
                # Such as a row that cannot be written: it must not take others with it. Its lease
                # lapses, and after a few claims lost in this way the task fails.
                log.exception("step.bug", step="settle", tasks=[at.task.id for at, _ in ended])
                if len(ended) > 1:
                    for one in ended:
                        await self._write([one], writing, recorded=recorded, again=True)
                return
            if len(runs := _by_run(ended)) > 1:
                async with asyncio.TaskGroup() as group:
                    for of_run in runs:
                        group.create_task(
                            self._write(of_run, writing, recorded=recorded, again=True)
                        )
                return
        await self._ack([attempt.task for attempt, _ in ended])

    async def _store_bodies(self, ended: Sequence[FinishedAttempt]) -> list[Outcome]:
        """Store the bodies of fetched pages. Tasks whose page cannot be stored go back uncharged."""
        fetched = [
            (attempt, attempt.result) for attempt in ended if isinstance(attempt.result, Fetched)
        ]
        stored: Iterator[Kept] = iter(())
        try:
            if fetched:
                bodies = [Body(_name(attempt), page.content) for attempt, page in fetched]
                stored = iter(await self.bodies.put_many(bodies))
        except Unavailable as error:
            log.warning("bodies.unavailable", why=str(error), tasks=len(fetched))
            for _, page in fetched:
                if not isinstance(page.content, bytes):
                    await page.content.discard()
        return [
            _outcome(attempt.result, next(stored, None))
            if isinstance(attempt.result, Fetched)
            else attempt.result
            for attempt in ended
        ]

    async def _record(self, ended: Sequence[Ended], *, again: bool) -> None:
        """Write decisions, history and counts."""
        settlements = [
            Settlement(
                run_id=attempt.task.run_id,
                task_id=attempt.task.id,
                claim_no=attempt.task.claim_no,
                decision=decide(attempt.task, outcome, attempt.assignment.policy),
            )
            for attempt, outcome in ended
        ]
        settled = await self.work.settle(settlements)
        dropped = [one for one, done in zip(settlements, settled, strict=True) if not done]
        # An earlier try may have settled these and lost only its answer: then the rows refer to the
        # bodies, which must stay.
        if not dropped or again:
            return
        for one in dropped:
            log.warning(
                "task.settle.dropped", claim_no=one.claim_no, run_id=one.run_id, task_id=one.task_id
            )
        # By their locators: another worker may hold the task under the same claim number, if a
        # crash of the database undid the claim of this one.
        results = [one.decision.result for one in dropped]
        with suppress(Unavailable):  # harmless: no row refers to them
            await self.bodies.remove([result.locator for result in results if result])

    async def _follow_up(self, ended: Sequence[Ended], *, again: bool) -> None:
        """Fail the runs whose account is blocked, and complete those that are done."""
        blocked: dict[RunId, AccountBlocked] = {
            attempt.task.run_id: outcome
            for attempt, outcome in ended
            if isinstance(outcome, AccountBlocked)
        }
        for run_id, why in blocked.items():
            # The account is blocked for all runs with the gateway key: each would lose a call to find out.
            for sibling in {run_id, *self.same_key(run_id)}:
                await self._fail_run(sibling, why)
        run_ids = {attempt.task.run_id for attempt, _ in ended}
        await self._check_completions(run_ids)
        # An earlier try may have completed a run and failed before it woke the dispatcher.
        for run_id in run_ids if again else ():
            self.notifier.run_changed(run_id)

    async def _check_completions(self, run_ids: Collection[RunId]) -> None:
        """Check runs for completion concurrently, so that their commits share a sync."""
        first, *others = run_ids
        if not others:  # the most frequent case, without the cost of a task group
            errors = [await self._check_one(first)]
        else:
            async with asyncio.TaskGroup() as group:
                checks = [group.create_task(self._check_one(run_id)) for run_id in run_ids]
            errors = [check.result() for check in checks]
        for error in filter(None, errors):
            raise error

    async def _check_one(self, run_id: RunId) -> Unavailable | None:
        try:
            if await self.check_completion(run_id):
                self.notifier.run_changed(run_id)
        except Unavailable as error:
            return error
        return None

    async def _fail_run(self, run_id: RunId, why: AccountBlocked) -> None:
        # A run that is stale is read again; one that has ended meanwhile leaves the loop.
        while (run := await self.metadata.get(Run, run_id)) and run.is_live:
            failed = run_rules.fail(run, why.reason, why.detail, self.clock.now())
            settled = (await self.tasks.counts([run_id]))[run_id]
            job = await self.metadata.get(Job, run.job_id)
            events = events_at_end(failed, self.ids.new, job=job, settled=settled)
            try:
                await self.metadata.commit(failed, *events)
            except Stale:
                continue
            if events:
                self.notifier.events_due()
            log.warning("run.failed", job_id=run.job_id, run_id=run_id, reason=why.reason)
        await self.work.close(run_id)
        self.notifier.run_changed(run_id)


def _by_run(ended: Sequence[Ended]) -> list[list[Ended]]:
    runs: defaultdict[RunId, list[Ended]] = defaultdict(list)
    for attempt, outcome in ended:
        runs[attempt.task.run_id].append((attempt, outcome))
    return list(runs.values())


def _name(ended: FinishedAttempt) -> BodyName:
    task = ended.task
    return BodyName(ended.assignment.job_id, task.run_id, task.id, task.claim_no)


def _outcome(page: Fetched, kept: Kept | None) -> Outcome:
    """The outcome of a fetched page; `kept` is None if its body could not be stored."""
    if kept is None:
        return Interrupted(STORAGE_FULL_WAIT, page.spend, not_stored=True)
    body = StoredBody(
        locator=kept.locator,
        length=kept.length,
        checksum=kept.checksum,
        format=page.format,
        content_type=page.content_type,
    )
    return Scraped(body, page.spend, page.facts)
