"""A live run as this process serves it: the only owner of what changes while it is served.

A task of a run passes through these states. Each arrow is a method of `ActiveRun`, which changes all
counters that the move concerns; no other module changes them.

    begin_claim -> accept -+-> give_permit -> (waits for its host) -> begin_call -> finish_call -> settled
                           +-> prefetch.tasks -> give_permit ...
                           +-> hand_back -> settled

| invariant | kept by |
|---|---|
| `pending` and `prefetch.pending` are the tasks of claims that the engine has not answered | `begin_claim`, `end_claim` |
| `unsettled` is the number of tasks claimed and not settled | `accept`, `settled` |
| `calls` is the number of tasks that have a permit and are not finished | `give_permit`, `finish_call`, `hand_back` |
| the gateway key's `under_way` is the calls that began, and `pending`, over all runs of the key | `begin_claim`, `end_claim`, `begin_call`, `finish_call` |
| `places` counts `pending` and the unsettled tasks that are not prefetched, over all runs | every move |
| a permit belongs to one call or is in `idle_permits` | `add_permits`, `give_permit`, `keep_permit`, `take_idle_permits` |
| where processes share limits, a call that began also has a permit of its gateway key, from `KeyPermits` | `give_key_permit`, `keep_permit` |
| a run with pending or unsettled tasks stays in the map of live runs | `is_served`, which `Discovery` checks |

No method awaits, so no other coroutine sees a move half done.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from conveyor.domain.concurrency import (
    leaves_reserve,
)
from conveyor.domain.ids import CallerId, RunId
from conveyor.domain.job import Job
from conveyor.domain.run import PauseState, Run
from conveyor.domain.task import AccountBlocked, Task
from conveyor.steps.dispatch.gateway_keys import GatewayKeyState
from conveyor.steps.dispatch.write_window import MESSAGES, WriteWindow
from conveyor.steps.shared.attempt import Assignment, CallResult

RATE_WINDOW = 0.05  # seconds over which finished calls are counted for a rate
HOST_TURN = 5.0  # seconds for which a process passes the permit of a host on to its own tasks
PREFETCH_PER_CALL = 2  # prefetched tasks for each call under way, at most


class ClaimGrant(NamedTuple):
    """What the dispatcher is about to claim of a run."""

    calls: int  # tasks to start at once, each with a permit
    prefetch: int


@dataclass(slots=True, eq=False)
class InFlight:
    """A task that this process has claimed and not settled."""

    task: Task
    run: "ActiveRun"
    group: asyncio.TaskGroup
    permit: str | None = None  # None before its call starts, and once the next call has it
    key_permit: str | None = None  # where processes share limits, while its call is under way
    host_permit: str | None = None  # the same, of a job with `max_per_host`
    host_since: float = 0.0  # when this process reserved that
    probe_permit: str | None = None  # the same, for a probe of the gateway
    worker: asyncio.Task[None] | None = None  # None until its call begins
    began_at: float = 0.0  # when its call did
    renewed_at: float = 0.0  # when its lease began
    is_settling: bool = False  # its row is being written
    # Finished or handed back. Its worker may be busy with the next task by now, and must not be
    # cancelled for this one.
    is_finished: bool = False


@dataclass(slots=True)
class Places:
    """The places of a process: which callers hold how many, and how many are free.

    A task holds a place from its start until it is settled. A pending claim holds one for each call
    that it is about to start. Prefetched tasks hold none.
    """

    concurrency: int  # places in all
    taken: int = 0
    held: dict[CallerId, int] = field(default_factory=dict)  # without callers that hold none

    @property
    def free(self) -> int:
        return self.concurrency - self.taken

    def allow_one_more(self, caller: CallerId) -> bool:
        """Whether a caller may take a place and still leave its reserve."""
        free = self.free - 1
        return free >= 0 and leaves_reserve(self.held.get(caller, 0) + 1, free)

    def change(self, caller: CallerId, by: int) -> None:
        self.taken += by
        if held := self.held.get(caller, 0) + by:
            self.held[caller] = held
        else:
            self.held.pop(caller, None)


@dataclass(slots=True)
class HostSlots:
    """The concurrent calls of a run to each host, at most `limit`; unlimited if that is None.

    Where processes share limits the slots are permits, which the claimer reserves before a task
    starts. A task without one waits for a call of this process to the same host to end, or until one
    can be reserved. A permit is passed on for `HOST_TURN` and then released: otherwise tasks of other
    processes would wait until this one has no more of the host.
    """

    limit: int | None
    is_shared: bool = False
    calls: Counter[str] = field(default_factory=Counter)  # under way, by host
    waiting: dict[str, list[InFlight]] = field(default_factory=dict)

    def take(self, entry: InFlight) -> bool:
        """Take a slot of the task's host. If none is free the task waits for one."""
        if self.limit is None:
            return True
        host = entry.task.spec.host
        if self.is_shared and entry.host_permit:
            return True
        if self.is_shared or self.calls[host] >= self.limit:
            self.waiting.setdefault(host, []).append(entry)
            return False
        self.calls[host] += 1
        return True

    def release(self, entry: InFlight, now: float) -> InFlight | None:
        """Release the slot of a finished call; return the waiting task that has it now, if any."""
        if self.limit is None:
            return None
        host = entry.task.spec.host
        if self.is_shared:
            return self.give(host, entry, now)
        if waiting := self.waiting.get(host):
            return waiting.pop(0)
        self.waiting.pop(host, None)
        self.calls[host] -= 1
        # Empty entries are removed: a run may have millions of hosts.
        if not self.calls[host]:
            del self.calls[host]
        return None

    def give(self, host: str, entry: InFlight, now: float) -> InFlight | None:
        """Give the permit of a finished call to a waiting task; return that, if there is one."""
        if entry.host_permit is None or now - entry.host_since >= HOST_TURN:
            return None
        if following := self.take_waiting(host):
            following.host_permit, entry.host_permit = entry.host_permit, None
            following.host_since = entry.host_since
        return following

    def take_waiting(self, host: str) -> InFlight | None:
        """Take the task that has waited longest for a host."""
        waiting = self.waiting.get(host)
        following = waiting.pop(0) if waiting else None
        if not waiting:
            self.waiting.pop(host, None)
        return following

    def remove(self, entry: InFlight) -> None:
        waiting = self.waiting[entry.task.spec.host]
        waiting.remove(entry)
        if not waiting:
            del self.waiting[entry.task.spec.host]

    def take_all(self) -> list[InFlight]:
        waiting, self.waiting = self.waiting, {}
        return [entry for entries in waiting.values() for entry in entries]


