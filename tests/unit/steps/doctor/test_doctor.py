"""The doctor sees each lost step before the sweeper repairs it, and cries wolf at nothing."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import cast
from unittest.mock import patch

import msgspec
import pytest
from msgspec import structs

from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.domain.audit import (
    AuditProgress,
    AuditSummary,
    DoctorScope,
    Environment,
    Finding,
    Severity,
)
from conveyor.domain.counts import Counts
from conveyor.domain.export import Export, completed, export_blob
from conveyor.domain.failure import FailureReason
from conveyor.domain.file_input import FILE_INPUT_LIFE, FileInput, upload_key, uploaded, used_by
from conveyor.domain.ids import InputId, JobId, RunId
from conveyor.domain.job import JobStatus
from conveyor.domain.run import Run
from conveyor.domain.task import AttemptFailed, Task
from conveyor.errors import Unavailable
from conveyor.ports.blobs import as_stream
from conveyor.ports.bodies import Body
from conveyor.steps.doctor import audit as audit_step
from conveyor.steps.doctor.audit import Audit
from conveyor.steps.doctor.doctor import LEAST_ROOM, Doctor
from conveyor.steps.shared.attempt import CallResult, FinishedAttempt
from conveyor.steps.sweep import sweeper as sweep_step
from conveyor.steps.sweep.checks import YOUNG
from conveyor.testing.factories import a_file_input, an_export
from conveyor.testing.memory.bodies import MemoryBodies
from tests.harness.file_inputs import small_chunks, submitted_list, urls
from tests.harness.memory_service import (
    A_PAGE,
    CALLER,
    LEASE,
    House,
    a_call,
    a_house,
    an_assignment,
    away,
    body_name,
    ids_as_answer,
    ids_as_reply,
    survives,
)
from tests.harness.trace import Crash

NOTHING = AuditSummary(gateway_responds=True)
A_DAY = timedelta(days=1)
Setting = Callable[[House], Awaitable[None]]


def a_doctor(
    house: House, *, free: int = LEAST_ROOM, patient: bool = True, responds: bool = True
) -> Doctor:
    async def environment() -> Environment:
        return Environment(
            version="1", running=True, folder="data", free=free, size=free, settings={}
        )

    async def gateway_responds() -> bool:
        return responds

    audit = Audit(
        metadata=house.metadata,
        tasks=house.tasks,
        bodies=house.bodies,
        clock=house.clock,
    )
    return Doctor(
        metadata=house.metadata,
        tasks=house.tasks,
        control_queue=house.control_queue,
        blobs=house.blobs,
        clock=house.clock,
        audit=audit,
        missed_steps=partial(house.sweep.findings, patient=patient),
        environment=environment,
        gateway_responds=gateway_responds,
        encryption=house.encryption,
    )


async def a_full_file_input(house: House) -> FileInput:
    file_input = a_file_input(id=InputId(house.ids.new()), created_at=house.clock.now())
    await house.metadata.commit(file_input)
    key = upload_key(file_input, house.ids.new())
    await house.blobs.put(key, as_stream([b"https://a.example/\n"]))
    await house.metadata.commit(uploaded(structs.replace(file_input, version=1), key, 19, ()))
    kept = await house.metadata.get(FileInput, file_input.id)
    assert kept is not None
    return kept


async def examined(house: House, wanted: DoctorScope | None = None) -> list[Finding]:
    events = [event async for event in a_doctor(house).examine(wanted or DoctorScope())]
    assert isinstance(events[0], Environment)
    assert isinstance(events[-1], AuditSummary)
    return [event for event in events if isinstance(event, Finding)]


async def codes(house: House, wanted: DoctorScope | None = None) -> list[str]:
    return [finding.code for finding in await examined(house, wanted)]


async def checked(house: House) -> AuditSummary:
    *_, last = [event async for event in a_doctor(house).examine(DoctorScope())]
    assert isinstance(last, AuditSummary)
    return last


# What the sweeper repairs.


async def lapse(house: House) -> None:
    job_id, run_id = await house.submit(2)
    [task, _] = await house.work.claim({run_id: 2})
    await house.bodies.put_many([Body(body_name(await house.job(job_id), task), b"half a page")])
    house.clock.advance(LEASE + sweep_step.OVERDUE)


async def miss_completion(house: House) -> None:
    job_id, run_id = await house.submit(2)
    job = await house.job(job_id)
    with away(house.trace, "metadata.commit", Crash()), pytest.raises(Crash):
        await house.drain(run_id, _page)
    assert job.status is JobStatus.CLOSED


async def lose_ingest_message(house: House) -> None:
    with away(house.trace, "control_queue.send", Unavailable("control queue away")):
        await house.submit(20)
    house.clock.advance(YOUNG)


async def lose_purge_message(house: House) -> None:
    job_id, run_id = await house.submit(2)
    await house.drain(run_id, _page)
    with away(house.trace, "control_queue.send", Unavailable("control queue away")):
        await house.delete.job(CALLER, job_id)
    house.clock.advance(YOUNG)


async def die_before_commit(house: House, count: int = 3) -> None:
    with away(house.trace, "metadata.commit", Crash()), pytest.raises(Crash):
        await house.submit_job.submit(a_call(count), ids_as_answer)
    house.clock.advance(YOUNG + timedelta(minutes=1))


async def leave_list(house: House) -> None:
    await die_before_commit(house, 20)


async def leave_bodies(house: House) -> None:
    job_id, run_id = await house.submit(1)
    [task] = await house.work.claim({run_id: 1})
    await house.delete.job(CALLER, job_id)
    await house.handle_messages()
    await house.bodies.put_many([Body(body_name(await house.job(job_id), task), b"late")])
    house.clock.advance(YOUNG + timedelta(minutes=1))


async def lose_export_message(house: House) -> None:
    job_id, run_id = await house.submit(1)
    await house.metadata.commit(
        structs.replace(an_export(), job_id=job_id, run_id=run_id, created_at=house.clock.now())
    )
    house.clock.advance(YOUNG)


async def hold_list(house: House) -> None:
    """A list that was kept for a job which is no more."""
    file_input = await a_full_file_input(house)
    await house.metadata.commit(used_by(file_input, JobId(house.ids.new())))
    house.clock.advance(FILE_INPUT_LIFE + YOUNG)


async def leave_object(house: House, kind: str) -> None:
    job_id, run_id = house.ids.new(), house.ids.new()
    name = "" if kind == "inputs" else f"/{house.ids.new()}.1"
    key = f"{kind}/{job_id}/{run_id}{name}"
    await house.blobs.put(key, as_stream([b"stray"]))
    house.clock.advance(YOUNG + timedelta(minutes=1))


LOST: dict[str, Setting] = {
    "lapsed_lease": lapse,
    "missed_completion": miss_completion,
    "unfinished_ingest": lose_ingest_message,
    "unfinished_purge": lose_purge_message,
    "orphan_rows": die_before_commit,
    "orphan_source_list": leave_list,
    "orphan_body": leave_bodies,
    "unfinished_export": lose_export_message,
    "held_input": hold_list,
    "orphan_list": partial(leave_object, kind="lists"),
    "orphan_input": partial(leave_object, kind="inputs"),
    "orphan_export": partial(leave_object, kind="exports"),
    "orphan_report": partial(leave_object, kind="reports"),
}


async def test_a_list_whose_message_was_lost_is_told_by_how_far_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_chunks(monkeypatch)
    house = a_house()
    with away(house.trace, "control_queue.send", Unavailable("control queue away")):
        _, run_id = await submitted_list(house, urls(9))
    house.trace.die_at("tasks.add", 2)
    with pytest.raises(Crash):
        await house.ingest.run(run_id, 0)
    house.clock.advance(YOUNG + timedelta(minutes=1))

    [found] = [one for one in await examined(house) if one.code == "unfinished_ingest"]

    assert "up to line 5" in found.what


@pytest.mark.parametrize("action", LOST)
async def test_each_lost_step_is_found_then_repaired_and_then_all_is_well(action: str) -> None:
    house = a_house()
    await LOST[action](house)
    before = len(house.trace.calls)

    found = await examined(house)

    assert {finding.code for finding in found} == {action}
    assert {finding.severity for finding in found} == {Severity.REPAIR}
    if action != "orphan_input":  # it was never anyone's
        assert all(finding.run_id or finding.job_id for finding in found)
    assert all("nothing to do" in finding.advice for finding in found)
    assert not _writes(house.trace.calls[before:])
    assert not house.swept
    await house.sweep_twice()
    await house.handle_messages()
    assert house.swept[action] >= 1
    assert await codes(house) == []


def test_every_action_of_the_sweeper_is_made_to_happen_here() -> None:
    from conveyor.telemetry.metrics import SWEEPER_ACTIONS  # noqa: PLC0415

    of_queues = {"lost_message", "orphan_queue"}  # tests/unit/steps/sweep/test_lost_messages.py
    assert LOST.keys() == set(SWEEPER_ACTIONS) - of_queues


async def test_what_the_last_sweep_saw_too_is_repaired_by_the_next() -> None:
    house = a_house()
    await miss_completion(house)
    [first] = await examined(house)
    await house.sweep.step()
    [second] = await examined(house)

    assert "the round after the next" in first.advice
    assert "its next round" in second.advice


async def test_at_rest_every_claim_is_a_dead_ones() -> None:
    house = a_house()
    _, run_id = await house.submit(2)
    await house.work.claim({run_id: 1})
    doctor = a_doctor(house, patient=False)

    found = [one async for one in doctor.examine(DoctorScope()) if isinstance(one, Finding)]

    assert [one.code for one in found] == ["lapsed_lease"]
    assert await codes(house) == []


# What nobody repairs.


async def test_a_dead_letter_is_wrong_and_names_how_to_have_it_done() -> None:
    house = a_house()
    job_id, run_id = await house.submit(20)
    await house.blobs.delete(await house.lists())
    await house.handle_messages()

    [found] = await examined(house)

    [message] = await house.control_queue.dead_letters(limit=9)
    assert (found.severity, found.code) == (Severity.WRONG, "dead_letter")
    assert (found.job_id, found.run_id) == (job_id, run_id)
    assert f"conveyor dlq redrive {message.id}" in found.advice
    assert await codes(house, DoctorScope(job_id=job_id)) == ["dead_letter"]
    other, _ = await house.submit(1)
    assert await codes(house, DoctorScope(job_id=other)) == []


async def test_a_full_disk_is_wrong() -> None:
    house = a_house()
    doctor = a_doctor(house, free=LEAST_ROOM - 1)
    found = [one async for one in doctor.examine(DoctorScope()) if isinstance(one, Finding)]
    assert [one.code for one in found] == ["no_room"]


async def test_a_gateway_that_does_not_respond_is_wrong() -> None:
    doctor = a_doctor(a_house(), responds=False)
    _, found, summary = [one async for one in doctor.examine(DoctorScope())]
    assert isinstance(found, Finding)
    assert (found.severity, found.code) == (Severity.WRONG, "gateway_silent")
    assert summary == AuditSummary(wrong=1, gateway_responds=False)
    untried = replace(doctor, gateway_responds=None)
    assert [one async for one in untried.examine(DoctorScope())][1:] == [AuditSummary()]


async def test_a_live_run_whose_gateway_key_cannot_be_decrypted_is_wrong() -> None:
    house = a_house()
    _, ended = await house.submit(1)
    await house.drain(ended, _page)
    job_id, run_id = await house.submit(1)
    restored = replace(a_doctor(house), encryption=AesKeyRing(bytes([1] * 32)))

    found = [one async for one in restored.examine(DoctorScope()) if isinstance(one, Finding)]

    assert [(one.severity, one.code) for one in found] == [(Severity.WRONG, "key_unreadable")]
    assert (found[0].job_id, found[0].run_id) == (job_id, run_id)
    assert "encryption.key" in found[0].advice
    at_rest = replace(restored, encryption=None)
    assert not [one async for one in at_rest.examine(DoctorScope()) if isinstance(one, Finding)]
    with (
        patch.object(AesKeyRing, "decrypt", side_effect=Unavailable("the store does not answer")),
        pytest.raises(Unavailable),
    ):
        [one async for one in restored.examine(DoctorScope())]


async def test_a_job_and_a_run_are_found_by_what_stands_for_them() -> None:
    house = a_house()
    oldest = await house.submit(1)
    house.clock.advance(timedelta(seconds=1))
    newest = await house.submit(1)
    both = DoctorScope(job_id=JobId(oldest[0].lower()), run_id=RunId("@last"))
    events = [one async for one in a_doctor(house).examine(both)]
    assert {one.run_id for one in events if isinstance(one, AuditProgress)} == {oldest[1]}
    for scope in (
        DoctorScope(job_id=JobId("@last")),
        DoctorScope(job_id=JobId(newest[0][:-1].lower())),
        DoctorScope(run_id=RunId("@last")),
        DoctorScope(run_id=RunId(newest[1][:-1])),
        DoctorScope(run_id=RunId(newest[1].lower())),
    ):
        events = [one async for one in a_doctor(house).examine(scope)]
        audited = {one.run_id for one in events if isinstance(one, AuditProgress)}
        assert audited == {newest[1]}
    [found] = await examined(house, DoctorScope(job_id=JobId(newest[0][:6])))
    assert (found.code, found.severity) == ("unknown", Severity.WRONG)
    assert newest[0] in found.what


async def test_a_body_that_is_gone_is_told_with_its_task() -> None:
    house, job_id, run_id = await _drained()
    [task] = (await house.rows(run_id))[:1]
    await house.bodies.discard([body_name(await house.job(job_id), task)])

    [found] = await examined(house)

    assert (found.code, found.severity) == ("body_missing", Severity.WRONG)
    assert (found.job_id, found.run_id, found.task_id) == (job_id, run_id, task.id)
    assert job_id in found.advice
    assert await codes(house, DoctorScope(bodies=False)) == []


async def test_a_body_past_its_retention_may_be_gone_but_not_be_another() -> None:
    house, job_id, run_id = await _drained()
    job = await house.job(job_id)
    first, second, *_ = await house.rows(run_id)
    await house.bodies.discard([body_name(job, first)])
    _damage(house, second, b"pagf")
    house.clock.advance(timedelta(days=job.result_ttl_days))

    [found] = await examined(house)

    assert (found.code, found.task_id) == ("body_damaged", second.id)


async def test_a_body_of_the_wrong_length_is_told() -> None:
    house, _, run_id = await _drained()
    [task] = (await house.rows(run_id))[:1]
    _damage(house, task, b"pag")
    [found] = await examined(house)
    assert found.code == "body_damaged"
    assert "3 bytes" in found.what


def _damage(house: House, task: Task, content: bytes) -> None:
    assert task.result
    cast("MemoryBodies", house.bodies).damage(task.result.locator, content)


async def test_a_body_that_cannot_be_read_is_told_and_the_rest_is_looked_at() -> None:
    house, _, _ = await _drained()
    with away(house.trace, "bodies.read", Unavailable("the disk is ill")):
        found = await codes(house)
    assert found == ["body_unreadable"] * 3


async def test_a_body_that_no_row_refers_to_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    house, job_id, run_id = await _drained()
    job = await house.job(job_id)
    first, *_, last = await house.rows(run_id)
    strays = [
        msgspec.structs.replace(body_name(job, first), claim_no=7),
        msgspec.structs.replace(body_name(job, last), task_id="ffffffff-" + 24 * "0"),
    ]
    await house.bodies.put_many([Body(name, b"page") for name in strays])

    found = await examined(house)

    assert [one.code for one in found] == ["body_orphaned"] * 2
    assert [one.task_id for one in found] == [name.task_id for name in strays]
    assert {one.severity for one in found} == {Severity.WRONG}

    monkeypatch.setattr(MemoryBodies, "is_swept", False)  # several processes write to it
    assert {one.severity for one in await examined(house)} == {Severity.NOTE}


async def test_only_so_many_of_a_kind_are_told_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_step, "MOST_LISTED", 2)
    monkeypatch.setattr(audit_step, "PAGE", 2)
    monkeypatch.setattr(audit_step, "NAMES", 2)
    house, job_id, run_id = await _drained(7)
    await house.bodies.delete_run(job_id, run_id, limit=99)

    found = await examined(house)

    assert [one.code for one in found] == ["body_missing"] * 3
    assert "5 more" in found[-1].what


async def test_a_job_that_points_at_another_run_than_its_newest_is_told() -> None:
    house, job_id, run_id = await _drained()
    job = await house.job(job_id)
    second, *_ = await house.rerun(job_id)
    job = await house.job(job_id)
    await house.metadata.commit(msgspec.structs.replace(job, latest_run_id=run_id))

    [found] = await examined(house)

    assert found.code == "wrong_latest_run"
    assert run_id in found.what
    assert second in found.what


async def test_two_live_runs_of_a_job_are_told() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1)
    run = await house.run(run_id)
    twin = RunId(house.ids.new())
    await house.metadata.commit(
        msgspec.structs.replace(run, id=twin, total=0, last_batch_received=False, version=0),
        msgspec.structs.replace(await house.job(job_id), latest_run_id=twin),
    )

    assert set(await codes(house)) == {"two_live_runs", "wrong_sequence"}


async def test_a_total_that_the_rows_do_not_bear_out_is_told() -> None:
    house, _, run_id = await _drained()
    run = await house.run(run_id)
    await house.metadata.commit(msgspec.structs.replace(run, total=run.total + 1))
    assert await codes(house) == ["rows_missing"]
    run = await house.run(run_id)
    await house.metadata.commit(msgspec.structs.replace(run, total=run.total - 2))
    assert await codes(house) == ["rows_too_many"]


async def test_frozen_figures_that_the_rows_do_not_bear_out_are_told() -> None:
    house, _, run_id = await _drained()
    run = await house.run(run_id)
    await house.metadata.commit(
        msgspec.structs.replace(run, frozen=Counts(successful=2, timeout=1))
    )
    found = await examined(house)
    assert [one.code for one in found] == ["counter_differs", "counter_differs", "frozen_differs"]
    assert "`successful`" in found[0].what
    assert "`timeout`" in found[1].what


async def test_an_inheritance_that_the_rows_do_not_bear_out_is_told() -> None:
    house, job_id, _ = await _drained(3, _one_fails)
    second, *_ = await house.rerun(job_id, "failed")
    run = await house.run(second)
    assert await codes(house) == []
    twisted = msgspec.structs.replace(run.inherited, idle=1)
    await house.metadata.commit(msgspec.structs.replace(run, inherited=twisted))
    assert "inheritance_differs" in await codes(house)


async def test_what_is_not_there_is_told() -> None:
    house, job_id, run_id = await _drained()
    other, _ = await house.submit(1)
    nobody = RunId(house.ids.new())
    assert await codes(house, DoctorScope(job_id=JobId(nobody))) == ["unknown"]
    assert await codes(house, DoctorScope(run_id=nobody)) == ["unknown"]
    assert await codes(house, DoctorScope(job_id=other, run_id=run_id)) == ["unknown"]
    assert await codes(house, DoctorScope(job_id=job_id, run_id=run_id)) == []


# And nothing else.


async def test_all_that_can_happen_without_a_fault_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large list, additions, retries, a lost worker, reruns of all and of some, a stop, deletes."""
    monkeypatch.setattr(audit_step, "PAGE", 3)
    house = a_house()

    async def well() -> None:
        assert await codes(house) == []

    large, run_id = await house.submit(20)
    await well()
    await house.handle_messages()
    await well()
    await house.work.claim({run_id: 1})
    house.clock.advance(LEASE)
    await house.drain(run_id, _one_fails)
    house.clock.advance(A_DAY)
    await house.drain(run_id, _one_fails)
    await well()
    opened, first = await house.submit(1, status="open")
    await house.add_tasks.add(a_call(4, first=1), opened, ids_as_reply)
    await well()
    await house.lifecycle.stop(CALLER, opened)
    await house.work.claim({first: 1})
    again, *_ = await house.rerun(opened, "failed,pending")
    await house.drain(again, _one_fails)
    await well()
    second, *_ = await house.rerun(large, "failed")
    await well()
    await house.handle_messages()
    await house.drain(second, _one_fails)
    house.clock.advance(A_DAY)
    await house.drain(second, _page)
    await well()
    third, *_ = await house.rerun(large)
    await house.delete.job(CALLER, opened)
    await well()
    await house.handle_messages()
    await house.drain(third, _page)
    await well()
    await house.delete.run(CALLER, large, third)
    await house.handle_messages()
    await well()
    assert (await checked(house)).rows == 40


