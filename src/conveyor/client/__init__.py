"""The Python client of Conveyor, and of any service that speaks the same API.

`AsyncConveyor` is for programs with an event loop, `Conveyor` for programs without one.
"""

from typing import TYPE_CHECKING, Any

from conveyor.client.errors import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    ClientError,
    ConflictError,
    ExpiredError,
    ExportError,
    InvalidTask,
    NotFoundError,
    NotSupportedError,
    RateLimitError,
    ServerError,
    UnfinishedError,
    UnreachableError,
)
from conveyor.client.models import (
    Added,
    Attempt,
    BadRow,
    Failure,
    FailureGroup,
    Failures,
    Job,
    NewSigningKey,
    NewTask,
    Progress,
    Rerun,
    Run,
    RunExport,
    SigningKeyInUse,
    SigningKeys,
    Spend,
    Stats,
    SubmittedJob,
    TaskResult,
    Timeline,
    TimelineInterval,
    Waiting,
    Webhook,
    WebhookEvent,
    WebhookTest,
)
from conveyor.client.synchronous import Conveyor
from conveyor.client.transport import Outage, Patience

if TYPE_CHECKING:
    from conveyor.client.asynchronous import AsyncConveyor

__all__ = [
    "Added",
    "ApiError",
    "AsyncConveyor",
    "Attempt",
    "AuthenticationError",
    "BadRequestError",
    "BadRow",
    "ClientError",
    "ConflictError",
    "Conveyor",
    "ExpiredError",
    "ExportError",
    "Failure",
    "FailureGroup",
    "Failures",
    "InvalidTask",
    "Job",
    "NewSigningKey",
    "NewTask",
    "NotFoundError",
    "NotSupportedError",
    "Outage",
    "Patience",
    "Progress",
    "RateLimitError",
    "Rerun",
    "Run",
    "RunExport",
    "ServerError",
    "SigningKeyInUse",
    "SigningKeys",
    "Spend",
    "Stats",
    "SubmittedJob",
    "TaskResult",
    "Timeline",
    "TimelineInterval",
    "UnfinishedError",
    "UnreachableError",
    "Waiting",
    "Webhook",
    "WebhookEvent",
    "WebhookTest",
]


def __getattr__(name: str) -> Any:
    """Import `AsyncConveyor` when it is used: aiohttp adds 0.2 s to the start of a program."""
    if name != "AsyncConveyor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from conveyor.client.asynchronous import AsyncConveyor  # noqa: PLC0415

    return AsyncConveyor
