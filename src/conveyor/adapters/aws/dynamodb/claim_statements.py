"""Statements of PartiQL that claims are made of."""

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
from conveyor.domain.task import TaskStatus

PROCESSING = TaskStatus.PROCESSING
HELD = f"{CLAIM_NO} = ? AND {HOLDER} = ? AND {STATUS} = '{PROCESSING}'"
CLAIM = f"""
UPDATE "{{table}}" SET {STATUS} = '{PROCESSING}' SET {CLAIM_NO} = {CLAIM_NO} + 1 SET {HOLDER} = ?
SET {TOKEN} = ? SET {DUE} = ? SET {CLAIMED} = ? SET {UPDATED} = ?
WHERE {PK} = ? AND {SK} = ? AND {STATUS} = '{TaskStatus.PENDING}' AND {DUE} <= ?
AND {HEAVY_BYTES} IS MISSING RETURNING ALL NEW *
"""  # noqa: S608 - of constants
RENEW = f'UPDATE "{{table}}" SET {DUE} = ? WHERE {PK} = ? AND {SK} = ? AND {HELD}'  # noqa: S608
RETRY_FIELDS = (STATUS, DUE, UPDATED, TOKEN, FIELDS)
RETRY = f"""
UPDATE "{{table}}" {" ".join(f"SET {name} = ?" for name in RETRY_FIELDS)} REMOVE {HOLDER}
WHERE {PK} = ? AND {SK} = ? AND {HELD}
"""


def texts(*texts: str) -> list[dict[str, str]]:
    return [{"S": text} for text in texts]


def number(value: int) -> dict[str, str]:
    return {"N": str(value)}
