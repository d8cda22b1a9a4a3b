"""Fetch: tasks in flight, from their claim to the result that is handed to settle.

One coroutine runs for each call under way. A permit covers the call alone: as one call finishes, the
next task of the run starts with its permit in the same coroutine, so that its place is filled
without a claim.

| invariant | kept by |
|---|---|
| every claimed task is in `inflight` until it is settled, so that its lease is renewed | `start`, `settled` |
| a task finishes once: by its call, or by being handed back before its call began | `InFlight.is_finished` |
| a task that starts in place of another takes no place from a run that was granted too few | `unserved` |
| tasks that a stop, a pause or an open breaker keeps from starting go back uncharged | `hand_back_waiting` |
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog

from conveyor.domain.breaker import HealthSignal
from conveyor.domain.concurrency import leaves_reserve
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Interrupted, Refused, Task
from conveyor.ports.clock import Clock
from conveyor.ports.work import Held
from conveyor.steps.dispatch.active_run import ActiveRun, InFlight
from conveyor.steps.dispatch.gateway_health import Finished, GatewayHealth
from conveyor.steps.dispatch.storage_pause import StoragePause
from conveyor.steps.shared.attempt import INTERNAL, Assignment, Result

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Fetcher:
    clock: Clock
    attempt: Callable[[Task, Assignment], Awaitable[Result]]
    concurrency: int
    health: GatewayHealth
    storage: StoragePause
    inflight: dict[tuple[RunId, TaskId], InFlight] = field(default_factory=dict)
    finished: list[Finished] = field(default_factory=list)  # and not settled
    any_finished: asyncio.Event = field(default_factory=asyncio.Event)
    # There may be work that can start: a place, a permit or a run became free.
    capacity_changed: asyncio.Event = field(default_factory=asyncio.Event)
    unserved: frozenset[RunId] = frozenset()  # runs that were granted fewer places than they want

    def start(
        self, group: asyncio.TaskGroup, run: ActiveRun, task: Task, *, has_permit: bool
    ) -> None:
        """Start a claimed task if a permit was reserved for it, or else as soon as possible."""
        one, key = run.accept(task, group), (task.run_id, task.id)
        # A process that slept through a lease may claim what it still has in flight.
        if lapsed := self.inflight.get(key):
            self._drop(lapsed)
        self.inflight[key] = one
        now = self.clock.monotonic()
        # The permit may be gone by now: another claim of the run, or a call that finished, may have
        # used it, and the run may have been paused or refused meanwhile.
        may_start = has_permit and bool(run.idle_permits)
        if may_start and (self.may_start(run, now) or self.health.starts_as_probe(one, now)):
            self.start_call(one)
            return
        run.prefetch.tasks.append(one)
        if not run.is_open or self.health.is_open:
            self.hand_back_waiting(run)
        elif run.idle_permits and self._has_place(run, now) and (first := run.next_prefetched()):
            self.start_call(first)

    def may_start(self, run: ActiveRun, now: float) -> bool:
        return run.may_start(now) and not self.health.is_open

    def _has_place(self, run: ActiveRun, now: float) -> bool:
        """Whether a prefetched task may start in place of a finished one, at no other's expense."""
        free = self.concurrency - (len(self.inflight) - len(run.prefetch.tasks)) - 1
        return (
            free >= 0
            and leaves_reserve(run.places + 1, free)
            and not self.storage.is_probing
            and self.may_start(run, now)
            and self.unserved <= {run.id}
        )

    def start_call(self, one: InFlight) -> None:
        if one.run.give_permit(one):
            self._begin(one)

    def _begin(self, one: InFlight) -> None:
        one.run.began(one, self.clock.monotonic())
        one.worker = one.group.create_task(self._fetch(one))

    async def _fetch(self, one: InFlight) -> None:
        """Fetch a page, and then those of the tasks that may follow in its place."""
        following: InFlight | None = one
        while following:
            one = following
            result: Result = Interrupted()
            try:
                result = await self.attempt(one.task, one.run.assignment)
            except asyncio.CancelledError:
                if following := self._finish(one, result):
                    self._begin(following)
                raise
            except Exception:
                # A bug that one page triggers must not take all others down with it.
                log.exception("attempt.bug", run_id=one.task.run_id, task_id=one.task.id)
                result = Refused(
                    INTERNAL, FailureReason.OTHER, retryable=True, signal=HealthSignal.NONE
                )
            if following := self._finish(one, result):
                following.run.began(following, self.clock.monotonic())
                following.worker = one.worker

    def _finish(self, one: InFlight, result: Result) -> InFlight | None:
        """Take in the result of a call; return the task that starts in its place.

        That task has a permit and its slot at the host; the caller must begin its call.
        """
        run, now = one.run, self.clock.monotonic()
        result = run.finish(one, result, now)
        self.settle_soon(self.health.heard(one, result, now))
        if run.is_gone:
            self.hand_back_waiting(run)
        following = run.hosts.pass_on(one)
        if run.keep_permit(one, now) and following is None and self._has_place(run, now):
            first = run.next_prefetched()
            following = first if first and run.give_permit(first) else None
        if run.demand() >= run.claim_size:
            self.capacity_changed.set()
        return following

    def _drop(self, one: InFlight) -> None:
        """Another claim has this task now: end its call, or give it up before it begins."""
        if one.is_finished:
            return
        if one.worker:
            # A coroutine that is cancelled before its first step never runs: then nothing but this
            # callback finishes the task.
            one.worker.add_done_callback(lambda _: self._finish_unbegun(one))
            one.worker.cancel()
        else:
            one.run.withdraw(one)
            self._hand_back(one)

    def _finish_unbegun(self, one: InFlight) -> None:
        if not one.is_finished and (following := self._finish(one, Interrupted())):
            self._begin(following)

    def _hand_back(self, one: InFlight) -> None:
        one.run.hand_back(one)
        self.settle_soon([(one, Interrupted())])

    def hand_back_waiting(self, run: ActiveRun) -> None:
        """Hand back the tasks of a run whose calls have not begun: they go back uncharged."""
        for one in run.withdraw_all():
            self._hand_back(one)

    def drop_lost(self, lost: Held) -> None:
        """Another worker holds this task now: what this one would write has no effect."""
        one = self.inflight.get((lost.run_id, lost.task_id))
        if one and one.task.claim_no == lost.claim_no:
            self._drop(one)

    def settle_soon(self, finished: Sequence[Finished]) -> None:
        if finished:
            self.finished += finished
            self.any_finished.set()

    def settled(self, settled: Sequence[InFlight]) -> None:
        for one in settled:
            key = (one.task.run_id, one.task.id)
            if self.inflight.get(key) is one:  # and not a later claim of the same task
                del self.inflight[key]
            one.run.settled()
