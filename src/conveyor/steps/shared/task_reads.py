"""Reads of tasks that are named by their ids."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Task
from conveyor.ports.tasks import Tasks

READS_AT_A_TIME = 16


async def tasks_by_id(
    tasks: Tasks, run_id: RunId, task_ids: Sequence[TaskId]
) -> AsyncIterator[Sequence[Task]]:
    """Those of the named tasks of a run that exist, some at a time: each may have 100 KB."""
    for start in range(0, len(task_ids), READS_AT_A_TIME):
        some = task_ids[start : start + READS_AT_A_TIME]
        found = await asyncio.gather(*[tasks.get(run_id, task_id) for task_id in some])
        yield [task for task in found if task]
