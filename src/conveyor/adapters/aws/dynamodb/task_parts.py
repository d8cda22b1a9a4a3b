"""Reading and writing what is beside the rows of tasks."""

import zlib
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict

from conveyor.adapters.aws.dynamodb.batches import MOST_WRITES
from conveyor.adapters.aws.dynamodb.layout import ItemKey
from conveyor.adapters.aws.dynamodb.table import DynamoTable
from conveyor.adapters.aws.dynamodb.task_items import (
    CONTENT,
    LOST,
    SAME,
    EndPart,
    LinesPart,
    PartRef,
    SpecPart,
    StoredLine,
    TaskRow,
    attempt_of,
    in_brief,
)
from conveyor.adapters.aws.dynamodb.task_keys import part_key
from conveyor.adapters.aws.dynamodb.together import together
from conveyor.adapters.aws.item_size import Item
from conveyor.domain.task import WORKER_LOST, Attempt

Part = TypeVar("Part", SpecPart, EndPart, LinesPart)
PartName = tuple[ItemKey, PartRef]


class TaskPartStore:
    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    async def write(self, items: Sequence[Item]) -> None:
        await self._write([{"PutRequest": {"Item": item}} for item in items])

    async def remove(self, keys: Sequence[ItemKey]) -> None:
        await self._write([{"DeleteRequest": {"Key": key.fields}} for key in keys])

    async def _write(self, requests: Sequence[Mapping[str, Any]]) -> None:
        write = partial(self._table.batches.write, self._table.name)
        groups = [requests[at : at + MOST_WRITES] for at in range(0, len(requests), MOST_WRITES)]
        await together([partial(write, group) for group in groups])

    async def listed(self, rows: Sequence[TaskRow]) -> list[TaskRow]:
        """The rows with all that listings show."""
        return await self._filled(rows, listed=True, called=False, end=True)

    async def called(self, rows: Sequence[TaskRow]) -> list[TaskRow]:
        """The rows with all that a call needs."""
        return await self._filled(rows, listed=False, called=True, end=False)

    async def whole(self, rows: Sequence[TaskRow]) -> list[TaskRow]:
        return await self._filled(rows, listed=True, called=True, end=True)

    async def history(self, row: TaskRow) -> list[Attempt]:
        lines = await self._lines(row)
        named = [(row.key, line.beside) for line in lines if line.beside]
        if any(line.problem == SAME for line in lines) and row.end:
            named.append((row.key, row.end))
        parts = await self._read(named, EndPart)

        def problem(line: StoredLine) -> str | None:
            if line.beside:
                return parts[row.key, line.beside].problem
            if line.problem == SAME:
                return parts[row.key, row.end].problem if row.end else row.task.problem
            return WORKER_LOST if line.problem == LOST else _text(line.problem)

        return [attempt_of(line, problem(line)) for line in lines]

    async def brief_history(self, row: TaskRow) -> list[Attempt]:
        return [in_brief(line) for line in await self._lines(row)]

    async def _lines(self, row: TaskRow) -> list[StoredLine]:
        lines, older = list(row.lines), row.older
        while older:
            parts = await self._read([(row.key, older)], LinesPart)
            part = parts[row.key, older]
            lines, older = [*part.lines, *lines], part.older
        return lines

    async def _filled(
        self, rows: Sequence[TaskRow], *, listed: bool, called: bool, end: bool
    ) -> list[TaskRow]:
        specs: list[PartName] = []
        ends: list[PartName] = []
        for row in rows:
            specs += [(row.key, row.listed)] if listed and row.listed else []
            specs += [(row.key, row.called)] if called and row.called else []
            ends += [(row.key, row.end)] if end and row.end else []
        if not (specs or ends):
            return list(rows)
        spec_parts = await self._read(specs, SpecPart)
        end_parts = await self._read(ends, EndPart)
        return [
            _with_end(
                _with_spec(row, [spec_parts.get((row.key, ref)) for ref in _refs(row)]),
                end_parts.get((row.key, row.end)) if row.end else None,
            )
            for row in rows
        ]

    async def _read(self, named: Iterable[PartName], kind: type[Part]) -> dict[PartName, Part]:
        names = list(dict.fromkeys(named))
        keys = {
            name: [part_key(name[0], name[1].name, n) for n in range(name[1].chunks)]
            for name in names
        }
        items = await self._table.get_many([key for chunks in keys.values() for key in chunks])
        return {
            name: _content([items.get(key) for key in chunks], kind)
            for name, chunks in keys.items()
        }


def _content(items: Sequence[Item | None], kind: type[Part]) -> Part:
    if None in items:  # removed since its row was read
        return kind()
    chunks = [b64decode(item[CONTENT]["B"]) for item in items if item]
    return msgspec.json.decode(zlib.decompress(b"".join(chunks)), type=kind)


def _refs(row: TaskRow) -> list[PartRef]:
    return [ref for ref in (row.listed, row.called) if ref]


def _with_spec(row: TaskRow, parts: Sequence[SpecPart | None]) -> TaskRow:
    spec = row.task.spec
    for part in parts:
        if part:
            has = {name: value for name, value in asdict(part).items() if value is not None}
            spec = msgspec.structs.replace(spec, **has)
    return replace(row, task=msgspec.structs.replace(row.task, spec=spec))


def _with_end(row: TaskRow, part: EndPart | None) -> TaskRow:
    if part is None:
        return row
    facts = msgspec.structs.replace(row.task.facts, final_url=part.final_url)
    task = msgspec.structs.replace(row.task, problem=part.problem, facts=facts)
    return replace(row, task=task)


def _text(problem: str | int | None) -> str | None:
    return problem if isinstance(problem, str) else None
