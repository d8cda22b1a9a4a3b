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

    async def listed(
        self, rows: Sequence[TaskRow], *, without_removed: bool = False
    ) -> list[TaskRow]:
        """The rows with all that listings show; without those whose specs were removed, if wanted."""
        return await self._filled(
            rows, listed=True, called=False, end=True, without_removed=without_removed
        )

    async def called(self, rows: Sequence[TaskRow]) -> list[TaskRow]:
        """The rows with all that a call needs, without those whose specs were removed."""
        return await self._filled(rows, listed=False, called=True, end=False, without_removed=True)

    async def whole(self, rows: Sequence[TaskRow]) -> list[TaskRow]:
        return await self._filled(rows, listed=True, called=True, end=True)

    async def history(self, row: TaskRow) -> list[Attempt]:
        lines = await self._lines(row)
        named = [(row.key, line.beside) for line in lines if line.beside]
        if any(line.problem == SAME for line in lines) and row.end:
            named.append((row.key, row.end))
        parts = await self._read(named, EndPart)

        def problem(line: StoredLine) -> str | None:
            beside = line.beside or (row.end if line.problem == SAME else None)
            if beside:
                return parts.get((row.key, beside), EndPart()).problem
            if line.problem == SAME:
                return row.task.problem
            return WORKER_LOST if line.problem == LOST else _text(line.problem)

        return [attempt_of(line, problem(line)) for line in lines]

    async def brief_history(self, row: TaskRow) -> list[Attempt]:
        return [in_brief(line) for line in await self._lines(row)]

    async def _lines(self, row: TaskRow) -> list[StoredLine]:
        lines, older = list(row.lines), row.older
        while older:
            parts = await self._read([(row.key, older)], LinesPart)
            part = parts.get((row.key, older), LinesPart())
            lines, older = [*part.lines, *lines], part.older
        return lines

    async def _filled(
        self,
        rows: Sequence[TaskRow],
        *,
        listed: bool,
        called: bool,
        end: bool,
        without_removed: bool = False,
    ) -> list[TaskRow]:
        specs = {
            row.key: [
                (row.key, ref)
                for ref in (row.listed if listed else None, row.called if called else None)
                if ref
            ]
            for row in rows
        }
        ends = [(row.key, row.end) for row in rows if end and row.end]
        if not (ends or any(specs.values())):
            return list(rows)
        spec_parts = await self._read([name for its in specs.values() for name in its], SpecPart)
        end_parts = await self._read(ends, EndPart)
        if without_removed:
            rows = [row for row in rows if all(name in spec_parts for name in specs[row.key])]
        return [
            _with_end(
                _with_spec(row, [spec_parts.get(name) for name in specs[row.key]]),
                end_parts.get((row.key, row.end)) if row.end else None,
            )
            for row in rows
        ]

    async def _read(self, named: Iterable[PartName], kind: type[Part]) -> dict[PartName, Part]:
        """Read parts. Those that were removed since their rows were read are left out."""
        names = list(dict.fromkeys(named))
        keys = {
            name: [part_key(name[0], name[1].name, n) for n in range(name[1].chunks)]
            for name in names
        }
        items = await self._table.get_many([key for chunks in keys.values() for key in chunks])
        return {
            name: _content([items[key] for key in chunks], kind)
            for name, chunks in keys.items()
            if all(key in items for key in chunks)
        }


def _content(items: Sequence[Item], kind: type[Part]) -> Part:
    chunks = [b64decode(item[CONTENT]["B"]) for item in items]
    return msgspec.json.decode(zlib.decompress(b"".join(chunks)), type=kind)


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
