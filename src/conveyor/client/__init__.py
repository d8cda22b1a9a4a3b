"""The Python client of Conveyor, and of any service that speaks the same API.

`AsyncConveyor` for programs with an event loop, `Conveyor` for those without.
"""

from typing import TYPE_CHECKING, Any

from conveyor.client.errors import (
    ClientError,
    Conflict,
    Expired,
    InvalidRequest,
    InvalidTask,
    NotExported,
    NotFound,
    NotServed,
    Refused,
    TooMany,
    Unauthenticated,
    Unavailable,
    Unfinished,
    Unreachable,
)
from conveyor.client.models import (
    Added,
    Attempt,
    BadRow,
    Failure,
    Job,
    NewTask,
    Progress,
    Rerun,
    Run,
    RunExport,
    Spend,
    Stats,
    SubmittedJob,
    TaskResult,
    Waiting,
)
from conveyor.client.synchronous import Conveyor
from conveyor.client.transport import Outage, Patience

if TYPE_CHECKING:
    from conveyor.client.asynchronous import AsyncConveyor

__all__ = [
    "Added",
    "AsyncConveyor",
    "Attempt",
    "BadRow",
    "ClientError",
    "Conflict",
    "Conveyor",
    "Expired",
    "Failure",
    "InvalidRequest",
    "InvalidTask",
    "Job",
    "NewTask",
    "NotExported",
    "NotFound",
    "NotServed",
    "Outage",
    "Patience",
    "Progress",
    "Refused",
    "Rerun",
    "Run",
    "RunExport",
    "Spend",
    "Stats",
    "SubmittedJob",
    "TaskResult",
    "TooMany",
    "Unauthenticated",
    "Unavailable",
    "Unfinished",
    "Unreachable",
    "Waiting",
]


def __getattr__(name: str) -> Any:
    """Load `AsyncConveyor` when it is asked for: aiohttp costs programs without a loop 0.2 s."""
    if name != "AsyncConveyor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from conveyor.client.asynchronous import AsyncConveyor  # noqa: PLC0415

    return AsyncConveyor
