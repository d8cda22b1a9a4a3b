"""Rows of tasks as items.

Every write of an item is billed by its whole size, so what is large and seldom needed is beside it, in
parts that are written once. The row then has at most `HOT_BYTES` at every write:

| beside it | when | read by |
|---|---|---|
| what listings show of the spec | the spec has more than `SHORT_SPEC` bytes | listings, copies |
| what calls need of the spec | the same | claims, copies |
| problem and final URL of an ended call | they are long, or the row has no room | what shows them |
| older lines of the history | the row has no room | what shows histories |

A part is written before the row that names it, under a name that no other write uses. So it never
changes, and one whose row was not written is read by nobody.
"""

import re
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from conveyor.adapters.aws.attribute_values import decode_item, encode_item
from conveyor.adapters.aws.dynamodb.layout import GSI1, INDEX_KEYS, ItemKey
from conveyor.adapters.aws.dynamodb.table import key_of_item
from conveyor.adapters.aws.dynamodb.task_keys import failed_partition, part_key, shard_of
from conveyor.adapters.aws.item_size import Item, item_size
from conveyor.domain.counts import NOTHING, Spend
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.job import RunPlace
from conveyor.domain.page_facts import PageFacts
from conveyor.domain.task import (
    WORKER_LOST,
    Attempt,
    StoredBody,
    Task,
    TaskSpec,
    TaskStatus,
    spec_size,
)

# Attributes of a row. `gsi1` has those of failed tasks that listings show.
STATUS, CLAIM_NO, HOLDER, TOKEN = "st", "c", "h", "w"
DUE, UPDATED, CLAIMED = "e", "u", "a"  # microseconds since 1970
FIELDS = "f"  # `StoredFields`, as JSON
PROBLEM = "p"  # compressed, if it is long
HEAVY_BYTES = "z"  # of the spec, if these are many
CONTENT = "b"  # of a part: compressed JSON

HOT_BYTES = 1024
CLAIM_ROOM = 64  # bytes that a claim adds to a row
SHORT_SPEC = 400
SHORT_URL = 200
SHORT_PROBLEM = 300
SHORT_LINE = 120  # of the problem in a line of the history
MOST_LINES = 8
HEAVY = 100 * 1024  # bytes of a spec, above which a claim counts them before it takes the task

# A problem that every row could have is stored as its number.
LOST, SAME = 1, 2  # `WORKER_LOST`; in a line, the problem of the row
CHUNK = 390 * 1024  # bytes of a part in one item; an item has at most 400 KB
ABBREVIATED = re.compile("~(.)")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class PartRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part beside a row."""

    name: str
    size: int  # bytes of its texts
    chunks: int = 1  # items that it takes


class StoredLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A line of the history. Times are microseconds since 1970."""

    attempt: int = msgspec.field(name="n")
    started_at: int = msgspec.field(name="s")
    ended_at: int = msgspec.field(name="e")
    problem: str | int | None = msgspec.field(name="p", default=None)
    beside: PartRef | None = msgspec.field(name="x", default=None)  # has its problem
    credits: int = msgspec.field(name="c", default=0)
    nanos: int = msgspec.field(name="d", default=0)
    http_status: int | None = msgspec.field(name="h", default=None)
    duration_ms: int | None = msgspec.field(name="m", default=None)


class StoredFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a row has in one attribute, because no condition is about it."""

    created_at: int = msgspec.field(name="t")
    url: str = msgspec.field(name="u", default="")
    method: str = msgspec.field(name="m", default="GET")
    external_id: str | None = msgspec.field(name="i", default=None)
    metadata: str | None = msgspec.field(name="d", default=None)
    params: str | None = msgspec.field(name="q", default=None)
    body: str | None = msgspec.field(name="b", default=None)
    listed: PartRef | None = msgspec.field(name="sl", default=None)
    called: PartRef | None = msgspec.field(name="sc", default=None)
    attempts: int = msgspec.field(name="n", default=0)
    lost: int = msgspec.field(name="l", default=0)
    result: tuple[str, int, str, str, str | None] | None = msgspec.field(name="r", default=None)
    problem: str | int | None = msgspec.field(name="p", default=None)
    reason: FailureReason | None = msgspec.field(name="w", default=None)
    facts: tuple[int | None, int | None, str | None] | None = msgspec.field(name="f", default=None)
    # Null if it is unknown. Missing: nothing while no claim has ended, and unknown after that, because
    # the release before this one leaves it out.
    spend: tuple[int, int] | msgspec.UnsetType | None = msgspec.field(
        name="c", default=msgspec.UNSET
    )
    end: PartRef | None = msgspec.field(name="x", default=None)
    source_run_id: RunId | None = msgspec.field(name="o", default=None)
    scraped_at: int | None = msgspec.field(name="z", default=None)
    lines: tuple[StoredLine, ...] = msgspec.field(name="h", default=())
    older: PartRef | None = msgspec.field(name="y", default=None)


class SpecPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part with some of the fields of a spec."""

    url: str | None = None
    external_id: str | None = None
    metadata: str | None = None
    params: str | None = None
    body: str | None = None


