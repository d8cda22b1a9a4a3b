"""The gateway goes away in the middle of a run: in time that does not wait, hours pass in seconds."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.domain.breaker import Breaker, HealthSignal
from conveyor.domain.counts import Spend
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.problem import encoded, problem
from conveyor.domain.progress import WaitReason
from conveyor.domain.run import PauseState, Run, RunStatus
from conveyor.domain.task import Task, TaskSpec, TaskStatus, new_tasks
from conveyor.errors import Unavailable
from conveyor.ports.bodies import Spool
from conveyor.ports.gateway import GatewayRefusal, Page, PageRequest
from conveyor.steps.complete import Complete
from conveyor.steps.dispatch.claimer import Claimer
from conveyor.steps.dispatch.dispatcher import Dispatcher
from conveyor.steps.dispatch.permits import permit_name
from conveyor.steps.scrape import Scrape
from conveyor.steps.settle import Settle
from conveyor.steps.shared.notifier import Notifier, Topic
from conveyor.testing.clock import FakeIds
from conveyor.testing.factories import a_job, a_run, gateway_refusal
from conveyor.testing.memory.bodies import MemoryBodies
from conveyor.testing.memory.metadata import MemoryMetadata
from conveyor.testing.memory.rows import Rows
from conveyor.testing.memory.tasks import MemoryTasks
from conveyor.testing.memory.work import MemoryWork
from tests.harness import time_lapse
from tests.harness.permits import reserve
from tests.harness.time_lapse import LapseClock

LEASE = timedelta(seconds=30)
HOUR = 3600.0
PRICE = Spend(credits=1, nanos=280_000)
A_PAGE_TAKES = 0.5  # seconds


class Outcome(NamedTuple):
    """How a row ended, apart from when."""

    place: int
    status: TaskStatus
    attempts: int
    checksum: str | None
    reason: str | None


@dataclass(slots=True)
class Weather:
    """A gateway that can be taken away, in one way or another, or for some targets only."""

    clock: LapseClock
    signal: HealthSignal | None = None  # of every call, while the gateway is away
    lasting: float = A_PAGE_TAKES
    bad: Callable[[str], bool] = lambda _: False  # targets that it never serves
    bad_signal: HealthSignal = HealthSignal.BROKEN  # of calls for those
    calls: list[float] = field(default_factory=list)  # when each began
    hosts: list[str] = field(default_factory=list)
    breaker: Breaker | None = None
    while_open: int = 0  # calls that began although the breaker was open

    async def fetch(
        self, request: PageRequest, spool: Callable[[], Spool]
    ) -> Page | GatewayRefusal:
        self.calls.append(self.clock.monotonic())
        self.while_open += bool(self.breaker and self.breaker.is_open)
        self.hosts.append(request.url.split("/")[2])
        if self.signal is HealthSignal.UNREACHABLE:
            return refusal(self.signal)
        if self.bad(request.url):
            await asyncio.sleep(0.01)
            return refusal(self.bad_signal)
        await asyncio.sleep(self.lasting)
        if self.signal:
            return refusal(self.signal)
        return Page(content=request.url.encode(), spend=PRICE)

    async def check_health(self) -> bool:
        await asyncio.sleep(0.01)
        return self.signal is None

    def since(self, moment: float) -> list[float]:
        return [at for at in self.calls if at >= moment]


def refusal(signal: HealthSignal) -> GatewayRefusal:
    text = encoded(problem(status=502, code="gateway_unreachable", detail="No answer."))
    return gateway_refusal(502, "gateway_unreachable", problem=text, signal=signal)


class Service:
    """One worker over engines in memory, with the real steps."""

    def __init__(self) -> None:
        self.clock = LapseClock()
        self.weather = Weather(self.clock)
        self.rows = Rows(self.clock, LEASE)
        self.metadata = MemoryMetadata(self.clock)
        self.encryption = AesKeyRing(bytes(32))
        self.tasks = MemoryTasks(self.rows)
        self.coordination = MemoryCoordination(self.clock, lease=LEASE)
        work, bodies = MemoryWork(self.rows), MemoryBodies()
        complete = Complete(
            metadata=self.metadata,
            tasks=self.tasks,
            work=work,
            clock=self.clock,
            ids=FakeIds(),
            notifier=Notifier(),
        )
        settle = Settle(
            metadata=self.metadata,
            tasks=self.tasks,
            work=work,
            bodies=bodies,
            clock=self.clock,
            ids=complete.ids,
            check_completion=complete.check_completion,
            notifier=complete.notifier,
        )
        self.dispatcher = Dispatcher(
            metadata=self.metadata,
            work=work,
            coordination=self.coordination,
            encryption=self.encryption,
            clock=self.clock,
            attempt=Scrape(gateway=self.weather, bodies=bodies, clock=self.clock).attempt,
            settle=settle.settle,
            settle_final=settle.settle_final,
            check_gateway=self.weather.check_health,
        )
        complete.notifier.on(Topic.RUNS, self.dispatcher.discovery.notified)
        self.weather.breaker = self.dispatcher.health.breaker

    async def submit(self, number: int, urls: list[str], *, retries: int = 3) -> RunId:
        """A run of these pages, of a caller of its own."""
        caller, job_id = CallerId(f"caller{number}"), JobId(f"01ARZ3NDEKTSV4RRFFQ69G5F{number:02}")
        run_id = RunId(f"01ARZ3NDEKTSV4RRFFQ69G5R{number:02}")
        job = replace(
            a_job(
                id=job_id,
                max_inflight=100,
                retries=retries,
                encrypted_gateway_key=self.encryption.encrypt(
                    f"key{number}", context=f"{caller}|{job_id}"
                ),
            ),
            caller=caller,
            latest_run_id=run_id,
        )
        count = len(urls)
        run = replace(
            a_run(id=run_id, total=count, next_index=count, last_batch_received=True),
            caller=caller,
            job_id=job_id,
        )
        await self.tasks.lay_out(run_id, job.place)
        await self.tasks.add(run_id, new_tasks(run_id, 0, [TaskSpec(url=url) for url in urls]))
        await self.metadata.commit(job, run)
        self.dispatcher.wake(run_id)
        return run_id

    async def run(self, run_id: RunId) -> Run:
        run = await self.metadata.get(Run, run_id)
        assert run is not None
        return run

    async def ended(self, run_id: RunId, within: float) -> float:
        """Wait until a run has ended, and say when that was."""
        async with asyncio.timeout(within):
            while (await self.run(run_id)).is_live:  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0.1)
        return self.clock.monotonic()

    def outcomes(self, run_id: RunId) -> list[Outcome]:
        return [_outcome(task) for task in self.rows.of_run(run_id)]


def _outcome(task: Task) -> Outcome:
    checksum = task.result.checksum if task.result else None
    return Outcome(task.index, task.status, task.attempts, checksum, task.reason)


def pages(count: int, hosts: int = 50) -> list[str]:
    return [f"https://site{number % hosts}.example/{number}" for number in range(count)]


@contextmanager
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is written to the log from `info` on; otherwise simulations are silent."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with capture_logs() as logs:
        yield logs
    structlog.configure(**before)


def lived(story: Callable[[Service], object]) -> None:
    """A story of one service, told while its dispatcher is at work."""

    async def main() -> None:
        service, stopping = Service(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(service.dispatcher.run(stopping))
            try:
                await story(service)  # type: ignore[misc]  # a coroutine
            finally:
                stopping.set()

    time_lapse.run(main())


def _undisturbed(urls: list[str]) -> tuple[list[Outcome], Spend]:
    found: list[tuple[list[Outcome], Spend]] = []

    async def story(service: Service) -> None:
        run_id = await service.submit(1, urls)
        await service.ended(run_id, HOUR)
        found.append((service.outcomes(run_id), service.rows.counts(run_id).spend))

    lived(story)
    return found[0]


@pytest.mark.parametrize("count", [4_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_run_outlives_an_hour_without_the_gateway(count: int) -> None:
    urls = pages(count)
    undisturbed = _undisturbed(urls)

    async def story(service: Service) -> None:
        weather, breaker = service.weather, service.dispatcher.health.breaker
        run_id = await service.submit(1, urls)
        while service.rows.counts(run_id).done < count * 0.35:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.1)

        weather.signal = HealthSignal.UNREACHABLE
        began = service.clock.monotonic()
        await asyncio.sleep(1)
        opened = breaker.opened_at
        assert opened is not None
        assert opened - began < 1
        with logged() as logs:
            await asyncio.sleep(HOUR - 1)
        weather.signal = None
        lines = [line for line in logs if line["event"] == "gateway.unavailable"]
        assert 55 <= len(lines) <= 61
        assert len(logs) < 130  # and a line a minute of the calls that were refused

        waiting = service.dispatcher.waiting(run_id)
        assert waiting is not None
        assert waiting.reason is WaitReason.GATEWAY_UNAVAILABLE
        assert abs((service.clock.now() - waiting.since).total_seconds() - HOUR) < 2
        assert waiting.next_attempt_at is not None
        assert waiting.next_attempt_at > service.clock.now()

        while breaker.is_open:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)
        back = service.clock.monotonic()
        assert back - began < HOUR + 31
        assert 100 < weather.while_open <= 150
        assert service.dispatcher.waiting(run_id) is None
        await asyncio.sleep(1)
        assert len(weather.since(back)) >= 100  # `max_inflight` of them are under way again

        await service.ended(run_id, HOUR)
        assert (await service.run(run_id)).status is RunStatus.COMPLETED
        counts = service.rows.counts(run_id)
        assert (counts.failed, counts.successful) == (0, count)
        assert (service.outcomes(run_id), counts.spend) == undisturbed

    lived(story)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When each round of the claim loops began."""
    began: list[float] = []
    claim_round = Claimer.claim_round

    async def counted(self: Claimer, *groups: asyncio.TaskGroup) -> int:
        began.append(self.clock.monotonic())
        return await claim_round(self, *groups)

    monkeypatch.setattr(Claimer, "claim_round", counted)
    return began


