"""Handing in tasks: a list from a file, in a call, in many, or by way of a slot."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from conveyor.cli.lists import Listed, name_of, open_list
from conveyor.cli.remote import Problem, Refused, Remote, read
from conveyor.cli.shapes import Added
from conveyor.cli.show import interruptible, plain
from conveyor.cli.sources import Source
from conveyor.cli.uploading import NOTHING_SAID, Form, upload
from conveyor.domain.submission import Limits
from conveyor.errors import ConveyorError, IdempotencyKeyConflict, RefusedToStart

MOST_TASKS = Limits().inline_tasks
MOST_ADDED = Limits().tasks_per_add
MOST_NAMED = 10


class PartlyRefused(ConveyorError):
    """The list was refused, or a part of it; says which lines, and what is in already."""


def submit(
    remote: Remote,
    file: str,
    fields: dict[str, object],
    *,
    form: Form = NOTHING_SAID,
    idempotency_key: str | None,
    quiet: bool = False,
) -> bytes:
    """By one call, or by way of a slot if it takes that; the answer as it came.

    A field that is None was not given.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    headers = _repeatable(idempotency_key)
    with interruptible("Nothing was submitted."):
        source = Source(file)
        by_call = not (source.is_packed or form.is_given or "on_invalid" in given)
        listed = _all_for_a_call(source) if by_call else None
        if listed is not None:
            given["tasks"] = _tasks(listed, file, may_be_empty=_is_open(given))
        elif _is_open(given):
            raise RefusedToStart(_NOT_OPEN.format(source.name))
        else:
            given["file_input_id"] = upload(remote, source, form, quiet=quiet)
    try:
        return remote.post("jobs", body=given, headers=headers)
    except Refused as error:
        if listed is None and error.problem.code == IdempotencyKeyConflict.code:
            raise Refused(error.problem, _LIST_OF_ITS_OWN) from None
        raise _naming_lines(error, file, listed or [], accepted=0) from None


def add(remote: Remote, job_id: str, file: str, *, last_batch: bool) -> Iterator[bytes]:
    """The answer to each batch as it comes; only the last one says that it is the last."""
    accepted = 0
    with open_list(file) as source:
        for batch, is_last in _batches(source):
            body: dict[str, object] = {"tasks": [one.task for one in batch]}
            if last_batch and is_last:
                body["last_batch"] = True
            try:
                raw = remote.post("jobs", job_id, "tasks", body=body, headers=_repeatable(None))
            except Refused as error:
                raise _naming_lines(error, file, batch, accepted=accepted) from None
            accepted += read(raw, Added).accepted_tasks
            yield raw
    if not accepted:
        raise RefusedToStart(f"{name_of(file)}: there is no URL in it")


_NOT_OPEN = (
    "{}: an open job begins with one call: at most "
    f"{MOST_TASKS:,} tasks, not packed, without options about the list\n"
    "  leave --open out and the list is uploaded as it is, however long; or submit --open a short "
    "one, and hand in the rest with `conveyor add`"
)


_LIST_OF_ITS_OWN = (
    "each upload is a list of its own, even of the same file: `conveyor jobs` tells whether the job "
    "of this key is there; for another one take another --idempotency-key"
)


def _all_for_a_call(source: Source) -> list[Listed] | None:
    """The tasks of a list; None when there are more than a call takes."""
    if not source.fits_a_call():
        return None
    with open_list(source.file, source.held()) as tasks:
        listed = list(islice(tasks, MOST_TASKS + 1))
    return listed if len(listed) <= MOST_TASKS else None


def _tasks(listed: Sequence[Listed], file: str, *, may_be_empty: bool) -> list[dict[str, object]]:
    if not (listed or may_be_empty):
        raise RefusedToStart(f"{name_of(file)}: there is no URL in it")
    return [one.task for one in listed]


def _is_open(given: Mapping[str, object]) -> bool:
    return given.get("status") == "open"


def parameters(given: Sequence[str]) -> dict[str, object] | None:
    """`--param name=value`, as often as it was given."""
    found: dict[str, object] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise RefusedToStart(f"--param is name=value, such as js_render=true, not {text!r}")
        found[name] = _headers(value) if name == "custom_headers" else value
    return found or None


def _headers(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        raise RefusedToStart(
            '--param custom_headers= takes a JSON object of texts, such as {"Referer": "…"}'
        ) from None


def _batches(source: Iterable[Listed]) -> Iterator[tuple[list[Listed], bool]]:
    """Batches as large as a call takes, each with whether it is the last."""
    rest = iter(source)
    batch = list(islice(rest, MOST_ADDED))
    while batch:
        following = list(islice(rest, MOST_ADDED))
        yield batch, not following
        batch = following


def _repeatable(key: str | None) -> dict[str, str]:
    """A key even where none was given: the call may be sent again when a connection breaks."""
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key and key):
        raise RefusedToStart("--idempotency-key is 1 to 128 printable characters without spaces")
    return {"Idempotency-Key": key or str(uuid.uuid4())}


def _naming_lines(
    error: Refused, file: str, listed: Sequence[Listed], *, accepted: int
) -> ConveyorError:
    lines = [str(error), *_faults(error.problem, file, listed)]
    if accepted:
        lines.append(f"  the {accepted:,} tasks before line {listed[0].line} are in: go on there")
    return PartlyRefused("\n".join(lines))


def _faults(problem: Problem, file: str, listed: Sequence[Listed]) -> Iterator[str]:
    for fault in problem.invalid_tasks[:MOST_NAMED]:
        line = fault.line
        if line is None and 0 <= fault.index < len(listed):
            line = listed[fault.index].line
        if line is not None:
            yield plain(f"  {name_of(file)}, line {line}: {fault.reason} {fault.value}").rstrip()
    if (more := len(problem.invalid_tasks) - MOST_NAMED) > 0:
        yield f"  and {more:,} more"
