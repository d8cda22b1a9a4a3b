"""JSON Schemas of requests: the bounds that the domain checks, from the domain's own constants.

msgspec derives the shapes from types. The bounds are not `msgspec.Meta` constraints on those types,
because the decoder would then enforce them: it would refuse a whole submission for one bad task, in
its own words, where the domain lists every bad task with its reason.
"""

from typing import Any

from conveyor.domain import (
    api_key,
    cron,
    cursor,
    media,
    params,
    schedule,
    selection,
    step_functions,
    submission,
    webhook,
)
from conveyor.domain.api_key import Scope
from conveyor.domain.batch import INGEST
from conveyor.domain.export import EXPORT, ExportStatus
from conveyor.domain.failure import AccountReason, FailureReason
from conveyor.domain.failure_groups import LONGEST_CODE, LONGEST_HOST, MOST_GROUPS
from conveyor.domain.ids import TASK_ID, ULID
from conveyor.domain.job import PURGE, JobStatus, JobType
from conveyor.domain.outbox import EventStatus, EventType
from conveyor.domain.progress import WaitReason
from conveyor.domain.run import IngestStatus, PauseState, RunStatus, Trigger
from conveyor.domain.submission import Limits, OnInvalid
from conveyor.domain.task import TaskStatus
from conveyor.domain.task_list.rows import RowReason

Document = dict[str, Any]

LIMITS = Limits()
NULL: Document = {"type": "null"}
GET_OR_POST = "^([Gg][Ee][Tt]|[Pp][Oo][Ss][Tt])$"
EXTERNAL_ID: Document = {"pattern": f"^{submission.EXTERNAL_ID.pattern}$"}
METADATA: Document = {
    "maxProperties": submission.MOST_METADATA,
    "propertyNames": {"minLength": 1, "maxLength": submission.LONGEST_METADATA_KEY},
    "additionalProperties": {"type": "string", "maxLength": submission.LONGEST_METADATA_VALUE},
}
HEADERS: Document = {
    "type": "object",
    "maxProperties": params.MOST_HEADERS,
    "additionalProperties": {"type": "string"},
}


def _whole(lowest: int, highest: int) -> Document:
    return {"type": "integer", "minimum": lowest, "maximum": highest}


def _some(each: Document) -> Document:
    """Return the bounds of a list of values."""
    bounds: Document = {"minItems": 1, "maxItems": selection.MOST_VALUES}
    return bounds | ({"items": {"type": "string"} | each} if each else {})


def _several(names: list[str]) -> Document:
    """Return the schema of one name, or several separated by commas."""
    one = "|".join(names)
    return {"type": "string", "pattern": f"^({one})(,({one}))*$"}


def _any_of(longest: int) -> Document:
    """Return the schema of one text, or several separated by commas."""
    one = f"[^,]{{1,{longest}}}"
    return {"type": "string", "pattern": f"^{one}(,{one})*$"}


def _parameter(name: str) -> Document:
    """Return the schema of a scraper parameter, which may be given as itself or as text."""
    return {"anyOf": _forms(name), "description": params.MEANINGS[name]}


def _forms(name: str) -> list[Document]:
    if name == params.HEADERS:
        return [HEADERS]
    if name in params.BOOLEANS:
        return [{"type": "boolean"}, {"type": "string", "enum": ["true", "false"]}]
    if name in params.NUMBERS:
        digits = {"type": "string", "pattern": "^[0-9]{1,9}$"}
        return [_whole(0, params.NUMBERS[name]), digits]
    if name in params.CHOICES:
        return [{"type": "string", "enum": sorted(params.CHOICES[name])}]
    text = {"type": "string", "maxLength": params.LONGEST_TEXT}
    return [text, {"type": "number"}, {"type": "boolean"}]


def _parameters(*, removable: bool) -> Document:
    """Return the schema of scraper parameters by name. Null removes one, where that is possible."""
    properties = {name: _parameter(name) for name in sorted(params.KNOWN)}
    if removable:
        for schema in properties.values():
            schema["anyOf"].append(NULL)
    return {"type": "object", "properties": properties, "additionalProperties": False}


