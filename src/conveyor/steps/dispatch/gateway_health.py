"""The health of the gateway as dispatch sees it: the circuit breaker, and suspect results.

A call that failed in a way that may be the gateway's fault is a suspect: its result is held until it
is known whose fault it was.

| what happens first | the result is |
|---|---|
| another call succeeds, 0.2 s later or more | settled as it is: the task failed by itself |
| the gateway answers a request of its own | settled as it is |
| the breaker opens | handed back uncharged |
| none of these within the window | settled as it is |

| invariant | kept by |
|---|---|
| a held result keeps its claim and its place, so an outage costs no more calls than there are places | `Dispatcher`, which settles only what is returned here |
| nothing is held while the breaker is open or the dispatcher stops | `heard`, `_opened`, `stop` |
| at most one probe starts at a time | `probing` |
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import structlog

from conveyor.domain.breaker import FAILURES, WINDOW, Breaker, Diagnosis, HealthSignal
from conveyor.domain.ids import RunId
from conveyor.domain.progress import Waiting, WaitReason
from conveyor.domain.task import AccountBlocked, Interrupted, Refused, Task, Throttled
from conveyor.ports.clock import Clock
from conveyor.steps.dispatch.active_run import ActiveRun, InFlight, host_of
from conveyor.steps.shared.attempt import Fetched, Result

CHECK_EVERY = timedelta(milliseconds=250)  # while results are held or the breaker is open
OVERLAP = 0.2  # seconds: a success at the moment of a failure may have been sent before it
RETRY_WAIT = timedelta(seconds=1)  # until a task is due again whose call the gateway failed
REMINDER = 60.0  # seconds between log lines while the breaker is open

DETAILS = {
    HealthSignal.UNREACHABLE: "The gateway cannot be reached.",
    HealthSignal.UNEXPLAINED: "The gateway answers every call with an error of its own.",
    HealthSignal.BROKEN: "The gateway breaks off its answers, or nothing it sends can be read.",
    HealthSignal.UNCONNECTED: "No site can be reached: the network of this service may be down.",
}

log = structlog.get_logger()

Finished = tuple[InFlight, Result]


class Suspect(NamedTuple):
    """A failed call whose result is held, and when it failed."""

    one: InFlight
    result: Refused
    at: float


@dataclass(slots=True, kw_only=True)
class GatewayHealth:
    clock: Clock
    check: Callable[[], Awaitable[bool]]  # whether the gateway answers a request of its own
    on_open: Callable[[], None] = field(repr=False)
    breaker: Breaker = field(default_factory=Breaker)
    suspects: list[Suspect] = field(default_factory=list)
    since: datetime | None = None  # when the breaker last opened
    needs_check: asyncio.Event = field(default_factory=asyncio.Event)
    probing: RunId | None = None  # the run whose task is about to start as a probe
    asks: bool = False  # a probe failed in a way that may be its target's fault
    is_stopping: bool = False
    logged_at: float = -REMINDER
    is_logged: bool = False  # whether the log has told of this outage

    @property
    def is_open(self) -> bool:
        """Whether the breaker is open: no task starts but probes."""
        return self.breaker.opened_at is not None

    def heard(self, one: InFlight, result: Result, now: float) -> list[Finished]:
        """Take up what a call says about the gateway; return the results to settle now."""
        signal = signal_of(result)
        if signal is HealthSignal.ALIVE:
            return [*self._alive(one, now), (one, result)]
        if signal not in FAILURES or not isinstance(result, Refused):
            return [(one, result)]
        was_open = self.is_open
        if not self.breaker.failed(now, signal, host_of(one.task.spec.url)):
            return [(one, result)]
        self.needs_check.set()
        self.asks = self.asks or (was_open and self.breaker.is_worth_asking(now, signal))
        if self.is_open or self.is_stopping:
            return [(one, _handed_back(result)), *([] if was_open else self._opened())]
        self.suspects.append(Suspect(one, result, now))
        return []

    async def examine(self, hosts_in_play: int) -> list[Finished]:
        """Judge the suspects; return the results to settle now."""
        now = self.clock.monotonic()
        if self.is_open:
            await self._ask_while_open()
            released = list[Finished]()
        else:
            released = await self._judge(self.breaker.diagnose(now, hosts_in_play))
        if self.is_open:
            self._remind(now)
        elif not self.suspects:
            self.needs_check.clear()
        return released

    def stop(self) -> list[Finished]:
        """Hold nothing any more: the suspects go back uncharged."""
        self.is_stopping = True
        return self._hand_back_suspects()

    def waiting(self) -> Waiting | None:
        """What callers see while the breaker is open."""
        opened_at, next_probe_at = self.breaker.opened_at, self.breaker.next_probe_at
        if opened_at is None or self.since is None:
            return None
        # Computed from the date of the opening: a second reading of the clock would give another
        # value, and listeners would be sent each of them.
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

        It is of the caller that was probed with least recently, and of that caller's runs the one
        that was.
        """
        if self.probing:
            return None
        probed = self.breaker.probed
        able = [
            run
            for run in runs
            if run.is_open
            and max(run.key.limiter.closed_until, run.idle_until, run.permits_wait_until) <= now
            and self.breaker.may_probe(now, run.run.caller)
        ]
        return min(
            able,
            key=lambda run: (probed.get(run.run.caller, 0.0), run.probed_at),
            default=None,
        )

    def in_order(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Claimed tasks in the order to start them: for a probe, hosts not probed lately first."""
        if not self.is_open:
            return tasks
        probed = self.breaker.probed
        return sorted(tasks, key=lambda task: probed.get(host_of(task.spec.url), 0.0))

    def starts_as_probe(self, one: InFlight, now: float) -> bool:
        """Whether this task is the probe that is about to start; if so, it is counted as one."""
        run = one.run
        if not self.is_open or self.probing != run.id:
            return False
        self.probing = None
        run.probed_at = now
        self.breaker.probe(now, run.run.caller, host_of(one.task.spec.url))
        return True

    # Judging.

    async def _judge(self, diagnosis: Diagnosis) -> list[Finished]:
        if diagnosis is Diagnosis.ASK:
            if await self._answers():
                self.breaker.confirm_healthy(self.clock.monotonic())
                return self._release(self.suspects)
            # A call may have succeeded while the gateway was asked.
            diagnosis = Diagnosis.OPEN if self.breaker.failing else Diagnosis.NOTHING
        now = self.clock.monotonic()
        if diagnosis is Diagnosis.OPEN:
            signals = [signal for signal, _ in self.breaker.failing.values()]
            self.breaker.open(now, max(signals, key=signals.count))
            return self._opened()
        return self._release([one for one in self.suspects if now - one.at >= WINDOW])

    async def _ask_while_open(self) -> None:
        """After a probe that broke, find out whether only its target is to blame."""
        if self.asks:
            self.asks = False
            if await self._answers():
                self.breaker.confirm_healthy(self.clock.monotonic())
                self._closed()

    async def _answers(self) -> bool:
        """Whether the gateway answers for itself. A check that raises counts as no answer."""
        try:
            return await self.check()
        except Exception:
            log.exception("step.bug", step="gateway check")
            return False

    def _alive(self, one: InFlight, now: float) -> list[Finished]:
        was_open = self.is_open
        if self.breaker.failing or self.breaker.at_fault or was_open:
            self.breaker.answered(host_of(one.task.spec.url), one.began_at)
        if was_open:
            self._closed()
            return []
        return self._release([each for each in self.suspects if now - each.at >= OVERLAP])

    def _opened(self) -> list[Finished]:
        self.asks = False
        self.since = self.clock.now()
        self.needs_check.set()
        self._remind(self.clock.monotonic())
        self.on_open()
        return self._hand_back_suspects()

    def _closed(self) -> None:
        if self.is_logged:
            self.is_logged = False
            log.info("gateway.available")

    def _hand_back_suspects(self) -> list[Finished]:
        suspects, self.suspects = self.suspects, []
        return [(suspect.one, _handed_back(suspect.result)) for suspect in suspects]

    def _release(self, known: Sequence[Suspect]) -> list[Finished]:
        """Let results go whose failure is known to be the task's own."""
        if not known:
            return []
        released = set(map(id, known))
        self.suspects = [one for one in self.suspects if id(one) not in released]
        return [(suspect.one, suspect.result) for suspect in known]

    def _remind(self, now: float) -> None:
        """Log the opening, then once a minute; no more for a breaker that opens again and again."""
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
    """The check of a gateway that cannot be asked for itself."""
    return False


def signal_of(result: Result) -> HealthSignal:
    match result:
        case Refused() | Fetched():
            return result.signal
        case Throttled() | AccountBlocked():
            return HealthSignal.ALIVE
        case _:
            return HealthSignal.NONE


def _handed_back(result: Refused) -> Interrupted:
    return Interrupted(RETRY_WAIT, result.spend)