MOMENTS = ["tasks.histories", "tasks.page", "bodies.read", "tasks.counts", "tasks.failure_groups"]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_run_that_moves_under_the_doctors_eyes_is_well(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_step, "PAGE", 2)
    house = a_house()
    job_id, run_id = await house.submit(6, status="open")
    job = await house.job(job_id)
    assert await _settle_some(house, run_id, 2)

    async def goes_on() -> None:
        await _settle_some(house, run_id, 1)
        await house.add_tasks.add(a_call(1, first=9), job.id, ids_as_reply)
        for nth in (1, 2):
            house.trace.after(moment, nth, _move)

    async def _move() -> None:
        await _settle_some(house, run_id, 1)

    house.trace.after(moment, 1, goes_on)

    assert await codes(house) == []
    await _settle_some(house, run_id, 99)
    assert await codes(house) == []


async def test_nothing_is_told_of_a_run_that_is_deleted_meanwhile() -> None:
    house, job_id, run_id = await _drained()

    async def vanish() -> None:
        await house.delete.job(CALLER, job_id)
        await house.handle_messages()

    house.trace.after("tasks.page", 1, vanish)

    assert await codes(house) == []
    assert await house.metadata.get(Run, run_id) is None


async def test_the_summary_counts_what_was_looked_at() -> None:
    house, _, _ = await _drained(3, _one_fails)
    await house.submit(2)
    assert await checked(house) == AuditSummary(
        jobs=2, runs=2, rows=5, bodies=2, gateway_responds=True
    )