def test_the_claim_loops_are_idle_between_two_probes(rounds: list[float]) -> None:
    async def story(service: Service) -> None:
        await service.submit(1, pages(1_000))
        await asyncio.sleep(2)
        service.weather.signal = HealthSignal.UNREACHABLE
        await asyncio.sleep(60)
        rounds.clear()
        began = service.clock.monotonic()

        await asyncio.sleep(600)

        probes = service.weather.since(began)
        assert 20 <= len(probes) <= 21
        assert len(rounds) <= 12 * len(probes)
        assert all(any(abs(at - probe) < 1 for probe in probes) for at in rounds)

    lived(story)


def test_the_claim_loops_are_idle_in_an_outage_with_nothing_due(rounds: list[float]) -> None:
    async def story(service: Service) -> None:
        run_id = await service.submit(1, pages(1_000))
        await asyncio.sleep(2)
        service.weather.signal = HealthSignal.UNREACHABLE
        await asyncio.sleep(60)
        paused = replace(await service.run(run_id), pause_state=PauseState.PAUSED)
        await service.metadata.commit(paused)
        service.dispatcher.wake(run_id)
        await asyncio.sleep(1)
        rounds.clear()
        began = service.clock.monotonic()

        await asyncio.sleep(600)

        assert not service.weather.since(began)
        assert len(rounds) <= 3 * 600 / 30

        resumed = replace(await service.run(run_id), pause_state=PauseState.ACTIVE)
        await service.metadata.commit(resumed)
        service.weather.signal = None
        service.dispatcher.wake(run_id)
        await asyncio.sleep(1)
        assert len(service.weather.since(began)) > 100

    lived(story)


