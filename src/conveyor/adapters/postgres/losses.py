"""Tasks whose workers were lost: taken over, put back, or failed. The domain decides which."""

from collections.abc import Sequence

from conveyor.adapters.postgres.database import Connection
from conveyor.adapters.postgres.rows import (
    STATUS_NO,
    Failure,
    add_counts,
    add_failures,
    spent_columns,
)
from conveyor.domain import task as task_rules
from conveyor.domain.task import SettleDecision, Task, TaskStatus

Move = tuple[int, Task, Task]  # run number, the task before and after

ADD_LINE = """
INSERT INTO attempt (run_no, idx, claim_no, attempt, started_at, ended_at, problem, credits, nanos)
VALUES ($1, $2, $3, $4, $5, $6, $7, 0, 0)
"""
TAKE_OVER = """
UPDATE held SET claim_no = $3, lost = $4, claimed_at = $5, until = $6, holder = $7
 WHERE run_no = $1 AND idx = $2
"""
PUT_BACK = """
WITH gone AS (DELETE FROM held WHERE run_no = $1 AND idx = $2)
INSERT INTO later (run_no, idx, claim_no, lost, claimed_at, due_at, updated_at, attempts,
                   spent_credits, spent_nanos)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""
FAIL = f"""
WITH gone AS (DELETE FROM held WHERE run_no = $1 AND idx = $2)
INSERT INTO done (run_no, idx, claim_no, lost, claimed_at, updated_at, attempts, holder, problem,
                  reason, spent_credits, spent_nanos, status, charged, credits, nanos)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, {STATUS_NO[TaskStatus.FAILED]}, false,
        0, 0)
"""


async def move_lost(connection: Connection, moves: Sequence[Move]) -> None:
    """Write tasks that were taken from lost workers, with their history lines.

    Their rows in `held` are locked. Those that failed are counted.
    """
    await connection.executemany(ADD_LINE, [_line(run_no, old, new) for run_no, old, new in moves])
    for status, statement, values in (
        (TaskStatus.PROCESSING, TAKE_OVER, _taken_over),
        (TaskStatus.PENDING, PUT_BACK, _put_back),
        (TaskStatus.FAILED, FAIL, _failed),
    ):
        rows = [values(run_no, new) for run_no, _, new in moves if new.status is status]
        if rows:
            await connection.executemany(statement, rows)
    failed = [(run_no, new) for run_no, _, new in moves if new.status is TaskStatus.FAILED]
    for run_no, new in failed:
        decision = SettleDecision(status=new.status, charged=False, reason=new.reason)
        await add_counts(connection, run_no, task_rules.counted(decision))
    if failed:
        failures = [Failure(no, new.index, task_rules.failure_of(new)) for no, new in failed]
        await add_failures(connection, failures)


def _line(run_no: int, old: Task, new: Task) -> tuple[object, ...]:
    line = task_rules.lost_line(old, new.updated_at)
    key = (run_no, old.index, old.claim_no)
    return (*key, line.attempt, line.started_at, line.ended_at, line.problem)


def _key(run_no: int, task: Task) -> tuple[object, ...]:
    return run_no, task.index, task.claim_no, task.lost, task.claimed_at


def _taken_over(run_no: int, task: Task) -> tuple[object, ...]:
    return (*_key(run_no, task), task.due_at, task.holder)


def _put_back(run_no: int, task: Task) -> tuple[object, ...]:
    state = (task.due_at, task.updated_at, task.attempts)
    return (*_key(run_no, task), *state, *spent_columns(task.spend))


def _failed(run_no: int, task: Task) -> tuple[object, ...]:
    ended = (task.updated_at, task.attempts, task.holder, task.problem, task.reason)
    return (*_key(run_no, task), *ended, *spent_columns(task.spend))
