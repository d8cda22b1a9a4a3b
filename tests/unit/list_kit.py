"""Reading lists in tests: whole, in chunks, and with small limits."""

from collections.abc import Iterable

from conveyor.domain.list_lines import ListLimits
from conveyor.domain.list_rows import Position
from conveyor.domain.list_shape import ListKind, ListSpec
from conveyor.domain.listing import BEGINNING, LIMITS, Piece, read_list

TXT = ListSpec(kind=ListKind.TXT)
NDJSON = ListSpec(kind=ListKind.NDJSON)
CSV = ListSpec(kind=ListKind.CSV, url=0, external_id=1)
NAMED = ListSpec(kind=ListKind.CSV, header=True, url="url", external_id="id")

Errors = list[tuple[int, int, str]]


def read(
    raw: bytes | Iterable[bytes],
    spec: ListSpec,
    position: Position = BEGINNING,
    limits: ListLimits = LIMITS,
) -> list[Piece]:
    chunks = [raw] if isinstance(raw, bytes) else raw
    return list(read_list(chunks, spec, {}, position, limits=limits))


def urls(pieces: list[Piece]) -> list[tuple[int, str]]:
    return [(ordinal, task.url) for piece in pieces for ordinal, task in piece.tasks]


def errors(pieces: list[Piece]) -> Errors:
    return [(error.line, error.ordinal, error.reason) for piece in pieces for error in piece.errors]