def test_resets_and_bare_errors_of_all_hosts_open_it_and_charge_nobody() -> None:
    for signal in (HealthSignal.BROKEN, HealthSignal.UNEXPLAINED):
        _outage_of(signal, pages(2_000))


def test_an_outage_is_the_gateways_own_when_few_hosts_are_in_play_too() -> None:
    _outage_of(HealthSignal.UNEXPLAINED, pages(2_000, hosts=2))
    _outage_of(HealthSignal.BROKEN, pages(2_000, hosts=1))


def _outage_of(signal: HealthSignal, urls: list[str]) -> None:
    async def story(service: Service) -> None:
        weather, breaker = service.weather, service.dispatcher.health.breaker
        run_id = await service.submit(1, urls, retries=0)
        await asyncio.sleep(5)
        weather.signal = signal
        await asyncio.sleep(15)
        assert breaker.is_open
        await asyncio.sleep(HOUR / 2)
        assert weather.while_open <= 75
        weather.signal = None
        await service.ended(run_id, HOUR)
        assert {one.status for one in service.outcomes(run_id)} == {TaskStatus.SUCCESSFUL}
        assert {one.attempts for one in service.outcomes(run_id)} == {1}

    lived(story)


def test_a_caller_whose_every_page_breaks_delays_nobody_and_its_run_ends() -> None:
    bad = [f"https://bad{number}.example/" for number in range(300)]

    async def story(service: Service) -> None:
        service.weather.bad = lambda url: "bad" in url
        alone = await service.submit(1, pages(3_000))
        took_alone = await service.ended(alone, HOUR)

        broken = await service.submit(2, bad)
        await asyncio.sleep(20)  # it has the service to itself for a while
        began = service.clock.monotonic()
        good = await service.submit(3, pages(3_000))
        took = await service.ended(good, HOUR) - began
        assert took < took_alone + 3
        await service.ended(broken, 600)
        assert {one.status for one in service.outcomes(broken)} == {TaskStatus.FAILED}
        assert {one.attempts for one in service.outcomes(broken)} == {4}
        assert {one.status for one in service.outcomes(good)} == {TaskStatus.SUCCESSFUL}

    lived(story)


