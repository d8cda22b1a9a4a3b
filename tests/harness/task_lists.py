"""Reading lists in tests: whole, in parts, and with small limits."""

from collections.abc import Iterable

from conveyor.domain.task_list.reader import LIMITS, START, ListChunk, ListReader
from conveyor.domain.task_list.rows import Position, ReaderLimits
from conveyor.domain.task_list.spec import ListFormat, ListSpec

TXT = ListSpec(format=ListFormat.TXT)
NDJSON = ListSpec(format=ListFormat.NDJSON)
CSV = ListSpec(format=ListFormat.CSV, url=0, external_id=1)
NAMED = ListSpec(format=ListFormat.CSV, header=True, url="url", external_id="id")

Errors = list[tuple[int, int, str]]


def read(
    raw: bytes | Iterable[bytes],
    spec: ListSpec,
    position: Position = START,
    limits: ReaderLimits = LIMITS,
) -> list[ListChunk]:
    parts = [raw] if isinstance(raw, bytes) else raw
    reader = ListReader(spec, {}, position, limits=limits)
    found = [chunk for part in parts for chunk in reader.feed(part)]
    return [*found, *reader.finish()]


def urls(chunks: list[ListChunk]) -> list[tuple[int, str]]:
    return [(ordinal, task.url) for chunk in chunks for ordinal, task in chunk.tasks]


def errors(chunks: list[ListChunk]) -> Errors:
    return [(error.line, error.ordinal, error.reason) for chunk in chunks for error in chunk.errors]
