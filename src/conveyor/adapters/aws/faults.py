"""What a call to AWS can end with, apart from a result.

Unavailable (503)          throttled, unreachable or broken until the deadline; nothing was done
└── OutcomeUnknown         the same, but the call may have taken effect
ServiceRefusal (500)       AWS refused the request; repeating it does not help
├── ConditionFailed        a condition did not hold
└── TransactionCanceled    an action of a transaction failed; `reasons` say which and why

The last two are results of a sort: adapters catch them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conveyor.errors import ConveyorError, StorageFull, Unavailable

CONDITION = "ConditionalCheckFailed"  # the code of a reason or of a statement
DUPLICATE = "DuplicateItem"
# The request had no effect and is to be sent again later.
THROTTLED = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
CONFLICTS = frozenset(
    {
        "ReplicatedWriteConflictException",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
# Of a reason or of a statement of a batch. Statements with the last code may have taken effect.
RETRYABLE_ENTRIES = frozenset(
    {
        "ProvisionedThroughputExceeded",
        "RequestLimitExceeded",
        "ThrottlingError",
        "TransactionConflict",
        "InternalServerError",
    }
)
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException"})
DENIED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "IncompleteSignature",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    }
)
FULL = frozenset({"ItemCollectionSizeLimitExceededException"})


class OutcomeUnknown(Unavailable):
    """The answer was lost, and the call may have taken effect or not."""


class ServiceRefusal(ConveyorError):
    """AWS refused a request. `error` is its code, such as `ValidationException`."""

    def __init__(self, what: str, error: str, fields: Mapping[str, Any]) -> None:
        super().__init__(what)
        self.error = error
        self.fields = fields
        # Whether an earlier attempt of the same call lost its answer: then this refusal may be the
        # consequence of its effect, and the caller must look at what is stored.
        self.follows_unknown = False


class ConditionFailed(ServiceRefusal):
    """The condition of a write did not hold."""

    @property
    def item(self) -> Mapping[str, Any] | None:
        """The item as stored, where the request asked for it."""
        return self.fields.get("Item")


@dataclass(frozen=True, slots=True)
class CancellationReason:
    """What came of one action of a canceled transaction."""

    code: str  # `None` if the action itself could have been done
    item: Mapping[str, Any] | None = None
    message: str = ""


class TransactionCanceled(ServiceRefusal):
    """Nothing of a transaction was done."""

    @property
    def reasons(self) -> Sequence[CancellationReason]:
        """In the order of the actions."""
        return [
            CancellationReason(one.get("Code", "None"), one.get("Item"), one.get("Message") or "")
            for one in self.fields.get("CancellationReasons", ())
        ]

    @property
    def is_retryable(self) -> bool:
        """Whether it was canceled only by conflicts or throttling."""
        codes = {reason.code for reason in self.reasons} - {"None"}
        return bool(codes) and codes <= RETRYABLE_ENTRIES


def fault_of(what: str, error: str, fields: Mapping[str, Any]) -> ConveyorError:
    """The exception for an error that is not retried."""
    if error in DENIED:
        return Unavailable(f"{what}. Check the AWS_* variables, the role and its policy")
    if error in FULL:
        return StorageFull(what)
    if error in {f"{CONDITION}Exception", f"{DUPLICATE}Exception"}:
        return ConditionFailed(what, error, fields)
    if error == "TransactionCanceledException":
        return TransactionCanceled(what, error, fields)
    return ServiceRefusal(what, error, fields)