def test_a_page_with_a_bare_error_fails_by_itself_while_others_succeed() -> None:
    async def story(service: Service) -> None:
        service.weather.bad, service.weather.bad_signal = (
            lambda url: "bad" in url,
            HealthSignal.UNEXPLAINED,
        )
        poisoned = await service.submit(1, [*pages(50), "https://bad.example/"])
        for number in range(2, 10):  # another caller with a page now and then
            other = await service.submit(number, pages(1))
            took = await service.ended(other, 60)
            assert took
            await asyncio.sleep(10)
        await service.ended(poisoned, 300)
        counts = service.rows.counts(poisoned)
        assert (counts.successful, counts.failed) == (50, 1)

    lived(story)


def test_pages_with_bare_errors_and_nobody_beside_them_end_after_a_patience() -> None:
    async def story(service: Service) -> None:
        service.weather.bad, service.weather.bad_signal = (
            lambda url: "bad" in url,
            HealthSignal.UNEXPLAINED,
        )
        bad = [f"https://bad{number}.example/" for number in range(20)]
        run_id = await service.submit(1, [*pages(50), *bad])
        await service.ended(run_id, HOUR)
        counts = service.rows.counts(run_id)
        assert (counts.successful, counts.failed) == (50, 20)

    lived(story)


def test_pages_that_break_at_the_end_of_a_list_do_not_keep_its_run_alive() -> None:
    async def story(service: Service) -> None:
        service.weather.bad = lambda url: "bad" in url
        bad = [f"https://bad{number}.example/" for number in range(30)]
        run_id = await service.submit(1, [*pages(500), *bad])
        await service.ended(run_id, 600)
        counts = service.rows.counts(run_id)
        assert (counts.successful, counts.failed) == (500, 30)

    lived(story)


def test_probes_go_round_callers_and_hosts() -> None:
    async def story(service: Service) -> None:
        weather = service.weather
        weather.signal = HealthSignal.UNREACHABLE
        for number in (1, 2, 3):
            await service.submit(
                number, [f"https://of{number}.host{n % 9}.example/" for n in range(90)]
            )
        await asyncio.sleep(HOUR / 2)
        probes = weather.hosts[-27:]
        assert len({host.partition(".")[0] for host in probes}) == 3
        assert len(set(probes)) >= 20

    lived(story)


def test_a_stop_in_the_middle_of_an_outage_gives_everything_back_uncharged() -> None:
    async def main() -> None:
        service, stopping = Service(), asyncio.Event()
        run_id = await service.submit(1, pages(200), retries=0)
        async with asyncio.TaskGroup() as group:
            group.create_task(service.dispatcher.run(stopping))
            await asyncio.sleep(0.7)
            service.weather.signal = HealthSignal.BROKEN
            await asyncio.sleep(2)
            assert service.dispatcher.health.suspects
            stopping.set()
        outcomes = service.outcomes(run_id)
        assert {one.status for one in outcomes} == {TaskStatus.SUCCESSFUL, TaskStatus.PENDING}
        assert not service.dispatcher.inflight

    time_lapse.run(main())


