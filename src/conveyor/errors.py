"""Every error that Conveyor raises on purpose, with its stable `code` in API responses.

ConveyorError
├── CallerFault                   the request is at fault; repeating it unchanged does not help
│   ├── InvalidArgument           400 invalid_argument
│   │   ├── CallbackUrlMustBeHttps    callback_url_must_be_https
│   │   ├── CallbackUrlUnresolvable   callback_url_unresolvable
│   │   └── SigningRequiresActiveKey  webhook_signing_requires_active_key
│   ├── Unauthenticated           401 unauthenticated
│   │   └── SubscriptionInactive      subscription_inactive
│   ├── PaymentRequired           402 payment_required
│   │   └── ApiKeyCapReached          api_key_cap_reached
│   ├── PermissionDenied          403 permission_denied
│   ├── NotFound                  404 not_found
│   │   └── FileInputNotFound         file_input_not_found
│   ├── MethodNotAllowed          405 method_not_allowed
│   ├── RequestTimeout            408 request_timeout
│   ├── Conflict                  409 conflict
│   │   ├── JobNotOpen                job_not_open
│   │   ├── LastBatchReceived         last_batch_received
│   │   ├── RunNotTerminal            run_not_terminal
│   │   ├── RunNotStoppable           run_not_stoppable
│   │   ├── RunHasDescendants         run_has_descendants
│   │   ├── NoPriorRun                no_prior_run
│   │   ├── NoMatchingTasks           no_matching_tasks
│   │   ├── PartialRerunWindowExpired partial_rerun_window_expired
│   │   ├── FileInputNotUploaded      file_input_not_uploaded
│   │   ├── FileInputAlreadyUploaded  file_input_already_uploaded
│   │   ├── FileInputUnsupported      file_input_unsupported_for_job_type
│   │   ├── IdempotencyKeyConflict    idempotency_key_conflict
│   │   ├── CandidatePending          candidate_pending
│   │   ├── NoCandidate               no_candidate
│   │   └── TaskNotReady              task_not_ready
│   ├── ResultExpired             410 result_expired
│   ├── TooLarge                  413 payload_too_large
│   ├── UriTooLong                414 uri_too_long
│   ├── UnsupportedMediaType      415 unsupported_media_type
│   ├── RangeNotSatisfiable       416 range_not_satisfiable
│   ├── TaskUnsuccessful          422 the task's own code
│   ├── QuotaExceeded             429 quota_exceeded
│   ├── RateLimited               429 rate_limited
│   └── HeadTooLarge              431 head_too_large
├── Unavailable                   503 unavailable: a backend does not answer; try again later
│   ├── Overloaded                503 overloaded
│   └── StorageFull               503 storage_full
├── Stale                         another writer changed the row or took over the claim
├── KeyTaken                      another call claimed the idempotency key first
├── RefusedToStart                the program cannot run with its settings or environment
└── IllegalMove                   a bug: a transition that the state machine does not have
"""

from collections.abc import Mapping
from typing import ClassVar


class ConveyorError(Exception):
    """An unexpected error of the service. The log has it under the response's `X-Request-ID`."""

    code: str = "internal"
    remedy: ClassVar[str] = (
        "Repeat the call. If it fails again, send the request id to the operator."
    )


