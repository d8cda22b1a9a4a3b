"""Bodies with tasks: submit and add-tasks bodies, decoded and checked slice by slice.

Other work runs between two slices. A slice is decoded at once, which is fast; only a slice that
fails is decoded task by task, to name every task that is at fault.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

import msgspec

from conveyor.domain import json_bodies
from conveyor.domain.json_bodies import (
    LONGEST_SHOWN,
    UNREADABLE,
    OverlongElement,
    SlicedBody,
    Span,
    Steps,
    decode_body,
    field_error,
    message_of,
    not_json,
)
from conveyor.domain.params import Params
from conveyor.domain.submission import (
    TASKS_PER_ADD,
    Addition,
    Limits,
    Reason,
    RejectedTask,
    Submission,
    TaskInput,
    Unfit,
    accept_task,
    check_fields,
    checked_params,
    invalid_tasks,
    sift,
    task_fault,
)
from conveyor.domain.task import TaskSpec
from conveyor.errors import CallerFault, InvalidArgument

# JSON may have six bytes for one byte (`\u0041`), and spaces. A task that is longer than this many
# times its limit is refused without being decoded.
JSON_FACTOR = 16
MOST_IGNORED = 20


class ParsedSubmission(msgspec.Struct, frozen=True):
    """A submit body in which everything was checked, with its tasks in stored form."""

    body: Submission
    specs: list[TaskSpec]
    ignored: tuple[str, ...] = ()  # members that this service does not know


class ParsedAddition(msgspec.Struct, frozen=True):
    """The body of an add-tasks call, its tasks in stored form."""

    body: Addition
    specs: list[TaskSpec]


def read_submission(
    raw: bytes, extensions: Mapping[str, object], limits: Limits
) -> Steps[ParsedSubmission]:
    """Read a submit body and check every field and task. Faults of tasks are reported first."""
    sliced = yield from _cut(raw, limits)
    fault, params = None, Params()
    try:
        ignored = _ignored(sliced.names)
        body = decode_body(sliced.frame, Submission)
        params = checked_params(body.zenrows_params, limits)
        check_fields(body, extensions, has_tasks=_has_tasks(raw, sliced))
    except CallerFault as error:
        fault = error
    specs = yield from _accepted(raw, sliced.slices, params, limits, limits.inline_tasks)
    if fault:
        raise fault
    return ParsedSubmission(body, specs, ignored)


def read_addition(raw: bytes, params: Params, limits: Limits) -> Steps[ParsedAddition]:
    """Read the body of an add-tasks call. Its tasks are checked with the job's parameters."""
    sliced = yield from _cut(raw, limits)
    specs = yield from _accepted(raw, sliced.slices, params, limits, TASKS_PER_ADD)
    body = decode_body(sliced.frame, Addition)
    if not specs:
        raise field_error("tasks", "must hold at least one task")
    return ParsedAddition(body, specs)


TASKS = msgspec.json.Decoder(list[TaskInput])
ONE_BY_ONE = msgspec.json.Decoder(list[msgspec.Raw])


def _cut(raw: bytes, limits: Limits) -> Steps[SlicedBody]:
    """Cut the body. A task that is too long to be decoded is refused at once, by its index."""
    most = JSON_FACTOR * limits.task_bytes
    try:
        sliced = yield from json_bodies.cut(raw, "tasks", most=most)
        msgspec.json.decode(sliced.frame, type=msgspec.Raw)
    except OverlongElement as overlong:
        before = overlong.before
    except UNREADABLE as error:
        raise not_json(message_of(error)) from None
    else:
        return sliced
    index = 0
    for span in before:
        index += len(_elements(raw, span, ONE_BY_ONE))
        yield
    what = f"more than {most} bytes of JSON"
    raise invalid_tasks([RejectedTask(index, Reason.TASK_TOO_LARGE, what)])


# Names of unknown fields that are ignored. They are echoed in a response header, so they must be
# harmless there.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
# How similar an unknown name must be to a known one to be taken for a typing error: `task` and
# `asinc` are, `tags` is not.
SLIP = 0.75


