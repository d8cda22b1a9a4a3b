"""What dispatch knows of the gateway's health: the circuit breaker, and results in doubt.

Not a station of its own: dispatch works by it. A call that failed in a way that may be the
gateway's fault is held back until it is known whose fault it was:

| then | the result is |
|---|---|
| another call succeeds, a moment later or more | settled as it is: the task failed by itself |
| the gateway answers for itself | the same |
| the breaker opens | given back uncharged |
| nothing of this within the window | settled as it is |

A result in doubt keeps its claim and its place, so an outage costs no more calls than there are
places before the breaker opens.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import structlog

from conveyor.domain.breaker import FAILURES, WINDOW, Breaker, Finding, Sign
from conveyor.domain.ids import RunId
from conveyor.domain.task import AccountBlocked, Interrupted, Refused, Task, Throttled
from conveyor.domain.waiting import Waiting, WaitReason
from conveyor.ports.clock import Clock
from conveyor.steps.attempt import Fetched, Result
from conveyor.steps.lane import Flight, Lane, host_of

LOOK = timedelta(milliseconds=250)  # between looks at results in doubt, and at an open breaker
SETTLING = 0.2  # seconds: what came in at the very moment of a failure may have been sent before it
BACK = timedelta(seconds=1)  # until a task is due again whose call the gateway failed
REMINDER = 60.0  # seconds between log lines while the breaker is open

DETAILS = {
    Sign.UNREACHABLE: "The gateway cannot be reached.",
    Sign.UNEXPLAINED: "The gateway answers every call with an error of its own.",
    Sign.BROKEN: "The gateway breaks off its answers, or nothing it sends can be read.",
    Sign.UNCONNECTED: "No site can be reached: the network of this service may be down.",
}

log = structlog.get_logger()

Landed = tuple[Flight, Result]


class Doubtful(NamedTuple):
    """A call that failed, and when."""

    flight: Flight
    result: Refused
    at: float


@dataclass(slots=True, kw_only=True)
class Outage:
    clock: Clock
    check: Callable[[], Awaitable[bool]]  # whether the gateway answers for itself
    opened: Callable[[], None] = field(repr=False)  # called when the breaker opens
    breaker: Breaker = field(default_factory=Breaker)
    doubtful: list[Doubtful] = field(default_factory=list)
    since: datetime | None = None  # the date of the last opening
    in_doubt: asyncio.Event = field(default_factory=asyncio.Event)  # there is something to look at
    probing: RunId | None = None  # a probe of this run is about to start
    asks: bool = False  # a probe failed in a way that may be its target's fault
    is_stopping: bool = False
    logged_at: float = -REMINDER
    is_logged: bool = False  # the outage under way

    def heard(self, flight: Flight, result: Result, now: float) -> list[Landed]:
        """Take up what a call tells, and say which results are to be settled now."""
        sign = sign_of(result)
        if sign is Sign.ALIVE:
            return [*self._alive(flight, now), (flight, result)]
        if sign not in FAILURES or not isinstance(result, Refused):
            return [(flight, result)]
        was_open = self.breaker.is_open
        if not self.breaker.failed(now, sign, host_of(flight.task.spec.url)):
            return [(flight, result)]
        self.in_doubt.set()
        self.asks = self.asks or (was_open and self.breaker.is_worth_asking(now, sign))
        if self.breaker.is_open or self.is_stopping:
            return [(flight, _given_back(result)), *([] if was_open else self._open())]
        self.doubtful.append(Doubtful(flight, result, now))
        return []

    async def look(self, hosts_in_play: int) -> list[Landed]:
        """Judge what is in doubt, and say which results are to be settled now."""
        now = self.clock.monotonic()
        if self.breaker.is_open:
            settled = await self._ask_while_open()
        else:
            settled = await self._judge(self.breaker.judged(now, hosts_in_play))
        if self.breaker.is_open:
            self._remind(now)
        elif not self.doubtful:
            self.in_doubt.clear()
        return settled

    def stop(self) -> list[Landed]:
        """Doubt nothing any more: what is in doubt goes back uncharged."""
        self.is_stopping = True
        return self._give_back()

    def waiting(self) -> Waiting | None:
        """What is told to callers while the breaker is open."""
        opened_at, next_probe_at = self.breaker.opened_at, self.breaker.next_probe_at
        if opened_at is None or self.since is None:
            return None
        # Both dates follow from that of the opening: a second reading of the clock would give
        # others, and each would be news to listeners.
        next_attempt_at = self.since + timedelta(seconds=next_probe_at - opened_at)
        return Waiting(
            reason=WaitReason.GATEWAY_UNAVAILABLE,
            since=self.since,
            next_attempt_at=next_attempt_at if next_probe_at > self.clock.monotonic() else None,
            detail=DETAILS[self.breaker.cause],
        )

    def lane_to_probe(self, lanes: Iterable[Lane], now: float) -> Lane | None:
        """The run whose task is to be the next probe, if it is time for one: of the caller, and
        then the run, that was probed with least recently.
        """
        if self.probing:
            return None
        probed = self.breaker.probed
        able = [
            lane
            for lane in lanes
            if lane.is_open
            and max(lane.throttle.closed_until, lane.resting_until, lane.gathering_until) <= now
            and self.breaker.may_probe(now, lane.run.caller)
        ]
        return min(
            able,
            key=lambda lane: (probed.get(lane.run.caller, 0.0), lane.probed_at),
            default=None,
        )

    def arranged(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Tasks that were claimed for a probe, with those of hosts not probed lately first."""
        if not self.breaker.is_open:
            return tasks
        probed = self.breaker.probed
        return sorted(tasks, key=lambda task: probed.get(host_of(task.spec.url), 0.0))

    def takes(self, flight: Flight, now: float) -> bool:
        """Whether this task is to be the probe that is about to start."""
        lane = flight.lane
        if not self.breaker.is_open or self.probing != lane.run.id:
            return False
        self.probing = None
        lane.probed_at = now
        self.breaker.probe(now, lane.run.caller, host_of(flight.task.spec.url))
        return True

    async def _judge(self, finding: Finding) -> list[Landed]:
        if finding is Finding.ASK:
            if await self._answers():
                self.breaker.vouch(self.clock.monotonic())
                return self._release(self.doubtful)
            finding = (
                Finding.OPEN if self.breaker.failing else Finding.NOTHING
            )  # a success meanwhile
        now = self.clock.monotonic()
        if finding is Finding.OPEN:
            signs = [sign for sign, _ in self.breaker.failing.values()]
            self.breaker.open(now, max(signs, key=signs.count))
            return self._open()
        return self._release([one for one in self.doubtful if now - one.at >= WINDOW])

    async def _ask_while_open(self) -> list[Landed]:
        """When a probe broke, find out whether only its target did."""
        if self.asks:
            self.asks = False
            if await self._answers():
                self.breaker.vouch(self.clock.monotonic())
                return self._closed()
        return []

    async def _answers(self) -> bool:
        """Whether the gateway answers for itself. A check that fails by a bug is no answer."""
        try:
            return await self.check()
        except Exception:
            log.exception("step.bug", step="gateway check")
            return False

    def _alive(self, flight: Flight, now: float) -> list[Landed]:
        was_open = self.breaker.is_open
        if self.breaker.failing or self.breaker.at_fault or was_open:
            self.breaker.answered(host_of(flight.task.spec.url), flight.begun)
        if was_open:
            return self._closed()
        return self._release([one for one in self.doubtful if now - one.at >= SETTLING])

    def _open(self) -> list[Landed]:
        self.asks = False
        self.since = self.clock.now()
        self.in_doubt.set()
        self._remind(self.clock.monotonic())
        self.opened()
        return self._give_back()

    def _closed(self) -> list[Landed]:
        if self.is_logged:
            self.is_logged = False
            log.info("gateway.available")
        return []

    def _give_back(self) -> list[Landed]:
        doubtful, self.doubtful = self.doubtful, []
        return [(one.flight, _given_back(one.result)) for one in doubtful]

    def _release(self, known: Sequence[Doubtful]) -> list[Landed]:
        if not known:
            return []
        released = set(map(id, known))
        self.doubtful = [one for one in self.doubtful if id(one) not in released]
        return [(one.flight, one.result) for one in known]

    def _remind(self, now: float) -> None:
        """One line when the breaker opens, and one a minute while it stays open; no more for one
        that opens again and again.
        """
        if now - self.logged_at < REMINDER:
            return
        self.logged_at, self.is_logged = now, True
        waiting = self.waiting()
        if waiting:
            log.warning(
                "gateway.unavailable",
                since=waiting.since.isoformat(),
                next_attempt_at=waiting.next_attempt_at and waiting.next_attempt_at.isoformat(),
                why=waiting.detail,
            )


async def never_answers() -> bool:
    """A gateway that cannot be asked for itself."""
    return False


def sign_of(result: Result) -> Sign:
    match result:
        case Refused() | Fetched():
            return result.sign
        case Throttled() | AccountBlocked():
            return Sign.ALIVE
        case _:
            return Sign.NONE


def _given_back(result: Refused) -> Interrupted:
    return Interrupted(BACK, result.spend)
