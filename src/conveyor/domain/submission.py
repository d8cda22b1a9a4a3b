"""Submissions: the fields of submit bodies and of tasks, their limits, and how they are checked."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import can_ada
import msgspec

from conveyor.domain import params as params_rules
from conveyor.domain import step_functions
from conveyor.domain.job import JobStatus, JobType
from conveyor.domain.json_bodies import (
    DEEPEST_JSON,
    LONGEST_SHOWN,
    UNKNOWN_FIELD,
    brief,
    field_error,
    is_deeper,
    similar,
)
from conveyor.domain.params import BadParam, Params
from conveyor.domain.schedule import Schedule, parse_schedule
from conveyor.domain.step_functions import TaskToken
from conveyor.domain.task import TaskSpec
from conveyor.domain.webhook import NewWebhook
from conveyor.errors import FileInputUnsupported, InvalidArgument

LONGEST_URL = 2048
LONGEST_EXTERNAL_ID = 128
LONGEST_NAME = 100
LONGEST_METADATA_VALUE = 1024
LONGEST_METADATA_KEY = 128
MOST_METADATA = 20
LARGEST_TASK_BODY = 16 * 1024
TASKS_PER_ADD = 10_000
MOST_INFLIGHT = 10_000
MOST_RETRIES = 100
MOST_TTL_DAYS = 3650
# What the limits of a task's fields add up to. No setting refuses a task that keeps them all.
LEAST_TASK_BYTES = (
    LONGEST_URL
    + LONGEST_EXTERNAL_ID
    + MOST_METADATA * (LONGEST_METADATA_KEY + LONGEST_METADATA_VALUE)
    + len(params_rules.HEADERS)
    + params_rules.MOST_HEADER_BYTES
    + LARGEST_TASK_BODY
)
EXTERNAL_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Reason(StrEnum):
    """Why a task is refused."""

    MALFORMED_TASK = "malformed_task"
    UNKNOWN_FIELD = "unknown_field"
    MALFORMED_URL = "malformed_url"
    UNSUPPORTED_SCHEME = "unsupported_scheme"
    MISSING_HOST = "missing_host"
    URL_TOO_LONG = "url_too_long"
    METADATA_TOO_LARGE = "metadata_too_large"
    METADATA_KEY_INVALID = "metadata_key_invalid"
    INVALID_EXTERNAL_ID = "invalid_external_id"
    UNKNOWN_PARAM = "unknown_param"
    UNSUPPORTED_PARAM = "unsupported_param"
    INVALID_PARAM_VALUE = "invalid_param_value"
    UNSUPPORTED_METHOD = "unsupported_method"
    BODY_NOT_ALLOWED = "body_not_allowed"
    BODY_TOO_LARGE = "body_too_large"
    BODY_MALFORMED = "body_malformed"
    METHOD_PARAM_CONFLICT = "method_param_conflict"
    TASK_TOO_LARGE = "task_too_large"


# The reason for a field of the wrong type.
WRONG_TYPE: dict[str, Reason] = {
    "url": Reason.MALFORMED_URL,
    "external_id": Reason.INVALID_EXTERNAL_ID,
    "metadata": Reason.METADATA_KEY_INVALID,
    "method": Reason.UNSUPPORTED_METHOD,
    "body": Reason.BODY_MALFORMED,
    "zenrows_params": Reason.INVALID_PARAM_VALUE,
}


class OnInvalid(StrEnum):
    """What to do with a list that has bad rows: skip the rows, or accept none of the list."""

    SKIP = "skip"
    FAIL = "fail"


class NewJobStatus(StrEnum):
    """The statuses that a job can begin with."""

    OPEN = JobStatus.OPEN
    CLOSED = JobStatus.CLOSED


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a caller may send. Each number is a setting of the same name."""

    inline_tasks: int = 100_000
    inline_bytes: int = 64 * 1024 * 1024
    task_bytes: int = 64 * 1024
    sync_tasks: int = 10_000  # from this many on the tasks are staged, and the response is a 202
    open_job_tasks: int = 10_000_000
    list_bytes: int = 2 * 1024**3
    list_rows: int = 10_000_000
    honoured: frozenset[str] = params_rules.KNOWN  # parameters that the gateway supports


