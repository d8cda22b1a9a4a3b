"""Handing in tasks: a list from a file, in as many calls as the API wants."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from conveyor.cli.lists import Listed, name_of, open_list
from conveyor.cli.remote import Problem, Refused, Remote, read
from conveyor.cli.shapes import Added
from conveyor.cli.show import plain
from conveyor.domain.submission import Limits
from conveyor.errors import ConveyorError, RefusedToStart

MOST_TASKS = Limits().inline_tasks
MOST_ADDED = Limits().tasks_per_add
MOST_NAMED = 10


class PartlyRefused(ConveyorError):
    """The list was refused, or a part of it; says which lines, and what is in already."""


def submit(
    remote: Remote, file: str, fields: dict[str, object], *, idempotency_key: str | None
) -> bytes:
    """One call; the answer as it came. A field that is None was not given."""
    with open_list(file) as source:
        listed = list(islice(source, MOST_TASKS + 1))
    if len(listed) > MOST_TASKS:
        raise RefusedToStart(
            f"{name_of(file)}: a submit takes at most {MOST_TASKS:,} tasks for now; split the list, "
            "or begin with `conveyor submit --open` and hand in the rest with `conveyor add`"
        )
    if not listed and fields.get("status") != "open":
        raise RefusedToStart(f"{name_of(file)}: there is no URL in it")
    body = {name: value for name, value in fields.items() if value is not None}
    body["tasks"] = [one.task for one in listed]
    try:
        return remote.post("jobs", body=body, headers=_repeatable(idempotency_key))
    except Refused as error:
        raise _naming_lines(error, file, listed, accepted=0) from None


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
        if 0 <= fault.index < len(listed):
            where = f"{name_of(file)}, line {listed[fault.index].line}"
            yield plain(f"  {where}: {fault.reason} {fault.value}").rstrip()
    if (more := len(problem.invalid_tasks) - MOST_NAMED) > 0:
        yield f"  and {more:,} more"
