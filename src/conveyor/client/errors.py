"""What can go wrong when a service is asked.

ClientError
├── Refused               the service answered, and said no
│   ├── InvalidRequest    400, 413, 422: the request is at fault; see `invalid_tasks`
│   ├── Unauthenticated   401, 403
│   ├── NotFound          404
│   ├── NotServed         405, 501: this service does not have that
│   ├── Conflict          409
│   ├── Expired           410
│   ├── TooMany           429: and asking again was of no help
│   └── Unavailable       5xx: and asking again was of no help
├── Unreachable           no answer, or none that makes sense
├── NotExported           the service could not make an export
└── Unfinished            a submission ended midway; its job is there, and open
"""

from collections.abc import Mapping, Sequence

import msgspec

from conveyor.errors import ConveyorError


class InvalidTask(msgspec.Struct, frozen=True):
    """A task that was refused: which one of those handed in, and why."""

    index: int
    reason: str = ""
    value: str = ""
    line: int | None = None  # of an uploaded list


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What a refusal says, as far as it says it."""

    status: int = 0
    code: str = ""
    title: str = ""
    detail: str = ""
    invalid_tasks: list[InvalidTask] = []
    request_id: str = ""  # by which the operator finds it in the log


class ClientError(ConveyorError):
    """Whatever this client raises on purpose."""

    code = "client"


class Refused(ClientError):
    """The service answered, and said no."""

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


class InvalidRequest(Refused): ...


class Unauthenticated(Refused): ...


class NotFound(Refused): ...


class NotServed(Refused): ...


class Conflict(Refused): ...


class Expired(Refused): ...


class TooMany(Refused): ...


class Unavailable(Refused): ...


class Unreachable(ClientError):
    """There was no answer, or none that can be made sense of."""

    code = "unreachable"


class NotExported(ClientError):
    """The service could not make an export: `reason` is its own word for why."""

    code = "not_exported"

    def __init__(self, export_id: str, reason: str) -> None:
        super().__init__(f"export {export_id} failed: {reason}")
        self.export_id = export_id
        self.reason = reason


class Unfinished(ClientError):
    """A submission ended midway, by the list or by the service: the cause says which.

    The job is open and holds the tasks that were accepted. Submit the same list with the same
    idempotency key to go on, add the rest and close it, or stop it.
    """

    code = "unfinished"

    def __init__(self, job_id: str, accepted_tasks: int, key: str, cause: Exception) -> None:
        super().__init__(
            f"job {job_id} is open with {accepted_tasks:,} tasks, and its list ended midway: "
            f"{cause}; go on with idempotency_key={key!r}"
        )
        self.job_id = job_id
        self.accepted_tasks = accepted_tasks
        self.idempotency_key = key
        self.invalid_tasks: Sequence[InvalidTask] = getattr(cause, "invalid_tasks", [])


KINDS: dict[int, type[Refused]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: Unauthenticated,
    404: NotFound,
    405: NotServed,
    409: Conflict,
    410: Expired,
    413: InvalidRequest,
    422: InvalidRequest,
    429: TooMany,
    501: NotServed,
}


def refusal(status: int, raw: bytes, headers: Mapping[str, str]) -> Refused:
    """The error that a response of that status is."""
    try:
        problem = msgspec.json.decode(raw, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        problem = Problem(detail="The answer is none of this API's; is the base URL right?")
    kind = KINDS.get(status, Unavailable if status >= 500 else Refused)
    request_id, asked = headers.get("X-Request-ID") or "", headers.get("Retry-After") or ""
    wait = float(asked) if asked.strip().isdecimal() else None
    problem = msgspec.structs.replace(problem, status=status, request_id=request_id)
    return kind(problem, retry_after=wait)