# Decoded by `job_schedule`, so that a fault names its own place.
AnySchedule = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/Schedule"})
]


class TaskInput(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    url: str
    external_id: str | None = None
    metadata: dict[str, str] | None = None
    method: str | None = None
    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    zenrows_params: dict[str, Any] | None = None


class Submission(msgspec.Struct, kw_only=True):
    """The body of a submit: the fields of the contract, then Conveyor's extensions.

    `_ignored` of `task_bodies.py` decides about members with other names.
    """

    type: JobType | None = None
    status: NewJobStatus | None = None
    tasks: list[TaskInput] | None = None
    zenrows_params: dict[str, Any] | None = None
    external_id: str | None = None
    name: str | None = None
    metadata: dict[str, str] | None = None
    file_input_id: str | None = None
    on_invalid: OnInvalid | None = None
    schedule: AnySchedule = msgspec.field(default_factory=msgspec.Raw)
    webhook: NewWebhook | None = None
    max_inflight: int | None = None
    max_per_host: int | None = None
    retries: int | None = None
    result_ttl_days: int | None = None
    async_: bool | None = msgspec.field(default=None, name="async")
    step_functions: TaskToken | None = None


# How a job stores the fields that it does not store as they are given: the job's fields that hold
# them, or none. Every other field is copied to the job's field of the same name, so that a new one
# cannot be validated and then dropped.
CONVERTED: dict[str, tuple[str, ...]] = {
    "type": ("type",),
    "status": ("status",),
    "tasks": (),  # they become rows
    "zenrows_params": ("params", "format"),
    "metadata": ("metadata",),
    "file_input_id": ("source_list",),
    "on_invalid": ("source_list",),
    "schedule": ("schedule", "next_fire_at"),
    "webhook": ("webhook",),
    "async_": (),  # it decides how the call is answered
    "step_functions": (),  # the run holds the token
}
# Bounds of a job's whole numbers: the lowest and the highest value. The `Conveyor-*` headers and
# the OpenAPI document follow from it.
BOUNDS: dict[str, tuple[int, int]] = {
    "max_inflight": (1, MOST_INFLIGHT),
    "max_per_host": (1, MOST_INFLIGHT),
    "retries": (0, MOST_RETRIES),
    "result_ttl_days": (1, MOST_TTL_DAYS),
}


class Addition(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of an add-tasks call."""

    tasks: list[TaskInput]
    last_batch: bool | None = None


class RejectedTask(msgspec.Struct, frozen=True, omit_defaults=True):
    index: int
    reason: Reason
    value: str | None = None


def checked_params(
    given: Mapping[str, object] | None, limits: Limits, *, removable: bool = False
) -> Params:
    """Parameters of a whole job or rerun in stored form; `InvalidArgument` if one is refused."""
    try:
        params = params_rules.canonical(given or {}, removable=removable)
        params_rules.check_together(params_rules.merged(params_rules.NO_PARAMS, params), "GET")
        params_rules.check_honoured(params, limits.honoured)
    except BadParam as bad:
        where = f"zenrows_params.{bad.key[:LONGEST_SHOWN]}"
        raise field_error(where, f"is refused: {params_rules.explained(bad)}") from None
    if (size := _params_size(params)) > limits.task_bytes:
        what = f"must have at most {limits.task_bytes} bytes together, got {size}"
        raise field_error("zenrows_params", what)
    return params


def copied_fields(body: Submission) -> dict[str, Any]:
    """The fields that a job stores as they are given; absent ones keep the job's defaults."""
    names = [name for name in body.__struct_fields__ if name not in CONVERTED]
    return {name: value for name in names if (value := getattr(body, name)) is not None}


def job_schedule(body: Submission) -> Schedule | None:
    """The schedule of a scheduled job."""
    is_given = bytes(body.schedule) not in {b"", b"null"}
    if body.type is not JobType.SCHEDULED:
        if is_given:
            raise field_error(
                "schedule", 'must come with `"type": "scheduled"`: a regular job has none'
            )
        return None
    if not is_given:
        raise field_error("schedule", "is required for a scheduled job")
    return parse_schedule(bytes(body.schedule), within="schedule")


def sift(
    tasks: Iterable[tuple[int, TaskInput]], params: Params, limits: Limits
) -> tuple[list[tuple[int, TaskSpec]], list[RejectedTask]]:
    """Separate tasks into those that are accepted, in stored form, and those that are not.

    Each keeps its index.
    """
    accepted: list[tuple[int, TaskSpec]] = []
    bad: list[RejectedTask] = []
    for index, task in tasks:
        try:
            accepted.append((index, accept_task(task, params, limits)))
        except Unfit as unfit:
            bad.append(RejectedTask(index, unfit.reason, unfit.value))
    return accepted, bad


def accept_task(task: TaskInput, job: Params, limits: Limits) -> TaskSpec:
    """One task in stored form. Raises `Unfit` with the reason why it is not accepted."""
    url = _accept_url(task.url)
    if task.external_id is not None and not EXTERNAL_ID.fullmatch(task.external_id):
        raise Unfit(Reason.INVALID_EXTERNAL_ID, task.external_id)
    metadata = _accept_metadata(task.metadata) if task.metadata else None
    if task.method is None and task.zenrows_params is None and not len(task.body):
        return TaskSpec(url=url, external_id=task.external_id, metadata=metadata)
    return _accept_shaped(task, job, url, metadata, limits)


def invalid_tasks(bad: Sequence[RejectedTask]) -> InvalidArgument:
    first = bad[0]
    form = " (a task is an object with a `url`)" if first.reason == Reason.MALFORMED_TASK else ""
    if like := meant_name(first.reason, first.value):
        form = f" (did you mean `{like}`?)"
    return InvalidArgument(
        f"{len(bad)} of the tasks cannot be accepted; "
        f"the first is tasks[{first.index}]: {first.reason}{form}. Nothing was created.",
        extras={"invalid_tasks": list(bad)},
    )


def meant_name(reason: str, value: str | None) -> str | None:
    """The field or parameter of a task that resembles an unknown one."""
    known: Collection[str] = ()
    if reason == Reason.UNKNOWN_FIELD:
        known = TaskInput.__struct_encode_fields__
    if reason == Reason.UNKNOWN_PARAM:
        known = params_rules.KNOWN
    return similar(value or "", known)


class Unfit(Exception):
    """A task is not accepted. `sift` and `task_bodies` collect the reasons of all tasks."""

    def __init__(self, reason: Reason, value: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.value = value[:LONGEST_SHOWN] if value is not None else None


def _accept_url(text: str) -> str:
    if len(text) > LONGEST_URL:
        raise Unfit(Reason.URL_TOO_LONG, _without_query(text))
    try:
        url = can_ada.parse(text)
    except ValueError:
        raise Unfit(_why_malformed(text), _without_query(text)) from None
    if not text.isprintable() and SEPARATORS.search(text.strip(BLANKS)):
        raise Unfit(Reason.MALFORMED_URL, _without_query(text))
    if url.protocol not in {"http:", "https:"}:
        raise Unfit(Reason.UNSUPPORTED_SCHEME, _without_query(text))
    if not AUTHORITY.match(text):
        raise Unfit(Reason.MISSING_HOST, _without_query(text))
    href: str = url.href
    if len(href) > LONGEST_URL:
        raise Unfit(Reason.URL_TOO_LONG, _without_query(text))
    return href


# URL parsers remove them: a row of a table, `https://a.example/1<tab>name`, would be the URL
# `https://a.example/1name`, and two lines with a lost line end would be one URL.
SEPARATORS = re.compile(r"[\t\n\r]")
BLANKS = "".join(map(chr, range(33)))  # that URL parsers remove at both ends
# The scheme must be followed by exactly two slashes. Browsers also accept `https:x` and `https:///x`,
# and take the first part of the path for the host. In a task that is more likely a typing error.
AUTHORITY = re.compile(r"[\x00-\x20]*https?:[/\\]{2}(?![/\\])", re.IGNORECASE)
# Nothing but a user or a port where the host should be.
NO_HOST = re.compile(
    r"\s*https?:[/\\]*(?![/\\])([^/\\?#]*@)?(:\d*)?\s*([/\\?#].*)?", re.IGNORECASE | re.DOTALL
)


def _why_malformed(text: str) -> Reason:
    return Reason.MISSING_HOST if NO_HOST.fullmatch(text) else Reason.MALFORMED_URL


def _without_query(url: str) -> str:
    return url.partition("?")[0]


def _accept_metadata(metadata: dict[str, str]) -> str:
    if len(metadata) > MOST_METADATA:
        raise Unfit(Reason.METADATA_TOO_LARGE, f"{len(metadata)} entries")
    for key, value in metadata.items():
        if not 0 < len(key) <= LONGEST_METADATA_KEY:
            raise Unfit(Reason.METADATA_KEY_INVALID, key)
        if len(value) > LONGEST_METADATA_VALUE:
            raise Unfit(Reason.METADATA_TOO_LARGE, key)
    return msgspec.json.encode(metadata).decode()


def _accept_shaped(
    task: TaskInput, job: Params, url: str, metadata: str | None, limits: Limits
) -> TaskSpec:
    method = "GET" if task.method is None else task.method.upper()
    if method not in {"GET", "POST"}:
        raise Unfit(Reason.UNSUPPORTED_METHOD, task.method)
    try:
        params = params_rules.canonical(task.zenrows_params or {})
        params_rules.check_together(params_rules.merged(job, params), method)
        params_rules.check_honoured(params, limits.honoured)
    except BadParam as bad:
        raise Unfit(Reason(bad.reason), bad.key) from None
    body, sent = _accept_body(bytes(task.body), method)
    dumped = params_rules.dump(params)
    # An upper bound, because the exact sum costs as much as all other checks: JSON is at least as
    # long as the texts in it, and a character of the parameters has at most four bytes.
    if (
        len(metadata or "") + 4 * len(dumped or "") + sent
        > limits.task_bytes - LONGEST_URL - LONGEST_EXTERNAL_ID
    ):
        _check_size(task, url, params, sent, limits.task_bytes)
    return TaskSpec(
        url=url,
        method=method,
        external_id=task.external_id,
        metadata=metadata,
        params=dumped,
        body=body,
    )


def _check_size(task: TaskInput, url: str, params: Params, sent: int, most: int) -> None:
    """Refuse a task whose parts together are too large.

    Each part is measured as its own limit measures it: texts in characters, parameters and the body
    in bytes. So a task whose parts keep their limits keeps `LEAST_TASK_BYTES` too.
    """
    texts = sum(len(key) + len(value) for key, value in (task.metadata or {}).items())
    size = len(url) + len(task.external_id or "") + texts + _params_size(params) + sent
    if size > most:
        raise Unfit(Reason.TASK_TOO_LARGE, f"{size} bytes, at most {most}")


def _params_size(params: Params) -> int:
    return sum(len(key) + len(value.encode()) for key, value in params.items())


def _accept_body(raw: bytes, method: str) -> tuple[str | None, int]:
    """A task's body in stored form, and how many bytes the gateway gets of it."""
    if raw in {b"", b"null"}:
        return None, 0
    if method != "POST":
        raise Unfit(Reason.BODY_NOT_ALLOWED)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise Unfit(Reason.BODY_MALFORMED) from None
    # A JSON string is sent as its text, so the escapes of its JSON do not count.
    sent = msgspec.json.decode(raw, type=str).encode() if text.startswith('"') else raw
    if len(sent) > LARGEST_TASK_BODY:
        raise Unfit(Reason.BODY_TOO_LARGE)
    if is_deeper(raw, DEEPEST_JSON):
        raise Unfit(Reason.BODY_MALFORMED, f"deeper than {DEEPEST_JSON} levels")
    return text, len(sent)


def check_fields(body: Submission, extensions: Mapping[str, object], *, has_tasks: bool) -> None:
    for name, value in extensions.items():
        setattr(body, "async_" if name == "async" else name, value)
    _check_fields(body)
    _check_schedule(body)
    _check_extensions(body)
    _check_tasks_given(body, has_tasks=has_tasks)


def _check_schedule(body: Submission) -> None:
    is_scheduled = body.type is JobType.SCHEDULED
    if is_scheduled and body.status is NewJobStatus.OPEN:
        raise field_error(
            "status", "must be `closed` for a scheduled job: its tasks are all there from the start"
        )
    if is_scheduled and body.async_:
        raise field_error(
            "async", "must not be true for a scheduled job, which has no rows until it fires"
        )
    job_schedule(body)


def _check_fields(body: Submission) -> None:
    if body.external_id is not None and not EXTERNAL_ID.fullmatch(body.external_id):
        raise field_error("external_id", "must have 1 to 128 characters of A-Z a-z 0-9 . _ -")
    if body.name is not None and len(body.name) > LONGEST_NAME:
        raise field_error(
            "name", f"must have at most {LONGEST_NAME} characters, got {len(body.name)}"
        )
    if body.metadata:
        try:
            _accept_metadata(body.metadata)
        except Unfit as unfit:
            raise field_error("metadata", f"{unfit.reason}: {unfit.value}") from None
    if body.step_functions is not None:
        step_functions.check_task_token(body.step_functions, body.type)


def _check_extensions(body: Submission) -> None:
    for name, (lowest, highest) in BOUNDS.items():
        value = getattr(body, name)
        if value is not None and not lowest <= value <= highest:
            raise field_error(
                name, f"must be a whole number from {lowest} to {highest}, got {value}"
            )


def _check_tasks_given(body: Submission, *, has_tasks: bool) -> None:
    if body.file_input_id is not None:
        _check_list_given(body)
        return
    if body.on_invalid is not None:
        raise field_error(
            "on_invalid", "requires `file_input_id`: tasks in the body are accepted all or none"
        )
    if body.status is not NewJobStatus.OPEN and not has_tasks:
        raise field_error(
            "tasks", "must hold at least one object with a `url`, unless the job is open"
        )


def _check_list_given(body: Submission) -> None:
    if body.tasks is not None:
        raise field_error("tasks", "must be absent with `file_input_id`")
    if body.status is NewJobStatus.OPEN:
        raise FileInputUnsupported("`file_input_id` requires a closed job, and this one is open")


AT_FIELD = re.compile(r"at `\$\.(?P<name>\w+)")


def task_fault(message: str) -> tuple[Reason, str | None]:
    """The reason for a task that could not be decoded, and the name of an unknown field.

    msgspec reports both in the text of its message only.
    """
    message = brief(message)
    if unknown := UNKNOWN_FIELD.search(message):
        return Reason.UNKNOWN_FIELD, unknown["name"][:LONGEST_SHOWN]
    if "missing required field `url`" in message:
        return Reason.MALFORMED_URL, None
    if field := AT_FIELD.search(message):
        return WRONG_TYPE.get(field["name"], Reason.MALFORMED_TASK), None
    return Reason.MALFORMED_TASK, None