class EndPart(msgspec.Struct, frozen=True, omit_defaults=True):
    problem: str | None = None
    final_url: str | None = None


class LinesPart(msgspec.Struct, frozen=True, omit_defaults=True):
    lines: Sequence[StoredLine] = ()
    older: PartRef | None = None


PartContent = SpecPart | EndPart | LinesPart

STORED = msgspec.json.Decoder(StoredFields)


class NewParts:
    """Parts that must be written before a row.

    `name` makes their names: no other write may use it for other content.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.chunks: dict[str, list[bytes]] = {}

    def add(self, kind: str, content: PartContent, size: int) -> PartRef:
        compressed = zlib.compress(msgspec.json.encode(content))
        chunks = [compressed[at : at + CHUNK] for at in range(0, len(compressed), CHUNK)]
        name = f"{self._name}{kind}"
        self.chunks[name] = chunks
        return PartRef(name, size, len(chunks))

    def items(self, row: ItemKey) -> list[Item]:
        return [
            {**part_key(row, name, number).fields, CONTENT: {"B": b64encode(chunk).decode()}}
            for name, chunks in self.chunks.items()
            for number, chunk in enumerate(chunks)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A row. Texts of the task that are beside it are missing until they are read."""

    key: ItemKey
    task: Task
    lines: tuple[StoredLine, ...] = ()
    listed: PartRef | None = None
    called: PartRef | None = None
    end: PartRef | None = None
    older: PartRef | None = None
    token: str = ""  # of the last claim, or of the retry that ended it
    shard: int = 0

    @property
    def listed_size(self) -> int:
        """Bytes of the texts that listings show."""
        spec = self.task.spec
        texts = _bytes(spec.url, spec.external_id, spec.metadata)
        return texts + _size(self.listed) + self._end_size

    @property
    def whole_size(self) -> int:
        return spec_size(self.task.spec) + _size(self.listed) + _size(self.called) + self._end_size

    @property
    def _end_size(self) -> int:
        return _bytes(self.task.problem, self.task.facts.final_url) + _size(self.end)


@dataclass(frozen=True, slots=True)
class PackedRow:
    """A row that is ready to be written, with the parts that must be written before it."""

    row: TaskRow
    item: Item
    parts: Sequence[Item] = ()


def packed(row: TaskRow, new: NewParts) -> PackedRow:
    """Make the item of a row, with so much beside it that it is small."""
    task = row.task
    if not (row.listed or row.called) and spec_size(task.spec) > SHORT_SPEC:
        row = _spec_beside(row, new)
    if not row.end and (
        _stored_size(task.problem) > SHORT_PROBLEM or _bytes(task.facts.final_url) > SHORT_URL
    ):
        row = _end_beside(row, new)
    if len(row.lines) > MOST_LINES:
        row = _lines_beside(row, new)
    room = HOT_BYTES - (0 if task.is_final else CLAIM_ROOM)
    item = item_of(row)
    for shrink in (_lines_beside, _end_beside, _spec_beside):
        if item_size(item) <= room:
            break
        row = shrink(row, new)
        item = item_of(row)
    return PackedRow(row, item, new.items(row.key))


def with_line(row: TaskRow, attempt: Attempt, new: NewParts) -> TaskRow:
    """The row with a further line in its history. Its task must have its new state already."""
    problem: str | int | None = attempt.problem
    beside = None
    if problem == WORKER_LOST:
        problem = LOST
    elif problem is not None and problem == row.task.problem:
        problem = SAME
    elif isinstance(problem, str) and _bytes(problem) > SHORT_LINE:
        beside, problem = new.add("l", EndPart(problem), _bytes(problem)), None
    line = StoredLine(
        attempt=attempt.attempt,
        started_at=stamp(attempt.started_at),
        ended_at=stamp(attempt.ended_at),
        problem=problem,
        beside=beside,
        credits=attempt.spend.credits,
        nanos=attempt.spend.nanos,
        http_status=attempt.http_status,
        duration_ms=attempt.duration_ms,
    )
    return replace(row, lines=(*row.lines, line))