@dataclass(slots=True, kw_only=True)
class Prefetch:
    """Tasks of a run that are claimed before there is a permit for their calls.

    Where pages load quickly, a run would wait for the engine rather than for the gateway. So it
    claims in advance as many tasks as calls finished lately within `horizon`, at most two for each
    call under way. A prefetched task has a claim, but no permit and no place. It starts with the
    permit of the next call that finishes, in the same coroutine. Where pages load slowly the rate
    is low and nothing is prefetched. With message queues nothing is, because a message counts its
    receives.
    """

    horizon: timedelta
    pending: int = 0  # in claims that the engine has not answered
    tasks: deque[InFlight] = field(default_factory=deque)
    finished: int = 0  # calls since `rated_at`
    rated_at: float = 0.0
    rate: float = 0.0  # calls that finish in a second

    def room(self, calls: int) -> int:
        """How many more tasks to prefetch, with `calls` calls under way."""
        wanted = min(int(self.rate * self.horizon.total_seconds()), PREFETCH_PER_CALL * calls)
        return max(wanted - len(self.tasks) - self.pending, 0)

    def count_finished(self, now: float) -> None:
        self.finished += 1
        if (passed := now - self.rated_at) > RATE_WINDOW:
            self.rate, self.finished, self.rated_at = self.finished / passed, 0, now

    def take_all(self) -> list[InFlight]:
        tasks, self.tasks = self.tasks, deque()
        return list(tasks)