def _ignored(names: Iterable[str]) -> tuple[str, ...]:
    """Unknown members of a submit. A newer client may send fields that this version does not know.

    They are ignored, unless one resembles a known name: then it is probably a typing error, and
    ignoring it would lose what the caller meant.
    """
    known = Submission.__struct_encode_fields__
    unknown = dict.fromkeys(name for name in names if name not in known)
    for name in unknown:
        like = get_close_matches(name, known, n=1, cutoff=SLIP) or [
            one for one in known if one.endswith(f"_{name}")
        ]
        if like or not NAME.fullmatch(name):
            hint = f"; did you mean `{like[0]}`?" if like else ""
            raise field_error(name[:LONGEST_SHOWN], f"is an unknown field{hint}")
    if len(unknown) > MOST_IGNORED:
        raise InvalidArgument(
            f"The body must have at most {MOST_IGNORED} unknown fields, got {len(unknown)}"
        )
    return tuple(unknown)


def _has_tasks(raw: bytes, sliced: SlicedBody) -> bool:
    return len(sliced.slices) > 1 or any(not raw[a:b].isspace() for a, b in sliced.slices if b > a)


def _accepted(
    raw: bytes, slices: Sequence[Span], params: Params, limits: Limits, most: int
) -> Steps[list[TaskSpec]]:
    """The tasks in stored form; if any is bad, one error that names them all."""
    specs, bad, count = list[TaskSpec](), list[RejectedTask](), 0
    for number, span in enumerate(slices, 1):
        good, refused = _judged(raw, span, count, params, limits)
        found = len(good) + len(refused)
        if not found and len(slices) > 1:
            raise not_json(f"JSON is malformed: no task before the comma (byte {span[1]})")
        specs += good
        bad += refused
        count += found
        if count > most:
            raise _too_many(count, most, more=number < len(slices))
        yield
    if bad:
        raise invalid_tasks(bad)
    return specs


def _judged(
    raw: bytes, span: Span, first: int, params: Params, limits: Limits
) -> tuple[list[TaskSpec], list[RejectedTask]]:
    """The tasks of a slice, of which the first has index `first`."""
    try:
        tasks = _elements(raw, span, TASKS)
    except msgspec.ValidationError:
        return _judged_one_by_one(_elements(raw, span, ONE_BY_ONE), first, params, limits)
    accepted, bad = sift(enumerate(tasks, first), params, limits)
    return [spec for _, spec in accepted], bad


def _judged_one_by_one(
    tasks: Sequence[msgspec.Raw], first: int, params: Params, limits: Limits
) -> tuple[list[TaskSpec], list[RejectedTask]]:
    specs, bad = list[TaskSpec](), list[RejectedTask]()
    for index, raw in enumerate(tasks, first):
        try:
            specs.append(accept_task(msgspec.json.decode(raw, type=TaskInput), params, limits))
        except Unfit as unfit:
            bad.append(RejectedTask(index, unfit.reason, unfit.value))
        except msgspec.ValidationError as error:
            bad.append(RejectedTask(index, *task_fault(str(error))))
        except UNREADABLE:
            bad.append(RejectedTask(index, Reason.MALFORMED_TASK))
    return specs, bad


Element = TypeVar("Element", TaskInput, msgspec.Raw)
BYTE = re.compile(r"\(byte (\d+)\)")


def _elements(
    raw: bytes, span: Span, decoder: "msgspec.json.Decoder[list[Element]]"
) -> list[Element]:
    """The elements of a slice; raises `ValidationError` when one is not of its type."""
    start, end = span
    try:
        return decoder.decode(b"[%b]" % raw[start:end])
    except msgspec.ValidationError:
        raise
    except UNREADABLE as error:
        # Bytes are counted from the start of the body, not of the slice in its brackets.
        message = BYTE.sub(lambda found: f"(byte {int(found[1]) + start - 1})", message_of(error))
        raise not_json(message) from None


def _too_many(count: int, most: int, *, more: bool) -> InvalidArgument:
    got = f"{count} and more" if more else f"{count}"
    return field_error("tasks", f"must hold at most {most} tasks in one call, got {got}")
