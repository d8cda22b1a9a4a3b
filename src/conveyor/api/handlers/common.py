"""What handlers share: the parameters of a request, and responses in JSON."""

from typing import TypedDict

from starlette.requests import Request
from starlette.responses import Response

from conveyor.api.auth import caller_of
from conveyor.api.render import encode
from conveyor.domain import cursor
from conveyor.domain.ids import CallerId, JobId, RunId

JSON = "application/json"
NDJSON = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"


class PageQuery(TypedDict):
    """Which page of a listing is requested, newest first."""

    limit: int
    before: str | None


def json_response(document: object, status: int = 200) -> Response:
    return Response(encode(document), status, media_type=JSON)


def page(request: Request) -> PageQuery:
    query = request.query_params
    most = cursor.MOST_LISTED
    return {
        "limit": cursor.limit(query.get("limit"), default=cursor.DEFAULT_LIMIT, most=most),
        "before": cursor.after_id(query.get("cursor")),
    }


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