@dataclass(slots=True, kw_only=True, eq=False)
class ActiveRun:
    run: Run
    job: Job
    assignment: Assignment
    key_state: GatewayKeyState
    claim_size: int  # tasks that make a claim worth its round trip
    prefetch: Prefetch
    hosts: HostSlots
    places: Places  # of the process
    window: WriteWindow | None = None  # where the writes of each run may have a limit
    pending: int = 0  # calls to start, of claims that the engine has not answered
    calls: int = 0
    unsettled: int = 0
    idle_permits: list[str] = field(default_factory=list)  # for the next calls
    small_claims_at: float = 0.0  # until then only claims of `claim_size` are made
    permits_wait_until: float = 0.0  # a few permits wait for more
    idle_until: float = 0.0  # nothing was due
    idle: float = 0.0  # seconds of the last rest; doubles
    empty_since: float | None = None  # claims found nothing since; None if the last one did
    was_set_aside: bool = False  # for being idle, and only a resync brought it back
    lacks_permits: bool = False  # it rests because other processes have all permits
    claims: int = 0  # that the engine has not answered
    is_gone: bool = False  # no longer live: nothing new starts
    probed_at: float = 0.0  # when a task of it was last a probe of the gateway

    # What the run could use.

    @property
    def id(self) -> RunId:
        return self.run.id

    @property
    def is_open(self) -> bool:
        # Several times for each task, so without a call of `Run.is_paused`.
        return not self.is_gone and self.run.pause_state is not PauseState.PAUSED

    @property
    def is_served(self) -> bool:
        """Whether a claim or a task of the run is still under way here."""
        return bool(self.unsettled or self.pending or self.prefetch.pending)

    def room(self) -> int:
        """How many more calls may start, by the limits of the job, the gateway key and the engine."""
        if not self.is_open:
            return 0
        room = min(self.job.max_inflight - self.calls - self.pending, self.key_state.limiter.room())
        if self.window is None:
            return room
        finished = self.unsettled - self.calls - len(self.prefetch.tasks)
        return min(room, self.window.room(pending=self.pending, finished=finished))

    def demand(self) -> int:
        """How many tasks to claim, to start at once and to prefetch."""
        if not self.is_open:
            return 0
        return max(self.room(), 0) + self.prefetch.room(self.calls)

    def may_start(self, now: float) -> bool:
        return self.is_open and self.key_state.limiter.closed_until <= now

    # When the next claim is worth it.

    def ready_at(self) -> float:
        waits = (self.key_state.limiter.closed_until, self.idle_until, self.permits_wait_until)
        if self.demand() < self.claim_size:
            return max(*waits, self.small_claims_at)
        return max(waits)

    def is_ready(self, now: float) -> bool:
        # The first comparison alone rules out most of thousands of idle runs.
        return self.idle_until <= now and self.ready_at() <= now

    def is_worth_a_claim(self, tasks: int, now: float, permit_wait: timedelta) -> bool:
        """Whether to claim `tasks` tasks now. Fewer than a batch wait once for more permits."""
        if tasks < self.claim_size and not self.permits_wait_until:
            self.permits_wait_until = now + permit_wait.total_seconds()
        if tasks < self.claim_size and now < self.permits_wait_until:
            return False
        self.permits_wait_until = 0.0
        return True

    @property
    def has_come_short(self) -> bool:
        """Whether the last claim found fewer tasks than it wanted."""
        return self.idle > 0

    def rest(self, now: float, *, shortest: timedelta, longest: timedelta) -> None:
        """Claim nothing for a while: nothing is due, or there is no permit. Doubles each time."""
        self.idle = min(max(self.idle * 2, shortest.total_seconds()), longest.total_seconds())
        self.idle_until = now + self.idle

    def pause_claims(self, until: float) -> None:
        """Claim nothing for a while: its engine is unavailable."""
        self.idle_until = until

    def learn_speed(self, seconds: float, *, tasks: int = 1) -> None:
        """A claim of so many tasks, or a settle, of the run took so long."""
        if self.window:
            self.window.learn(seconds / math.ceil(tasks / MESSAGES))

    def wake(self, run: Run) -> None:
        """Look for tasks at once: the run, as a consistent read shows it, is live."""
        self.run = run
        self.is_gone = False
        self.idle_until = self.idle = 0.0
        self.empty_since = None
        self.was_set_aside = False

    # The moves of a task.

    def begin_claim(self, calls: int, prefetch: int) -> ClaimGrant:
        """Count what is about to be claimed.

        Without that, the other claim loops would grant the same places while the engine answers.
        It counts for the key as well, because runs of one key share its limit.
        """
        self._change_pending(calls)
        self.prefetch.pending += prefetch
        return ClaimGrant(calls, prefetch)

    def shrink_claim(self, grant: ClaimGrant, calls: int) -> ClaimGrant:
        """Claim fewer tasks than granted: prefetched ones were started, or there are few permits."""
        self.end_claim(ClaimGrant(grant.calls - calls, 0))
        return ClaimGrant(calls, grant.prefetch)

    def end_claim(self, grant: ClaimGrant) -> None:
        """The claim was answered or has failed. The tasks it returned are accepted by now."""
        self._change_pending(-grant.calls)
        self.prefetch.pending -= grant.prefetch

    def _change_pending(self, by: int) -> None:
        self.pending += by
        self.places.change(self.run.caller, by)
        self.key_state.limiter.under_way += by
        if (of_key := self.key_state.permits) is not None:
            of_key.pending += by

    def accept(self, task: Task, group: asyncio.TaskGroup) -> InFlight:
        self.unsettled += 1
        self.places.change(self.run.caller, 1)
        return InFlight(task, self, group, renewed_at=self.key_state.clock.monotonic())

    def keep_prefetched(self, entry: InFlight) -> None:
        """Let an accepted task wait for a permit. It gives its place back meanwhile."""
        self.prefetch.tasks.append(entry)
        self.places.change(self.run.caller, -1)

    def take_prefetched(self) -> InFlight:
        """Take the prefetched task that waits longest, which has a place from now on."""
        entry = self.prefetch.tasks.popleft()
        self.places.change(self.run.caller, 1)
        return entry

    def give_permit(self, entry: InFlight) -> bool:
        """Give a task an idle permit; False if it must also wait for a slot of its host.

        A task that waits leaves the permit of the gateway key to other calls.
        """
        entry.permit = self.idle_permits.pop()
        if (of_key := self.key_state.permits) is not None:
            of_key.idle_of_jobs -= 1
        self.calls += 1
        if not self.hosts.take(entry):
            return False
        self.give_key_permit(entry)
        return True

    def give_key_permit(self, entry: InFlight) -> None:
        """Give a task whose call is about to begin an idle permit of its gateway key."""
        if (of_key := self.key_state.permits) is not None:
            entry.key_permit = of_key.idle.pop()

    def release_host(self, entry: InFlight, now: float, *, is_kept: bool) -> InFlight | None:
        """Release the slot of a finished call; return the waiting task that starts with it, if any.

        Where processes share limits that task also needs the permit of the gateway key, if it
        `is_kept`. A permit that is not passed on is released when the finished task is settled.
        """
        if self.hosts.is_shared and not is_kept:
            return None
        if following := self.hosts.release(entry, now):
            self.give_key_permit(following)
        return following

    def begin_call(self, entry: InFlight, now: float) -> None:
        self.key_state.limiter.under_way += 1
        entry.began_at = now

    def finish_call(self, entry: InFlight, result: CallResult, now: float) -> CallResult:
        """Count a call that is over, and return the result that must be settled."""
        self.calls -= 1
        self.key_state.limiter.under_way -= 1
        self.prefetch.count_finished(now)
        entry.is_finished = True
        result = self.key_state.learn(result, now, entry.began_at)
        if isinstance(result, AccountBlocked):
            self.is_gone = True  # settling this result fails the run
        return result

    def keep_permit(self, entry: InFlight, now: float) -> bool:
        """Keep the permit of a finished call for the next one, if there may be one."""
        if entry.permit is None or self.is_gone or self.key_state.limiter.closed_until > now:
            return False
        if (of_key := self.key_state.permits) is not None:
            if of_key.must_reserve or entry.key_permit is None:
                return False
            of_key.idle.append(entry.key_permit)
            of_key.idle_of_jobs += 1
            entry.key_permit = None
            if self.lacks_permits:
                self.lacks_permits, self.idle_until, self.idle = False, 0.0, 0.0
        self.idle_permits.append(entry.permit)
        entry.permit = None
        return True

    def next_prefetched(self) -> InFlight | None:
        """Take the prefetched task that may start in place of a finished call.

        None if the key has no room, or another run waits for room of the same key: the next claim
        round shares it fairly.
        """
        limiter = self.key_state.limiter
        if self.prefetch.tasks and limiter.room() > 0 and not limiter.is_contended:
            return self.take_prefetched()
        return None

    def hand_back(self, entry: InFlight) -> None:
        """Finish a task whose call has not begun, and no longer count its permit as a call."""
        if entry.permit:
            self.calls -= 1
        entry.is_finished = True

    def withdraw(self, entry: InFlight) -> None:
        """Remove a task from where it waits: for a permit, or for its host."""
        if entry.permit is None:
            self.prefetch.tasks.remove(entry)
            self.places.change(self.run.caller, 1)
        else:
            self.hosts.remove(entry)

    def withdraw_all(self) -> list[InFlight]:
        """Remove all tasks that wait for a permit or for their host."""
        prefetched = self.prefetch.take_all()
        self.places.change(self.run.caller, len(prefetched))
        return [*prefetched, *self.hosts.take_all()]

    def settled(self) -> None:
        self.unsettled -= 1
        self.places.change(self.run.caller, -1)

    # Permits.

    @property
    def startable(self) -> int:
        """How many calls could start with idle permits."""
        of_key = self.key_state.permits
        if of_key is not None and of_key.must_reserve:
            return 0
        return len(
            self.idle_permits if of_key is None else min(self.idle_permits, of_key.idle, key=len)
        )

    def add_permits(self, ids: Sequence[str]) -> None:
        self.idle_permits += ids
        if (of_key := self.key_state.permits) is not None:
            of_key.idle_of_jobs += len(ids)

    def free_permits(self, grant_calls: int) -> int:
        """Idle permits that a claim may use: those of other pending claims are not free."""
        return max(len(self.idle_permits) - (self.pending - grant_calls), 0)

    def take_idle_permits(self, *, keep: int = 0) -> Sequence[str]:
        """Remove and return the idle permits, except the first `keep`."""
        self.idle_permits, taken = self.idle_permits[:keep], self.idle_permits[keep:]
        if (of_key := self.key_state.permits) is not None:
            of_key.idle_of_jobs -= len(taken)
        return taken
