"""The errors of the client.

ClientError
├── ApiError                  the service refused
│   ├── BadRequestError       400, 413, 422: the request is wrong; see `invalid_tasks`
│   ├── AuthenticationError   401, 403
│   ├── NotFoundError         404
│   ├── NotSupportedError     405, 501: the service does not have this call
│   ├── ConflictError         409
│   ├── ExpiredError          410
│   ├── RateLimitError        429, and repeating the call did not help
│   └── ServerError           5xx, and repeating the call did not help
├── UnreachableError          no response, or not one of this API
├── ExportError               the service could not make an export
└── UnfinishedError           a list was submitted in part; its job is open
"""

from collections.abc import Mapping, Sequence

import msgspec

from conveyor.errors import ConveyorError


class InvalidTask(msgspec.Struct, frozen=True):
    """A refused task: its index in the list, and the reason."""

    index: int
    reason: str = ""
    value: str = ""
    line: int | None = None  # of an uploaded list


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a refusal; another service may leave fields out."""

    status: int = 0
    code: str = ""
    title: str = ""
    detail: str = ""
    invalid_tasks: list[InvalidTask] = []
    request_id: str = ""  # the operator finds the request in the log by it


class ClientError(ConveyorError):
    """The base of every error of the client."""

    code = "client"


class ApiError(ClientError):
    """The service refused: `code` is stable, `detail` is for people."""

    def __init__(self, problem: Problem, *, retry_after: float | None = None) -> None:
        said = problem.detail or problem.title or "Refused"
        super().__init__(f"{said} ({problem.status} {problem.code})")
        self.problem = problem
        self.status = problem.status
        self.code = problem.code
        self.detail = problem.detail
        self.invalid_tasks: Sequence[InvalidTask] = problem.invalid_tasks
        self.request_id = problem.request_id
        self.retry_after = retry_after  # seconds


class BadRequestError(ApiError): ...


class AuthenticationError(ApiError): ...


class NotFoundError(ApiError): ...


class NotSupportedError(ApiError): ...


class ConflictError(ApiError): ...


class ExpiredError(ApiError): ...


class RateLimitError(ApiError): ...


class ServerError(ApiError): ...


class UnreachableError(ClientError):
    """There was no response, or not one of this API."""

    code = "unreachable"


class ExportError(ClientError):
    """The service could not make an export; `reason` is the service's."""

    code = "not_exported"

    def __init__(self, export_id: str, reason: str) -> None:
        super().__init__(f"export {export_id} failed: {reason}")
        self.export_id = export_id
        self.reason = reason


class UnfinishedError(ClientError):
    """A list was submitted in part: its iterable raised, or the service refused a call.

    The job is open and holds the accepted tasks. Submit the same list with the same idempotency key
    to continue, or `add` the rest and `close` the job, or `stop` it. The cause is `__cause__`.
    """

    code = "unfinished"

    def __init__(self, job_id: str, accepted_tasks: int, key: str, cause: Exception) -> None:
        super().__init__(
            f"job {job_id} is open with {accepted_tasks:,} tasks, the rest of its list was not "
            f"submitted: {cause}; to continue, submit the list with idempotency_key={key!r}"
        )
        self.job_id = job_id
        self.accepted_tasks = accepted_tasks
        self.idempotency_key = key
        self.invalid_tasks: Sequence[InvalidTask] = getattr(cause, "invalid_tasks", [])


NOT_THIS_API = "The response is not one of this API: check the base URL, which must end in /v1"
KINDS: dict[int, type[ApiError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFoundError,
    405: NotSupportedError,
    409: ConflictError,
    410: ExpiredError,
    413: BadRequestError,
    422: BadRequestError,
    429: RateLimitError,
    501: NotSupportedError,
}


def refusal(status: int, raw: bytes, headers: Mapping[str, str]) -> ApiError:
    """The error for a response with this status."""
    try:
        problem = msgspec.json.decode(raw, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        problem = Problem(detail=NOT_THIS_API)
    kind = KINDS.get(status, ServerError if status >= 500 else ApiError)
    request_id, asked = headers.get("X-Request-ID") or "", headers.get("Retry-After") or ""
    wait = float(asked) if asked.strip().isdecimal() else None
    problem = msgspec.structs.replace(problem, status=status, request_id=request_id)
    return kind(problem, retry_after=wait)
