"""Settling in SQLite: any number of claims in five statements.

All values are encoded beforehand as one JSON value. So the writer thread runs SQL and hardly any
Python, and does not wait for the interpreter lock while pages arrive. The first statement unpacks the
value into a temporary table of the writer's connection; the others join with it.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import apsw
import msgspec

from conveyor.adapters.sqlite.rows import PHASE, STATUS_NO
from conveyor.domain import task as life
from conveyor.domain.counts import COLUMNS as COUNTED
from conveyor.domain.ids import RunId, task_index
from conveyor.domain.task import SettleDecision, Settlement, TaskStatus

# The end of a claim: its values in the order in which they are sent.
SENT = (
    "run_no", "idx", "claim_no", "status", "phase", "charged", "due_at", "locator", "length",
    "checksum", "format", "content_type", "problem", "reason", "line_problem", *COUNTED,
)  # fmt: skip
AT = {name: f"(claim.value ->> {place})" for place, name in enumerate(SENT)}
# It lives as long as the writer's connection.
ENDING = f"""
CREATE TEMP TABLE ending (
    {", ".join(SENT)}, attempts, claimed_at, PRIMARY KEY (run_no, idx)
) WITHOUT ROWID
"""
# `jsonb_each` gives each claim in binary; text would be parsed again for every value.
HOLD = f"""
INSERT INTO temp.ending
SELECT {", ".join(AT.values())}, task.attempts, task.claimed_at
  FROM jsonb_each(?1) AS claim CROSS JOIN task
    ON task.run_no = {AT["run_no"]} AND task.idx = {AT["idx"]}
 WHERE task.claim_no = {AT["claim_no"]} AND task.status = 1
"""
HELD = "SELECT json_group_array(json_array(run_no, idx, claim_no)) FROM temp.ending"
ADD_LINES = """
INSERT INTO attempt (run_no, idx, claim_no, attempt, started_at, ended_at, problem, credits, nanos)
SELECT run_no, idx, claim_no, attempts + 1, claimed_at, ?1, line_problem, credits, nanos
  FROM temp.ending WHERE charged
"""
COUNT = f"""
INSERT INTO counter (run_no, incarnation, {", ".join(COUNTED)})
SELECT run_no, ?1, {", ".join(f"sum({name})" for name in COUNTED)} FROM temp.ending WHERE true
 GROUP BY run_no
ON CONFLICT (run_no, incarnation) DO UPDATE SET
{", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTED)}
"""
MOVED = (
    "status",
    "phase",
    "due_at",
    "locator",
    "length",
    "checksum",
    "format",
    "content_type",
    "problem",
    "reason",
)
MOVE = f"""
UPDATE task SET updated_at = ?1, attempts = task.attempts + ending.charged,
       {", ".join(f"{name} = ending.{name}" for name in MOVED)}
  FROM temp.ending WHERE task.run_no = ending.run_no AND task.idx = ending.idx
"""
NO_BODY = (None,) * 5
HELD_KEYS = msgspec.json.Decoder(list[tuple[int, int, int]])

Key = tuple[int | None, int | None, int]
Values = tuple[int | str | None, ...]


def prepare(
    settlements: Sequence[Settlement], run_no_of: Callable[[RunId], int | None], now: int
) -> tuple[list[Key], str]:
    """The keys of the claims, and the JSON value for the statements."""
    run_numbers = {run_id: run_no_of(run_id) for run_id in {one.run_id for one in settlements}}
    keys = [(run_numbers[one.run_id], task_index(one.task_id), one.claim_no) for one in settlements]
    sent: dict[Key, Values] = {}
    for key, one in zip(keys, settlements, strict=True):
        life.check_ends(one.decision)
        # A claim that is named twice ends once, with its first decision.
        sent.setdefault(key, (*key, *_values(one.decision, now)))
    return keys, msgspec.json.encode(list(sent.values())).decode()


def settle_all(connection: apsw.Connection, claims: str, now: int, incarnation: int) -> str:
    """End the claims that still hold their tasks; return their keys as JSON."""
    connection.execute(HOLD, (claims,))
    connection.execute(ADD_LINES, (now,))
    connection.execute(COUNT, (incarnation,))
    connection.execute(MOVE, (now,))
    [(held,)] = connection.execute(HELD)
    connection.execute("DELETE FROM temp.ending")
    return str(held)


def were_settled(keys: Sequence[Key], held: str) -> Iterator[bool]:
    """Whether each claim took effect; a claim that is named twice did so the first time."""
    left = set(HELD_KEYS.decode(held))
    for key in keys:
        yield key in left
        left.discard(key)


def _values(decision: SettleDecision, now: int) -> Values:
    result = decision.result
    pending = decision.status is TaskStatus.PENDING
    failed = decision.status is TaskStatus.FAILED
    return (
        STATUS_NO[decision.status],
        PHASE[decision.status],
        int(decision.charged),
        now + decision.delay // timedelta(microseconds=1) if pending else None,
        *(msgspec.structs.astuple(result) if result else NO_BODY),
        decision.problem if failed else None,
        decision.reason if failed else None,
        decision.problem,
        *msgspec.structs.astuple(life.counted(decision)),
    )
