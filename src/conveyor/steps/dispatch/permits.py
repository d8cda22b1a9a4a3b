"""Permits: reserve them before a claim, keep them between calls, release what is not used.

A permit of a job allows one of its calls, over all processes. Permits belong to a run and not to a
claim: of two claims under way, the first that the engine answers starts its calls with them. Where
processes share coordination, a call also needs a permit of its gateway key, of which there are as many
as the limit of the key (`KeyPermits`). Both are reserved in one call.

While coordination is unavailable no call starts, also not with the permit of a call that ends: an
engine that has restarted empty may have granted it to another process. That is known from a failed
call of the engine, at the latest the next renewal, until one succeeds. For the same reason a failed
call ends the use of all idle permits; they are released once the engine answers.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from conveyor.domain.ids import JobId, RunId
from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Coordination, PermitRequest
from conveyor.steps.dispatch.active_run import ActiveRun, ClaimGrant, InFlight
from conveyor.steps.dispatch.gateway_keys import GatewayKeyState

PROBE = "gateway-probe"
KEY_PERMIT_WAIT = 0.25  # seconds for which a key without a permit is not asked for more

HostPermits = dict[tuple[ActiveRun, str], list[str]]  # of the hosts of runs


def permit_name(job_id: JobId) -> str:
    """Return the name under which the permits of a job are counted."""
    return f"job:{job_id}"


def key_permit_name(digest: str) -> str:
    """Return the name under which the permits of a gateway key are counted."""
    return f"key:{digest}"


def host_permit_name(job_id: JobId, host: str) -> str:
    """Return the name under which the calls of a job to a host are counted."""
    return f"host:{job_id}/{host}"


@dataclass(slots=True, kw_only=True)
class Permits:
    coordination: Coordination
    clock: Clock
    lease: timedelta
    runs: Mapping[RunId, ActiveRun] = field(default_factory=dict)  # that this process serves
    renewed_at: float = field(init=False)  # every permit was renewed or reserved since
    is_unavailable: bool = False  # the engine did not answer the last call
    # Idle permits of the time before the engine failed, to be released.
    overdue: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.renewed_at = self.clock.monotonic()

    async def reserve(self, grants: Mapping[ActiveRun, ClaimGrant]) -> dict[ActiveRun, int]:
        """Reserve permits for the calls of a claim; return how many each run has."""
        if self.overdue or self._may_have_lapsed():
            await self.release_idle(grants)
        elif cut := [run for run in grants if run.idle_permits and _must_reserve(run)]:
            await self.release_idle(cut)  # they would keep new ones from being granted
        now, free = self.clock.monotonic(), _free_key_permits(grants)
        allowed = _allowed(grants, free, now)
        have = {
            run: min(run.free_permits(grants[run].calls), calls) for run, calls in allowed.items()
        }
        wants = _wants(allowed, have, free)
        if not wants and self.is_unavailable:
            raise Unavailable("coordination did not answer the last call: nothing is prefetched")
        reserved: Mapping[str, Sequence[str]] = {}
        if wants:
            with self._noticing():
                reserved = await self.coordination.reserve(wants)
        left = {name: list(ids) for name, ids in reserved.items()}
        for run, calls in allowed.items():
            of_job, missing = left.get(permit_name(run.job.id), []), calls - have[run]
            ids, of_job[:missing] = of_job[:missing], []
            run.add_permits(ids)
            have[run] += len(ids)
        for key in free:
            name = key_permit_name(key.digest)
            if name in wants and len(reserved.get(name, ())) < wants[name].want:
                assert key.permits is not None
                key.permits.full_until = now + KEY_PERMIT_WAIT
        if free:
            await self._match(grants, have, free, reserved)
        return have

    async def _match(
        self,
        grants: Mapping[ActiveRun, ClaimGrant],
        have: dict[ActiveRun, int],
        free: Mapping[GatewayKeyState, int],
        reserved: Mapping[str, Sequence[str]],
    ) -> None:
        """Limit what runs have to the permits of their gateway keys; release the others."""
        left = Counter(free)
        for key in free:
            ids = reserved.get(key_permit_name(key.digest), ())
            assert key.permits is not None
            key.permits.idle += ids
            left[key] += len(ids)
            if ids:
                key.permits.must_reserve = False
        without_key: list[ActiveRun] = []
        for run in grants:
            usable = min(have[run], left[run.key_state])
            left[run.key_state] -= usable
            if usable < have[run]:
                without_key.append(run)
            have[run] = usable
        permits: dict[str, list[str]] = defaultdict(list)
        for run in without_key:
            keep = run.pending - grants[run].calls + have[run]
            permits[permit_name(run.job.id)] += run.take_idle_permits(keep=max(keep, 0))
        await self._release(_with_surplus(permits, grants))

    async def reserve_hosts(self, counts: Mapping[tuple[ActiveRun, str], int]) -> HostPermits:
        """Reserve permits of so many calls to hosts, for runs that share `max_per_host`.

        None is granted while the engine does not answer: the tasks wait, and it is asked again.
        """
        wants: dict[str, PermitRequest] = {}
        for (run, host), count in counts.items():
            name = host_permit_name(run.job.id, host)
            asked = wants.get(name, PermitRequest(0, 0)).want  # for another run of the job
            wants[name] = PermitRequest(asked + count, run.job.max_per_host or 0)
        reserved: Mapping[str, Sequence[str]] = {}
        with suppress(Unavailable), self._noticing():
            reserved = await self.coordination.reserve(wants)
        left = {name: list(ids) for name, ids in reserved.items()}
        granted: HostPermits = {}
        for (run, host), count in counts.items():
            ids = left.get(host_permit_name(run.job.id, host), [])
            granted[run, host], ids[:count] = ids[:count], []
        return granted

    async def reserve_keys(self, hosts: HostPermits) -> Mapping[GatewayKeyState, list[str]]:
        """Reserve a permit of its gateway key for each call that has one of its host."""
        counts: Counter[GatewayKeyState] = Counter()
        for (run, _), ids in hosts.items():
            counts[run.key_state] += len(ids)
        wants = {
            key_permit_name(key.digest): PermitRequest(count, key.limiter.cap)
            for key, count in counts.items()
            if count
        }
        reserved: Mapping[str, Sequence[str]] = {}
        if wants:
            with suppress(Unavailable), self._noticing():
                reserved = await self.coordination.reserve(wants)
        return {key: list(reserved.get(key_permit_name(key.digest), ())) for key in counts}

    async def release_unused(
        self, hosts: HostPermits, of_keys: Mapping[GatewayKeyState, list[str]]
    ) -> None:
        """Release what was reserved for tasks that waited for their hosts and did not start."""
        permits: dict[str, list[str]] = defaultdict(list)
        for (run, host), ids in hosts.items():
            permits[host_permit_name(run.job.id, host)] += ids
        for key, ids in of_keys.items():
            permits[key_permit_name(key.digest)] += ids
        await self._release(permits)

    async def reserve_probe(self) -> str | None:
        """Reserve the only permit to probe the gateway, if no process has it."""
        with self._noticing():
            reserved = await self.coordination.reserve({PROBE: PermitRequest(1, 1)})
        return next(iter(reserved.get(PROBE, ())), None)

    async def release_probe(self, permit: str) -> None:
        await self._release({PROBE: [permit]})

    async def give_back(self, runs: Iterable[ActiveRun], *, short: Iterable[ActiveRun]) -> None:
        """Release what a claim of `runs` reserved and does not use, except for other pending claims.

        Those of `short` had too few tasks. Tasks that wait for their hosts use no permit of the key.
        """
        permits: dict[str, list[str]] = defaultdict(list)
        for run in short:
            permits[permit_name(run.job.id)] += run.take_idle_permits(keep=run.pending)
        await self._release(_with_surplus(permits, runs))

    async def release_idle(self, runs: Iterable[ActiveRun]) -> None:
        """Release the permits of runs that no call uses."""
        await self.release_after([], runs)

    async def release_after(
        self, settled: Iterable[InFlight], resting: Iterable[ActiveRun]
    ) -> None:
        """Release the permits of settled tasks, and those of runs that cannot use theirs."""
        await self._release(_idle_of(resting, _by_name(settled)))

    async def renew(self, inflight: Iterable[InFlight]) -> None:
        """Renew the permits of calls, and those that are kept for the next ones."""
        now, lapsed = self.clock.monotonic(), dict[str, list[str]]()
        # A renewal takes lapsed permits again, over the cap if necessary. That is right for a call
        # that runs, and wrong for a permit that no call uses.
        if self._may_have_lapsed():
            lapsed = _idle_of(self.runs.values())
        permits = self._held(inflight)
        try:
            if permits:
                with self._noticing():
                    await self.coordination.renew(permits)
            self.renewed_at = now
        finally:
            # A permit that was released during the call may have been renewed after that.
            held = self._held(inflight)
            for name, ids in permits.items():
                lapsed.setdefault(name, []).extend(set(ids).difference(held.get(name, ())))
            await self._release(lapsed)

    def _held(self, inflight: Iterable[InFlight]) -> dict[str, list[str]]:
        """All permits that this process uses or keeps, by name."""
        permits = _by_name(inflight)
        for run in self.runs.values():
            if run.idle_permits:
                permits[permit_name(run.job.id)] += run.idle_permits
        for key in _keys(self.runs.values()):
            if key.permits and key.permits.idle:
                permits[key_permit_name(key.digest)] += key.permits.idle
        return permits

    def _may_have_lapsed(self) -> bool:
        """Whether idle permits may have lapsed: no renewal succeeded for a whole lease."""
        return self.clock.monotonic() - self.renewed_at >= self.lease.total_seconds()

    async def _release(self, permits: Mapping[str, list[str]]) -> None:
        overdue, self.overdue = self.overdue, {}
        held = {name: ids for name, ids in permits.items() if ids}
        for name, ids in overdue.items():
            held[name] = held.get(name, []) + ids
        with suppress(Unavailable):  # without a renewal they lapse
            if held:
                with self._noticing():
                    await self.coordination.release(held)

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Notice whether the engine answers."""
        try:
            yield
        except Unavailable:
            self.is_unavailable = True
            for name, ids in _idle_of(self.runs.values()).items():
                self.overdue.setdefault(name, []).extend(ids)
            raise
        self.is_unavailable = False


