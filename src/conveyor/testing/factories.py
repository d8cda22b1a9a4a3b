"""Valid rows and values for tests: a test names only the fields that it is about."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from msgspec.structs import replace

from conveyor.adapters.http import direct_wire, zenrows_errors
from conveyor.domain.api_key import ApiKey
from conveyor.domain.batch import Batch
from conveyor.domain.counts import NOTHING, Spend
from conveyor.domain.encryption_keys import RECORD, DataKey, EncryptionKeys, KeyState
from conveyor.domain.export import Export
from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import failure_key
from conveyor.domain.file_input import FileInput
from conveyor.domain.idempotency import IDEMPOTENCY_LIFE, IdempotencyRecord
from conveyor.domain.ids import (
    ApiKeyId,
    CallerId,
    EventId,
    ExportId,
    InputId,
    JobId,
    RunId,
    TaskId,
    task_ids,
)
from conveyor.domain.job import Deletion, Job, JobStatus, RunPlace
from conveyor.domain.outbox import Channel, EventType, OutboxEvent
from conveyor.domain.page_facts import NO_FACTS, PageFacts
from conveyor.domain.problem import encoded, problem
from conveyor.domain.run import Run
from conveyor.domain.signing import SigningKey, SigningKeys
from conveyor.domain.task import (
    Inherited,
    NewRow,
    SettleDecision,
    Settlement,
    StoredBody,
    Task,
    TaskSpec,
    TaskStatus,
)
from conveyor.domain.task_list.spec import ListFormat, ListSpec
from conveyor.ports.coordination import Member
from conveyor.ports.gateway import GatewayRefusal
from conveyor.ports.tasks import Tasks
from conveyor.ports.work import Held, Released
from conveyor.testing.clock import NOON, FakeIds

_ids = FakeIds()
CALLER = CallerId("caller")
JOB = JobId(_ids.new())
RUN = RunId(_ids.new())
OTHER_RUN = RunId(_ids.new())
INPUT = InputId(_ids.new())
EXPORT = ExportId(_ids.new())
EVENT = EventId(_ids.new())
KEY = ApiKeyId(_ids.new())
FACTS = PageFacts(http_status=200, duration_ms=812, final_url="https://example.com/at-last")


def a_task_spec(**changes: object) -> TaskSpec:
    return replace(TaskSpec(url="https://example.com/"), **changes)


def new_tasks(run_id: RunId = RUN, n: int = 1, *, first: int = 0) -> list[NewRow]:
    return new_tasks_at(range(first, first + n), run_id)


def new_tasks_at(indexes: Iterable[int], run_id: RunId = RUN) -> list[NewRow]:
    name = task_ids(run_id)
    return [
        NewRow(index, name(index), a_task_spec(url=f"https://example.com/{index}"))
        for index in indexes
    ]


def a_task(**changes: object) -> Task:
    task = Task(
        run_id=RUN,
        id=task_ids(RUN)(0),
        index=0,
        spec=a_task_spec(),
        created_at=NOON,
        updated_at=NOON,
        due_at=NOON,
    )
    return replace(task, **changes)


def a_job(**changes: object) -> Job:
    job = Job(
        id=JOB,
        caller=CALLER,
        status=JobStatus.OPEN,
        format="html",
        latest_run_id=RUN,
        encrypted_gateway_key=b"encrypted",
        created_at=NOON,
        updated_at=NOON,
    )
    return replace(job, **changes)


def a_run(**changes: object) -> Run:
    run = Run(
        id=RUN,
        job_id=JOB,
        caller=CALLER,
        created_at=NOON,
        updated_at=NOON,
        total=1,
        next_index=1,
    )
    return replace(run, **changes)


def a_batch(**changes: object) -> Batch:
    batch = Batch(run_id=RUN, job_id=JOB, first=0, count=1, blob="lists/1", created_at=NOON)
    return replace(batch, **changes)


def a_deletion(**changes: object) -> Deletion:
    deletion = Deletion(id=JOB, job_id=JOB, sent_at=NOON)
    return replace(deletion, **changes)


def a_file_input(**changes: object) -> FileInput:
    file_input = FileInput(
        id=INPUT, caller=CALLER, spec=ListSpec(format=ListFormat.TXT), created_at=NOON
    )
    return replace(file_input, **changes)


def an_export(**changes: object) -> Export:
    export = Export(id=EXPORT, job_id=JOB, run_id=RUN, caller=CALLER, created_at=NOON, sent_at=NOON)
    return replace(export, **changes)


def an_event(**changes: object) -> OutboxEvent:
    event = OutboxEvent(
        id=EVENT,
        caller=CALLER,
        job_id=JOB,
        run_id=RUN,
        channel=Channel.WEBHOOK,
        type=EventType.RUN_COMPLETED,
        occurred_at=NOON,
        payload="{}",
        due_at=NOON,
    )
    return replace(event, **changes)


def signing_keys(**changes: object) -> SigningKeys:
    active = SigningKey(kid=_ids.new(), encrypted_secret=b"encrypted", created_at=NOON)
    return replace(SigningKeys(id=CALLER, active=active), **changes)


def an_api_key(**changes: object) -> ApiKey:
    key = ApiKey(id=KEY, caller=CALLER, digest=b"digest", created_at=NOON)
    return replace(key, **changes)


def encryption_keys(**changes: object) -> EncryptionKeys:
    current = DataKey(fingerprint="01", wrapped=b"wrapped", state=KeyState.CURRENT, created_at=NOON)
    record = EncryptionKeys(id=RECORD, root="00", keys=(current,), wrapped_link_secret=b"wrapped")
    return replace(record, **changes)


def a_member(**changes: object) -> Member:
    member = Member(id="01HZ", role="worker", host="one", version="1.2", started_at=NOON)
    return replace(member, **changes)


def an_idempotency_record(**changes: object) -> IdempotencyRecord:
    record = IdempotencyRecord(
        caller=CALLER,
        key="key",
        fingerprint=b"fingerprint",
        status=201,
        body=b"{}",
        expires_at=NOON + IDEMPOTENCY_LIFE,
    )
    return replace(record, **changes)


_Row = TypeVar(
    "_Row", Job, Run, Batch, Deletion, FileInput, Export, OutboxEvent, SigningKeys, ApiKey
)


def as_stored(row: _Row) -> _Row:
    """A new row as it is after its first commit."""
    return replace(row, version=1)


def a_stored_body(**changes: object) -> StoredBody:
    body = StoredBody(
        locator="somewhere",
        length=4,
        checksum="c0ffee",
        format="html",
        content_type="text/html; charset=koi8-r",
    )
    return replace(body, **changes)


def inherited_as(status: TaskStatus) -> Inherited:
    """The state of a row of another run with this status."""
    failed = status is TaskStatus.FAILED
    return Inherited(
        status=status,
        attempts=2,
        created_at=NOON - timedelta(days=2),
        scraped_at=NOON - timedelta(days=1),
        source_run_id=RUN,
        result=a_stored_body() if status is TaskStatus.SUCCESSFUL else None,
        problem=encoded(problem(status=422, code="RESP001")) if failed else None,
        reason=FailureReason.BLOCKED if failed else None,
        facts=NO_FACTS if status is TaskStatus.PENDING else FACTS,
        spend=Spend(3, 40),
    )


def scraped(*, body: StoredBody | None = None, spend: Spend = NOTHING) -> SettleDecision:
    return SettleDecision(
        status=TaskStatus.SUCCESSFUL,
        charged=True,
        result=body or a_stored_body(),
        spend=spend,
        facts=FACTS,
    )


def refused(
    *,
    code: str = "RESP002",
    reason: FailureReason | None = None,
    spend: Spend = NOTHING,
    host: str = "example.com",
) -> SettleDecision:
    """The decision for a page of `new_tasks` that was refused and is not retried."""
    why, text = reason or zenrows_errors.rule_for(422, code).reason, a_problem(code)
    return SettleDecision(
        status=TaskStatus.FAILED,
        charged=True,
        problem=text,
        reason=why,
        spend=spend,
        facts=PageFacts(http_status=404, duration_ms=95),
        failure=failure_key(host, why, text),
    )


def to_retry(
    *,
    delay: timedelta = timedelta(seconds=1),
    code: str = "RESP001",
    spend: Spend = NOTHING,
) -> SettleDecision:
    """The decision for a page that was refused and is retried."""
    return SettleDecision(
        status=TaskStatus.PENDING,
        charged=True,
        delay=delay,
        problem=a_problem(code),
        spend=spend,
        facts=FACTS,
    )


def uncharged(*, wait: timedelta = timedelta(), spend: Spend = NOTHING) -> SettleDecision:
    """The decision for a task that was throttled or interrupted, which is not an attempt."""
    return SettleDecision(status=TaskStatus.PENDING, charged=False, delay=wait, spend=spend)


def a_problem(code: str) -> str:
    return encoded(problem(status=422, code=code))


def settlement(task: Task, decision: SettleDecision) -> Settlement:
    return Settlement(
        run_id=task.run_id, task_id=task.id, claim_no=task.claim_no, decision=decision
    )


def held(task: Task) -> Held:
    return Held(task.run_id, task.id, task.claim_no)


def released(task: Task, *, failed: bool = False) -> Released:
    return Released(task.run_id, task.id, task.claim_no, failed)


async def add_rows(tasks: Tasks, run_id: RunId, new: Sequence[NewRow]) -> int:
    """Add rows to a run of `JOB`, as a step does."""
    await tasks.lay_out(run_id, RunPlace(JOB))
    return await tasks.add(run_id, new)


def ids_of(tasks: Iterable[Task | NewRow]) -> list[TaskId]:
    return [task.id for task in tasks]


def new_ids(n: int) -> list[str]:
    """ULIDs in order, later than those of the rows above."""
    ids = FakeIds(NOON + timedelta(seconds=1))
    return [ids.new() for _ in range(n)]


def gateway_refusal(status: int, code: str, problem: str = "{}", **fields: Any) -> GatewayRefusal:
    """A refusal with the rule of the gateway that knows this code."""
    rule = direct_wire.BY_CODE.get(code) or zenrows_errors.rule_for(status, code)
    return GatewayRefusal(status=status, code=code, problem=problem, rule=rule, **fields)
