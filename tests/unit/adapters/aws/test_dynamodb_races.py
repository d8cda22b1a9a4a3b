"""Calls of other processes, and errors of single entries, in the middle of calls for tasks."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from typing import Any, cast

import pytest
from msgspec.structs import replace

from conveyor.adapters.aws.dynamodb import counters
from conveyor.adapters.aws.dynamodb.batches import DynamoDbBatches, StatementResult
from conveyor.adapters.aws.dynamodb.layout import ItemKey
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.adapters.aws.dynamodb.task_engine import DynamoTaskRows
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.job import RunPlace
from conveyor.domain.task import NewRow, TaskStatus
from conveyor.errors import Unavailable
from conveyor.ports.work import PartlyRenewed
from conveyor.testing.dynamodb.in_process import client_in_process
from conveyor.testing.factories import (
    JOB,
    RUN,
    a_task_spec,
    held,
    new_ids,
    new_tasks,
    scraped,
    to_retry,
)
from tests.unit.adapters.aws.test_dynamodb_tasks import (
    LEASE,
    TABLE,
    World,
    a_problem,
    counts_of,
    given_claims,
    given_tasks,
    run,
    settle,
)

LONG_URL = f"https://a.example/{'x' * 500}"


async def given_long_urls(rows: DynamoTaskRows, n: int) -> list[TaskId]:
    await rows.tasks.lay_out(RUN, RunPlace(JOB))
    new = [NewRow(one.index, one.id, a_task_spec(url=LONG_URL)) for one in new_tasks(RUN, n)]
    await rows.tasks.add(RUN, new)
    return [one.id for one in new]


def test_a_task_is_not_claimed_without_its_url_while_its_run_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        world = World()
        purger, worker = await world.open("purger"), await world.open("worker")
        ids = await given_long_urls(purger, 3)
        remove, claimed = purger.tasks._parts.remove, list[str]()

        async def slow_remove(keys: Sequence[ItemKey]) -> None:
            await remove(keys)
            claimed.extend(task.spec.url for task in await worker.claims.take(RUN, ids))

        monkeypatch.setattr(purger.tasks._parts, "remove", slow_remove)
        while await purger.tasks.discard(RUN, limit=2):
            pass
        assert set(claimed) <= {LONG_URL}
        assert world.keys == []

    run(main())


def test_a_task_whose_url_is_gone_does_not_exist() -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        ids = await given_long_urls(rows, 2)
        parts = [key for key in world.keys if key.sk.startswith("P#") and ids[0] in key.sk]
        await rows.tasks._parts.remove(parts)
        for _ in range(2):  # pending, then claimed
            assert [task.id for task in await rows.claims.take(RUN, ids)] == ids[1:]
        other = await world.open("other")
        assert [task.id for task in await other.claims.take(RUN, ids)] == ids[1:]

    run(main())


# Errors of single rows.


@pytest.mark.parametrize("is_done", [True, False])
def test_an_error_of_one_claim_leaves_the_others_in_the_hands_of_the_worker(
    monkeypatch: pytest.MonkeyPatch,
    is_done: bool,
) -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        ids = await given_tasks(rows, 10)
        execute = DynamoDbBatches.execute

        async def execute_some(
            batches: DynamoDbBatches, statements: Sequence[Any], **more: Any
        ) -> Sequence[StatementResult]:
            results = await execute(batches, statements[0 if is_done else 1 :], **more)
            return [StatementResult(None, "InternalServerError"), *results[-9:]]

        monkeypatch.setattr(DynamoDbBatches, "execute", execute_some)
        taken = await rows.claims.take(RUN, ids)
        assert sorted(task.id for task in taken) == ids
        claimed = [task.id for task in taken if task.status is TaskStatus.PROCESSING]
        assert sorted(claimed) == ids[0 if is_done else 1 :]

    run(main())


def test_a_lapsed_task_that_cannot_be_taken_over_holds_back_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        world = World()
        dead, rows = await world.open("dead"), await world.open()
        ids = await given_tasks(dead, 3)
        await dead.claims.take(RUN, ids)
        await asyncio.sleep(LEASE.total_seconds() + 1)
        put, calls = DynamoTable.put, count()

        async def put_one(table: DynamoTable, *args: Any) -> None:
            if next(calls):
                raise Unavailable("throttled")
            await put(table, *args)

        monkeypatch.setattr(DynamoTable, "put", put_one)
        taken = await rows.claims.take(RUN, ids)
        assert sorted(task.id for task in taken) == ids
        assert [task.holder for task in taken].count("one") == 1
        with pytest.raises(Unavailable):
            await (await world.open("two")).claims.take(RUN, ids)

    run(main())


@pytest.mark.parametrize("error", ["ThrottlingError", None])
def test_claims_are_renewed_although_others_are_throttled(
    monkeypatch: pytest.MonkeyPatch, error: str | None
) -> None:
    """By entries of a request, or as a whole request."""

    async def main() -> None:
        world = World()
        rows, other = await world.open(), await world.open("other")
        tasks = list(await given_claims(rows, 30))
        gone = tasks.pop()
        assert all(await settle(rows, [gone], scraped()))
        throttled = {task.id for task in (tasks[:25] if error is None else tasks[:1])}
        execute = DynamoDbBatches.execute

        async def execute_some(
            self: DynamoDbBatches, statements: Sequence[Any], **options: Any
        ) -> Sequence[StatementResult]:
            if error is None and len(statements) == 25:
                raise Unavailable("throttled")
            return [
                StatementResult(error=error)
                if error and any(name in str(one) for name in throttled)
                else (await execute(self, [one], **options))[0]
                for one in statements
            ]

        with monkeypatch.context() as patched:
            patched.setattr(DynamoDbBatches, "execute", execute_some)
            await asyncio.sleep(LEASE.total_seconds() / 2)
            with pytest.raises(PartlyRenewed, match=r"throttled|Throttling") as failed:
                await rows.claims.renew([held(task) for task in [*tasks, gone]])
        assert {claim.task_id for claim in failed.value.unknown} == throttled
        assert list(failed.value.fallen) == [held(gone)]

        await asyncio.sleep(LEASE.total_seconds() / 2 + 1)
        await other.claims.take(RUN, [task.id for task in tasks])
        lost = await rows.claims.renew([held(task) for task in tasks])
        assert {claim.task_id for claim in lost} == throttled

    run(main())


def test_tasks_that_were_released_are_returned_although_a_later_one_was_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        ids = await given_tasks(rows, 3)
        await rows.claims.take(RUN, ids)
        await asyncio.sleep(LEASE.total_seconds() + 1)
        put, calls = DynamoTable.put, count()

        async def put_one(table: DynamoTable, *args: Any) -> None:
            if next(calls):
                raise Unavailable("throttled")
            await put(table, *args)

        monkeypatch.setattr(DynamoTable, "put", put_one)
        released = await rows.claims.release_lapsed(RUN, overdue=timedelta(), limit=9)
        assert len(released) == 1
        with pytest.raises(Unavailable):
            await rows.claims.release_lapsed(RUN, overdue=timedelta(), limit=9)

    run(main())


# Counters.


def test_a_counter_is_used_again_after_a_settle_that_was_throttled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        transact = DynamoTable.transact
        for task in await given_claims(rows, 3):
            monkeypatch.setattr(DynamoTable, "transact", _throttled)
            with pytest.raises(Unavailable):
                await settle(rows, [task], scraped())
            monkeypatch.setattr(DynamoTable, "transact", transact)
            assert await settle(rows, [task], scraped()) == [True]
        assert len(world.sorts("C#")) == 1

    run(main())


async def _throttled(*_: object) -> None:
    raise Unavailable("throttled")


def test_the_counters_of_the_runs_that_were_used_last_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        monkeypatch.setattr(counters, "MOST_RUNS", 2)
        pools = counters.RunCounters(cast("DynamoTable", None), incarnation="i")
        names = [RunId(name) for name in new_ids(3)]
        keys = []
        for number in (0, 1, 0, 2, 0):
            async with pools.lent(RunPlace(JOB), names[number]) as counter:
                keys.append(counter.key)
        assert keys[0] == keys[2] == keys[4]

    run(main())


def test_a_settle_under_a_claim_that_was_taken_over_has_no_effect() -> None:
    async def main() -> None:
        world = World()
        late, other = await world.open("late"), await world.open("other")
        [task] = await given_claims(late, 1)
        await asyncio.sleep(LEASE.total_seconds() + 1)
        [taken] = await other.claims.take(RUN, [task.id])
        assert await settle(late, [task], scraped()) == [False]
        assert await settle(other, [taken], scraped()) == [True]
        assert (await counts_of(late)).successful == 1

    run(main())


# A purge beside an ingest.


def test_rows_that_are_added_while_their_run_is_purged_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        world = World()
        purger, ingest = await world.open("purger"), await world.open("ingest")
        await given_tasks(ingest, 1)
        added = iter([new_tasks(RUN, 3)])
        keys = purger.tasks._counters.keys

        async def keys_while_adding(*args: Any) -> list[ItemKey]:
            for new in added:
                await ingest.tasks.add(RUN, new)
            return await keys(*args)

        monkeypatch.setattr(purger.tasks._counters, "keys", keys_while_adding)
        while await purger.tasks.discard(RUN, limit=10):
            pass
        assert world.keys == []

    run(main())


# What AWS refuses.


def test_a_table_that_is_missing_for_a_while_is_unavailable() -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        ids = await given_tasks(rows, 2)
        table = world.fake.tables.pop(TABLE)
        for call in (
            rows.claims.take(RUN, ids),
            rows.tasks.get(RUN, ids[0]),
            rows.tasks.add(RUN, new_tasks(RUN, 3)),
            rows.tasks.page(RUN, limit=9),
        ):
            with pytest.raises(Unavailable, match=r"(?i)not ?found"):
                await call
        world.fake.tables[TABLE] = table
        assert len(await rows.claims.take(RUN, ids)) == 2

    run(main())


# Repetitions.


def test_a_renewal_that_arrives_late_does_not_shorten_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        claims = [held(task) for task in await given_claims(rows, 2)]
        execute, sent = DynamoDbBatches.execute, list[Sequence[Any]]()

        async def noted(
            batches: DynamoDbBatches, statements: Sequence[Any], **more: Any
        ) -> Sequence[StatementResult]:
            sent.append(statements)
            return await execute(batches, statements, **more)

        monkeypatch.setattr(DynamoDbBatches, "execute", noted)
        for _ in range(2):
            await asyncio.sleep(10)
            assert not await rows.claims.renew(claims)
        ends = [one["e"] for one in world.fake.tables[TABLE].items() if "e" in one]
        await execute(DynamoDbBatches(client_in_process(world.fake)), sent[0], repeatable=True)
        assert [one["e"] for one in world.fake.tables[TABLE].items() if "e" in one] == ends
        # Renewals at the same moment: the second changes nothing, and the claims stand.
        fallen = await asyncio.gather(*[rows.claims.renew(claims) for _ in range(2)])
        assert [list(one) for one in fallen] == [[], []]

    run(main())


def test_a_history_remains_although_the_claim_was_taken_over_before_a_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        world = World()
        rows, other = await world.open(), await world.open("other")
        [task] = await given_claims(rows, 1)
        execute = DynamoDbBatches.execute

        async def execute_twice(
            batches: DynamoDbBatches, statements: Sequence[Any], **more: Any
        ) -> Sequence[StatementResult]:
            monkeypatch.setattr(DynamoDbBatches, "execute", execute)
            await execute(batches, statements, **more)
            await asyncio.sleep(600)  # until it is due
            await other.claims.take(RUN, [task.id])
            return await execute(batches, statements, **more)

        monkeypatch.setattr(DynamoDbBatches, "execute", execute_twice)
        text = a_problem(5_000)
        assert await settle(rows, [task], replace(to_retry(), problem=text)) == [False]
        assert [line.problem for line in await rows.tasks.history(RUN, task.id)] == [text]

    run(main())


def test_a_settle_that_is_repeated_when_its_token_is_forgotten_has_been_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        world = World()
        rows = await world.open()
        tasks = await given_claims(rows, 2)
        transact = DynamoTable.transact

        async def transact_twice(table: DynamoTable, actions: Sequence[Any], token: str) -> None:
            await transact(table, actions, token)
            await transact(table, actions, f"{token[:-4]}-two")

        monkeypatch.setattr(DynamoTable, "transact", transact_twice)
        assert await settle(rows, tasks, scraped()) == [True, True]
        assert (await counts_of(rows)).successful == 2

    run(main())