def _free_key_permits(grants: Mapping[ActiveRun, ClaimGrant]) -> dict[GatewayKeyState, int]:
    """The idle permits of each gateway key that the claim may use; empty if keys have none."""
    calls: Counter[GatewayKeyState] = Counter()
    for run, grant in grants.items():
        if run.key_state.permits is not None:
            calls[run.key_state] += grant.calls
    return {key: key.permits.free(count) for key, count in calls.items() if key.permits is not None}


def _must_reserve(run: ActiveRun) -> bool:
    of_key = run.key_state.permits
    return of_key is not None and of_key.must_reserve


def _allowed(
    grants: Mapping[ActiveRun, ClaimGrant], free: Mapping[GatewayKeyState, int], now: float
) -> dict[ActiveRun, int]:
    """The calls to reserve permits for: of a key that had none left, those with idle permits.

    Otherwise each call that ends would ask for all permits that other processes hold.
    """
    left, allowed = dict(free), dict[ActiveRun, int]()
    for run, (calls, _) in grants.items():
        of_key = run.key_state.permits
        if of_key is not None and now < of_key.full_until:
            allowed[run] = min(calls, left[run.key_state])
            left[run.key_state] -= allowed[run]
        else:
            allowed[run] = calls
    return allowed


def _wants(
    allowed: Mapping[ActiveRun, int],
    have: Mapping[ActiveRun, int],
    free: Mapping[GatewayKeyState, int],
) -> dict[str, PermitRequest]:
    """What must be reserved of jobs and gateway keys."""
    wants: dict[str, PermitRequest] = {}

    def want(name: str, count: int, cap: int) -> None:
        asked = wants.get(name, PermitRequest(0, 0)).want  # for another run
        if count > 0:
            wants[name] = PermitRequest(asked + count, cap)

    of_key: Counter[GatewayKeyState] = Counter()
    for run, calls in allowed.items():
        want(permit_name(run.job.id), calls - have[run], run.job.max_inflight)
        of_key[run.key_state] += calls
    for key, count in free.items():
        want(key_permit_name(key.digest), of_key[key] - count, key.limiter.cap)
    return wants