def test_a_check_that_raises_is_no_answer_and_ends_nothing() -> None:
    async def story(service: Service) -> None:
        async def raises() -> bool:
            raise ZeroDivisionError

        run_id = await service.submit(1, pages(2_000), retries=0)
        await asyncio.sleep(5)
        service.dispatcher.health.check_gateway = raises
        service.weather.signal = HealthSignal.BROKEN
        with logged() as logs:
            await asyncio.sleep(60)
        assert service.dispatcher.health.breaker.is_open
        assert "step.bug" in {line["event"] for line in logs}
        service.weather.signal = None
        await service.ended(run_id, HOUR)
        assert {one.status for one in service.outcomes(run_id)} == {TaskStatus.SUCCESSFUL}

    lived(story)


def test_a_look_at_doubts_that_raises_does_not_end_the_dispatcher() -> None:
    async def story(service: Service) -> None:
        outage = service.dispatcher.health
        outage.suspects = None  # type: ignore[assignment]  # a bug of our own
        outage.needs_check.set()
        with logged() as logs:
            await asyncio.sleep(2)
        assert [line for line in logs if line["event"] == "step.bug"]
        outage.suspects = []
        run_id = await service.submit(1, pages(10))
        await service.ended(run_id, HOUR)

    lived(story)


def test_without_room_for_results_no_probe_is_made() -> None:
    async def story(service: Service) -> None:
        weather, dispatcher = service.weather, service.dispatcher
        run_id = await service.submit(1, pages(500))
        await asyncio.sleep(1)
        weather.signal = HealthSignal.UNREACHABLE
        await asyncio.sleep(1)
        assert dispatcher.health.breaker.is_open
        dispatcher.storage.closed_until = service.clock.monotonic() + 300
        before = weather.while_open
        await asyncio.sleep(299)
        assert weather.while_open == before
        weather.signal = None
        await service.ended(run_id, 60)

    lived(story)


def test_without_a_permit_no_task_is_claimed_for_a_probe() -> None:
    async def story(service: Service) -> None:
        weather, coordination = service.weather, service.coordination
        run_id = await service.submit(1, pages(500))
        await asyncio.sleep(1)
        weather.signal = HealthSignal.UNREACHABLE
        await asyncio.sleep(1)
        assert service.dispatcher.health.breaker.is_open
        job_id = (await service.run(run_id)).job_id
        permits = await reserve(coordination, job_id, want=100, cap=100)  # of another process
        assert len(permits) == 100

        before = _claims(service, run_id)
        for _ in range(10):
            await asyncio.sleep(LEASE.total_seconds() / 3)
            await coordination.renew({permit_name(job_id): permits})
        assert _claims(service, run_id) == before
        weather.signal = None
        await coordination.release({permit_name(job_id): permits})
        await service.ended(run_id, 120)

    lived(story)


def test_without_coordination_nothing_starts_and_an_empty_restart_changes_no_outcome() -> None:
    urls = pages(8_000)
    undisturbed = _undisturbed(urls)

    async def story(service: Service) -> None:
        coordination = service.coordination
        run_id = await service.submit(1, urls)
        await asyncio.sleep(5)
        with pytest.MonkeyPatch.context() as outage:
            for name in ("reserve", "renew", "release"):
                outage.setattr(coordination, name, _away)
            await asyncio.sleep(10)  # the next renewal fails within that time
            noticed = service.clock.monotonic()
            await asyncio.sleep(HOUR)
            assert service.weather.since(noticed) == []
            assert not any(entry.worker for entry in service.dispatcher.inflight.values())
        coordination._permits.clear()  # it has restarted empty
        back = service.clock.monotonic()
        await service.ended(run_id, 120)
        assert service.weather.since(back)[0] - back < 2
        assert service.outcomes(run_id) == undisturbed[0]
        assert service.rows.counts(run_id).spend == undisturbed[1]

    lived(story)


def test_a_renewal_that_failed_is_repeated_soon() -> None:
    async def story(service: Service) -> None:
        times, renew = list[float](), service.coordination.renew

        async def fail_once(permits: Mapping[str, Sequence[str]]) -> None:
            times.append(service.clock.monotonic())
            if len(times) == 1:
                raise Unavailable("away")
            await renew(permits)

        vars(service.coordination)["renew"] = fail_once
        service.weather.lasting = 60
        await service.submit(1, pages(100))
        await asyncio.sleep(25)
        assert times == pytest.approx([10, 11, 21], abs=0.5)

    lived(story)


async def _away(_permits: object) -> NoReturn:
    raise Unavailable("away")


def _claims(service: Service, run_id: RunId) -> int:
    return sum(task.claim_no for task in service.rows.of_run(run_id))
