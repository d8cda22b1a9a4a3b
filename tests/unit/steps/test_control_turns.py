"""Background work is shared between callers: in turns, in a bounded number of places each."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

import pytest

from conveyor.adapters.memory.control_queue import MemoryControlQueue
from conveyor.adapters.memory.coordination import MemoryCoordination
from conveyor.domain.batch import INGEST
from conveyor.domain.control_queue import ControlMessage, ControlSlots, SlotLimits
from conveyor.domain.ids import CallerId
from conveyor.domain.run import Run, RunStatus
from conveyor.domain.task_list.decompress import ListDecompressor
from conveyor.errors import Unavailable
from conveyor.ports.coordination import PermitRequest
from conveyor.steps.control import MOST_DELIVERIES, ControlWorker, Handler, SharedSlots
from conveyor.steps.shared.work_limits import TURN, Turn
from conveyor.testing.clock import FakeClock
from tests.harness.file_inputs import packed, small_chunks, submitted_list, urls
from tests.harness.memory_service import (
    CALLER,
    LEASE,
    SOON,
    STRANGER,
    House,
    a_call,
    a_house,
    ids_as_answer,
    ids_in,
    sized,
    until,
)

ROWS = 40
LIMITS = {"a kind": SlotLimits(slots=3, per_caller=2), "another": SlotLimits(slots=1, per_caller=1)}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)
    sized(monkeypatch, chunk_rows=4)


def slow(house: House, call: str = "tasks.add") -> None:
    """Let each call of a port take as long as a turn."""

    async def take_long() -> None:
        house.clock.advance(TURN)
        house.trace.before(call, 1, take_long)

    house.trace.before(call, 1, take_long)


# Turns.


async def test_a_long_list_goes_back_to_the_queue_after_each_turn_and_no_delivery_counts() -> None:
    house = a_house()
    _, run_id = await submitted_list(house, urls(ROWS))
    slow(house)

    turns = await house.handle_messages()

    run = await house.run(run_id)
    assert (run.status, run.total, run.is_cut) == (RunStatus.RUNNING, ROWS, False)
    assert turns > MOST_DELIVERIES
    assert house.trace.calls.count("control_queue.resend") == turns - 1
    assert not await house.control_queue.dead_letters(limit=9)


@pytest.mark.parametrize("statuses", [None, "failed,pending"], ids=["whole", "partial"])
async def test_a_copy_of_a_run_is_made_in_turns(statuses: str | None) -> None:
    house = a_house()
    job_id, _ = await house.submit(ROWS)
    await house.handle_messages()
    await house.lifecycle.stop(CALLER, job_id)
    again, retried, _ = await house.rerun(job_id, statuses)
    slow(house)

    turns = await house.handle_messages()

    assert (turns > 5, retried) == (True, ROWS)
    assert len(await house.rows(again)) == (await house.run(again)).total == ROWS


async def test_a_purge_is_done_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.steps.purge.CHUNK", 4)
    house = a_house()
    job_id, run_id = await house.submit(ROWS)
    await house.handle_messages()
    await house.delete.job(CALLER, job_id)
    slow(house, "tasks.discard")

    assert await house.handle_messages() > 5

    assert await house.metadata.get(Run, run_id) is None
    assert await house.rows(run_id) == []


async def test_a_small_list_has_its_turn_between_those_of_long_ones() -> None:
    house = a_house()
    for _ in range(6):
        await house.submit(ROWS)
    answer = await house.submit_job.submit(a_call(12, caller=STRANGER), ids_as_answer)
    _, small = ids_in(answer)
    slow(house)

    for _ in range(6):  # a turn of the small list, then one of another caller, and so on
        await house.control_worker.step()

    assert len(await house.rows(small)) == 12


async def test_the_turns_of_a_packed_list_take_at_most_twice_the_time_of_one_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each turn unpacks the list from its start, and then lasts at least as long as that took."""
    monkeypatch.setattr("conveyor.domain.task_list.decompress.STEP", 16)
    lines = [f"https://ok.example/{n:08x}{n * 7919:08x}\n" for n in range(400)]
    content = packed("".join(lines).encode())

    async def unpacked(lasting: timedelta) -> tuple[int, int]:
        """How many pieces are unpacked, each in half a second, and in how many turns."""
        house, count = a_house(), 0

        def slowly(_: ListDecompressor, __: bytes) -> None:
            nonlocal count
            house.clock.advance(timedelta(seconds=0.5))
            count += 1

        _, run_id = await submitted_list(house, content)
        with monkeypatch.context() as patch:
            patch.setattr(ListDecompressor, "_check_output", slowly)
            patch.setattr("conveyor.steps.control.Turn", partial(Turn, lasting=lasting))
            turns = await house.handle_messages()
        assert (await house.run(run_id)).total == len(lines)
        return count, turns

    once, turns = await unpacked(timedelta(hours=1))
    assert (turns, once > 30) == (1, True)
    in_turns, turns = await unpacked(TURN)
    assert turns > 4
    assert in_turns <= 2 * once + turns


