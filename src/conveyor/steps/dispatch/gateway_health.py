"""The health of the gateway as dispatch sees it: the circuit breaker, and suspect results.

Some failures may be the fault of the gateway or of the page. The result of such a call is a suspect:
it is held until it is known whose fault it was. A failure of the page is charged as an attempt; one
of the gateway is not.

| what happens first | the result is |
|---|---|
| another call succeeds, 0.2 s later or more | settled as it is: the page was at fault |
| the gateway answers a health check | settled as it is |
| the breaker opens | handed back uncharged |
| none of these within the window | settled as it is |

| invariant | kept by |
|---|---|
| a held result keeps its claim and its place, so an outage costs at most as many calls as there are places | `Dispatcher`, which settles only what these methods return |
| nothing is held while the breaker is open or the dispatcher stops | `observe`, `_opened`, `stop` |
| at most one probe starts at a time | `probing`; over all processes, `probe_permit` |
| a process that alone cannot reach the gateway stops no other | `adopt`, which trusts answered calls more than a record; `is_alone` |
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import structlog

from conveyor.domain.breaker import (
    CONFIRMED_FOR,
    FAILURES,
    WINDOW,
    Breaker,
    Diagnosis,
    HealthSignal,
)
from conveyor.domain.ids import RunId
from conveyor.domain.progress import Waiting, WaitReason
from conveyor.domain.shared_limits import GatewayRecord
from conveyor.domain.task import AccountBlocked, AttemptFailed, Interrupted, Task, Throttled
from conveyor.ports.clock import Clock
from conveyor.steps.dispatch.active_run import ActiveRun, InFlight
from conveyor.steps.shared.attempt import CallResult, Fetched

CHECK_EVERY = timedelta(milliseconds=250)  # while results are held or the breaker is open
OVERLAP = 0.2  # seconds: a success at the moment of a failure may have been sent before it
# The delay of a task whose call the gateway failed, unless the gateway asks for a longer one.
RETRY_WAIT = timedelta(seconds=1)
# Failures that may be those of the network of this process.
OWN_NETWORK = frozenset({HealthSignal.UNREACHABLE, HealthSignal.UNCONNECTED})
REMINDER = 60.0  # seconds between log lines while the breaker is open

DETAILS = {
    HealthSignal.UNREACHABLE: "The gateway cannot be reached.",
    HealthSignal.UNEXPLAINED: "The gateway answers every call with an error of its own.",
    HealthSignal.BROKEN: "The gateway breaks off its answers, or nothing it sends can be read.",
    HealthSignal.UNCONNECTED: "No site can be reached: the network of this service may be down.",
}

log = structlog.get_logger()


Finished = tuple[InFlight, CallResult]


class Suspect(NamedTuple):
    """A failed call whose result is held, and when it failed."""

    entry: InFlight
    result: AttemptFailed
    at: float


@dataclass(slots=True, kw_only=True)
class GatewayHealth:
    clock: Clock
    check_gateway: Callable[[], Awaitable[bool]]  # the health check: whether the gateway answers
    on_open: Callable[[], None] = field(repr=False)
    # It opened, closed or probes. No other process knows the breaker by default.
    share: Callable[[], None] = field(default=lambda: None, repr=False)
    breaker: Breaker = field(default_factory=Breaker)
    suspects: list[Suspect] = field(default_factory=list)
    since: datetime | None = None  # when the breaker last opened
    needs_check: asyncio.Event = field(default_factory=asyncio.Event)
    probing: RunId | None = None  # the run whose task is about to start as a probe
    probe_permit: str | None = None  # of that probe, where processes share the breaker
    check_due: bool = False  # a probe failed in a way that may be its target's fault
    is_stopping: bool = False
    answered_at: float = -math.inf  # when a call of this process last was
    works_elsewhere_until: float = -math.inf  # trusted: another process has closed the breaker
    # Only this process cannot reach the gateway: its breaker is open, and that of others is not.
    is_alone: bool = False
    logged_at: float = -REMINDER
    is_logged: bool = False  # whether this outage is in the log

    @property
    def is_open(self) -> bool:
        """Whether the breaker is open: no task starts but probes."""
        return self.breaker.opened_at is not None

    def observe(self, entry: InFlight, result: CallResult, now: float) -> list[Finished]:
        """Record what a call shows about the gateway; return the results to settle now."""
        signal = signal_of(result)
        if signal is HealthSignal.ALIVE:
            return [*self._alive(entry, now), (entry, result)]
        if signal not in FAILURES or not isinstance(result, AttemptFailed):
            return [(entry, result)]
        was_open = self.is_open
        if not self.breaker.failed(now, signal, entry.task.spec.host):
            return [(entry, result)]
        self.needs_check.set()
        if was_open and self.breaker.is_worth_asking(now, signal):
            self.check_due = True
        if self.is_open or self.is_stopping:
            return [(entry, _handed_back(result)), *([] if was_open else self._opened())]
        self.suspects.append(Suspect(entry, result, now))
        return []

    async def examine(self, hosts_in_play: int) -> list[Finished]:
        """Judge the suspects; return the results to settle now."""
        now = self.clock.monotonic()
        released: list[Finished] = []
        if self.is_open and self.check_due:
            # A probe broke. If the gateway answers, only the target of the probe is at fault.
            self.check_due = False
            if await self._answers():
                self.breaker.confirm_healthy(self.clock.monotonic())
                self._closed()
        elif not self.is_open:
            released = await self._judge(self.breaker.diagnose(now, hosts_in_play))
        if self.is_open:
            self._remind(now)
        elif not self.suspects:
            self.needs_check.clear()
        return released

    def stop(self) -> list[Finished]:
        """Hold no more results: the suspects go back uncharged."""
        self.is_stopping = True
        return self._hand_back_suspects()

    def waiting(self) -> Waiting | None:
        """What callers see while the breaker is open."""
        opened_at, next_probe_at = self.breaker.opened_at, self.breaker.next_probe_at
        if opened_at is None or self.since is None:
            return None
        # Computed from the date of the opening. A second reading of the clock would give another
        # value each time, and listeners would be sent each of them.
        next_attempt_at = self.since + timedelta(seconds=next_probe_at - opened_at)
        return Waiting(
            reason=WaitReason.GATEWAY_UNAVAILABLE,
            since=self.since,
            next_attempt_at=next_attempt_at if next_probe_at > self.clock.monotonic() else None,
            detail=DETAILS[self.breaker.cause],
        )

    # Probes.

    def run_to_probe(self, runs: Iterable[ActiveRun], now: float) -> ActiveRun | None:
        """The run whose task is the next probe, if one is due.

        Callers take turns, and so do the runs of one caller: the pages of one of them may be what
        fails.
        """
        if self.probing:
            return None
        probed = self.breaker.probed
        candidates = [run for run in runs if run.is_open and self._probe_at(run) <= now]
        return min(
            candidates,
            key=lambda run: (probed.get(run.run.caller, 0.0), run.probed_at),
            default=None,
        )

    def next_probe_at(self, runs: Iterable[ActiveRun], now: float) -> float:
        """When `run_to_probe` next finds a run, if nothing changes until then."""
        if self.probing:
            return math.inf  # the claim loop that starts the probe looks again
        waiting = [run for run in runs if run.is_open]
        soonest = min(map(self._probe_at, waiting), default=math.inf)
        if any(self.breaker.probe_at(run.run.caller) <= now for run in waiting):
            # A probe is due, but no run had a task for it. Runs are tried one by one, and there may
            # be thousands: their rests alone would not bound the rounds.
            return max(soonest, now + CHECK_EVERY.total_seconds())
        return soonest

    def is_due(self, run: ActiveRun) -> bool:
        """Whether a task of a run may be a probe now."""
        return self._probe_at(run) <= self.clock.monotonic()

    def _probe_at(self, run: ActiveRun) -> float:
        waits = (run.key_state.limiter.closed_until, run.idle_until, run.permits_wait_until)
        return max(*waits, self.breaker.probe_at(run.run.caller))

    def in_order(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Claimed tasks in the order to start them: for a probe, hosts not probed lately first."""
        if not self.is_open:
            return tasks
        probed = self.breaker.probed
        return sorted(tasks, key=lambda task: probed.get(task.spec.host, 0.0))

    def starts_as_probe(self, entry: InFlight, now: float) -> bool:
        """Whether this task is the probe that is about to start; if so, it is counted as one."""
        run = entry.run
        if not self.is_open or self.probing != run.id:
            return False
        self.probing = None
        entry.probe_permit, self.probe_permit = self.probe_permit, None
        run.probed_at = now
        self.breaker.probe(now, run.run.caller, entry.task.spec.host)
        self._share_unless_alone()
        return True

    # Judging.

    async def _judge(self, diagnosis: Diagnosis) -> list[Finished]:
        if diagnosis is Diagnosis.ASK:
            if await self._answers():
                self.breaker.confirm_healthy(self.clock.monotonic())
                return self._release(self.suspects)
            # A call may have succeeded during the check, which clears the failures.
            diagnosis = Diagnosis.OPEN if self.breaker.failing else Diagnosis.NOTHING
        now = self.clock.monotonic()
        if diagnosis is Diagnosis.OPEN:
            signals = [signal for signal, _ in self.breaker.failing.values()]
            self.breaker.open(now, max(signals, key=signals.count))
            return self._opened()
        return self._release([suspect for suspect in self.suspects if now - suspect.at >= WINDOW])

    async def _answers(self) -> bool:
        """Run the health check. One that raises counts as no answer."""
        try:
            return await self.check_gateway()
        except Exception:
            log.exception("step.bug", step="gateway check")
            return False

    def _alive(self, entry: InFlight, now: float) -> list[Finished]:
        was_open = self.is_open
        self.answered_at, self.works_elsewhere_until = now, -math.inf
        if self.breaker.failing or self.breaker.at_fault or was_open:
            self.breaker.answered(entry.task.spec.host, entry.began_at)
        if was_open:
            self._closed()
        if was_open or not self.suspects:
            return []
        return self._release([suspect for suspect in self.suspects if now - suspect.at >= OVERLAP])

    def _opened(self) -> list[Finished]:
        self.is_alone = (
            self.breaker.cause in OWN_NETWORK
            and self.clock.monotonic() < self.works_elsewhere_until
        )
        self._share_unless_alone()
        return self._begin_outage(self.clock.now())

    def _begin_outage(self, since: datetime) -> list[Finished]:
        self.check_due = False
        self.since = since
        self.needs_check.set()
        self._remind(self.clock.monotonic())
        self.on_open()
        return self._hand_back_suspects()

    def _closed(self) -> None:
        self._share_unless_alone()
        self.is_alone = False
        self._end_outage()

    def _end_outage(self) -> None:
        if self.is_logged:
            self.is_logged = False
            log.info("gateway.available")

    # What other processes know.

    def record(self, version: tuple[int, str]) -> GatewayRecord:
        """Describe the state for other processes."""
        breaker = self.breaker
        return GatewayRecord(
            number=version[0],
            writer=version[1],
            at=self.clock.now(),
            since=self.since if breaker.is_open else None,
            cause=breaker.cause,
            probe_in=max(breaker.next_probe_at - self.clock.monotonic(), 0.0),
            interval=breaker.interval,
        )

    def adopt(self, record: GatewayRecord) -> list[Finished]:
        """Take over what another process knows; return the results to settle now."""
        now, was_open = self.clock.monotonic(), self.is_open
        if record.since is None:
            if was_open and not self.is_alone:
                self.works_elsewhere_until = now + CONFIRMED_FOR
                self.breaker.close()
                self._end_outage()
            return []
        if not was_open and self._answered_since(record, now):
            self.share()  # that it works
            return []
        self.is_alone = False
        self.breaker.open(now, record.cause)
        record.schedule_probe(self.breaker, now, self.clock.now())
        if was_open:
            self.since = record.since
            return []
        return self._begin_outage(record.since)

    def _answered_since(self, record: GatewayRecord, now: float) -> bool:
        """Whether the gateway answered this process lately, and after a record was written."""
        age = max((self.clock.now() - record.at).total_seconds(), 0.0)
        return now - self.answered_at < min(age, WINDOW)

    def _share_unless_alone(self) -> None:
        if not self.is_alone:
            self.share()

    def _hand_back_suspects(self) -> list[Finished]:
        suspects, self.suspects = self.suspects, []
        return [(suspect.entry, _handed_back(suspect.result)) for suspect in suspects]

    def _release(self, known: Sequence[Suspect]) -> list[Finished]:
        """Release results whose page is known to be at fault."""
        if not known:
            return []
        # By identity, in linear time: an outage leaves as many suspects as there are places.
        released = set(map(id, known))
        self.suspects = [suspect for suspect in self.suspects if id(suspect) not in released]
        return [(suspect.entry, suspect.result) for suspect in known]

    def _remind(self, now: float) -> None:
        """Log the opening, then one line a minute, even if the breaker opens again and again."""
        if now - self.logged_at < REMINDER:
            return
        self.logged_at, self.is_logged = now, True
        if waiting := self.waiting():
            log.warning(
                "gateway.unavailable",
                since=waiting.since.isoformat(),
                next_attempt_at=waiting.next_attempt_at and waiting.next_attempt_at.isoformat(),
                why=waiting.detail,
            )


async def never_answers() -> bool:
    """The health check of a gateway that has none."""
    return False


def signal_of(result: CallResult) -> HealthSignal:
    match result:
        case AttemptFailed() | Fetched():
            return result.signal
        case Throttled() | AccountBlocked():
            return HealthSignal.ALIVE
        case _:
            return HealthSignal.NONE


def _handed_back(result: AttemptFailed) -> Interrupted:
    return Interrupted(max(RETRY_WAIT, result.wait), result.spend)
