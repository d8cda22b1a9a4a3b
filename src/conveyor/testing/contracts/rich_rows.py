"""Rows of every kind with a value in each field that may have one."""

from collections.abc import Mapping

from conveyor.domain.api_key import ApiKey, Scope
from conveyor.domain.batch import Batch
from conveyor.domain.counts import Counts
from conveyor.domain.encryption_keys import DataKey, EncryptionKeys, KeyState
from conveyor.domain.export import Export, ExportStatus
from conveyor.domain.failure import AccountReason, FailureReason
from conveyor.domain.file_input import FileInput
from conveyor.domain.ids import ApiKeyId, JobId, task_ids
from conveyor.domain.job import Deletion, Job, JobType
from conveyor.domain.outbox import Channel, Delivery, EventStatus, EventType, OutboxEvent
from conveyor.domain.run import IngestStatus, Inheritance, PauseState, Run, RunStatus, Trigger
from conveyor.domain.schedule import (
    Cadence,
    Calendar,
    PauseReason,
    Schedule,
    ScheduleState,
    Weekday,
    Weekly,
)
from conveyor.domain.selection import Selection
from conveyor.domain.signing import SigningKey, SigningKeys
from conveyor.domain.task import TaskStatus
from conveyor.domain.task_list.rows import Position
from conveyor.domain.task_list.spec import ListFormat, ListSpec, SourceList
from conveyor.domain.webhook import Webhook
from conveyor.ports.metadata import Row
from conveyor.testing.clock import NOON
from conveyor.testing.contracts.engine import SECOND, TICK
from conveyor.testing.factories import (
    JOB,
    OTHER_RUN,
    RUN,
)

RICH: Mapping[type[Row], Mapping[str, object]] = {
    Job: {
        "type": JobType.SCHEDULED,
        "params": '{"js_render":"true"}',
        "name": "naïve",
        "external_id": "mine",
        "metadata": '{"a":"ß"}',
        "max_inflight": 7,
        "task_shard_count": 8,
        "max_per_host": 2,
        "retries": 0,
        "result_ttl_days": 3,
        "encrypted_gateway_key": bytes(range(256)),
        "last_batch": True,
        "runs": 4,
        "source_list": SourceList(
            blob="inputs/1", count=9, spec=ListSpec(format=ListFormat.NDJSON), encodings=("zstd",)
        ),
        "webhook": Webhook(url="https://a.example/ß", signature=True, disabled_at=NOON),
        "schedule": Schedule(
            calendar=Calendar(
                ("09:00", "18:00"), Cadence(weekly=Weekly((Weekday.MON, Weekday.SUN)))
            ),
            timezone="Europe/Berlin",
        ),
        "schedule_state": ScheduleState.PAUSED,
        "pause_reason": PauseReason.API_KEY_EXPIRED,
        "api_key_id": ApiKeyId("key"),
        "next_fire_at": NOON + TICK,
        "skipped": 2,
        "last_skipped_at": NOON,
    },
    Run: {
        "total": 2**32,
        "next_index": 2**32,
        "sequence": 3,
        "status": RunStatus.FAILED,
        "trigger": Trigger.SCHEDULED,
        "last_batch_received": True,
        "ingest_status": IngestStatus.DONE,
        "pause_state": PauseState.PAUSED,
        "failure_reason": AccountReason.INSUFFICIENT_CREDITS,
        "failure_detail": "No credits left",
        "inherited": Inheritance(
            counts=Counts(successful=1, nanos=2**60), idle=3, sources=(OTHER_RUN,)
        ),
        "ingest_errors": 5,
        "ingest_error": "the list is not UTF-8",
        "is_cut": True,
        "frozen": Counts(successful=2, blocked=3, credits=4, nanos=2**61),
        "bodies_removed": True,
        "encrypted_token": b"\x00\xff",
    },
    Batch: {
        "count": 10,
        "written": 4,
        "read": 99,
        "source_run_id": OTHER_RUN,
        "statuses": (TaskStatus.FAILED, TaskStatus.PENDING),
        "selection": Selection(
            statuses=(TaskStatus.FAILED,),
            reasons=(FailureReason.BLOCKED,),
            codes=("RESP001",),
            hosts=("example.com",),
            task_ids=(task_ids(RUN)(1),),
            scraped_before=NOON,
        ),
        "params": {"premium_proxy": "true"},
        "inherited": Inheritance(counts=Counts(blocked=1), idle=2, sources=(RUN, OTHER_RUN)),
        "source_list": SourceList(blob="inputs/1", spec=ListSpec(format=ListFormat.TXT)),
        "position": Position(offset=2**33, line=7, ordinal=6, blank_lines=1),
        "errors": 3,
        "checked": True,
    },
    Deletion: {"run_id": OTHER_RUN, "done_at": NOON + SECOND},
    FileInput: {
        "spec": ListSpec(
            format=ListFormat.CSV, delimiter=";", quote="'", header=True, url="link", external_id=3
        ),
        "size": 19,
        "target": "inputs/2",
        "blob": "inputs/1",
        "length": 9,
        "encodings": ("gzip",),
        "jobs": (JOB, JobId("other")),
    },
    Export: {
        "status": ExportStatus.FAILED,
        "claim_no": 2,
        "length": 7,
        "error": "results are larger than 1 gb",
    },
    OutboxEvent: {
        "channel": Channel.STEP_FUNCTIONS,
        "type": EventType.RUN_FAILED,
        "payload": '{"stats": {}}',
        "due_at": None,
        "encrypted_token": b"\x00\xff",
        "every_seconds": 30,
        "status": EventStatus.FAILED,
        "tries": 1,
        "deliveries": (
            Delivery(
                attempt=2, started_at=NOON, elapsed_ms=7, status_code=500, error="http_5xx:500"
            ),
        ),
    },
    SigningKeys: {
        "candidate": SigningKey(kid="kid", encrypted_secret=b"\x00\xff", created_at=NOON)
    },
    ApiKey: {
        "digest": b"\x00\xff",
        "name": "the crawler's",
        "scopes": (Scope.READ,),
        "expires_at": NOON,
        "revoked_at": NOON,
        "last_used_at": NOON,
        "encrypted_gateway_key": b"\xff\x00",
    },
    EncryptionKeys: {
        "provider": "kms:alias/conveyor",
        "wrapped_root": b"\x00\xff",
        "keys": (
            DataKey(
                fingerprint="02",
                wrapped=b"\xff\x00",
                state=KeyState.RETIRED,
                created_at=NOON,
                retired_at=NOON + SECOND,
            ),
        ),
    },
}
