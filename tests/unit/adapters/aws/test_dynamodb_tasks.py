"""Tasks on DynamoDB beyond the contracts: shards, sizes, cost, lost answers, in simulated time."""

import asyncio
import dataclasses
import json
from collections import Counter, deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from conveyor.adapters.aws.dynamodb import tasks as tasks_module
from conveyor.adapters.aws.dynamodb.layout import TTL, ItemKey
from conveyor.adapters.aws.dynamodb.setup import set_up_table
from conveyor.adapters.aws.dynamodb.table import DynamoTable, key_of_item
from conveyor.adapters.aws.dynamodb.task_engine import DynamoTaskRows, open_task_rows
from conveyor.adapters.aws.dynamodb.task_items import (
    FIELDS,
    HOT_BYTES,
    NewParts,
    TaskRow,
    packed,
    row_of,
    with_line,
)
from conveyor.adapters.aws.dynamodb.task_keys import fnv32a
from conveyor.adapters.aws.faults import OutcomeUnknown
from conveyor.adapters.aws.item_size import item_size
from conveyor.domain.counts import Counts, Spend
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.job import RunPlace
from conveyor.domain.page_facts import PageFacts
from conveyor.domain.problem import encoded, problem
from conveyor.domain.task import Attempt, NewRow, SettleDecision, StoredBody, Task, TaskStatus
from conveyor.errors import Unavailable
from conveyor.testing.clock import NOON
from conveyor.testing.dynamodb.engine import DynamoDbEngine, Knobs
from conveyor.testing.dynamodb.in_process import Loss, client_in_process
from conveyor.testing.factories import (
    JOB,
    OTHER_RUN,
    RUN,
    a_task_spec,
    held,
    ids_of,
    new_tasks,
    refused,
    scraped,
    settlement,
    to_retry,
    uncharged,
)
from tests.harness import time_lapse
from tests.harness.time_lapse import LapseClock
from tests.seed import examples

TABLE = "conveyor"
LEASE = timedelta(seconds=90)
LENGTHS = st.sampled_from([0, 1, 60, 150, 390, 5_000])


@dataclass(slots=True)
class World:
    """A table on the fake, and processes that use it."""

    knobs: Knobs = field(
        default_factory=lambda: Knobs(writes_per_second=None, reads_per_second=None)
    )
    fake: DynamoDbEngine = field(init=False)
    losses: deque[Loss | None] = field(default_factory=deque)  # of the next transactions
    always: Loss | None = None  # of all of them

    def __post_init__(self) -> None:
        self.fake = DynamoDbEngine(LapseClock(), self.knobs)

    async def open(self, holder: str = "one") -> DynamoTaskRows:
        client = client_in_process(self.fake, loss=self._loss)
        if TABLE not in self.fake.tables:
            await set_up_table(client, TABLE)
        return open_task_rows(
            DynamoTable(client, TABLE),
            LapseClock(),
            lease=LEASE,
            holder=holder,
            random=Random(holder),
        )

    def _loss(self, operation: str) -> Loss | None:
        if operation not in {"TransactWriteItems", "BatchExecuteStatement"}:
            return None
        return self.losses.popleft() if self.losses else self.always

    @property
    def keys(self) -> list[ItemKey]:
        """Of all items that do not expire."""
        items = self.fake.tables[TABLE].items()
        return [key_of_item(item) for item in items if TTL not in item]

    def sorts(self, prefix: str) -> list[str]:
        return [key.sk for key in self.keys if key.sk.startswith(prefix)]

    def spent(self) -> float:
        return self.fake.meter.units.written


def run(main: Coroutine[Any, Any, None]) -> None:
    time_lapse.run(main)


async def given_tasks(rows: DynamoTaskRows, n: int, shards: int = 1) -> list[TaskId]:
    await rows.tasks.lay_out(RUN, RunPlace(JOB, shards))
    new = new_tasks(RUN, n)
    await rows.tasks.add(RUN, new)
    return ids_of(new)


async def given_claims(rows: DynamoTaskRows, n: int, shards: int = 1) -> Sequence[Task]:
    return await rows.claims.take(RUN, await given_tasks(rows, n, shards))


async def settle(
    rows: DynamoTaskRows, tasks: Sequence[Task], decision: SettleDecision
) -> list[bool]:
    return list(await rows.claims.settle([settlement(task, decision) for task in tasks]))


