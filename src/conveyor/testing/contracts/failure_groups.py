"""How failures are counted by host, reason and code. `failure_of` of the domain is the oracle."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

import pytest

from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import MOST_GROUPS, OTHER_CODE, FailureKey
from conveyor.domain.ids import RunId
from conveyor.domain.task import (
    MOST_LOST,
    NewRow,
    SettleDecision,
    Settlement,
    Task,
    TaskStatus,
    failure_of,
)
from conveyor.testing.contracts.engine import (
    Engine,
    by_index,
    claim,
    claim_final,
    failures_of,
    given_tasks,
    let_lapse,
    rows,
    settle,
    stored,
)
from conveyor.testing.factories import (
    OTHER_RUN,
    RUN,
    a_task_spec,
    add_rows,
    ids_of,
    inherited_as,
    new_tasks,
    refused,
    scraped,
    settlement,
)

BLOCKED, BAD_TARGET = FailureReason.BLOCKED, FailureReason.BAD_TARGET
FAILED, SUCCESSFUL, PENDING = TaskStatus.FAILED, TaskStatus.SUCCESSFUL, TaskStatus.PENDING


class FailureGroupsContract:
    async def test_failures_count_by_group_and_each_run_has_its_own(self, engine: Engine) -> None:
        kinds = [refused(), refused(), refused(code="RESP001"), refused(reason=BLOCKED), scraped()]
        kinds.append(refused(code="a gateway sends\0anything"))
        await given_tasks(engine, len(kinds), RUN)
        await given_tasks(engine, 1, OTHER_RUN)
        mine = by_index(await claim(engine, len(kinds), RUN))
        [other] = await claim(engine, 1, OTHER_RUN)

        await engine.work.settle([*_settlements(mine, kinds), settlement(other, refused())])

        failed = Counter(kind.failure for kind in kinds if kind.failure)
        assert await failures_of(engine) == failed == Counter(_failed(await rows(engine)))
        assert await failures_of(engine, OTHER_RUN) == {refused().failure: 1}
        counts = [group.count for group in await engine.tasks.failure_groups(RUN)]
        assert counts == sorted(counts, reverse=True)

    async def test_a_group_names_one_of_its_tasks(self, engine: Engine) -> None:
        await given_tasks(engine, 6)
        for task in await claim(engine, 6):
            await settle(engine, task, refused(code=f"RESP00{1 + task.index % 2}"))

        groups = await engine.tasks.failure_groups(RUN)

        assert len(groups) == 2
        for group in groups:
            example = await engine.tasks.get(RUN, group.example)
            assert example
            assert failure_of(example) == group.key

    async def test_a_run_without_failures_has_no_groups(self, engine: Engine) -> None:
        await given_tasks(engine)
        assert await failures_of(engine) == await failures_of(engine, OTHER_RUN) == {}

    @pytest.mark.parametrize("by", ["claim", "release"])
    async def test_a_task_that_lost_too_many_workers_counts(self, engine: Engine, by: str) -> None:
        await given_tasks(engine)
        last = await let_lapse(engine, MOST_LOST)
        assert await failures_of(engine) == {}

        if by == "claim":
            await claim_final(engine)
        else:
            await engine.work.release_lapsed(RUN, overdue=timedelta(), limit=10)

        assert await failures_of(engine) == {failure_of(await stored(engine, last)): 1}

    async def test_inherited_failures_count_once_however_often_they_are_added(
        self, engine: Engine
    ) -> None:
        await add_rows(engine.tasks, OTHER_RUN, _inherited([FAILED, SUCCESSFUL, PENDING, FAILED]))
        await add_rows(engine.tasks, OTHER_RUN, _inherited([FAILED] * 6))

        failed = Counter(_failed(await rows(engine, OTHER_RUN)))
        assert failed.total() == 4
        assert await failures_of(engine, OTHER_RUN) == failed

    async def test_beyond_the_most_groups_failures_count_as_other_of_their_reason(
        self, engine: Engine
    ) -> None:
        """Inherited rows fill the groups: to claim and fail as many tasks would take long."""
        *most, one_more = _inherited([FAILED] * MOST_GROUPS, hosts=MOST_GROUPS)
        await add_rows(engine.tasks, RUN, most)
        known = refused(host="0.example", code="RESP001")
        last, beyond = refused(host="last.example"), refused(host="beyond.example")
        decisions = [known, last, beyond, beyond, refused(host="blocked.example", reason=BLOCKED)]
        decisions += [beyond, last, known]
        first, *others, final = await _given_claims(engine, RUN, decisions)
        assert await settle(engine, first, known)
        [elsewhere] = await _given_claims(engine, OTHER_RUN, [beyond])

        together = [settlement(elsewhere, beyond), *_settlements(others, decisions[1:-1])]
        assert all(await engine.work.settle(together))
        await add_rows(engine.tasks, RUN, [one_more])
        assert await settle(engine, final, known)

        groups = await failures_of(engine)
        own = {key: count for key, count in groups.items() if not key.is_other}
        assert len(own) == MOST_GROUPS
        assert {key: count for key, count in own.items() if count > 1} == {
            known.failure: 3,
            last.failure: 2,
        }
        assert {key: count for key, count in groups.items() if key.is_other} == {
            FailureKey("", BAD_TARGET, OTHER_CODE): 3,
            FailureKey("", BLOCKED, OTHER_CODE): 2,
        }
        assert await failures_of(engine, OTHER_RUN) == {beyond.failure: 1}

    async def test_a_discarded_run_leaves_no_groups(self, engine: Engine) -> None:
        await add_rows(engine.tasks, RUN, _inherited([FAILED] * 3))
        await add_rows(engine.tasks, OTHER_RUN, _inherited([FAILED] * 3))

        while await engine.tasks.discard(RUN, limit=2):
            pass

        assert await failures_of(engine) == {}
        assert sum((await failures_of(engine, OTHER_RUN)).values()) == 3


def _inherited(statuses: Sequence[TaskStatus], *, hosts: int = 2) -> list[NewRow]:
    return [
        NewRow(
            new.index,
            new.id,
            a_task_spec(url=f"https://{new.index % hosts}.example/"),
            inherited_as(status),
        )
        for new, status in zip(new_tasks(RUN, len(statuses)), statuses, strict=True)
    ]


async def _given_claims(
    engine: Engine, run_id: RunId, decisions: Sequence[SettleDecision]
) -> list[Task]:
    """Claimed tasks for these decisions, at indexes above those of other rows."""
    near = new_tasks(run_id, len(decisions), first=2 * MOST_GROUPS)
    new = [
        NewRow(row.index, row.id, a_task_spec(url=f"https://{decision.failure.host}/"))
        for row, decision in zip(near, decisions, strict=True)
        if decision.failure
    ]
    await add_rows(engine.tasks, run_id, new)
    await engine.work.enqueue(run_id, ids_of(new))
    return by_index(await claim(engine, len(new), run_id))


def _settlements(tasks: Sequence[Task], decisions: Sequence[SettleDecision]) -> list[Settlement]:
    return [settlement(*pair) for pair in zip(tasks, decisions, strict=True)]


def _failed(tasks: Iterable[Task]) -> Iterator[FailureKey]:
    return (failure_of(task) for task in tasks if task.status is FAILED)