def attempt_of(line: StoredLine, problem: str | None) -> Attempt:
    return Attempt(
        attempt=line.attempt,
        started_at=moment(line.started_at),
        ended_at=moment(line.ended_at),
        problem=problem,
        spend=Spend(line.credits, line.nanos),
        http_status=line.http_status,
        duration_ms=line.duration_ms,
    )


def in_brief(line: StoredLine) -> Attempt:
    return attempt_of(line, WORKER_LOST if line.problem == LOST else None)


def item_of(row: TaskRow) -> Item:
    task = row.task
    fields: dict[str, object] = {
        STATUS: str(task.status),
        CLAIM_NO: task.claim_no,
        UPDATED: stamp(task.updated_at),
        FIELDS: msgspec.json.encode(_stored(row)).decode(),
    }
    if task.due_at is not None:
        fields[DUE] = stamp(task.due_at)
    if task.claimed_at is not None:
        fields[CLAIMED] = stamp(task.claimed_at)
    if task.holder is not None:
        fields[HOLDER] = task.holder
    if row.token and not task.is_final:
        fields[TOKEN] = row.token
    if _size(row.called) + _size(row.listed) > HEAVY:
        fields[HEAVY_BYTES] = _size(row.called) + _size(row.listed)
    if not row.end and _is_compressed(task.problem):
        fields[PROBLEM] = zlib.compress((task.problem or "").encode())
    if task.status is TaskStatus.FAILED:
        names = failed_partition(task.run_id, row.shard), task.id
        fields.update(zip(INDEX_KEYS[GSI1], names, strict=True))
    return {**row.key.fields, **encode_item(fields)}


def row_of(item: Item, place: RunPlace) -> TaskRow:
    """The row of an item, or of its entry in `gsi1`."""
    key, fields = key_of_item(item), decode_item(item)
    kept = STORED.decode(fields[FIELDS])
    _, run_id, task_id = key.sk.split("#")
    problem = WORKER_LOST if isinstance(kept.problem, int) else kept.problem
    if PROBLEM in fields:
        problem = zlib.decompress(fields[PROBLEM]).decode()
    http_status, duration_ms, final_url = kept.facts or (None, None, None)
    task = Task(
        run_id=RunId(run_id),
        id=TaskId(task_id),
        index=int(task_id[:8], 16),
        spec=TaskSpec(
            url=kept.url,
            method=kept.method,
            external_id=kept.external_id,
            metadata=kept.metadata,
            params=kept.params,
            body=kept.body,
        ),
        created_at=moment(kept.created_at),
        updated_at=moment(fields[UPDATED]),
        due_at=_moment(fields.get(DUE)),
        status=TaskStatus(fields[STATUS]),
        claim_no=fields[CLAIM_NO],
        attempts=kept.attempts,
        lost=kept.lost,
        claimed_at=_moment(fields.get(CLAIMED)),
        holder=fields.get(HOLDER),
        result=_body(kept.result, _abbreviations(key)),
        problem=problem,
        reason=kept.reason,
        facts=PageFacts(http_status=http_status, duration_ms=duration_ms, final_url=final_url),
        spend=_spend(kept, TaskStatus(fields[STATUS]), fields[CLAIM_NO]),
        source_run_id=kept.source_run_id,
        scraped_at=_moment(kept.scraped_at),
    )
    return TaskRow(
        key=key,
        task=task,
        lines=kept.lines,
        listed=kept.listed,
        called=kept.called,
        end=kept.end,
        older=kept.older,
        token=fields.get(TOKEN, ""),
        shard=shard_of(place, task_id),
    )


def _stored(row: TaskRow) -> StoredFields:
    task, spec, facts = row.task, row.task.spec, row.task.facts
    has_end = row.end is not None
    kept_problem = None if has_end or _is_compressed(task.problem) else task.problem
    stored_facts = (
        facts.http_status, facts.duration_ms, None if has_end else facts.final_url
    )  # fmt: skip
    return StoredFields(
        created_at=stamp(task.created_at),
        url=spec.url,
        method=spec.method,
        external_id=spec.external_id,
        metadata=spec.metadata,
        params=spec.params,
        body=spec.body,
        listed=row.listed,
        called=row.called,
        attempts=task.attempts,
        lost=task.lost,
        result=_stored_body(task.result, _abbreviations(row.key)) if task.result else None,
        problem=LOST if kept_problem == WORKER_LOST else kept_problem,
        reason=task.reason,
        facts=stored_facts if any(value is not None for value in stored_facts) else None,
        spend=_stored_spend(task),
        end=row.end,
        source_run_id=task.source_run_id,
        scraped_at=None if task.scraped_at is None else stamp(task.scraped_at),
        lines=row.lines,
        older=row.older,
    )


