"""The table of routes: each path of the API with its handler, request body and responses.

Routing and the OpenAPI document are both built from it.
"""

from collections.abc import Sequence

import msgspec

from conveyor import wire
from conveyor.api.handlers.common import EVENT_STREAM, NDJSON
from conveyor.domain.schedule import Schedule, ScheduleTurn
from conveyor.domain.selection import FILTERS, RerunBody
from conveyor.domain.submission import Addition, Submission
from conveyor.domain.task_list.spec import ListForm
from conveyor.domain.webhook import NewWebhook, WebhookSetting
from conveyor.errors import (
    ApiKeyCapReached,
    CallbackUrlMustBeHttps,
    CallbackUrlUnresolvable,
    CandidatePending,
    Conflict,
    ConveyorError,
    FileInputNotFound,
    FileInputNotUploaded,
    FileInputUnsupported,
    IdempotencyKeyConflict,
    JobNotOpen,
    LastBatchReceived,
    NoCandidate,
    NoMatchingTasks,
    NoPriorRun,
    PartialRerunWindowExpired,
    PaymentRequired,
    RunHasDescendants,
    RunNotStoppable,
    RunNotTerminal,
    SigningRequiresActiveKey,
    SubscriptionInactive,
    TaskNotReady,
)

JOB = "/v1/jobs/{job}"
RUN = JOB + "/runs/{run}"
TASK = "/tasks/{task}"
OPERATOR = "/v1/operator"
ANY_JOB = OPERATOR + "/jobs/{job}"

LISTING = ("limit", "cursor")
KEY_REFUSED = (SubscriptionInactive, PaymentRequired, ApiKeyCapReached)
BAD_WEBHOOK = (CallbackUrlMustBeHttps, CallbackUrlUnresolvable, SigningRequiresActiveKey)


class Route(msgspec.Struct, frozen=True):
    method: str
    path: str
    handler: str
    summary: str
    statuses: Sequence[int] = (200, 401, 404, 503)
    answer: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    query: Sequence[str] = ()
    repeatable: bool = False
    media_type: str = "application/json"
    raises: Sequence[
        type[ConveyorError]
    ] = ()  # the errors of its statuses, where it cannot raise all that have the status

    @property
    def for_operators(self) -> bool:
        """Whether a key must have the scope `operator`."""
        return self.path.startswith(OPERATOR)


