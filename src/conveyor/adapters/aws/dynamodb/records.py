"""Records as items: their keys, their entries in the indexes, and their content as JSON."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from math import ceil
from typing import Any, Generic, cast

import msgspec

from conveyor.adapters.aws.attribute_values import encode_item
from conveyor.adapters.aws.dynamodb.layout import (
    GSI1,
    GSI2,
    GSI3,
    INDEX_KEYS,
    TTL,
    ItemKey,
    index_shard,
)
from conveyor.adapters.aws.item_size import Item
from conveyor.domain.api_key import ApiKey
from conveyor.domain.batch import Batch
from conveyor.domain.encryption_keys import EncryptionKeys
from conveyor.domain.export import Export
from conveyor.domain.file_input import FileInput
from conveyor.domain.idempotency import IdempotencyRecord
from conveyor.domain.ids import RunId
from conveyor.domain.job import Deletion, Job, JobStatus, JobType
from conveyor.domain.outbox import Channel, OutboxEvent
from conveyor.domain.run import Run
from conveyor.domain.signing import SigningKeys
from conveyor.ports.clock import Clock
from conveyor.ports.metadata import AnyRecord, Key, Record, Row, key_of

VERSION, TOKEN, CONTENT = "v", "w", "d"
EXPIRY = "x"  # of an idempotency record, in microseconds since 1970
STATUS = "st"  # of a job
ALONE = "-"  # the sort key of items that are alone in their partition
RUNS, BATCHES, EVENTS, EXPORTS = "R#", "B#", "E#", "X#"  # prefixes of sort keys
# Listings in the indexes.
JOBS, SCHEDULED, DELETED = "jobs", "scheduled", "deleted"
LIVE, UNUSED_INPUTS, OPEN_EXPORTS = "live", "inputs", "exports"
CHANGED, DUE_FIRES = "changed", "due#fire"
TICK = timedelta(microseconds=1)

Entries = Mapping[str, tuple[str, str]]  # index -> its partition and sort key


@dataclass(frozen=True)
class RecordKind(Generic[AnyRecord]):
    """How the records of a kind are stored."""

    type: type[AnyRecord]
    name: str  # of its listing in gsi3
    place: Callable[[Any], ItemKey]  # by the record's key
    # Beside the one in the listing of all; the time is that of the commit.
    entries: Callable[[AnyRecord, datetime], Entries] = lambda _row, _now: {}
    # The key of an item below a job or run, which is written once and tells that the record exists.
    pointer: Callable[[AnyRecord], ItemKey] | None = None
    more: Callable[[AnyRecord], Mapping[str, object]] = field(default=lambda _: {})

    @cached_property
    def decode(self) -> Callable[[str], AnyRecord]:
        return msgspec.json.Decoder(self.type).decode

    def of_item(self, item: Item) -> AnyRecord:
        return self.decode(item[CONTENT]["S"])

    @property
    def listing(self) -> str:
        return f"all#{self.name}"


def alone(prefix: str) -> Callable[[Any], ItemKey]:
    return lambda key: ItemKey(f"{prefix}#{key}", ALONE)


def due_events(channel: Channel | None) -> str:
    return f"due#{channel}"


def timed(at: datetime, name: str) -> str:
    """A sort key in order of time."""
    return f"{stamp(at)}#{name}"


def stamp(at: datetime) -> str:
    """Text in order of time, always in microseconds."""
    return at.replace(tzinfo=None).isoformat(timespec="microseconds")


def order(key: Key) -> str:
    """The sort key of a record in the listing of its kind: in the order of keys."""
    if not isinstance(key, tuple):
        return key
    first, second = key
    return f"{first}#{second:010d}" if isinstance(second, int) else f"{first}#{second}"


def _idempotency_place(key: tuple[str, str]) -> ItemKey:
    # Of one length, whatever the key, and no key can be taken for that of another caller.
    digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()
    return ItemKey(f"Idem#{digest}", ALONE)


def _job_entries(job: Job, _now: datetime) -> Entries:
    is_scheduled = job.type is JobType.SCHEDULED
    listing = SCHEDULED if is_scheduled else JOBS
    if job.status is JobStatus.DELETED:
        listing = DELETED
    entries = {GSI1: (f"{listing}#{job.caller}", str(job.id))}
    if job.fires_at:
        entries[GSI2] = index_shard(DUE_FIRES, job.id), timed(job.fires_at, job.id)
    return entries


def _run_entries(run: Run, now: datetime) -> Entries:
    entries = {GSI2: (index_shard(CHANGED, run.id), timed(now, run.id))}
    if run.is_live:
        entries[GSI1] = f"{LIVE}#{run.caller}", run.id
        entries[GSI3] = index_shard(LIVE, run.id), run.id
    return entries


def _event_entries(event: OutboxEvent, _now: datetime) -> Entries:
    if event.due_at is None:
        return {}
    partition = index_shard(due_events(event.channel), event.id)
    return {GSI2: (partition, timed(event.due_at, event.id))}


def _export_entries(export: Export, _now: datetime) -> Entries:
    if export.has_ended:
        return {}
    return {GSI1: (f"{OPEN_EXPORTS}#{export.caller}", export.id)}


def _input_entries(file_input: FileInput, _now: datetime) -> Entries:
    if file_input.jobs:
        return {}
    return {GSI1: (f"{UNUSED_INPUTS}#{file_input.caller}", file_input.id)}


def _expiry(record: IdempotencyRecord) -> Mapping[str, object]:
    at = record.expires_at.timestamp()
    return {EXPIRY: microseconds(record.expires_at), TTL: ceil(at)}


KINDS: Mapping[type, RecordKind[Any]] = {
    kind.type: kind
    for kind in cast(
        "tuple[RecordKind[Any], ...]",
        (
            RecordKind(
                Job,
                "job",
                lambda job_id: ItemKey(f"Job#{job_id}", "J"),
                _job_entries,
                more=lambda job: {STATUS: str(job.status)},
            ),
            RecordKind(
                Run,
                "run",
                lambda run_id: ItemKey(f"Run#{run_id}", "R"),
                _run_entries,
                pointer=lambda run: ItemKey(f"Job#{run.job_id}", f"{RUNS}{run.id}"),
            ),
            RecordKind(
                Batch, "batch", lambda key: ItemKey(f"Run#{key[0]}", f"{BATCHES}{key[1]:010d}")
            ),
            RecordKind(
                OutboxEvent,
                "event",
                lambda key: ItemKey(f"Job#{key[0]}", f"{EVENTS}{key[1]}"),
                _event_entries,
            ),
            RecordKind(
                Export,
                "export",
                alone("Export"),
                _export_entries,
                pointer=lambda export: ItemKey(f"Run#{export.run_id}", f"{EXPORTS}{export.id}"),
            ),
            RecordKind(FileInput, "input", alone("Input"), _input_entries),
            RecordKind(Deletion, "deletion", alone("Deletion")),
            RecordKind(ApiKey, "key", alone("Key")),
            RecordKind(SigningKeys, "signing", alone("Sign")),
            RecordKind(EncryptionKeys, "encryption", alone("Encryption")),
            RecordKind(IdempotencyRecord, "", _idempotency_place, more=_expiry),
        ),
    )
}
RUN: RecordKind[Run] = KINDS[Run]


def place(record: Record) -> ItemKey:
    return KINDS[type(record)].place(key_of(record))


def run_place(run_id: RunId | str) -> ItemKey:
    return RUN.place(run_id)


def item_of(record: Record, token: str, now: datetime) -> dict[str, Any]:
    """The item of a record as it is given, with the token of its commit."""
    kind = KINDS[type(record)]
    fields: dict[str, object] = {
        TOKEN: token,
        CONTENT: msgspec.json.encode(record).decode(),
        **kind.more(record),
        **_index_fields(_listed(record) | dict(kind.entries(record, now))),
    }
    if not isinstance(record, IdempotencyRecord):
        fields[VERSION] = record.version
    return {**place(record).fields, **encode_item(fields)}


def pointer_of(row: Record) -> ItemKey | None:
    kind = KINDS[type(row)]
    return kind.pointer(row) if kind.pointer else None


def pointer_item(row: Row, key: ItemKey) -> dict[str, Any]:
    """The item that points to a row. That of a run is also its entry in the listing of all runs,
    because the index has the run itself among the live ones.
    """
    entries = _all_entry(row) if isinstance(row, Run) else {}
    return {**key.fields, **encode_item(_index_fields(entries))}


def microseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)


def _listed(record: Record) -> dict[str, tuple[str, str]]:
    return {} if isinstance(record, Run | IdempotencyRecord) else _all_entry(record)


def _all_entry(row: Row) -> dict[str, tuple[str, str]]:
    name = order(key_of(row))
    return {GSI3: (index_shard(KINDS[type(row)].listing, name), name)}


def _index_fields(entries: Entries) -> dict[str, object]:
    return {
        name: value
        for index, keys in entries.items()
        for name, value in zip(INDEX_KEYS[index], keys, strict=True)
    }


class Stamps:
    """Times of commits. No two of one process are the same, so that they tell their order."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.now()

    def next(self) -> datetime:
        self._last = max(self._clock.now(), self._last + TICK)
        return self._last
