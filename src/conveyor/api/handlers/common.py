"""What handlers share: the parameters of a request, and responses in JSON."""

from collections.abc import Awaitable, Callable
from typing import TypedDict, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from conveyor.api.auth import caller_of
from conveyor.api.render import encode
from conveyor.domain import cursor
from conveyor.domain.ids import TASK_ID, ULID, CallerId, JobId, RunId
from conveyor.domain.job import JobStatus, JobType
from conveyor.domain.json_bodies import field_error, nearest
from conveyor.domain.submission import LONGEST_NAME
from conveyor.errors import NotFound

JSON = "application/json"
NDJSON = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"

Choice = TypeVar("Choice", JobStatus, JobType)
Endpoint = Callable[[Request], Awaitable[Response]]


class PageQuery(TypedDict):
    """Which page of a listing is requested, newest first."""

    limit: int
    before: str | None


class JobsFilter(TypedDict):
    """Which jobs of a listing are requested."""

    status: JobStatus | None
    kind: JobType | None
    name: str | None  # or external id, in part


def json_response(document: object, status: int = 200) -> Response:
    return Response(encode(document), status, media_type=JSON)


def page(request: Request) -> PageQuery:
    return {"limit": limit(request), "before": cursor.after_id(request.query_params.get("cursor"))}


def limit(request: Request) -> int:
    given = request.query_params.get("limit")
    return cursor.limit(given, default=cursor.DEFAULT_LIMIT, most=cursor.MOST_LISTED)


def jobs_filter(request: Request) -> JobsFilter:
    query = request.query_params
    return {
        "status": _choice(query.get("status"), "status", JobStatus),
        "kind": _choice(query.get("type"), "type", JobType),
        "name": _name(query.get("name")),
    }


def _name(text: str | None) -> str | None:
    if text is not None and not 0 < len(text) <= LONGEST_NAME:
        raise field_error("name", f"must have 1 to {LONGEST_NAME} characters, got {len(text)}")
    return text


def _choice(text: str | None, name: str, kind: type[Choice]) -> Choice | None:
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        what = f"must be one of {', '.join(kind)}, got {text[:40]!r}{nearest(text, list(kind))}"
        raise field_error(name, what) from None


def check_ids(request: Request) -> None:
    """Refuse a path with a text that cannot be an id, before an engine is asked for it.

    PostgreSQL stores no U+0000, and DynamoDB no long keys: they would raise instead.
    """
    for name, text in request.path_params.items():
        if name == "caller":  # its handler says what a name must be
            continue
        if not (TASK_ID if name == "task" else ULID).fullmatch(text):
            raise NotFound(f"No such {'dead letter' if name == 'message' else name}")


def job_id(request: Request) -> JobId:
    return JobId(request.path_params["job"])


def caller_and_job(request: Request) -> tuple[CallerId, JobId]:
    """Return the first two arguments of every step that acts on a job."""
    return caller_of(request), job_id(request)


def run_id(request: Request) -> RunId:
    return RunId(request.path_params["run"])


def run_or_latest(request: Request) -> RunId | None:
    """Return the run of a path, or None on the paths that mean the latest run."""
    return run_id(request) if "run" in request.path_params else None
