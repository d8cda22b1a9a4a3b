"""Errors that DynamoDB answers with."""

from collections.abc import Mapping
from typing import Any

from conveyor.testing.dynamodb.capacity import Units

NAMESPACE = "com.amazonaws.dynamodb.v20120810#"
VALIDATION = "com.amazon.coral.validate#"
FAILED = "The conditional request failed"


class Refusal(Exception):
    """A request that is refused, with what it costs all the same."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        fields: Mapping[str, Any] | None = None,
        units: Units | None = None,
        status: int = 400,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fields = dict(fields or {})
        self.units = units or Units()
        self.status = status
        # Whether the stored item made the request invalid: in a transaction, a reason of its own.
        self.is_about_content = False

    @property
    def body(self) -> dict[str, Any]:
        if self.code == "ValidationException":
            return {"__type": VALIDATION + self.code, "message": self.message}
        # Newer errors spell it `Message`.
        name = "Message" if self.code == "TransactionCanceledException" else "message"
        return {"__type": NAMESPACE + self.code, name: self.message, **self.fields}

    @property
    def short_code(self) -> str:
        """The code in a statement of a batch, or in a reason of a canceled transaction."""
        if self.code == "ValidationException":
            return "ValidationError"
        if self.code == "ThrottlingException":
            return "ThrottlingError"
        return self.code.removesuffix("Exception")


def invalid(message: str) -> Refusal:
    return Refusal("ValidationException", message)


def invalid_parameter(message: str) -> Refusal:
    return invalid(f"One or more parameter values were invalid: {message}")


def condition_failed(item: Mapping[str, Any] | None, units: Units) -> Refusal:
    """`item` is what the request asked to have returned."""
    fields = {"Item": item} if item else {}
    return Refusal("ConditionalCheckFailedException", FAILED, fields=fields, units=units)


def duplicate_item(units: Units) -> Refusal:
    message = "Duplicate primary key exists in table"
    return Refusal("DuplicateItemException", message, units=units)


def conflict() -> Refusal:
    message = "Transaction is ongoing for the item"
    return Refusal("TransactionConflictException", message)


def throttled(partition: str) -> Refusal:
    message = (
        "Throughput exceeds the current capacity of your table or index. DynamoDB is automatically "
        "scaling your table or index so please try again shortly"
    )
    reasons = [{"reason": "TableWriteKeyRangeThroughputExceeded", "resource": partition}]
    return Refusal("ThrottlingException", message, fields={"throttlingReasons": reasons})


def not_found(what: str = "") -> Refusal:
    message = "Requested resource not found" + (f": {what}" if what else "")
    return Refusal("ResourceNotFoundException", message)