REFERENCE = "#/components/schemas/{name}"
# Schemas of no type: their fields are those of the scraper.
SCRAPER_PARAMS, CHANGED_PARAMS = "ScraperParams", "ChangedParams"
PARAMS = {
    SCRAPER_PARAMS: _parameters(removable=False),
    CHANGED_PARAMS: _parameters(removable=True),
}
ZENROWS_PARAMS: Document = {"$ref": REFERENCE.format(name=SCRAPER_PARAMS)}
EXTENSIONS: dict[str, Document] = {
    **{name: _whole(lowest, highest) for name, (lowest, highest) in submission.BOUNDS.items()},
    "async": {"type": "boolean"},
    "on_invalid": {"enum": list(OnInvalid)},
}
# The value of the header. In a body, the token is a field of an object.
TASK_TOKEN: Document = {"type": "string", "pattern": f"^{step_functions.TOKEN.pattern}$"}
WEBHOOK_URL: Document = {
    "format": "uri",
    "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://",
    "maxLength": webhook.LONGEST_URL,
}
# Schema -> field -> bounds beyond its type.
BOUNDS: dict[str, dict[str, Document]] = {
    "Submission": {
        "tasks": {"maxItems": LIMITS.inline_tasks},
        "zenrows_params": ZENROWS_PARAMS,
        "external_id": EXTERNAL_ID,
        "name": {"maxLength": submission.LONGEST_NAME},
        "metadata": METADATA,
        **EXTENSIONS,
    },
    "RerunBody": {
        "status": _some({}),
        "reason": _some({}),
        "code": _some({"minLength": 1, "maxLength": LONGEST_CODE}),
        "host": _some({"minLength": 1, "maxLength": LONGEST_HOST}),
        "task_ids": _some({"pattern": f"^{TASK_ID.pattern}$"}),
        "scraped_before": {"format": "date-time"},
        "zenrows_params": {"$ref": REFERENCE.format(name=CHANGED_PARAMS)},
    },
    "Addition": {"tasks": {"minItems": 1, "maxItems": submission.TASKS_PER_ADD}},
    "TaskInput": {
        "url": {
            "pattern": "^https?://[^/]",
            "maxLength": submission.LONGEST_URL,
            "examples": ["https://example.com/"],
        },
        "external_id": EXTERNAL_ID,
        "metadata": METADATA,
        "method": {"pattern": GET_OR_POST},
        "zenrows_params": ZENROWS_PARAMS,
    },
}
# What responses hold. Clients must expect others: a newer service may have more (`conveyor.wire`).
PROGRESS: dict[str, Document] = {
    "status": {"enum": list(RunStatus)},
    "pause_state": {"enum": list(PauseState)},
    "ingest_status": {"enum": list(IngestStatus)},
}
JOB: dict[str, Document] = {
    "status": {"enum": list(JobStatus)},
    "type": {"enum": list(JobType)},
    "format": {"enum": [*media.EXTENSIONS_OF_FORMATS, ""]},  # a deleted job has none
    "schedule_state": {"enum": list(schedule.ScheduleState)},
    "schedule_pause_reason": {"enum": list(schedule.PauseReason)},
}
# The domain does not know these two: tests compare them with `conveyor.app`.
ROLES = ("api", "worker", "serve", "dev")
STATES = ("metadata", "tasks", "queues", "control_queue", "bodies", "blobs", "coordination")
BOUNDS |= {
    "WireWaiting": {"reason": {"enum": sorted(WaitReason)}},
    "WireRun": PROGRESS
    | {
        "trigger": {"enum": list(Trigger)},
        "failure_reason": {"enum": list(AccountReason)},
    },
    "WireProgress": PROGRESS,
    "WireJob": JOB,
    "WireJobOfCaller": JOB,
    "WireSubmitted": {"status": {"enum": list(JobStatus)}},
    "WireRerun": {"status": {"enum": list(JobStatus)}},
    "WireAdded": {"job_status": {"enum": list(JobStatus)}},
    "WireUpload": {"method": {"enum": ["PUT"]}},
    "WireBadRow": {"reason": {"enum": [*submission.Reason, *RowReason]}},
    "WireEvent": {
        "status": {"enum": list(EventStatus)},
        "event_type": {"enum": [EventType.RUN_COMPLETED, EventType.RUN_FAILED]},
    },
    "WireIdentity": {"scopes": {"items": {"type": "string", "enum": list(Scope)}}},
    "WireDeadLetter": {"kind": {"enum": [INGEST, PURGE, EXPORT]}},
    "WireProcess": {"role": {"enum": ROLES}},
    "WireEngine": {"holds": {"enum": STATES}},
    "WireResult": {
        "status": {"enum": [*TaskStatus, "expired"]},
        "type": {"enum": [*media.EXTENSIONS_OF_FORMATS, media.OTHER]},
        "method": {"enum": ["POST"]},  # left out of a GET
    },
    "WireFailureGroup": {"reason": {"enum": list(FailureReason)}},
    "WireExport": {"status": {"enum": list(ExportStatus)}},
    "WireExportStarted": {"status": {"enum": list(ExportStatus)}},
    "NewWebhook": {"url": WEBHOOK_URL},
    "WebhookSetting": {"url": WEBHOOK_URL},
    "Schedule": {
        "at": {"pattern": f"^{schedule.LOCAL_TIME.pattern}$"},
        "cron": {"maxLength": cron.LONGEST, "examples": ["0 6 * * 1-5"]},
    },
    "Rate": {"every": {"minimum": 1}},
    "Weekly": {"days": {"minItems": 1}},
    "Monthly": {"days": {"minItems": 1, "items": _whole(1, 31)}},
    "Calendar": {
        "times_of_day": {
            "minItems": 1,
            "items": {"type": "string", "pattern": f"^({schedule.FULL_HOUR.pattern})$"},
        }
    },
    "TaskToken": {
        "task_token": TASK_TOKEN,
        "heartbeat_seconds": _whole(
            step_functions.SHORTEST_HEARTBEAT, step_functions.LONGEST_HEARTBEAT
        ),
    },
}
# A submission has tasks in its body, or is open for later ones, or names a file input.
SOURCES: list[Document] = [
    {
        "required": ["tasks"],
        "properties": {
            "tasks": {"type": "array", "minItems": 1},
            "file_input_id": NULL,
            "on_invalid": NULL,
        },
    },
    {
        "required": ["status"],
        "properties": {
            "status": {"const": JobStatus.OPEN},
            "file_input_id": NULL,
            "on_invalid": NULL,
        },
    },
    {
        "required": ["file_input_id"],
        "properties": {
            "file_input_id": {"type": "string"},
            "tasks": NULL,
            "status": {"enum": [JobStatus.CLOSED, None]},
        },
    },
]
CALLER_NAME: Document = {"type": "string", "pattern": f"^{api_key.CALLER.pattern}$"}
PATHS: dict[str, Document] = {
    "task": {"type": "string", "pattern": f"^{TASK_ID.pattern}$"},
    "caller": CALLER_NAME,
    "": {"type": "string", "pattern": f"^{ULID.pattern}$"},  # of anything else
}
# An empty cursor is the same as none.
AFTER_ID: Document = {"type": "string", "pattern": f"^({ULID.pattern})?$"}
AFTER_TASK: Document = {"type": "string", "pattern": f"^({TASK_ID.pattern})?$"}
LISTED = _whole(1, cursor.MOST_LISTED) | {"default": cursor.DEFAULT_LIMIT}
JOBS: dict[str, Document] = {
    "status": {"enum": list(JobStatus)},
    "type": {"enum": list(JobType)},
    "name": {"type": "string", "minLength": 1, "maxLength": submission.LONGEST_NAME},
    "limit": LISTED,
    "cursor": AFTER_ID,
}
# Handler -> query parameter -> schema.
QUERIES: dict[str, dict[str, Document]] = {
    "list_jobs": JOBS,
    "list_jobs_of_caller": JOBS,
    "list_callers": {
        "limit": LISTED,
        "cursor": {"type": "string", "pattern": f"^({api_key.CALLER.pattern})?$"},
    },
    "list_live_runs": {"caller": CALLER_NAME, "limit": LISTED, "cursor": AFTER_ID},
    "list_dead_letters": {"limit": LISTED, "cursor": AFTER_ID},
    "list_runs": {"limit": LISTED, "cursor": AFTER_ID},
    "list_deliveries": {"limit": LISTED, "cursor": AFTER_ID},
    "list_results": {
        "status": _several(["all", "successful", "failed", "processing"]),
        "host": _any_of(LONGEST_HOST),
        "reason": _several(list(FailureReason)),
        "code": _any_of(LONGEST_CODE),
        "limit": _whole(1, cursor.LARGEST_PAGE) | {"default": cursor.DEFAULT_PAGE},
        "cursor": AFTER_TASK,
    },
    "list_failures": {
        "limit": _whole(1, MOST_GROUPS + len(FailureReason)) | {"default": cursor.DEFAULT_PAGE}
    },
    "rerun_job": {"status": _several(list(TaskStatus))},
}
# Handler -> an example of its body.
EXAMPLES: dict[str, Document] = {
    "submit_job": {"tasks": [{"url": "https://example.com/"}]},
    "add_tasks": {"tasks": [{"url": "https://example.com/"}]},
    "create_file_input": {"type": "txt"},
    "rerun_job": {
        "reason": [FailureReason.BLOCKED],
        "zenrows_params": {"premium_proxy": True},
    },
}
IDEMPOTENCY_KEY: Document = {"type": "string", "pattern": "^[!-~]{1,130}$"}


def bounded(schemas: dict[str, Document]) -> dict[str, Document]:
    """Add the bounds of fields to the schemas of their types."""
    for name, fields in BOUNDS.items():
        properties = schemas[name]["properties"]
        for field, bounds in fields.items():
            properties[field] = narrowed(properties[field], bounds)
    schemas["Submission"]["anyOf"] = SOURCES
    return schemas | PARAMS


def narrowed(schema: Document, bounds: Document) -> Document:
    """Return a schema with further bounds. A field that may be null still may."""
    if "anyOf" not in schema:
        return schema | bounds
    kinds = [kind if kind == NULL else _bound(kind, bounds) for kind in schema["anyOf"]]
    return schema | {"anyOf": kinds}


def _bound(kind: Document, bounds: Document) -> Document:
    """Add bounds to one alternative. A schema of its own, or the accepted values, replace it."""
    replaces = "$ref" in bounds or ("$ref" in kind and "enum" in bounds)
    return bounds if replaces else kind | bounds
