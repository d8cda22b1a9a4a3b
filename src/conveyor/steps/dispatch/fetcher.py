"""Fetch: tasks in flight, from their claim to the result that is handed to settle.

One coroutine runs for each call under way. A permit covers the call alone: when a call finishes, the
next task of the run starts with its permit in the same coroutine. So the place is filled again
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
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import AttemptFailed, Interrupted, Task
from conveyor.ports.clock import Clock
from conveyor.ports.work import Held
from conveyor.steps.dispatch.active_run import ActiveRun, InFlight, Places
from conveyor.steps.dispatch.gateway_health import Finished, GatewayHealth
from conveyor.steps.dispatch.permits import Permits
from conveyor.steps.dispatch.storage_pause import StoragePause
from conveyor.steps.shared.attempt import INTERNAL, Assignment, CallResult

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Fetcher:
    clock: Clock
    attempt: Callable[[Task, Assignment], Awaitable[CallResult]]
    places: Places
    health: GatewayHealth
    storage: StoragePause
    permits: Permits
    inflight: dict[tuple[RunId, TaskId], InFlight] = field(default_factory=dict)
    finished: list[Finished] = field(default_factory=list)  # and not settled
    any_finished: asyncio.Event = field(default_factory=asyncio.Event)
    # There may be work that can start: a place, a permit or a run became free.
    capacity_changed: asyncio.Event = field(default_factory=asyncio.Event)
    unserved: frozenset[RunId] = frozenset()  # runs that were granted fewer places than they want

    def start(
        self,
        group: asyncio.TaskGroup,
        run: ActiveRun,
        task: Task,
        *,
        has_permit: bool,
        host_permit: str | None = None,
    ) -> None:
        """Start a claimed task if a permit was reserved for it, or else as soon as possible."""
        entry, key = run.accept(task, group), (task.run_id, task.id)
        entry.host_permit, entry.host_since = host_permit, self.clock.monotonic()
        # A process that was suspended for longer than a lease may claim again a task that it still
        # has in flight: the older claim is lost.
        if lost := self.inflight.get(key):
            self._drop(lost)
        self.inflight[key] = entry
        now = self.clock.monotonic()
        # The permit may be gone by now: another claim of the run, or a call that finished, may have
        # used it. The run may also have been paused or refused while the engine answered.
        may_start = has_permit and bool(run.startable) and not self.permits.is_unavailable
        if may_start and (self.may_start(run, now) or self.health.starts_as_probe(entry, now)):
            self.start_call(entry)
            return
        run.keep_prefetched(entry)
        if not run.is_open or self.health.is_open:
            self.hand_back_waiting(run)
        elif (
            run.startable
            and not self.permits.is_unavailable
            and self._has_place(run, now)
            and (first := run.next_prefetched())
        ):
            self.start_call(first)

    def may_start(self, run: ActiveRun, now: float) -> bool:
        return run.may_start(now) and not self.health.is_open

    def _has_place(self, run: ActiveRun, now: float) -> bool:
        """Whether a prefetched task may start without taking a place from another run."""
        return (
            self.places.allow_one_more(run.run.caller)
            and not self.storage.is_probing
            and self.may_start(run, now)
            and self.unserved <= {run.id}
        )

    def start_call(self, entry: InFlight) -> None:
        if entry.run.give_permit(entry):
            self._begin(entry)

    async def start_waiting(self) -> None:
        """Start tasks that wait for their hosts, as far as there are permits by now."""
        now = self.clock.monotonic()
        counts = {
            (run, host): len(waiting)
            for run in self.permits.runs.values()
            if run.hosts.is_shared and self.may_start(run, now)
            for host, waiting in run.hosts.waiting.items()
            if waiting
        }
        if not counts:
            return
        granted = await self.permits.reserve_hosts(counts)
        # Of the gateway key after the hosts: it has calls to other hosts to make.
        of_keys = await self.permits.reserve_keys(granted)
        for (run, host), ids in granted.items():
            of_key = of_keys[run.key_state]
            while ids and of_key and (entry := run.hosts.take_waiting(host)):
                entry.host_permit, entry.key_permit = ids.pop(), of_key.pop()
                entry.host_since = now
                self._begin(entry)
        # Tasks may have gone back meanwhile.
        await self.permits.release_unused(granted, of_keys)

    def _begin(self, entry: InFlight) -> None:
        entry.run.begin_call(entry, self.clock.monotonic())
        entry.worker = entry.group.create_task(self._fetch(entry))

    async def _fetch(self, entry: InFlight) -> None:
        """Fetch a page, and then the pages of the tasks that start in its place."""
        following: InFlight | None = entry
        while following:
            entry = following
            result: CallResult = Interrupted()
            try:
                result = await self.attempt(entry.task, entry.run.assignment)
            except asyncio.CancelledError:
                # This coroutine ends, so the task that follows needs another one.
                if following := self._finish(entry, result):
                    self._begin(following)
                raise
            except Exception:
                # A bug that one page triggers must not end the process with all other calls.
                log.exception("attempt.bug", run_id=entry.task.run_id, task_id=entry.task.id)
                result = AttemptFailed(
                    INTERNAL, FailureReason.OTHER, retryable=True, signal=HealthSignal.NONE
                )
            if following := self._finish(entry, result):
                following.run.begin_call(following, self.clock.monotonic())
                following.worker = entry.worker

    def _finish(self, entry: InFlight, result: CallResult) -> InFlight | None:
        """Record the result of a call; return the task that starts in its place, if any.

        That task has a permit and its slot of the host; the caller must begin its call.
        """
        run, now = entry.run, self.clock.monotonic()
        result = run.finish_call(entry, result, now)
        was_open = self.health.is_open
        self.settle_soon(self.health.observe(entry, result, now))
        if run.is_gone:
            self.hand_back_waiting(run)
        is_kept = not self.permits.is_unavailable and run.keep_permit(entry, now)
        # A task that waits for this host has the permit of its job already, and comes first.
        following = run.release_host(entry, now, is_kept=is_kept)
        if (
            is_kept
            and following is None
            and run.prefetch.tasks
            and self._has_place(run, now)
            and (first := run.next_prefetched())
            and run.give_permit(first)
        ):
            following = first
        # A smaller demand is not worth a claim yet: the claim loops find it when they next look.
        if run.demand() >= run.claim_size or self.health.is_open is not was_open:
            self.capacity_changed.set()
        return following

    def _drop(self, entry: InFlight) -> None:
        """Give up a task that another claim holds now: cancel its call, or hand it back."""
        if entry.is_finished:
            return
        if entry.worker:
            # A coroutine that is cancelled before its first step never runs, so `_fetch` cannot
            # finish the task: this callback does.
            entry.worker.add_done_callback(lambda _: self._finish_unbegun(entry))
            entry.worker.cancel()
        else:
            entry.run.withdraw(entry)
            self._hand_back(entry)

    def _finish_unbegun(self, entry: InFlight) -> None:
        if not entry.is_finished and (following := self._finish(entry, Interrupted())):
            self._begin(following)

    def _hand_back(self, entry: InFlight) -> None:
        entry.run.hand_back(entry)
        self.settle_soon([(entry, Interrupted())])

    def hand_back_waiting(self, run: ActiveRun) -> None:
        """Hand back, uncharged, the tasks of a run whose calls have not begun."""
        for entry in run.withdraw_all():
            self._hand_back(entry)

    def drop_lost(self, lost: Held) -> None:
        """Drop a task that another worker holds now: a settle by this one would have no effect."""
        entry = self.inflight.get((lost.run_id, lost.task_id))
        # This process may hold a later claim of the same task.
        if entry and entry.task.claim_no == lost.claim_no:
            self._drop(entry)

    def settle_soon(self, finished: Sequence[Finished]) -> None:
        if finished:
            self.finished += finished
            self.any_finished.set()

    def settled(self, settled: Sequence[InFlight]) -> None:
        for entry in settled:
            key = (entry.task.run_id, entry.task.id)
            if self.inflight.get(key) is entry:  # and not a later claim of the same task
                del self.inflight[key]
            entry.run.settled()