async def test_progress_is_told_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_step, "PAGE", 2)
    house, _, run_id = await _drained(5)
    events = [event async for event in a_doctor(house).examine(DoctorScope())]
    told = [event for event in events if isinstance(event, AuditProgress)]
    assert [one.rows for one in told] == [0, 2, 4, 5]
    assert {(one.run_id, one.total) for one in told} == {(run_id, 5)}


def _page(_task: Task) -> CallResult:
    return A_PAGE


def _one_fails(task: Task) -> CallResult:
    if task.index % 3 == 1:
        return AttemptFailed("{}", FailureReason.TIMEOUT, retryable=task.attempts == 0)
    return A_PAGE


async def _drained(
    count: int = 3, result: Callable[[Task], CallResult] = _page
) -> tuple[House, JobId, RunId]:
    house = a_house()
    job_id, run_id = await house.submit(count)
    await house.drain(run_id, result)
    house.clock.advance(A_DAY)
    await house.drain(run_id, result)
    assert not (await house.run(run_id)).is_live
    return house, job_id, run_id


def _page_or_refusal(task: Task) -> CallResult:
    if task.index % 2:
        return AttemptFailed("{}", FailureReason.TIMEOUT, retryable=False)
    return A_PAGE


async def _settle_some(house: House, run_id: RunId, count: int) -> int:
    job = await house.job((await house.run(run_id)).job_id)
    tasks = await house.work.claim({run_id: count})
    if tasks:
        await house.settle.settle(
            [FinishedAttempt(task, an_assignment(job), _page_or_refusal(task)) for task in tasks]
        )
    return len(tasks)


