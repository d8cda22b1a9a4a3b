"""Reads of tasks that are named by their ids."""

import asyncio
from collections.abc import Sequence

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Task
from conveyor.ports.tasks import Tasks

READS_AT_A_TIME = 16


async def tasks_by_id(tasks: Tasks, run_id: RunId, task_ids: Sequence[TaskId]) -> Sequence[Task]:
    """Those of the named tasks of a run that exist, some reads at a time."""
    limit = asyncio.Semaphore(READS_AT_A_TIME)

    async def read(task_id: TaskId) -> Task | None:
        async with limit:
            return await tasks.get(run_id, task_id)

    return [task for task in await asyncio.gather(*map(read, task_ids)) if task]