def _by_name(entries: Iterable[InFlight]) -> dict[str, list[str]]:
    permits: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        if entry.permit:
            permits[permit_name(entry.run.job.id)].append(entry.permit)
        if entry.key_permit:
            permits[key_permit_name(entry.run.key_state.digest)].append(entry.key_permit)
        if entry.host_permit:
            host = entry.task.spec.host
            permits[host_permit_name(entry.run.job.id, host)].append(entry.host_permit)
        if entry.probe_permit:
            permits[PROBE].append(entry.probe_permit)
    return permits


def _idle_of(
    runs: Iterable[ActiveRun], permits: dict[str, list[str]] | None = None
) -> dict[str, list[str]]:
    """Take the idle permits of runs, and add them to `permits`."""
    taken: dict[str, list[str]] = defaultdict(list) if permits is None else permits
    runs = list(runs)
    for run in runs:
        if run.idle_permits:
            taken[permit_name(run.job.id)] += run.take_idle_permits()
    return _with_surplus(taken, runs)


def _with_surplus(permits: dict[str, list[str]], runs: Iterable[ActiveRun]) -> dict[str, list[str]]:
    """Add the permits of gateway keys that no idle permit of a job is left for."""
    for key in _keys(runs):
        if key.permits is not None:
            permits[key_permit_name(key.digest)] += key.permits.take_surplus()
    return permits


def _keys(runs: Iterable[ActiveRun]) -> set[GatewayKeyState]:
    return {run.key_state for run in runs}
