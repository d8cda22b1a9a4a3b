"""Every error Conveyor raises on purpose, with the stable `code` the wire uses.

ConveyorError
├── CallerFault                   the request is at fault; repeating it will not help
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
├── Unavailable                   503 unavailable: a backend is absent, try again later
│   ├── Overloaded                503 overloaded
│   └── StorageFull               503 storage_full
├── Stale                         a version or claim moved on under the writer
├── KeyTaken                      an idempotency key was claimed first by another call
├── RefusedToStart                settings or surroundings that the program cannot work with
└── IllegalMove                   a bug: a state machine was asked for a move it does not have
"""

from collections.abc import Mapping
from typing import ClassVar


class ConveyorError(Exception):
    """Something went wrong here. The log has it under the answer's `X-Request-ID`."""

    code: str = "internal"
    remedy: ClassVar[str] = "Repeat the call; if it goes on, tell the operator the request id."


class CallerFault(ConveyorError):
    """The request is at fault.

    `extras` become members of the problem document, `headers` those of the answer.
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
    """A field, a parameter or a task of the request is not as it should be. Nothing was created."""

    code, title = "invalid_argument", "Invalid argument"
    remedy = "Mend what `field` names, or every task that `invalid_tasks` lists by index, and send it again."


class CallbackUrlMustBeHttps(InvalidArgument):
    """A webhook's URL is not on https."""

    code, title = "callback_url_must_be_https", "Callback URL must be https"
    remedy = "Give a URL that begins with `https://`."


class CallbackUrlUnresolvable(InvalidArgument):
    """A webhook's host has no address that could be found within a second, or one that is not public."""

    code, title = "callback_url_unresolvable", "Callback URL cannot be resolved"
    remedy = "Give a host with public addresses only; for a network of your own, the operator sets `webhook_allow_private`."


class SigningRequiresActiveKey(InvalidArgument):
    """Signed deliveries are asked for, and there is no key to sign them with."""

    code, title = "webhook_signing_requires_active_key", "Signing requires an active key"
    remedy = "Make a key with `POST /v1/hmac/keys/rotate`, then ask again."


class Unauthenticated(CallerFault):
    """There is no API key, it is not known here or not any more, or it stands in the query."""

    code, status, title = "unauthenticated", 401, "Unauthenticated"
    remedy = "Send a known key in the header `X-API-Key`."


class SubscriptionInactive(Unauthenticated):
    """The gateway does not accept the key, or its subscription is not active."""

    code, title = "subscription_inactive", "Subscription inactive"
    remedy = "Renew the subscription, or use a key that the gateway accepts; then repeat the call."


class PaymentRequired(CallerFault):
    """The account behind the key has no credits left."""

    code, status, title = "payment_required", 402, "Payment required"
    remedy = "Buy credits for the account; then repeat the call: it works within seconds."


class ApiKeyCapReached(PaymentRequired):
    """The key has used up a cap of its own."""

    code, title = "api_key_cap_reached", "API key cap reached"
    remedy = "Raise the cap of the key, or use another; then repeat the call."


class PermissionDenied(CallerFault):
    """The key is known, and is not for this call: it may only read, or nothing pays for its pages."""

    code, status, title = "permission_denied", 403, "Permission denied"
    remedy = (
        "Use a key that may do it; whoever runs the service makes one with `conveyor keys create`."
    )


class NotFound(CallerFault):
    """There is no such thing, it is deleted, or it belongs to another caller."""

    code, status, title = "not_found", 404, "Not found"
    remedy = "Check the id, and that the key is the one it was made with."


class FileInputNotFound(NotFound):
    """There is no such file input, it has expired, or it belongs to another caller."""

    code, title = "file_input_not_found", "File input not found"
    remedy = "Create a new one with `POST /v1/job_inputs`, and upload the file again."


class MethodNotAllowed(CallerFault):
    """The path has no such method."""

    code, status, title = "method_not_allowed", 405, "Method not allowed"
    remedy = "Use one that the header `Allow` names."


class RequestTimeout(CallerFault):
    """The request came too slowly, or stopped coming."""

    code, status, title = "request_timeout", 408, "Request timeout"
    remedy = "Send it again, whole; with `Idempotency-Key` that is safe."


class Conflict(CallerFault):
    """The state a thing is in does not allow the call."""

    code, status, title = "conflict", 409, "Conflict"
    remedy = "Read the thing again, and decide by what `detail` says."


class JobNotOpen(Conflict):
    """Tasks for a job that is closed, or whose run has ended."""

    code, title = "job_not_open", "Job is not open"
    remedy = "Submit them as a new job; a job that is to grow is submitted with `status: open`."


class LastBatchReceived(Conflict):
    """Tasks for a job after those marked `last_batch`."""

    code, title = "last_batch_received", "Last batch already received"
    remedy = "Submit them as a new job."


class RunNotTerminal(Conflict):
    """The run must have ended first, or its rows must all be written."""

    code, title = "run_not_terminal", "Run is not terminal"
    remedy = "Wait for its end or stop it; while rows are being written, try again in a moment."


class RunNotStoppable(Conflict):
    """The run has ended, and not by a stop."""

    code, title = "run_not_stoppable", "Run cannot be stopped"
    remedy = "There is nothing to stop; run the job again if you want more of it."


class RunHasDescendants(Conflict):
    """A newer run shows rows that this one owns."""

    code, title = "run_has_descendants", "Run has descendants"
    remedy = "Delete the newer run first, or the whole job."


class NoPriorRun(Conflict):
    """The job has no run that could be repeated: all are deleted."""

    code, title = "no_prior_run", "No prior run"
    remedy = "Submit a new job."


