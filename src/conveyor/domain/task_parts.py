"""A task row in two parts: what each write of it writes again, and what is stored beside it.

An engine that bills the whole item for every write, as DynamoDB does, keeps the hot part in one item
of at most 1 KB. The parts beside it are written once, and read only by what needs them: a large spec
by claims and copies, a long problem, final URL or history by the pages that show them.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from conveyor.domain.problem import encoded, problem
from conveyor.domain.task import Attempt, Task, TaskSpec, spec_size

HOT_BYTES = 1024
NAME_BYTES = 2  # of the name of an attribute
SHORT_SPEC = 400
SHORT_PROBLEM = 300
SHORT_FINAL_URL = 200
SHORT_DETAIL = 120
MOST_LINES = 8  # of the history, in the hot part
ELSEWHERE = TaskSpec(url="")


class TaskParts(msgspec.Struct, frozen=True, kw_only=True):
    """A task with its history. What is None or absent beside the hot part is in it."""

    hot: Task
    lines: Mapping[int, Attempt]  # of the hot part: its newest lines by their place in the history
    spec: TaskSpec | None = None
    problem: str | None = None
    final_url: str | None = None
    beside: Mapping[int, Attempt] = {}  # whole lines that the hot part lacks or has in short


def split(task: Task, history: Sequence[Attempt]) -> TaskParts:
    """Divide a task so that its hot part has at most `HOT_BYTES`."""
    parts = TaskParts(hot=task, lines={})
    if spec_size(task.spec) > SHORT_SPEC:
        parts = _without_spec(parts)
    if _bytes(task.problem) > SHORT_PROBLEM:
        parts = _without_problem(parts)
    if _bytes(task.facts.final_url) > SHORT_FINAL_URL:
        parts = _without_final_url(parts)
    for shrink in (_without_final_url, _without_problem, _without_spec):
        if hot_size(parts) > HOT_BYTES:
            parts = shrink(parts)
    return _with_history(parts, history)


def joined(parts: TaskParts) -> tuple[Task, list[Attempt]]:
    """The task and the history that were divided."""
    task = parts.hot
    if parts.spec:
        task = msgspec.structs.replace(task, spec=parts.spec)
    if parts.problem is not None:
        task = msgspec.structs.replace(task, problem=parts.problem)
    if parts.final_url is not None:
        facts = msgspec.structs.replace(task.facts, final_url=parts.final_url)
        task = msgspec.structs.replace(task, facts=facts)
    lines = {**parts.lines, **parts.beside}
    return task, [lines[place] for place in sorted(lines)]


def in_short(text: str) -> str:
    """A problem with its status, its code and the beginning of its detail."""
    try:
        document = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError:  # a row of an early release
        document = {}
    detail = str(document.get("detail") or "").encode()[:SHORT_DETAIL].decode(errors="ignore")
    code = str(document.get("code") or "").encode()[:64].decode(errors="ignore")
    status = document.get("status")
    if not isinstance(status, int) or not 0 <= status < 1_000:
        status = 500
    return encoded(problem(status=status, code=code, detail=detail or None))


def hot_size(parts: TaskParts) -> int:
    """About how many bytes the hot part takes in an item."""
    values = [
        *_values(parts.hot),
        *(value for line in parts.lines.values() for value in _values(line)),
    ]
    return len(msgspec.msgpack.encode(values)) + NAME_BYTES * len(values)


def _with_history(parts: TaskParts, history: Sequence[Attempt]) -> TaskParts:
    """Add the newest lines to the hot part, as many as fit, and put the others beside it."""
    lines, beside = dict[int, Attempt](), dict(enumerate(history))
    for place in reversed(range(max(len(history) - MOST_LINES, 0), len(history))):
        line = _short_line(history[place])
        grown = msgspec.structs.replace(parts, lines={place: line, **lines})
        if hot_size(grown) > HOT_BYTES:
            break
        lines = {place: line, **lines}
        if line == history[place]:
            del beside[place]
    return msgspec.structs.replace(parts, lines=lines, beside=beside)


def _short_line(line: Attempt) -> Attempt:
    if _bytes(line.problem) <= SHORT_DETAIL:
        return line
    return msgspec.structs.replace(line, problem=in_short(line.problem or ""))


def _without_spec(parts: TaskParts) -> TaskParts:
    hot = msgspec.structs.replace(parts.hot, spec=ELSEWHERE)
    return msgspec.structs.replace(parts, hot=hot, spec=parts.spec or parts.hot.spec)


def _without_problem(parts: TaskParts) -> TaskParts:
    text = parts.hot.problem
    if text is None or parts.problem is not None:
        return parts
    hot = msgspec.structs.replace(parts.hot, problem=in_short(text))
    return msgspec.structs.replace(parts, hot=hot, problem=text)


def _without_final_url(parts: TaskParts) -> TaskParts:
    url = parts.hot.facts.final_url
    if url is None:
        return parts
    facts = msgspec.structs.replace(parts.hot.facts, final_url=None)
    hot = msgspec.structs.replace(parts.hot, facts=facts)
    return msgspec.structs.replace(parts, hot=hot, final_url=url)


def _bytes(text: str | None) -> int:
    return len(text.encode()) if text else 0


def _values(of: msgspec.Struct) -> Iterator[object]:
    """The values of a row that are stored: those that are not None, also of its parts."""
    for value in msgspec.structs.astuple(of):
        if isinstance(value, msgspec.Struct):
            yield from _values(value)
        elif value is not None:
            yield value
