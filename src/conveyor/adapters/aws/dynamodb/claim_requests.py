"""What requests for claims consist of."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from conveyor.adapters.aws.dynamodb.batches import MOST_STATEMENTS
from conveyor.adapters.aws.dynamodb.layout import PK, SK
from conveyor.adapters.aws.dynamodb.task_items import (
    CLAIM_NO,
    CLAIMED,
    DUE,
    FIELDS,
    HEAVY_BYTES,
    HOLDER,
    STATUS,
    TOKEN,
    UPDATED,
)
from conveyor.adapters.aws.item_size import AttributeValue, Item
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import TaskStatus
from conveyor.ports.work import Held

_Item = TypeVar("_Item")

PROCESSING = TaskStatus.PROCESSING
HELD = f"{CLAIM_NO} = ? AND {HOLDER} = ? AND {STATUS} = '{PROCESSING}'"
CLAIM = f"""
UPDATE "{{table}}" SET {STATUS} = '{PROCESSING}' SET {CLAIM_NO} = {CLAIM_NO} + 1 SET {HOLDER} = ?
SET {TOKEN} = ? SET {DUE} = ? SET {CLAIMED} = ? SET {UPDATED} = ?
WHERE {PK} = ? AND {SK} = ? AND {STATUS} = '{TaskStatus.PENDING}' AND {DUE} <= ?
AND {HEAVY_BYTES} IS MISSING RETURNING ALL NEW *
"""  # noqa: S608 - of constants
# A request may arrive later than the next one: it must not shorten the lease.
RENEW = f"""
UPDATE "{{table}}" SET {DUE} = ? WHERE {PK} = ? AND {SK} = ? AND {HELD} AND {DUE} < ?
"""  # noqa: S608
RETRY_FIELDS = (STATUS, DUE, UPDATED, TOKEN, FIELDS)
RETRY = f"""
UPDATE "{{table}}" {" ".join(f"SET {name} = ?" for name in RETRY_FIELDS)} REMOVE {HOLDER}
WHERE {PK} = ? AND {SK} = ? AND {HELD}
"""


def texts(*texts: str) -> list[dict[str, str]]:
    return [{"S": text} for text in texts]


def number(value: int) -> dict[str, str]:
    return {"N": str(value)}


def newest(claims: Iterable[Held]) -> list[Held]:
    """The newest of several claims of one task: older ones no longer hold it.

    No request may name an item twice.
    """
    newest: dict[tuple[RunId, TaskId], Held] = {}
    for claim in claims:
        task = claim.run_id, claim.task_id
        if task not in newest or claim.claim_no > newest[task].claim_no:
            newest[task] = claim
    return list(newest.values())


def has_token(item: Item | None, token: str) -> bool:
    return item is not None and item.get(TOKEN) == {"S": token}


def is_held(item: Item | None, claim_no: AttributeValue, holder: AttributeValue) -> bool:
    """Whether a row is in progress under a claim."""
    return item is not None and (item[CLAIM_NO], item.get(HOLDER), item[STATUS]["S"]) == (
        claim_no,
        holder,
        PROCESSING,
    )


def batches(given: Sequence[_Item]) -> list[Sequence[_Item]]:
    return [given[at : at + MOST_STATEMENTS] for at in range(0, len(given), MOST_STATEMENTS)]
