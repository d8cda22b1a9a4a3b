"""Every error Conveyor raises on purpose, with the stable `code` the wire uses.

ConveyorError
├── CallerFault                   the request is at fault; repeating it will not help
│   ├── InvalidArgument           400 invalid_argument
│   ├── Unauthenticated           401 unauthenticated
│   ├── NotFound                  404 not_found
│   ├── MethodNotAllowed          405 method_not_allowed
│   ├── Conflict                  409 conflict
│   │   ├── JobNotOpen                job_not_open
│   │   ├── LastBatchReceived         last_batch_received
│   │   ├── RunNotTerminal            run_not_terminal
│   │   ├── RunNotStoppable           run_not_stoppable
│   │   ├── RunHasDescendants         run_has_descendants
│   │   ├── NoPriorRun                no_prior_run
│   │   ├── NoMatchingTasks           no_matching_tasks
│   │   ├── PartialRerunWindowExpired partial_rerun_window_expired
│   │   ├── IdempotencyKeyConflict    idempotency_key_conflict
│   │   └── TaskNotReady              task_not_ready
│   ├── ResultExpired             410 result_expired
│   ├── TooLarge                  413 payload_too_large
│   ├── TaskUnsuccessful          422 the task's own code
│   ├── QuotaExceeded             429 quota_exceeded
│   └── NotImplementedYet         501 not_implemented
├── Unavailable                   503 unavailable: a backend is absent, try again later
│   └── StorageFull               503 storage_full
├── Stale                         a version or claim moved on under the writer
├── KeyTaken                      an idempotency key was claimed first by another call
├── RefusedToStart                settings or surroundings that the program cannot work with
└── IllegalMove                   a bug: a state machine was asked for a move it does not have
"""

from collections.abc import Mapping
from typing import ClassVar


class ConveyorError(Exception):
    code: ClassVar[str] = "internal"


class CallerFault(ConveyorError):
    """The request is at fault. `extras` become members of the problem document."""

    status: ClassVar[int] = 400
    title: ClassVar[str] = "Bad request"

    def __init__(self, detail: str, *, extras: Mapping[str, object] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extras = dict(extras or {})


class InvalidArgument(CallerFault):
    code = "invalid_argument"
    title = "Invalid argument"


class Unauthenticated(CallerFault):
    code, status, title = "unauthenticated", 401, "Unauthenticated"


class NotFound(CallerFault):
    code, status, title = "not_found", 404, "Not found"


class MethodNotAllowed(CallerFault):
    code, status, title = "method_not_allowed", 405, "Method not allowed"


class Conflict(CallerFault):
    code, status, title = "conflict", 409, "Conflict"


class JobNotOpen(Conflict):
    code, title = "job_not_open", "Job is not open"


class LastBatchReceived(Conflict):
    code, title = "last_batch_received", "Last batch already received"


class RunNotTerminal(Conflict):
    code, title = "run_not_terminal", "Run is not terminal"


class RunNotStoppable(Conflict):
    code, title = "run_not_stoppable", "Run cannot be stopped"


class RunHasDescendants(Conflict):
    code, title = "run_has_descendants", "Run has descendants"


class NoPriorRun(Conflict):
    code, title = "no_prior_run", "No prior run"


class NoMatchingTasks(Conflict):
    code, title = "no_matching_tasks", "No matching tasks"


class PartialRerunWindowExpired(Conflict):
    code, title = "partial_rerun_window_expired", "Partial rerun window expired"


class IdempotencyKeyConflict(Conflict):
    code, title = "idempotency_key_conflict", "Idempotency key conflict"


class TaskNotReady(Conflict):
    code, title = "task_not_ready", "Task is not ready"


class ResultExpired(CallerFault):
    code, status, title = "result_expired", 410, "Result expired"


class TooLarge(CallerFault):
    code, status, title = "payload_too_large", 413, "Payload too large"


class TaskUnsuccessful(CallerFault):
    """The content of a failed task was asked for: the task's own problem is the answer."""

    code, status, title = "task_failed", 422, "Task failed"


class QuotaExceeded(CallerFault):
    code, status, title = "quota_exceeded", 429, "Quota exceeded"


class NotImplementedYet(CallerFault):
    code, status, title = "not_implemented", 501, "Not implemented"


class Unavailable(ConveyorError):
    """A backend is absent or overloaded; the same call may work later."""

    code = "unavailable"
    title: ClassVar[str] = "Service unavailable"


class StorageFull(Unavailable):
    code, title = "storage_full", "Storage is full"


class Stale(ConveyorError):
    """A row moved on since it was read: read it again and decide anew."""

    code = "stale"


class KeyTaken(ConveyorError):
    """Another call has claimed this idempotency key; read its claim and answer from it."""

    code = "key_taken"


class RefusedToStart(ConveyorError):
    code = "refused_to_start"


class IllegalMove(ConveyorError):
    code = "illegal_move"
