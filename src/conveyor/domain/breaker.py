"""The circuit breaker of the gateway: when to stop calling it, and how to find out that it is back.

Every call gives a signal about the gateway. Failures are distinguished by how surely the gateway is to
blame, because a target that makes the gateway fail must not stop the work for others:

| signal | means | opens the breaker |
|---|---|---|
| unreachable | no connection: refused, no address, connect timeout | at once |
| unexplained | a 5xx without the gateway's problem document | after a window without a success, from five hosts, or from all when fewer than five are in play |
| broken | a reset, garbage, a timeout, a 5xx with a problem document | after a window without a success, if the gateway does not answer a health check either |
| unconnected | without a gateway: one site cannot be connected to | after a window without a success, from five hosts, if no site that answered before can be connected to either |
| alive | any other response | never: it closes the breaker |
| none | says nothing about the gateway | never |

While the breaker is open only single probes start, with growing intervals. The first `alive` closes it.

A target host is at fault if its call failed before a successful call of another host began. For ten
minutes its failures are ordinary failures of its tasks and do not open the breaker. The same holds
for a host whose errors are still unexplained ten minutes after the breaker opened, although the
gateway answers a health check. Without both rules a single page that a working gateway cannot
explain would keep its run waiting for ever.

`RefusedGatewayKeys` is the same idea for one gateway key: the gateway works, but refuses the key
because it is not valid or its account cannot pay.

Nothing here does I/O or reads a clock: `now` is a monotonic time in seconds.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from hashlib import sha256

import msgspec

from conveyor.domain.failure import AccountReason

WINDOW = 5.0  # seconds without a success before failures are the gateway's
FEWEST_HOSTS = 5  # target hosts that must fail, so that none of them is to blame
EVIDENCE_LIFE = 300.0  # seconds for which a failure counts
CONFIRMED_FOR = 60.0  # seconds for which the gateway is trusted after it answered for itself
FIRST_INTERVAL = 1.0  # seconds between the opening and the first probe; doubles with each probe
LONGEST_INTERVAL = 30.0
NEW_CALLER_WAIT = 1.0  # seconds after a probe until a caller without one may probe too
AT_FAULT_FOR = 600.0  # seconds after its last failure in which a host's failures are its own
UNEXPLAINED_FOR = 600.0  # seconds after which the gateway's own answer outweighs unexplained errors
MOST_REMEMBERED = 1_000  # hosts and callers


class HealthSignal(StrEnum):
    """What a call says about the gateway."""

    ALIVE = "alive"
    UNREACHABLE = "unreachable"
    UNEXPLAINED = "unexplained"
    BROKEN = "broken"
    UNCONNECTED = "unconnected"
    NONE = "none"


AMBIGUOUS = frozenset({HealthSignal.BROKEN, HealthSignal.UNCONNECTED})  # a target may be to blame
FAILURES = AMBIGUOUS | {HealthSignal.UNREACHABLE, HealthSignal.UNEXPLAINED}


class Diagnosis(Enum):
    """What must be done about the failures so far."""

    NOTHING = "nothing"
    ASK = "ask"  # send the gateway a health check
    OPEN = "open"


@dataclass(slots=True)
class Breaker:
    """The state of one gateway, small enough to be shared between processes."""

    opened_at: float | None = None
    cause: HealthSignal = HealthSignal.NONE  # of the opening
    next_probe_at: float = 0.0
    interval: float = FIRST_INTERVAL
    last_probe_at: float = 0.0
    failing: dict[str, tuple[HealthSignal, float]] = field(
        default_factory=dict
    )  # host, since a success
    failing_since: float = 0.0
    at_fault: dict[str, float] = field(default_factory=dict)  # host, until when
    healthy_until: float = 0.0
    probed: dict[str, float] = field(default_factory=dict)  # callers and hosts, in this outage

    @property
    def is_open(self) -> bool:
        return self.opened_at is not None

    def failed(self, now: float, signal: HealthSignal, host: str) -> bool:
        """Count a failed call. Return False if the target host is to blame, not the gateway."""
        if signal is HealthSignal.UNREACHABLE:
            self.open(now, signal)
        elif now < self.at_fault.get(host, 0.0):
            self._mark_at_fault(host, now)
            return False
        elif signal in AMBIGUOUS and now < self.healthy_until:
            return False
        else:
            if not self.failing:
                self.failing_since = now
            # More hosts would change no decision: five are enough to open the breaker.
            if host in self.failing or len(self.failing) < MOST_REMEMBERED:
                self.failing[host] = signal, now
        return True

    def answered(self, host: str, begun: float) -> None:
        """Record that a call that began at `begun` was answered: the gateway works.

        Hosts whose calls failed before `begun` are at fault. A call that was already running at the
        time of a failure proves nothing about it: the gateway may have failed in between.
        """
        for other, (_, failed_at) in self.failing.items():
            if other != host and failed_at < begun:
                self._mark_at_fault(other, begun)
        self.at_fault.pop(host, None)
        self.close()

    def diagnose(self, now: float, hosts_in_play: int) -> Diagnosis:
        """What to do about the failures, once no call has succeeded for `WINDOW`."""
        fresh = {host: one for host, one in self.failing.items() if now - one[1] < EVIDENCE_LIFE}
        self.failing = fresh
        if self.is_open or not fresh or now - self.failing_since < WINDOW:
            return Diagnosis.NOTHING
        unexplained = sum(signal is HealthSignal.UNEXPLAINED for signal, _ in fresh.values())
        if unexplained >= FEWEST_HOSTS or (unexplained and hosts_in_play < FEWEST_HOSTS):
            return Diagnosis.OPEN
        # One broken host is reason enough to ask the gateway, which costs one request. One site that
        # cannot be connected to is normal; several at once may be this machine's network.
        broken = any(signal is HealthSignal.BROKEN for signal, _ in fresh.values())
        return Diagnosis.ASK if broken or len(fresh) >= FEWEST_HOSTS else Diagnosis.NOTHING

    def is_worth_asking(self, now: float, signal: HealthSignal) -> bool:
        """Whether to send the gateway a health check after a probe failed."""
        waited = now - self.opened_at if self.opened_at is not None else 0.0
        return signal in AMBIGUOUS or waited >= UNEXPLAINED_FOR

    def confirm_healthy(self, now: float) -> None:
        """Record that the gateway answered a health check: only some targets fail."""
        self.healthy_until = now + CONFIRMED_FOR
        if self.opened_at is not None and now - self.opened_at >= UNEXPLAINED_FOR:
            for host in self.failing:
                self._mark_at_fault(host, now)
        self.close()

    def open(self, now: float, cause: HealthSignal) -> None:
        if self.is_open:
            return
        self.opened_at, self.cause = now, cause
        self.interval = FIRST_INTERVAL
        self.last_probe_at, self.next_probe_at = now, now + FIRST_INTERVAL

    def probe_at(self, caller: str) -> float:
        """When a task of this caller may start as a probe.

        While the gateway can be reached, the tasks of the callers that probed may be to blame. So a
        caller that has not probed yet need not wait for the next interval.
        """
        if self.cause is HealthSignal.UNREACHABLE or caller in self.probed:
            return self.next_probe_at
        return min(self.next_probe_at, self.last_probe_at + NEW_CALLER_WAIT)

    def probe(self, now: float, caller: str, host: str) -> None:
        """Record that a probe starts. The interval to the next one doubles."""
        self.last_probe_at = now
        self.interval = min(self.interval * 2, LONGEST_INTERVAL)
        self.next_probe_at = now + self.interval
        if len(self.probed) >= MOST_REMEMBERED:
            self.probed.clear()
        self.probed[caller] = self.probed[host] = now

    def _mark_at_fault(self, host: str, now: float) -> None:
        self.at_fault.pop(host, None)  # so that the dict stays in order of the latest failure
        self.at_fault[host] = now + AT_FAULT_FOR
        if len(self.at_fault) > MOST_REMEMBERED:
            del self.at_fault[next(iter(self.at_fault))]

    def close(self) -> None:
        """Record that the gateway works, as a call or another process has shown."""
        self.failing.clear()
        if self.is_open:
            self.opened_at, self.cause = None, HealthSignal.NONE
            self.probed.clear()


# Refused gateway keys.

FRESH = 3.0  # seconds for which a refusal is believed; then the gateway is asked again
MOST_KEPT = 10_000  # keys; beyond that the key whose latest refusal is oldest is forgotten


def gateway_key_digest(key: str) -> str:
    """Identify a gateway key without revealing it."""
    return sha256(b"conveyor gateway key\0" + key.encode()).hexdigest()


class RefusedGatewayKey(msgspec.Struct, frozen=True, kw_only=True):
    """Why and since when the gateway refuses a gateway key."""

    reason: AccountReason
    detail: str
    since: datetime  # of the first refusal
    since_monotonic: float  # the same moment
    refused_at: float  # of the latest


@dataclass(slots=True)
class RefusedGatewayKeys:
    """Gateway keys that the gateway refuses, by digest.

    A key is refused from a 401 or 402 until a call that began later is served.
    """

    known: dict[str, RefusedGatewayKey] = field(default_factory=dict)  # by digest

    def get(self, digest: str) -> RefusedGatewayKey | None:
        return self.known.get(digest)

    def refuse(
        self, digest: str, reason: AccountReason, detail: str, now: float, date: datetime
    ) -> None:
        """Record a refusal; `now` and `date` are the same moment."""
        before = self.known.pop(digest, None)
        if len(self.known) >= MOST_KEPT:
            del self.known[next(iter(self.known))]
        self.known[digest] = RefusedGatewayKey(
            reason=reason,
            detail=detail,
            since=before.since if before else date,
            since_monotonic=before.since_monotonic if before else now,
            refused_at=now,
        )

    def serve(self, digest: str, begun: float) -> bool:
        """Record that a call was served; return whether that ends a refusal.

        A call that began before the latest refusal proves nothing: the account may have run out of
        credits in between.
        """
        refused = self.known.get(digest)
        if refused is None or begun <= refused.refused_at:
            return False
        del self.known[digest]
        return True
