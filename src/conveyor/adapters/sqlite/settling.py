"""Settling in SQLite: any number of claims in five statements.

All that the statements need is made ready beforehand, as one JSON value: the writer's thread runs
SQL and hardly any Python, so it does not wait for its turn of the interpreter's lock while pages
come in. What the value says is taken apart once, into a table of the writer's own.
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

# One claim's end, in the order its values are sent in.
SENT = (
    "run_no", "idx", "claim_no", "status", "phase", "charged", "due_at", "locator", "length",
    "checksum", "format", "content_type", "problem", "reason", "told", *COUNTED,
)  # fmt: skip
AT = {name: f"(claim.value ->> {place})" for place, name in enumerate(SENT)}
# For as long as the engine is open.
ENDING = f"""
CREATE TEMP TABLE ending (
    {", ".join(SENT)}, attempts, claimed_at, PRIMARY KEY (run_no, idx)
) WITHOUT ROWID
"""
# `jsonb_each` gives each claim in binary: in text it would be parsed again for every value.
HOLD = f"""
INSERT INTO temp.ending
SELECT {", ".join(AT.values())}, task.attempts, task.claimed_at
  FROM jsonb_each(?1) AS claim CROSS JOIN task
    ON task.run_no = {AT["run_no"]} AND task.idx = {AT["idx"]}
 WHERE task.claim_no = {AT["claim_no"]} AND task.status = 1
"""
HELD = "SELECT json_group_array(json_array(run_no, idx, claim_no)) FROM temp.ending"
TELL = """
INSERT INTO attempt (run_no, idx, claim_no, attempt, started_at, ended_at, problem, credits, nanos)
SELECT run_no, idx, claim_no, attempts + 1, claimed_at, ?1, told, credits, nanos
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
    """The claims by their keys, and what the statements need of them."""
    run_numbers = {run_id: run_no_of(run_id) for run_id in {one.run_id for one in settlements}}
    keys = [(run_numbers[one.run_id], task_index(one.task_id), one.claim_no) for one in settlements]
    sent: dict[Key, Values] = {}
    for key, one in zip(keys, settlements, strict=True):
        life.check_ends(one.decision)
        # A claim that is named twice ends once: the first word counts.
        sent.setdefault(key, (*key, *_values(one.decision, now)))
    return keys, msgspec.json.encode(list(sent.values())).decode()


def settle_all(connection: apsw.Connection, claims: str, now: int, incarnation: int) -> str:
    """End the claims that still hold their tasks, and say which those were."""
    connection.execute(HOLD, (claims,))
    connection.execute(TELL, (now,))
    connection.execute(COUNT, (incarnation,))
    connection.execute(MOVE, (now,))
    [(held,)] = connection.execute(HELD)
    connection.execute("DELETE FROM temp.ending")
    return str(held)


def tell_settled(keys: Sequence[Key], held: str) -> Iterator[bool]:
    """Which of the claims took effect, each counted where it is first named."""
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
