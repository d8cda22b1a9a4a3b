"""Tables and sections of SPEC.md and of the chapters that it names."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEC = "SPEC.md"
SQLITE = "docs/storage/sqlite.md"
SEGMENTS = "docs/storage/segments.md"
FILES = "docs/storage/files.md"
VALKEY = "docs/storage/valkey.md"
ZENROWS = "docs/gateways/zenrows.md"
DIRECT = "docs/gateways/direct.md"
TELEMETRY = "docs/telemetry.md"
FILE_INPUTS = "docs/file-inputs.md"
WEBHOOKS = "docs/webhooks.md"
STEP_FUNCTIONS = "docs/step-functions.md"
OPERATIONS = "docs/operations.md"
SCALING = "docs/scaling.md"
SETTINGS = "docs/reference/settings.md"
# Chapters that SPEC.md names as normative.
NORMATIVE = (
    SQLITE, SEGMENTS, FILES, VALKEY, ZENROWS, DIRECT, FILE_INPUTS, WEBHOOKS, STEP_FUNCTIONS, TELEMETRY,
    SETTINGS,
)  # fmt: skip
NONE = "-"

Row = dict[str, str]


def text(page: str = SPEC) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def section(heading: str, page: str = SPEC) -> str:
    """The text under a heading, up to the next of its rank or above."""
    whole = text(page)
    found = re.search(rf"^(#+) {re.escape(heading)}$", whole, re.MULTILINE)
    assert found, f"{page} has no heading {heading!r}"
    rest = whole[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def tables(heading: str, page: str = SPEC) -> list[list[Row]]:
    """The tables under a heading, each row by its column names."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", section(heading, page), re.MULTILINE)
    return [_rows(block.splitlines()) for block in blocks]


def _rows(lines: list[str]) -> list[Row]:
    head, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(head, cells, strict=True)) for cells in body]


def column(rows: list[Row], key: str, value: str) -> dict[str, str]:
    """Two columns of a table as a mapping; a key that comes twice is a fault."""
    found = {row[key].strip("`"): row[value].strip("`") for row in rows}
    assert len(found) == len(rows), f"a {key} comes twice"
    return found