def test_a_turn_lasts_as_long_as_it_took_to_find_its_place() -> None:
    clock = FakeClock()
    turn = Turn(clock)
    over = list[bool]()
    for moment in (10 * TURN, 9 * TURN, TURN):
        clock.advance(moment)
        turn.begin()
        over.append(turn.is_over)
    assert over == [False, False, True]


# ControlSlots.


def test_each_kind_has_places_of_its_own_and_each_caller_a_bounded_number() -> None:
    places = ControlSlots(LIMITS)
    assert (places.count, places.open_kinds(), places.full_groups()) == (4, None, frozenset())

    places.take(("another", "x"))
    assert places.open_kinds() == frozenset({"a kind"})
    places.free(("another", "x"))
    for _ in range(2):
        places.take(("a kind", "x"))
    assert (places.open_kinds(), places.full_groups()) == (None, frozenset({("a kind", "x")}))
    places.take(("a kind", "y"))
    assert places.open_kinds() == frozenset({"another"})

    places.free(("a kind", "x"))
    assert (places.open_kinds(), places.full_groups()) == (None, frozenset())
    assert places.served == [("another", "x"), ("a kind", "x"), ("a kind", "y")]


async def test_one_callers_messages_take_no_more_places_than_it_has() -> None:
    clock, control_queue = FakeClock(), MemoryControlQueue(FakeClock())
    working: Counter[str] = Counter()
    gate = asyncio.Event()

    async def do(payload: Mapping[str, str], _: Turn) -> None:
        working[payload["caller"]] += 1
        await gate.wait()

    async def give_up(_: Mapping[str, str]) -> None:
        raise AssertionError

    control = ControlWorker(
        control_queue, {INGEST: Handler(do, give_up, limits=SlotLimits(4, 2))}, clock
    )
    for nth in range(9):
        await control_queue.send(_message("greedy", nth))
    await control_queue.send(_message("modest", 9))
    async with asyncio.TaskGroup() as group:
        for _ in range(control.slots.count):
            group.create_task(control.step())
        await until(lambda: working.total() >= 3)
        assert working == {"greedy": 2, "modest": 1}
        assert await control.step() == 0  # there is a free place, and nobody who may have it
        gate.set()
    assert await control.step() == 1


def _message(caller: str, nth: int) -> ControlMessage:
    payload = {"caller": caller}
    return ControlMessage(kind=INGEST, subject=str(nth), caller=CallerId(caller), payload=payload)


# Several processes.


