"""Calls for items, as the ports want them: what AWS refuses is unavailable.

No request should be refused, so a refusal is a bug, or the table is missing or being restored. The
process must outlast that; an error in the log tells of it.
"""

from datetime import timedelta
from typing import Any

import structlog

from conveyor.adapters.aws.client import DEADLINE, AwsClient
from conveyor.adapters.aws.faults import (
    ConditionFailed,
    OutcomeUnknown,
    ServiceRefusal,
    TransactionCanceled,
)
from conveyor.errors import Unavailable

log = structlog.get_logger()


class ItemCalls:
    def __init__(self, client: AwsClient) -> None:
        self._client = client
        self.pause = client.pause

    async def call(
        self,
        operation: str,
        request: object,
        *,
        repeatable: bool | None = None,
        deadline: timedelta = DEADLINE,
    ) -> dict[str, Any]:
        """Make a call. Raises `Unavailable`, `ConditionFailed` and `TransactionCanceled`."""
        try:
            return await self._client.call(
                operation, request, repeatable=repeatable, deadline=deadline
            )
        except (ConditionFailed, TransactionCanceled):
            raise
        except ServiceRefusal as refusal:
            log.error("dynamodb.refused", operation=operation, error=str(refusal))  # noqa: TRY400
            kind = OutcomeUnknown if refusal.follows_unknown else Unavailable
            raise kind(str(refusal)) from refusal
