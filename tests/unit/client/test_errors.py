"""Responses of the service that become errors of the client."""

import json

import pytest

from conveyor.client import (
    ApiError,
    AuthenticationError,
    BadRequestError,
    ClientError,
    ConflictError,
    NotFoundError,
    NotSupportedError,
    RateLimitError,
    ServerError,
)
from conveyor.client.errors import refusal


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequestError), (401, AuthenticationError), (404, NotFoundError), (405, NotSupportedError),
        (409, ConflictError), (413, BadRequestError), (429, RateLimitError), (500, ServerError),
        (501, NotSupportedError), (503, ServerError), (302, ApiError), (418, ApiError),
    ],
)  # fmt: skip
def test_a_refusal_is_an_error_of_its_kind(status: int, kind: type[ApiError]) -> None:
    fault = {"index": 3, "reason": "malformed_url", "value": "x"}
    problem = {"code": "a_code", "detail": "So it is", "status": 7, "invalid_tasks": [fault]}
    error = refusal(status, json.dumps(problem).encode(), {"Retry-After": "9", "X-Request-ID": "q"})
    assert type(error) is kind
    assert isinstance(error, ClientError)
    assert (error.status, error.code, error.detail) == (status, "a_code", "So it is")
    assert [(one.index, one.reason) for one in error.invalid_tasks] == [(3, "malformed_url")]
    assert (error.retry_after, error.request_id) == (9, "q")
    assert str(error) == f"So it is ({status} a_code)"


@pytest.mark.parametrize("after", [None, "", "soon", "-1", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_an_answer_of_something_else_is_a_refusal_too(after: str | None) -> None:
    error = refusal(502, b"<html>\xff", {} if after is None else {"Retry-After": after})
    assert isinstance(error, ServerError)
    assert error.retry_after is None
    assert "base URL" in error.detail