async def counts_of(rows: DynamoTaskRows, run_id: RunId = RUN) -> Counts:
    return (await rows.tasks.counts([run_id]))[run_id]


# Layout.


def test_the_hash_is_fnv_1a() -> None:
    assert [fnv32a(text) for text in ("", "a", "foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]


def test_rows_are_spread_evenly_over_the_shards_of_their_run() -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        await given_tasks(rows, 2_000, shards=8)
        shards = Counter(key.pk for key in world.keys if key.sk.startswith("T#"))
        assert set(shards) == {f"Job#{JOB}#TS{k}" for k in range(8)}
        assert all(200 <= count <= 300 for count in shards.values())

    run(main())


def test_rows_of_a_small_job_are_in_its_partition() -> None:
    async def main() -> None:
        for shards in (0, 1):
            world = World()
            await given_tasks(await world.open(), 30, shards)
            assert {key.pk for key in world.keys if key.sk.startswith("T#")} == {f"Job#{JOB}"}

    run(main())


def test_runs_of_different_layouts_work_side_by_side() -> None:
    """As when an operator changes the number of shards: cursors and messages stay valid."""

    async def main() -> None:
        world = World()
        before = await world.open("before")
        ids = await given_tasks(before, 40, shards=4)
        stamp = await before.claims.stamp(RUN)
        first = await before.tasks.page(RUN, limit=15)
        after = await world.open("after")
        await after.tasks.lay_out(OTHER_RUN, RunPlace(JOB, shards=8))
        await after.tasks.add(OTHER_RUN, new_tasks(OTHER_RUN, 40))

        assert first.cursor is not None
        rest = await after.tasks.page(RUN, limit=99, after=first.cursor)
        taken = await after.claims.take(RUN, ids[:10], stamp=stamp)
        assert [*ids_of(first.tasks), *ids_of(rest.tasks)] == ids
        assert all(await settle(after, taken, scraped()))
        assert (await counts_of(before)).successful == 10
        with pytest.raises(ValueError, match="another place"):
            await after.tasks.lay_out(RUN, RunPlace(JOB, shards=8))
        await after.tasks.add(RUN, new_tasks(RUN, 45))
        assert await after.tasks.tally(RUN) == {TaskStatus.PENDING: 35, TaskStatus.SUCCESSFUL: 10}

    run(main())


def test_a_message_names_the_place_of_its_run() -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        ids = await given_tasks(rows, 1, shards=8)
        other = await world.open("other")
        world.fake.meter.requests.clear()

        assert await other.claims.take(RUN, ids, stamp=await rows.claims.stamp(RUN))
        assert world.fake.meter.requests == {"BatchExecuteStatement UPDATE": 1}

    run(main())


# Sizes.


def a_problem(length: int) -> str:
    detail = "".join(Random(length).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))
    return encoded(problem(status=422, code="RESP001", detail=detail))


@settings(max_examples=examples(200))
@given(
    lengths=st.tuples(LENGTHS, LENGTHS, LENGTHS, LENGTHS),
    lines=st.lists(LENGTHS, max_size=30),
    status=st.sampled_from(TaskStatus),
)
def test_a_row_is_small_and_nothing_of_it_is_lost(
    lengths: tuple[int, int, int, int], lines: list[int], status: TaskStatus
) -> None:
    row, place = _large_row(*lengths, status=status), RunPlace(JOB, 8)
    for number, length in enumerate(lines, 1):
        attempt = Attempt(
            attempt=number,
            started_at=NOON,
            ended_at=NOON,
            problem=a_problem(length) if length else None,
            spend=Spend(25, 10**9),
            http_status=503,
            duration_ms=180_000,
        )
        new = NewParts(f"{number}")
        row = packed(with_line(row, attempt, new), new).row
    done = packed(row, NewParts("end"))

    assert item_size(done.item) <= HOT_BYTES
    assert row_of(done.item, place) == replaced(done.row)


def replaced(row: TaskRow) -> TaskRow:
    """As it is read: final tasks have no token."""
    return dataclasses.replace(row, token="" if row.task.is_final else row.token)


def _large_row(spec: int, url: int, detail: int, final_url: int, *, status: TaskStatus) -> TaskRow:
    [new] = new_tasks(RUN, 1)
    is_final = status in {TaskStatus.SUCCESSFUL, TaskStatus.FAILED}
    task = Task(
        run_id=RUN,
        id=new.id,
        index=0,
        spec=a_task_spec(
            url=f"https://example.com/{'u' * url}",
            metadata="ü" * (spec // 2) if spec else None,
            method="POST",
        ),
        created_at=NOON,
        updated_at=NOON,
        due_at=None if is_final else NOON,
        claimed_at=NOON,
        holder=None if is_final else JOB,
        status=status,
        claim_no=1_000,
        attempts=100,
        lost=9,
        result=StoredBody(
            locator="l" * 120,
            length=2**31,
            checksum="c" * 64,
            format="html",
            content_type="text/html; charset=utf-8",
        ),
        problem=a_problem(detail) if detail and is_final else None,
        reason=FailureReason.GATEWAY_ERROR if is_final else None,
        facts=PageFacts(
            http_status=200,
            duration_ms=180_000,
            final_url=f"https://example.com/{'f' * final_url}" if final_url else None,
        ),
    )
    shard = fnv32a(new.id) % 8
    key = ItemKey(f"Job#{JOB}#TS{shard}", f"T#{RUN}#{new.id}")
    return TaskRow(key=key, task=task, token="0" * 16, shard=shard)


@pytest.mark.parametrize(
    ("status", "claim_no", "cost"),
    [
        (TaskStatus.PENDING, 0, Spend()),
        (TaskStatus.PROCESSING, 1, Spend()),  # its claim has not ended
        (TaskStatus.PENDING, 1, None),
        (TaskStatus.PROCESSING, 2, None),
        (TaskStatus.SUCCESSFUL, 1, None),
        (TaskStatus.FAILED, 0, None),  # inherited
    ],
)
def test_what_the_release_before_spent_is_unknown(
    status: TaskStatus, claim_no: int, cost: Spend | None
) -> None:
    row, place = _large_row(0, 0, 0, 0, status=status), RunPlace(JOB, 8)
    task = replace(row.task, claim_no=claim_no)
    item = packed(dataclasses.replace(row, task=task), NewParts("new")).item
    fields = json.loads(item[FIELDS]["S"])
    fields.pop("c", None)
    old = {**item, FIELDS: {"S": json.dumps(fields)}}

    assert row_of(old, place).task.spend == cost


@pytest.mark.parametrize("cost", [Spend(), Spend(3, 4), None])
@pytest.mark.parametrize("claim_no", [0, 1, 2])
@pytest.mark.parametrize("status", TaskStatus)
def test_what_a_task_cost_is_read_back(
    status: TaskStatus, claim_no: int, cost: Spend | None
) -> None:
    row = _large_row(0, 0, 0, 0, status=status)
    task = replace(row.task, claim_no=claim_no, spend=cost)
    item = packed(dataclasses.replace(row, task=task), NewParts("new")).item

    assert row_of(item, RunPlace(JOB, 8)).task.spend == cost


def test_histories_and_problems_beside_the_row_are_read_back() -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        ids = await given_tasks(rows, 1)
        told = [a_problem(length) for length in range(40, 400, 18)]
        for text in told[:-1]:
            [task] = await rows.claims.take(RUN, ids)
            await settle(rows, [task], replace(to_retry(delay=timedelta()), problem=text))
        [task] = await rows.claims.take(RUN, ids)
        last = replace(refused(), problem=a_problem(9_000), failure=refused().failure)
        assert await settle(rows, [task], last) == [True]

        history = await rows.tasks.history(RUN, ids[0])

        assert [line.problem for line in history] == [*told[:-1], a_problem(9_000)]
        brief = await rows.tasks.histories(RUN, after=-1, up_to=0)
        assert [line.attempt for line in brief[ids[0]]] == list(range(1, len(told) + 1))
        only_failed = frozenset({TaskStatus.FAILED})
        [failed] = (await rows.tasks.page(RUN, limit=9, statuses=only_failed)).tasks
        assert failed.problem == a_problem(9_000)
        assert rows.sizes.large == 0

    run(main())


def test_a_row_that_is_too_large_is_counted() -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        [task] = await given_claims(rows, 1)
        body = StoredBody(locator="l" * 2_000, length=1, checksum="c", format="html")
        assert await settle(rows, [task], replace(scraped(), result=body)) == [True]
        assert rows.sizes.large == 1

    run(main())


# Cost.


@pytest.mark.parametrize("shards", [1, 8])
def test_a_task_costs_little_more_than_four_write_units(shards: int) -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        ids = await given_tasks(rows, 500, shards)
        assert world.spent() <= 503
        taken = [
            task
            for at in range(0, 500, 25)
            for task in await rows.claims.take(RUN, ids[at : at + 25])
        ]
        for at in range(0, 500, 25):
            assert all(await settle(rows, taken[at : at + 25], scraped(spend=Spend(1, 2))))
        assert world.spent() / 500 <= 4.1

    run(main())


def test_a_retry_that_cost_nothing_is_one_write_unit() -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        taken = await given_claims(rows, 20)
        before = world.spent()
        assert all(await settle(rows, taken, uncharged(wait=timedelta(seconds=1))))
        assert world.spent() - before == 20

    run(main())


def test_a_page_of_a_sharded_run_reads_the_rows_that_it_shows() -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        await given_tasks(rows, 1_000, shards=8)
        before = world.fake.meter.units.consumed
        pages, after = 0, -1
        while (page := await rows.tasks.page(RUN, limit=100, after=after)).tasks:
            pages, after = pages + 1, page.tasks[-1].index
            if pages == 9:
                break
        # 8 queries of about 12 rows of 400 bytes each: 2 units, consistent.
        spent = world.fake.meter.units.consumed - before
        assert spent / 900 <= 0.16
        before += spent
        await rows.tasks.page(RUN, limit=100, lagging=True)
        assert (world.fake.meter.units.consumed - before) / 100 <= 0.08

    run(main())


def test_a_filtered_page_ends_after_so_many_rows_and_says_where_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks_module, "MOST_READ", 400)

    async def main() -> None:
        world = World()
        rows = await world.open()
        ids = await given_tasks(rows, 600, shards=8)
        held_ones = await rows.claims.take(RUN, [ids[10], ids[590]])
        processing = frozenset({TaskStatus.PROCESSING})

        first = await rows.tasks.page(RUN, limit=10, statuses=processing)
        assert first.is_costly
        assert first.cursor is not None
        assert 390 <= first.cursor < 590
        second = await rows.tasks.page(RUN, limit=10, after=first.cursor, statuses=processing)

        assert [*ids_of(first.tasks), *ids_of(second.tasks)] == sorted(ids_of(held_ones))
        assert (second.cursor, second.is_costly) == (None, False)

    run(main())


# Counters.


def test_settles_at_the_same_time_do_not_conflict() -> None:
    async def main() -> None:
        world = World()
        world.knobs.transaction_time = timedelta(milliseconds=1)
        rows = await world.open()
        taken = await given_claims(rows, 24)
        world.fake.meter.refused.clear()
        await asyncio.gather(*[settle(rows, [task], scraped()) for task in taken])
        assert not world.fake.meter.refused
        assert (await counts_of(rows)).successful == 24
        assert len(world.sorts("C#")) <= 8

    run(main())


def test_one_settle_after_another_uses_one_counter() -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        for task in await given_claims(rows, 10):
            await settle(rows, [task], scraped())
        assert len(world.sorts("C#")) == 1

    run(main())


@pytest.mark.parametrize("losses", [[Loss.BEFORE], [Loss.AFTER], [Loss.BEFORE, Loss.AFTER]])
@pytest.mark.parametrize("decision", [scraped(), refused(), uncharged()], ids=["ok", "no", "again"])
def test_a_settle_whose_answers_are_lost_counts_once(
    losses: list[Loss], decision: SettleDecision
) -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        taken = await given_claims(rows, 3)
        world.losses.extend(losses)
        assert await settle(rows, taken, decision) == [True] * 3
        assert not world.losses
        counts = await counts_of(rows)
        assert counts.done == (0 if decision.status is TaskStatus.PENDING else 3)

    run(main())


def test_a_settle_whose_every_answer_is_lost_is_read_back() -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        taken = await given_claims(rows, 2)
        world.always = Loss.AFTER
        assert await settle(rows, taken, scraped()) == [True, True]
        world.always = None
        assert (await counts_of(rows)).successful == 2

    run(main())


def test_a_counter_whose_state_is_unknown_is_not_used_again() -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        first, second, third = await given_claims(rows, 3)
        assert await settle(rows, [first], scraped()) == [True]
        world.always = Loss.BEFORE
        with pytest.raises(OutcomeUnknown):
            await settle(rows, [second], scraped())
        world.always = None
        assert await settle(rows, [second, third], scraped()) == [True, True]
        assert (await counts_of(rows)).successful == 3
        assert len(world.sorts("C#")) == 2

    run(main())


def test_counters_of_a_run_that_was_discarded_do_not_come_back() -> None:
    async def main() -> None:
        world = World()
        rows, other = await world.open(), await world.open("other")
        await settle(rows, await given_claims(rows, 2), scraped())
        while await other.tasks.discard(RUN, limit=10):
            pass
        await settle(rows, await given_claims(rows, 3), scraped())
        assert (await counts_of(other)).successful == 3

    run(main())


def test_many_failure_groups_take_items_of_their_own() -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        taken = await given_claims(rows, 60)
        for at in range(0, 60, 20):
            endings = [
                settlement(task, refused(host=f"{task.index:040}.example"))
                for task in taken[at : at + 20]
            ]
            assert all(await rows.claims.settle(endings))
        assert len(await rows.tasks.failure_groups(RUN)) == 60
        assert 6 <= len(world.sorts("G#")) <= 12
        sizes = [item_size(one) for one in world.fake.tables[TABLE].items() if "n" in one]
        assert max(sizes) <= HOT_BYTES

    run(main())


# What must not happen.


def test_a_write_to_a_row_that_is_gone_leaves_nothing() -> None:
    async def main() -> None:
        world = World()
        rows, other = await world.open(), await world.open("other")
        taken = await given_claims(rows, 4, shards=8)
        while await other.tasks.discard(RUN, limit=10):
            pass
        assert world.keys == []
        large = replace(refused(), problem=a_problem(5_000))
        for decision in (scraped(), large, to_retry(), uncharged()):
            assert await settle(rows, taken[:1], decision) == [False]
        assert list(await rows.claims.renew([held(task) for task in taken])) == [
            held(task) for task in taken
        ]
        assert list(await rows.claims.take(RUN, ids_of(taken))) == []
        assert world.keys == []

    run(main())


def test_a_take_that_could_not_be_carried_out_leaves_no_task_out() -> None:
    """To the caller a task that is left out does not exist, and its message is deleted."""

    async def main() -> None:
        world = World()
        rows = await world.open()
        ids = await given_tasks(rows, 3)
        world.always = Loss.BEFORE
        with pytest.raises(Unavailable):
            await rows.claims.take(RUN, ids)
        world.always = None
        assert len(await rows.claims.take(RUN, ids)) == 3

    run(main())


def test_a_purge_between_two_chunks_leaves_no_run_that_is_not_listed() -> None:
    async def main() -> None:
        world = World()
        rows, other = await world.open(), await world.open("other")
        await given_tasks(rows, 1)
        while await other.tasks.discard(RUN, limit=10):
            pass
        await rows.tasks.add(RUN, new_tasks(RUN, 2))
        assert list(await other.tasks.runs_held(limit=9)) == [RUN]

    run(main())


def test_specs_of_any_size_are_stored() -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        await rows.tasks.lay_out(RUN, RunPlace(JOB))
        noise = Random(1).randbytes(600_000).hex()
        spec = a_task_spec(metadata=noise, params=noise[:150_000], body="b")
        [new] = new_tasks(RUN, 1)
        await rows.tasks.add(RUN, [NewRow(0, new.id, spec)])
        [task] = (await rows.tasks.page(RUN, limit=1, whole=True)).tasks
        [taken] = await rows.claims.take(RUN, [new.id])
        assert task.spec == spec
        assert (taken.spec.params, taken.spec.body) == (noise[:150_000], "b")
        while await rows.tasks.discard(RUN, limit=10):
            pass
        assert world.keys == []

    run(main())


def test_of_processes_that_take_a_lapsed_task_over_at_once_one_has_it() -> None:
    async def main() -> None:
        world = World()
        dead = await world.open("dead")
        ids = await given_tasks(dead, 3, shards=8)
        await dead.claims.take(RUN, ids)
        await asyncio.sleep(LEASE.total_seconds() + 1)
        others = [await world.open(name) for name in ("one", "two", "three")]

        found = await asyncio.gather(*[rows.claims.take(RUN, ids) for rows in others])

        names = ("one", "two", "three")
        held_ones = [
            task.id
            for name, tasks in zip(names, found, strict=True)
            for task in tasks
            if task.holder == name
        ]
        assert sorted(held_ones) == ids
        assert {len(await dead.tasks.history(RUN, one)) for one in ids} == {1}

    run(main())