def _has_ended_none(status: TaskStatus, claim_no: int) -> bool:
    """Whether no claim of a row has ended: a claim changes its status and number alone."""
    return (status, claim_no) in {(TaskStatus.PENDING, 0), (TaskStatus.PROCESSING, 1)}


def _stored_spend(task: Task) -> tuple[int, int] | msgspec.UnsetType | None:
    if task.spend == NOTHING and _has_ended_none(task.status, task.claim_no):
        return msgspec.UNSET
    return (task.spend.credits, task.spend.nanos) if task.spend is not None else None


def _spend(kept: StoredFields, status: TaskStatus, claim_no: int) -> Spend | None:
    if isinstance(kept.spend, msgspec.UnsetType):
        return NOTHING if _has_ended_none(status, claim_no) else None
    return Spend(*kept.spend) if kept.spend is not None else None


def _spec_beside(row: TaskRow, new: NewParts) -> TaskRow:
    if row.listed or row.called:
        return row
    spec = row.task.spec
    url = spec.url if _bytes(spec.url) > SHORT_URL else None
    listed = SpecPart(url=url, external_id=spec.external_id, metadata=spec.metadata)
    called = SpecPart(url=url, params=spec.params, body=spec.body)
    hot = TaskSpec(url="" if url else spec.url, method=spec.method)
    return replace(
        row,
        task=msgspec.structs.replace(row.task, spec=hot),
        listed=_spec_part("L", listed, new),
        called=_spec_part("C", called, new),
    )


def _spec_part(kind: str, part: SpecPart, new: NewParts) -> PartRef | None:
    texts = msgspec.structs.astuple(part)
    return new.add(kind, part, _bytes(*texts)) if any(text is not None for text in texts) else None


def _end_beside(row: TaskRow, new: NewParts) -> TaskRow:
    problem, final_url = row.task.problem, row.task.facts.final_url
    if row.end or not (problem or final_url):
        return row
    end = new.add("e", EndPart(problem, final_url), _bytes(problem, final_url))
    facts = msgspec.structs.replace(row.task.facts, final_url=None)
    task = msgspec.structs.replace(row.task, problem=None, facts=facts)
    return replace(row, task=task, end=end)


def _lines_beside(row: TaskRow, new: NewParts) -> TaskRow:
    """Put all lines but the newest beside the row, so that the next ones have room again."""
    *older, newest = row.lines or (None,)
    if not older or newest is None:
        return row
    part = new.add("h", LinesPart(older, row.older), 0)
    return replace(row, lines=(newest,), older=part)


def _is_compressed(problem: str | None) -> bool:
    return _bytes(problem) > SHORT_PROBLEM


def _stored_size(problem: str | None) -> int:
    """Bytes of a problem in the row."""
    if problem is None or not _is_compressed(problem):
        return _bytes(problem)
    return len(zlib.compress(problem.encode()))


def _bytes(*texts: str | None) -> int:
    return sum(len(text.encode()) for text in texts if text)


def _size(part: PartRef | None) -> int:
    return part.size if part else 0


def _moment(stamp: int | None) -> datetime | None:
    return None if stamp is None else moment(stamp)


def _abbreviations(key: ItemKey) -> dict[str, str]:
    """What stands in a stored locator for ids that the key has: most locators consist of them."""
    _, run_id, task_id = key.sk.split("#")
    return {"~": "~", "j": key.pk.split("#")[1], "r": run_id, "t": task_id}


def _stored_body(
    body: StoredBody, abbreviations: Mapping[str, str]
) -> tuple[str, int, str, str, str | None]:
    locator = body.locator
    for letter, text in abbreviations.items():  # `~` itself first
        locator = locator.replace(text, f"~{letter}")
    return locator, body.length, body.checksum, body.format, body.content_type


def _body(stored: Sequence[Any] | None, abbreviations: Mapping[str, str]) -> StoredBody | None:
    if stored is None:
        return None
    locator, length, checksum, format_, content_type = stored
    return StoredBody(
        locator=ABBREVIATED.sub(lambda found: abbreviations[found[1]], locator),
        length=length,
        checksum=checksum,
        format=format_,
        content_type=content_type,
    )


def stamp(moment: datetime) -> int:
    """Microseconds since 1970, without the rounding of floats."""
    return (moment - EPOCH) // MICROSECOND


def moment(stamp: int) -> datetime:
    return EPOCH + stamp * MICROSECOND
