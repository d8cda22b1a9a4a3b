"""The fields of requests, by the description of DynamoDB's API that botocore has."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from botocore.model import ListShape, MapShape, ServiceModel, Shape, StructureShape
from botocore.session import Session

from conveyor.testing.dynamodb.refusals import invalid

STATEMENTS = {"ExecuteStatement", "BatchExecuteStatement"}


def check_fields(operation: str, request: Mapping[str, Any]) -> None:
    """Refuse fields that the API does not have. AWS ignores them, and a mistake stays unseen."""
    _check(_input_of(operation), request)


def kind_of_request(operation: str, request: Mapping[str, Any]) -> str:
    """The operation. For statements, what the first of them does as well."""
    if operation not in STATEMENTS:
        return operation
    first = (request.get("Statements") or [request])[0]
    verb, _, _ = str(first.get("Statement", "")).strip().partition(" ")
    return f"{operation} {verb.upper()}".rstrip()


@cache
def _input_of(operation: str) -> Shape:
    shape: Shape = _model().operation_model(operation).input_shape
    return shape


@cache
def _model() -> ServiceModel:
    return Session().get_service_model("dynamodb")


def _check(shape: Shape, given: Any) -> None:
    if shape.name == "AttributeValue":
        return  # `values.canonical` checks these
    if isinstance(shape, StructureShape) and isinstance(given, Mapping):
        if unknown := given.keys() - shape.members.keys():
            raise invalid(f"{shape.name} has no field {', '.join(sorted(unknown))}")
        for name, value in given.items():
            _check(shape.members[name], value)
    elif isinstance(shape, MapShape) and isinstance(given, Mapping):
        for value in given.values():
            _check(shape.value, value)
    elif isinstance(shape, ListShape) and isinstance(given, list | tuple):
        for value in given:
            _check(shape.member, value)