async def test_a_caller_has_its_slots_over_all_processes_and_no_delivery_counts() -> None:
    clock, under_way, most, gate = FakeClock(), Counter[str](), Counter[str](), asyncio.Event()
    queue, coordination = MemoryControlQueue(clock), MemoryCoordination(clock)
    handled: list[str] = []

    async def handle(payload: Mapping[str, str], _: Turn) -> None:
        caller = payload["caller"]
        under_way[caller] += 1
        most[caller] = max(most[caller], under_way[caller])
        await gate.wait()
        under_way[caller] -= 1
        handled.append(payload["subject"])

    async def give_up(payload: Mapping[str, str]) -> None:
        raise AssertionError(payload)

    handlers = {"a kind": Handler(handle, give_up, limits=LIMITS["a kind"])}
    workers = [
        ControlWorker(queue, handlers, clock, shared_slots=SharedSlots(coordination, lease=LEASE))
        for _ in range(3)
    ]
    for number in range(9):
        caller = STRANGER if number == 8 else CALLER
        payload = {"caller": caller, "subject": str(number)}
        await queue.send(
            ControlMessage(kind="a kind", subject=str(number), payload=payload, caller=caller)
        )

    async def work(worker: ControlWorker) -> None:
        while len(handled) < 9:
            await worker.step()
            clock.advance(timedelta(milliseconds=5))
            await asyncio.sleep(0)

    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
        for worker in workers:
            for _ in range(3):
                group.create_task(work(worker))
        await until(lambda: under_way == {CALLER: 2, STRANGER: 1})
        for _ in range(200):  # messages go back many times meanwhile
            await asyncio.sleep(0)
        gate.set()

    assert most == {CALLER: 2, STRANGER: 1}
    assert sorted(handled) == [str(number) for number in range(9)]
    assert not await queue.dead_letters(limit=9)
    assert await coordination.held(f"control:a kind/{CALLER}") == 0


async def test_without_coordination_each_process_bounds_a_caller_by_itself() -> None:
    clock, handled = FakeClock(), list[str]()
    queue = MemoryControlQueue(clock)

    class Away(MemoryCoordination):
        async def reserve(self, wants: Mapping[str, PermitRequest]) -> Mapping[str, Sequence[str]]:
            raise Unavailable("away")

    async def handle(payload: Mapping[str, str], _: Turn) -> None:
        handled.append(payload["subject"])

    async def give_up(payload: Mapping[str, str]) -> None:
        raise AssertionError(payload)

    handlers = {"a kind": Handler(handle, give_up)}
    worker = ControlWorker(
        queue, handlers, clock, shared_slots=SharedSlots(Away(clock), lease=LEASE)
    )
    await queue.send(ControlMessage(kind="a kind", subject="1", payload={"subject": "1"}))

    assert await worker.step() == 1
    assert handled == ["1"]


async def test_a_message_that_ends_its_workers_is_given_up_though_it_went_back_in_between() -> None:
    clock, given_up = FakeClock(), list[Mapping[str, str]]()
    queue, coordination = MemoryControlQueue(clock), MemoryCoordination(clock)

    async def handle(payload: Mapping[str, str], _: Turn) -> None:
        raise AssertionError(payload)

    async def give_up(payload: Mapping[str, str]) -> None:
        given_up.append(payload)

    handlers = {"a kind": Handler(handle, give_up)}
    worker = ControlWorker(
        queue, handlers, clock, shared_slots=SharedSlots(coordination, lease=LEASE)
    )
    await queue.send(ControlMessage(kind="a kind", subject="1", payload={}, caller=CALLER))
    slot = f"control:a kind/{CALLER}"
    for _ in range(MOST_DELIVERIES):
        [_] = await queue.receive(1, lease=LEASE)  # by a worker that dies
        clock.advance(LEASE)
        taken = await coordination.reserve({slot: PermitRequest(1, 1)})
        assert await worker.step() == 1
        await coordination.release(taken)
        clock.advance(LEASE)
        assert not given_up

    assert await worker.step() == 1
    assert given_up == [{}]


async def test_a_slot_is_released_after_the_renewal_that_is_under_way() -> None:
    clock, renewing, answered = FakeClock(), asyncio.Event(), asyncio.Event()

    class Slow(MemoryCoordination):
        async def renew(self, permits: Mapping[str, Sequence[str]]) -> None:
            renewing.set()
            # What was sent arrives, even if nobody waits for the answer.
            await asyncio.shield(asyncio.create_task(self._arrive(permits)))

        async def _arrive(self, permits: Mapping[str, Sequence[str]]) -> None:
            await answered.wait()
            await super().renew(permits)

    coordination = Slow(clock)
    slots = SharedSlots(coordination, lease=timedelta(milliseconds=3))

    async def work() -> None:
        async with slots.held(("a kind", CALLER), 1):
            await renewing.wait()

    async with asyncio.timeout(SOON), asyncio.TaskGroup() as group:
        working = group.create_task(work())
        await renewing.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        answered.set()
        await working
    for _ in range(10):
        await asyncio.sleep(0)
    assert await coordination.held(f"control:a kind/{CALLER}") == 0
