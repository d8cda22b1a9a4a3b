"""Lists of tasks from files: lines of URLs, NDJSON of tasks, or CSV with a `url` column."""

import csv
import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

import msgspec

from conveyor.errors import RefusedToStart

STDIN = "-"
ENCODING = "utf-8-sig"  # spreadsheets put a mark before their first column
NDJSON = {".ndjson", ".jsonl"}


class Listed(msgspec.Struct, frozen=True):
    """A task, and the line it stands on."""

    line: int
    task: dict[str, object]


@contextmanager
def open_list(file: str, held: bytes | None = None) -> Iterator[Iterator[Listed]]:
    """The tasks of a file one by one; a line that is none stops the command and is named.

    What was read of it before, and is held, is all there is of it.
    """
    name = name_of(file)
    try:
        with _opened(file, held) as source:
            yield _tasks(source, name, Path(file).suffix.lower())
    except OSError as error:
        raise RefusedToStart(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RefusedToStart(f"{name}: is not text in UTF-8") from None


def name_of(file: str) -> str:
    return "standard input" if file == STDIN else file


def _opened(file: str, held: bytes | None) -> TextIO:
    if held is not None:
        return io.TextIOWrapper(io.BytesIO(held), encoding=ENCODING, newline="")
    if file == STDIN:
        return io.TextIOWrapper(sys.stdin.buffer, encoding=ENCODING, newline="")
    return Path(file).open(encoding=ENCODING, newline="")


def _tasks(source: TextIO, name: str, suffix: str) -> Iterator[Listed]:
    if suffix == ".csv":
        return _of_csv(source, name)
    if suffix in NDJSON:
        return _of_ndjson(source, name)
    return _of_lines(source, name)


def _of_lines(source: TextIO, name: str) -> Iterator[Listed]:
    """URLs; but where the first line is an object they all are, as on a pipe they may be."""
    first = list(islice(source, 1))
    lines = chain(first, source)
    if first and first[0].lstrip().startswith("{"):
        return _of_ndjson(lines, name)
    return (
        Listed(number, {"url": url})
        for number, line in enumerate(lines, 1)
        if (url := line.strip()) and not url.startswith("#")
    )


def _of_ndjson(lines: Iterable[str], name: str) -> Iterator[Listed]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield Listed(number, _task(line, f"{name}, line {number}"))


def _task(line: str, where: str) -> dict[str, object]:
    try:
        task: dict[str, object] = msgspec.json.decode(line, type=dict[str, object])
    except msgspec.MsgspecError:
        raise RefusedToStart(f'{where}: is not a task such as {{"url": "https://…"}}') from None
    if "url" not in task:
        raise RefusedToStart(f"{where}: the task has no `url`")
    return task


def _of_csv(source: TextIO, name: str) -> Iterator[Listed]:
    rows = csv.DictReader(source)
    try:
        _check_columns(rows.fieldnames, name)
        for row in rows:
            yield _listed(row, rows.line_num, name)
    except csv.Error as error:
        raise RefusedToStart(f"{name}, line {rows.line_num}: {error}") from None


def _check_columns(columns: Iterable[str] | None, name: str) -> None:
    if columns is None:
        raise RefusedToStart(f"{name}: is empty; its first line names the columns")
    if "url" not in columns:
        raise RefusedToStart(f"{name}: no column is named `url`, only {', '.join(columns)}")


def _listed(row: dict[str, str], line: int, name: str) -> Listed:
    url, external_id = (row.get("url") or "").strip(), (row.get("external_id") or "").strip()
    if not url:
        raise RefusedToStart(f"{name}, line {line}: the `url` is empty")
    task: dict[str, object] = {"url": url}
    return Listed(line, task | {"external_id": external_id} if external_id else task)