ROUTES: tuple[Route, ...] = (
    Route(
        "POST", "/v1/jobs", "submit_job", "Submit a job",
        (201, 202, 400, 401, 402, 404, 409, 413, 429, 503),
        wire.WireSubmitted, Submission, repeatable=True,
        raises=(*KEY_REFUSED,
            FileInputNotFound, FileInputNotUploaded, FileInputUnsupported, IdempotencyKeyConflict,
            *BAD_WEBHOOK,
        ),
    ),
    Route(
        "POST", "/v1/job_inputs", "create_file_input", "Get a file input for a list of tasks",
        (201, 400, 401, 413, 429, 503), wire.WireFileInput, ListForm,
    ),
    Route(
        "GET", "/v1/jobs", "list_jobs", "List your jobs", (200, 400, 401, 503),
        wire.WireJobs, query=("status", "type", "name", *LISTING),
    ),
    Route("GET", JOB, "get_job", "Get a job with its latest run", answer=wire.WireJob),
    Route(
        "POST", JOB + "/tasks", "add_tasks", "Add tasks to an open job",
        (200, 400, 401, 402, 404, 409, 413, 429, 503), wire.WireAdded, Addition, repeatable=True,
        raises=(*KEY_REFUSED, JobNotOpen, LastBatchReceived, RunNotTerminal, IdempotencyKeyConflict),
    ),
    Route(
        "POST", JOB + "/close", "close_job", "Close an open job", (200, 401, 404, 409, 503),
        wire.WireJob, raises=(Conflict,),
    ),
    Route(
        "POST", JOB + "/stop", "stop_job", "Stop the live run", (200, 401, 404, 409, 503),
        wire.WireRun, raises=(RunNotStoppable,),
    ),
    Route(
        "POST", JOB + "/cancel", "stop_job", "Stop the live run", (200, 401, 404, 409, 503),
        wire.WireRun, raises=(RunNotStoppable,),
    ),
    Route(
        "POST", JOB + "/pause", "pause_run", "Pause the live run", (200, 401, 404, 409, 503),
        wire.WireRun, raises=(Conflict,),
    ),
    Route(
        "POST", JOB + "/resume", "resume_run", "Resume the live run", (200, 401, 402, 404, 409, 503),
        wire.WireRun, raises=(*KEY_REFUSED, Conflict),
    ),
    Route(
        "POST", JOB + "/rerun", "rerun_job", "Run a job again, whole or in part",
        (201, 202, 400, 401, 402, 404, 409, 413, 415, 429, 503), wire.WireRerun, RerunBody, query=("status",),
        repeatable=True,
        raises=(*KEY_REFUSED,
            RunNotTerminal, NoPriorRun, NoMatchingTasks, PartialRerunWindowExpired,
            IdempotencyKeyConflict,
        ),
    ),
    Route("DELETE", JOB, "delete_job", "Delete a job", (202, 401, 404, 503)),
    Route(
        "GET", JOB + "/runs", "list_runs", "List a job's runs", (200, 400, 401, 404, 503),
        wire.WireRuns, query=LISTING,
    ),
    Route("GET", RUN, "get_run", "Get a run", answer=wire.WireRun),
    Route(
        "DELETE", RUN, "delete_run", "Delete a run", (202, 401, 404, 409, 503),
        raises=(RunHasDescendants,),
    ),
    Route(
        "GET", JOB + "/events", "follow_run", "Follow the latest run live",
        answer=wire.WireProgress, media_type=EVENT_STREAM,
    ),
    Route(
        "GET", RUN + "/events", "follow_run", "Follow a run live",
        answer=wire.WireProgress, media_type=EVENT_STREAM,
    ),
    Route(
        "GET", JOB + "/timeline", "get_timeline", "Count the tasks of the latest run by time",
        answer=wire.WireTimeline,
    ),
    Route(
        "GET", RUN + "/timeline", "get_timeline", "Count the tasks of a run by time",
        answer=wire.WireTimeline,
    ),
    Route(
        "GET", JOB + "/ingest_errors", "ingest_errors", "Report the bad rows of the latest run's list",
        answer=wire.WireBadRow, media_type=NDJSON,
    ),
    Route(
        "GET", RUN + "/ingest_errors", "ingest_errors", "Report the bad rows of a run's list",
        answer=wire.WireBadRow, media_type=NDJSON,
    ),
    Route(
        "GET", JOB + "/results", "list_results", "List results of the latest run",
        (200, 400, 401, 404, 503), wire.WireResults,
        query=("status", *FILTERS, *LISTING),
    ),
    Route(
        "GET", RUN + "/results", "list_results", "List results of a run",
        (200, 400, 401, 404, 503), wire.WireResults,
        query=("status", *FILTERS, *LISTING),
    ),
    Route(
        "GET", JOB + "/failures", "list_failures", "Group the failed tasks of the latest run",
        (200, 400, 401, 404, 503), wire.WireFailures, query=("limit",),
    ),
    Route(
        "GET", RUN + "/failures", "list_failures", "Group the failed tasks of a run",
        (200, 400, 401, 404, 503), wire.WireFailures, query=("limit",),
    ),
    Route(
        "GET", JOB + TASK + "/content", "get_content", "Get a result of the latest run",
        (200, 401, 404, 409, 410, 422, 503), raises=(TaskNotReady,),
    ),
    Route(
        "GET", RUN + TASK + "/content", "get_content", "Get a result",
        (200, 401, 404, 409, 410, 422, 503), raises=(TaskNotReady,),
    ),
    Route(
        "GET", JOB + TASK + "/history", "get_history", "List attempts at a task of the latest run",
        answer=wire.WireHistory,
    ),
    Route(
        "GET", RUN + TASK + "/history", "get_history", "List attempts at a task",
        answer=wire.WireHistory,
    ),
    Route(
        "POST", RUN + "/exports", "start_export", "Start an export", (202, 401, 404, 429, 503),
        wire.WireExportStarted,
    ),
    Route("GET", RUN + "/exports/{export}", "get_export", "Get an export", answer=wire.WireExport),
    Route(
        "PUT", JOB + "/schedule", "replace_schedule", "Replace a schedule",
        (200, 400, 401, 404, 409, 413, 503), wire.WireJob, Schedule, raises=(Conflict,),
    ),
    Route(
        "POST", JOB + "/schedule/state", "turn_schedule", "Pause or resume a schedule",
        (200, 400, 401, 404, 409, 413, 503), wire.WireJob, ScheduleTurn, raises=(Conflict,),
    ),
    Route("GET", JOB + "/webhook", "get_webhook", "Get a job's webhook", answer=wire.WireWebhook),
    Route(
        "PUT", JOB + "/webhook", "put_webhook", "Set a job's webhook",
        (200, 400, 401, 404, 409, 413, 503), wire.WireWebhook, WebhookSetting,
        raises=(*BAD_WEBHOOK, Conflict),
    ),
    Route(
        "DELETE", JOB + "/webhook", "delete_webhook", "Clear a job's webhook",
        (204, 401, 404, 409, 503), raises=(Conflict,),
    ),
    Route(
        "GET", JOB + "/webhook/deliveries", "list_deliveries", "List the deliveries of a job's webhook",
        (200, 400, 401, 404, 503), wire.WireEvents, query=LISTING,
    ),
    Route(
        "POST", JOB + "/webhook/deliveries/{event}/redeliver", "redeliver", "Deliver an event again",
        (202, 401, 404, 409, 503), wire.WireEvent, raises=(Conflict,),
    ),
    Route(
        "POST", "/v1/webhook/test", "test_webhook", "Send a test event",
        (200, 400, 401, 413, 503), wire.WireTested, NewWebhook, raises=BAD_WEBHOOK,
    ),
    Route(
        "GET", "/v1/hmac/keys", "list_keys", "List signing keys", (200, 401, 503),
        wire.WireKeys,
    ),
    Route(
        "POST", "/v1/hmac/keys/rotate", "rotate_key", "Begin a key rotation",
        (201, 401, 409, 503), wire.WireNewKey, raises=(CandidatePending,),
    ),
    Route(
        "POST", "/v1/hmac/keys/rotate/finalize", "finish_rotation", "Finish a key rotation",
        (200, 401, 409, 503), wire.WireKeyInUse, raises=(NoCandidate,),
    ),
    Route(
        "DELETE", "/v1/hmac/keys/rotate", "give_up_rotation", "Cancel a key rotation",
        (204, 401, 503),
    ),
    Route(
        "GET", "/v1/caller", "get_caller", "Get the caller and the scopes of your key",
        (200, 401, 503), wire.WireIdentity,
    ),
    Route(
        "GET", OPERATOR + "/callers", "list_callers", "List all callers (operators)",
        (200, 400, 401, 503), wire.WireCallers, query=LISTING,
    ),
    Route(
        "GET", OPERATOR + "/callers/{caller}/jobs", "list_jobs_of_caller",
        "List the jobs of any caller (operators)", (200, 400, 401, 503), wire.WireJobsOfCaller,
        query=("status", "type", "name", *LISTING),
    ),
    Route(
        "GET", OPERATOR + "/runs", "list_live_runs", "List the live runs of all callers (operators)",
        (200, 400, 401, 503), wire.WireLiveRuns, query=("caller", *LISTING),
    ),
    Route(
        "GET", OPERATOR + "/dead_letters", "list_dead_letters",
        "List dead letters of the control queue (operators)", (200, 400, 401, 503),
        wire.WireDeadLetters, query=LISTING,
    ),
    Route(
        "POST", OPERATOR + "/dead_letters/{message}/redrive", "redrive_dead_letter",
        "Put a dead letter back on the control queue (operators)", (202, 401, 404, 503),
    ),
    Route(
        "GET", OPERATOR + "/processes", "list_processes", "List the live processes (operators)",
        (200, 401, 503), wire.WireProcesses,
    ),
    Route(
        "GET", OPERATOR + "/engines", "check_engines", "Check that every engine answers (operators)",
        (200, 401, 503), wire.WireEngines,
    ),
    Route(
        "POST", ANY_JOB + "/pause", "pause_any_run", "Pause the live run of any job (operators)",
        (200, 401, 404, 409, 503), wire.WireRun, raises=(Conflict,),
    ),
    Route(
        "POST", ANY_JOB + "/resume", "resume_any_run", "Resume the live run of any job (operators)",
        (200, 401, 402, 404, 409, 503), wire.WireRun, raises=(*KEY_REFUSED, Conflict),
    ),
    Route(
        "POST", ANY_JOB + "/stop", "stop_any_run", "Stop the live run of any job (operators)",
        (200, 401, 404, 409, 503), wire.WireRun, raises=(RunNotStoppable,),
    ),
)  # fmt: skip