def _writes(calls: list[str]) -> list[str]:
    reading = {
        "jobs", "runs", "live_runs", "of_run", "get", "page", "history",
        "counts", "failure_groups", "tally", "runs_held", "read", "names", "keys", "length", "lapsed", "histories",
        "dead_letters", "find", "is_live",
    }  # fmt: skip
    return [call for call in calls if call.split(".")[1].partition("(")[0] not in reading]


# Objects that somebody counts on.


async def test_a_list_that_a_job_may_read_again_and_that_is_gone_is_told() -> None:
    house = a_house()
    file_input = await a_full_file_input(house)
    job_id, run_id = await house.submit(1)
    await house.drain(run_id, _page)
    await house.metadata.commit(used_by(file_input, job_id))
    assert await codes(house) == []

    await house.blobs.delete([str(file_input.blob)])
    [found] = await examined(house)

    assert (found.code, found.severity, found.job_id) == ("list_missing", Severity.WRONG, job_id)
    assert str(file_input.blob) in found.what
    assert await codes(house, DoctorScope(job_id=job_id)) == ["list_missing"]
    other, _ = await house.submit(1)
    assert await codes(house, DoctorScope(job_id=other)) == []


async def test_a_list_that_is_still_to_become_rows_and_is_gone_is_told() -> None:
    house = a_house()
    job_id, run_id = await house.submit(20)
    assert await codes(house) == []

    await house.blobs.delete(await house.lists())
    [found] = await examined(house)

    assert (found.code, found.job_id, found.run_id) == ("list_missing", job_id, run_id)