class NoMatchingTasks(Conflict):
    """No task of the last run is in the statuses that were asked for."""

    code, title = "no_matching_tasks", "No matching tasks"
    remedy = "There is nothing to do again; leave `status` out to repeat all tasks."


class PartialRerunWindowExpired(Conflict):
    """Results that the new run would take over are past their retention."""

    code, title = "partial_rerun_window_expired", "Partial rerun window expired"
    remedy = "Leave `status` out: a full rerun scrapes all tasks anew."


class FileInputNotUploaded(Conflict):
    """A job names a file input that was not uploaded, or not whole."""

    code, title = "file_input_not_uploaded", "File input not uploaded"
    remedy = "PUT the file to its `upload.url`, then submit again."


class FileInputAlreadyUploaded(Conflict):
    """A file input takes one upload, and has it."""

    code, title = "file_input_already_uploaded", "File input already uploaded"
    remedy = "Use it as it is, or create a new one with `POST /v1/job_inputs`."


class FileInputUnsupported(Conflict):
    """A file input requires a closed job."""

    code, title = "file_input_unsupported_for_job_type", "File input unsupported for job type"
    remedy = "Leave `status: open` out, or hand the tasks in with `POST /v1/jobs/{job}/tasks`."


class IdempotencyKeyConflict(Conflict):
    """The key was used for another request, or its first call is still under way."""

    code, title = "idempotency_key_conflict", "Idempotency key conflict"
    remedy = "For another request take another key; for the same one, try again in a moment."


class CandidatePending(Conflict):
    """A key is about to take the place of another: there cannot be a third."""

    code, title = "candidate_pending", "A candidate key is pending"
    remedy = "Finish the rotation with `POST /v1/hmac/keys/rotate/finalize`, or give it up with `DELETE /v1/hmac/keys/rotate`."


class NoCandidate(Conflict):
    """There is no key that could take the place of the active one."""

    code, title = "no_candidate", "There is no candidate key"
    remedy = "Begin a rotation with `POST /v1/hmac/keys/rotate`."


class TaskNotReady(Conflict):
    """Content of a task that is not done."""

    code, title = "task_not_ready", "Task is not ready"
    remedy = "Ask again when its status is final."


class ResultExpired(CallerFault):
    """Content of a task that is past its retention."""

    code, status, title = "result_expired", 410, "Result expired"
    remedy = "Run the job again; a longer `result_ttl_days` at submit keeps results longer."


class TooLarge(CallerFault):
    """The request has more bytes than are taken."""

    code, status, title = "payload_too_large", 413, "Payload too large"
    remedy = "Send fewer tasks in a call: submit an open job, and add the rest to it."


class UriTooLong(CallerFault):
    """The path and query of the request have more bytes than are taken."""

    code, status, title = "uri_too_long", 414, "URI too long"
    remedy = "Check the path and the query; no call of this API needs a long one."


class UnsupportedMediaType(CallerFault):
    """The body is sent as something that is not JSON, or packed."""

    code, status, title = "unsupported_media_type", 415, "Unsupported media type"
    remedy = "Send JSON in UTF-8, unpacked, with `Content-Type: application/json`."


class RangeNotSatisfiable(CallerFault):
    """A part of a file was asked for that lies beyond its end."""

    code, status, title = "range_not_satisfiable", 416, "Range not satisfiable"
    remedy = "Ask for what is there: `Content-Range` tells its length; or for all of it."


class TaskUnsuccessful(CallerFault):
    """Content of a failed task was asked for: the task's own problem, with its own code, is the answer."""

    code, status, title = "task_failed", 422, "Task failed"
    remedy = "See the problem; a rerun with `status=failed` tries the task again."


class QuotaExceeded(CallerFault):
    """A limit of the account, or of an open job, is reached."""

    code, status, title = "quota_exceeded", 429, "Quota exceeded"
    remedy = "Wait as `Retry-After` says, if it is there, or submit another job."


class RateLimited(CallerFault):
    """The caller asks more often than it may."""

    code, status, title = "rate_limited", 429, "Too many requests"
    remedy = (
        "Wait as `Retry-After` says; `RateLimit` tells what is left, and when it is full again."
    )


class HeadTooLarge(CallerFault):
    """The headers of the request are too many, or have more bytes than are taken."""

    code, status, title = "head_too_large", 431, "Request header fields too large"
    remedy = "Send fewer or shorter headers."


class Unavailable(ConveyorError):
    """A backend is absent or overloaded; the same call may work later."""

    code = "unavailable"
    title: ClassVar[str] = "Service unavailable"
    remedy = "Repeat the call after the seconds in `Retry-After`."


class Overloaded(Unavailable):
    """The service has more in hand than it has room for; nothing was created."""

    code, title = "overloaded", "Overloaded"
    remedy = (
        "Repeat the call after the seconds in `Retry-After`; with `Idempotency-Key` that is safe."
    )


class StorageFull(Unavailable):
    """There is no room left where the service keeps its data."""

    code, title = "storage_full", "Storage is full"
    remedy = "Tell the operator; repeat the call when there is room again."


class Stale(ConveyorError):
    """A row moved on since it was read: read it again and decide anew."""

    code = "stale"


class KeyTaken(ConveyorError):
    """Another call has claimed this idempotency key; read its claim and answer from it."""

    code = "key_taken"


class RefusedToStart(ConveyorError):
    """The program cannot work with its settings or surroundings."""

    code = "refused_to_start"
    remedy = "Do what the message says, and start it again."


class IllegalMove(ConveyorError):
    """A bug: a state machine was asked for a move it does not have."""

    code = "illegal_move"