class CallerFault(ConveyorError):
    """The request is at fault.

    `extras` become members of the problem document, `headers` become headers of the response.
    """

    status: ClassVar[int] = 400
    title: ClassVar[str] = "Bad request"

    def __init__(
        self,
        detail: str,
        *,
        extras: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extras = dict(extras or {})
        self.headers = dict(headers or {})


class InvalidArgument(CallerFault):
    """A field, a parameter or a task of the request is not valid. Nothing was created."""

    code, title = "invalid_argument", "Invalid argument"
    remedy = "Correct the field that `field` names, or every task that `invalid_tasks` lists, and send the request again."


class CallbackUrlMustBeHttps(InvalidArgument):
    """The URL of a webhook must use https."""

    code, title = "callback_url_must_be_https", "Callback URL must be https"
    remedy = "Use a URL that begins with `https://`."


class CallbackUrlUnresolvable(InvalidArgument):
    """The host of a webhook must resolve within a second, to public addresses only."""

    code, title = "callback_url_unresolvable", "Callback URL cannot be resolved"
    remedy = "Use a host with public addresses only. To allow a private network, the operator sets `webhook_allow_private`."


class SigningRequiresActiveKey(InvalidArgument):
    """Signed deliveries require an active signing key, and the caller has none."""

    code, title = "webhook_signing_requires_active_key", "Signing requires an active key"
    remedy = "Create a key with `POST /v1/hmac/keys/rotate`, then repeat the call."


class Unauthenticated(CallerFault):
    """The request has no API key, or one that is unknown, expired or revoked, or has it in the query."""

    code, status, title = "unauthenticated", 401, "Unauthenticated"
    remedy = "Send a valid key in the header `X-API-Key`."


class SubscriptionInactive(Unauthenticated):
    """The gateway does not accept the gateway key, or its subscription is not active."""

    code, title = "subscription_inactive", "Subscription inactive"
    remedy = "Renew the subscription or use a gateway key that is accepted, then repeat the call."


class PaymentRequired(CallerFault):
    """The account behind the gateway key has no credits left."""

    code, status, title = "payment_required", 402, "Payment required"
    remedy = "Buy credits for the account, then repeat the call after a few seconds."


class ApiKeyCapReached(PaymentRequired):
    """The gateway key has reached the spending cap that is set for it."""

    code, title = "api_key_cap_reached", "API key cap reached"
    remedy = "Raise the cap of the gateway key or use another one, then repeat the call."


class PermissionDenied(CallerFault):
    """The API key is valid but does not allow this call: it lacks a scope, or has no gateway key."""

    code, status, title = "permission_denied", 403, "Permission denied"
    remedy = (
        "Use a key that allows the call. The operator creates keys with `conveyor keys create`."
    )


class NotFound(CallerFault):
    """The resource does not exist, was deleted, or belongs to another caller."""

    code, status, title = "not_found", 404, "Not found"
    remedy = "Check the id, and use a key of the caller that created the resource."


class FileInputNotFound(NotFound):
    """The file input does not exist, has expired, or belongs to another caller."""

    code, title = "file_input_not_found", "File input not found"
    remedy = "Create a new file input with `POST /v1/job_inputs`, and upload the file again."


class MethodNotAllowed(CallerFault):
    """The path does not support this method."""

    code, status, title = "method_not_allowed", 405, "Method not allowed"
    remedy = "Use one of the methods in the header `Allow`."


class RequestTimeout(CallerFault):
    """The request did not arrive in time."""

    code, status, title = "request_timeout", 408, "Request timeout"
    remedy = "Send the whole request again; with `Idempotency-Key` that is safe."


class Conflict(CallerFault):
    """The state of the resource does not allow the call."""

    code, status, title = "conflict", 409, "Conflict"
    remedy = "`detail` names the state that forbids the call. Read the resource to see its current state."


class JobNotOpen(Conflict):
    """Tasks can be added only to an open job with a live run."""

    code, title = "job_not_open", "Job is not open"
    remedy = "Submit the tasks as a new job. To add tasks later, submit a job with `status: open`."


class LastBatchReceived(Conflict):
    """Tasks cannot be added after a batch with `last_batch`."""

    code, title = "last_batch_received", "Last batch already received"
    remedy = "Submit the tasks as a new job."


class RunNotTerminal(Conflict):
    """The call requires a run that has ended, with all its rows written."""

    code, title = "run_not_terminal", "Run is not terminal"
    remedy = "Wait until the run ends, or stop it. While rows are being written, try again after a few seconds."


class RunNotStoppable(Conflict):
    """Only a live run can be stopped, and this one has ended otherwise than by a stop."""

    code, title = "run_not_stoppable", "Run cannot be stopped"
    remedy = "There is nothing to stop. To scrape the tasks again, run the job again."


class RunHasDescendants(Conflict):
    """A newer run inherited rows from this one."""

    code, title = "run_has_descendants", "Run has descendants"
    remedy = "Delete the newer run first, or delete the job."


class NoPriorRun(Conflict):
    """The job has no run to repeat: all its runs were deleted."""

    code, title = "no_prior_run", "No prior run"
    remedy = "Submit a new job."


class NoMatchingTasks(Conflict):
    """No task of the last run meets the conditions of the rerun."""

    code, title = "no_matching_tasks", "No matching tasks"
    remedy = "There is nothing to repeat. Leave all conditions out to repeat all tasks."


class PartialRerunWindowExpired(Conflict):
    """Results that the new run would inherit have expired."""

    code, title = "partial_rerun_window_expired", "Partial rerun window expired"
    remedy = "Leave all conditions out: a full rerun scrapes all tasks again."


class FileInputNotUploaded(Conflict):
    """The file input that the job names has no complete upload."""

    code, title = "file_input_not_uploaded", "File input not uploaded"
    remedy = "Send the file with PUT to its `upload.url`, then submit again."


class FileInputAlreadyUploaded(Conflict):
    """A file input accepts one upload, and this one already has its file."""

    code, title = "file_input_already_uploaded", "File input already uploaded"
    remedy = "Use the file input as it is, or create a new one with `POST /v1/job_inputs`."


class FileInputUnsupported(Conflict):
    """A file input requires a closed job."""

    code, title = "file_input_unsupported_for_job_type", "File input unsupported for job type"
    remedy = "Leave `status: open` out, or add the tasks with `POST /v1/jobs/{job}/tasks`."


class IdempotencyKeyConflict(Conflict):
    """The idempotency key was used for another request, or its first call is still running."""

    code, title = "idempotency_key_conflict", "Idempotency key conflict"
    remedy = (
        "Use a new key for another request. For the same request, try again after a few seconds."
    )


class CandidatePending(Conflict):
    """A rotation of signing keys is in progress: there is already a candidate key."""

    code, title = "candidate_pending", "A candidate key is pending"
    remedy = "Finish the rotation with `POST /v1/hmac/keys/rotate/finalize`, or cancel it with `DELETE /v1/hmac/keys/rotate`."


class NoCandidate(Conflict):
    """No rotation of signing keys is in progress: there is no candidate key."""

    code, title = "no_candidate", "There is no candidate key"
    remedy = "Start a rotation with `POST /v1/hmac/keys/rotate`."


class TaskNotReady(Conflict):
    """The task has no content yet: it has not finished."""

    code, title = "task_not_ready", "Task is not ready"
    remedy = "Repeat the call when the task is `successful` or `failed`."


class ResultExpired(CallerFault):
    """The content of the task was kept for `result_ttl_days` and has expired."""

    code, status, title = "result_expired", 410, "Result expired"
    remedy = "Run the job again. To keep results longer, submit with a larger `result_ttl_days`."


class TooLarge(CallerFault):
    """The body of the request is larger than the limit."""

    code, status, title = "payload_too_large", 413, "Payload too large"
    remedy = "Send fewer tasks in one call: submit an open job, and add the other tasks to it."


class UriTooLong(CallerFault):
    """The path and query of the request are longer than the limit."""

    code, status, title = "uri_too_long", 414, "URI too long"
    remedy = "Shorten the path and the query; no call of this API needs long ones."


class UnsupportedMediaType(CallerFault):
    """The body must be JSON and must not be compressed."""

    code, status, title = "unsupported_media_type", 415, "Unsupported media type"
    remedy = "Send uncompressed JSON in UTF-8, with `Content-Type: application/json`."


class RangeNotSatisfiable(CallerFault):
    """The requested range begins after the end of the file."""

    code, status, title = "range_not_satisfiable", 416, "Range not satisfiable"
    remedy = "Request a range within the length that `Content-Range` states, or the whole file."


class TaskUnsuccessful(CallerFault):
    """The task failed and has no content. The response is the task's problem, with the task's code."""

    code, status, title = "task_failed", 422, "Task failed"
    remedy = "Read the problem. A rerun with `status=failed` tries the task again."


class QuotaExceeded(CallerFault):
    """A limit of the caller or of an open job is reached."""

    code, status, title = "quota_exceeded", 429, "Quota exceeded"
    remedy = "If there is a `Retry-After`, wait that many seconds; otherwise submit another job."


class RateLimited(CallerFault):
    """The caller sends more requests than its rate limit allows."""

    code, status, title = "rate_limited", 429, "Too many requests"
    remedy = (
        "Wait the seconds in `Retry-After`. `RateLimit` states what is left, and when it resets."
    )


class HeadTooLarge(CallerFault):
    """The headers of the request are too many or too long."""

    code, status, title = "head_too_large", 431, "Request header fields too large"
    remedy = "Send fewer or shorter headers."


class Unavailable(ConveyorError):
    """A backend does not answer or is overloaded. The same call may succeed later."""

    code = "unavailable"
    title: ClassVar[str] = "Service unavailable"
    remedy = "Repeat the call after the seconds in `Retry-After`."


class Overloaded(Unavailable):
    """The service is at capacity. Nothing was created."""

    code, title = "overloaded", "Overloaded"
    remedy = (
        "Repeat the call after the seconds in `Retry-After`; with `Idempotency-Key` that is safe."
    )


class StorageFull(Unavailable):
    """The disk that holds the service's data is full."""

    code, title = "storage_full", "Storage is full"
    remedy = "Ask the operator to free space, then repeat the call."


class Stale(ConveyorError):
    """A row changed since it was read. The step must read it again and decide again."""

    code = "stale"


class KeyTaken(ConveyorError):
    """Another call claimed this idempotency key first. Its record holds the response."""

    code = "key_taken"


class RefusedToStart(ConveyorError):
    """The program cannot run with its settings or environment."""

    code = "refused_to_start"
    remedy = "Correct what the message names, and start the program again."


class IllegalMove(ConveyorError):
    """A bug: the requested transition does not exist in the state machine."""

    code = "illegal_move"
