"""The Python client of Conveyor, and of any service that speaks the same API.

`AsyncConveyor` for programs with an event loop, `Conveyor` for those without.
"""

from conveyor.client.asynchronous import AsyncConveyor
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
from conveyor.client.shapes import (
    Added,
    Attempt,
    BadRow,
    Export,
    Failure,
    Job,
    NewTask,
    Progress,
    Rerun,
    Result,
    Run,
    Spend,
    Stats,
    Submitted,
    Waiting,
)
from conveyor.client.synchronous import Conveyor
from conveyor.client.transport import Patience

__all__ = [
    "Added",
    "AsyncConveyor",
    "Attempt",
    "BadRow",
    "ClientError",
    "Conflict",
    "Conveyor",
    "Expired",
    "Export",
    "Failure",
    "InvalidRequest",
    "InvalidTask",
    "Job",
    "NewTask",
    "NotExported",
    "NotFound",
    "NotServed",
    "Patience",
    "Progress",
    "Refused",
    "Rerun",
    "Result",
    "Run",
    "Spend",
    "Stats",
    "Submitted",
    "TooMany",
    "Unauthenticated",
    "Unavailable",
    "Unfinished",
    "Unreachable",
    "Waiting",
]