async def test_a_list_that_becomes_rows_while_the_doctor_looks_is_not_missed() -> None:
    house = a_house()
    await house.submit(20)
    house.trace.before("blobs.length", 1, house.handle_messages)

    assert await codes(house) == []
    assert await house.batches() == []


async def test_an_export_that_is_said_to_be_ready_and_is_gone_is_told_until_it_is_over() -> None:
    house = a_house()
    job_id, run_id = await house.submit(1)
    now = house.clock.now()
    export = structs.replace(an_export(), job_id=job_id, run_id=run_id, created_at=now, sent_at=now)
    await house.metadata.commit(export)
    await house.blobs.put(export_blob(export), as_stream([b"zip"]))
    await house.metadata.commit(completed(structs.replace(export, version=1), 3))
    assert await codes(house) == []

    await house.blobs.delete([export_blob(export)])
    [found] = await examined(house)
    assert (found.code, found.job_id, found.run_id) == ("export_missing", job_id, run_id)

    house.clock.advance(timedelta(hours=36))
    assert await codes(house) == []


@pytest.mark.parametrize("what", ["job", "run"])
async def test_the_exports_of_what_was_deleted_are_gone_and_not_missed(what: str) -> None:
    """Wherever the purge dies on the way, the doctor finds no export without its file."""
    number = 0
    while True:
        house = a_house()
        job_id, run_id = await house.submit(1)
        await house.drain(run_id, _page)
        await house.exporting.start(CALLER, job_id, run_id)
        await house.handle_messages()
        if what == "job":
            await house.delete.job(CALLER, job_id)
        else:
            await house.delete.run(CALLER, job_id, run_id)
        house.trace.forget()
        house.trace.break_at(number, "after", Crash())
        alive = await survives(house.control_worker.step())
        house.trace.forget()
        assert "export_missing" not in await codes(house)
        if alive:
            break
        house.clock.advance(LEASE * 2)
        await house.handle_messages()
        assert not await house.metadata.page(Export, limit=9)
        assert not [key for key in await house.lists() if key.startswith("exports/")]
        number += 1
    assert number > 10, "the calls of a purge were broken one by one"
    assert not await house.metadata.page(Export, limit=9)


async def test_rows_promised_by_more_batches_than_a_page_are_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_step, "PAGE", 2)
    house = a_house()
    job_id, _ = await house.submit(1, status="open")
    with away(house.trace, "tasks.add", Unavailable("tasks away")):
        for number in range(5):
            await house.add_tasks.add(a_call(1, first=1 + number), job_id, ids_as_reply)

    assert await codes(house) == []


async def test_bodies_that_were_cleared_in_their_time_are_not_missed() -> None:
    house = a_house()
    _, run_id = await house.submit(3)
    await house.drain(run_id, _page)
    house.clock.advance(timedelta(days=31))
    await house.sweep.step()

    assert house.cleared == {"body": 3}
    assert await codes(house) == []
