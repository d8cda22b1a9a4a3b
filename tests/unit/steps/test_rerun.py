"""RerunJob: whole or in part, small or large, and what comes of races, deaths and repetitions."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from conveyor.api.render import run_shown
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import JobId, RunId, task_ids
from conveyor.domain.job import JobStatus
from conveyor.domain.params import REMOVED
from conveyor.domain.rerun import copy_rows, expected, inherited
from conveyor.domain.run import IngestStatus, Inheritance, RunStatus
from conveyor.domain.selection import (
    ALL,
    FAILED,
    Chosen,
    RerunRequest,
    Selection,
    chosen_by_status,
    matcher,
    parse_statuses,
)
from conveyor.domain.task import FINAL, AttemptFailed, Task, TaskStatus
from conveyor.errors import (
    IdempotencyKeyConflict,
    InvalidArgument,
    NoMatchingTasks,
    NoPriorRun,
    NotFound,
    PartialRerunWindowExpired,
    RunNotTerminal,
    Unavailable,
)
from conveyor.steps.rerun import RerunJob
from conveyor.steps.shared.attempt import CallResult, FinishedAttempt
from conveyor.steps.shared.idempotency import Answer, Idempotency
from conveyor.testing.factories import a_run, a_task
from tests.harness.memory_service import (
    A_PAGE,
    CALLER,
    STRANGER,
    House,
    a_call,
    a_house,
    a_rerun,
    an_assignment,
    figures_as_answer,
    ids_as_reply,
    sized,
)
from tests.harness.trace import Crash, Moment

A_REFUSAL = AttemptFailed('{"status":403,"code":"RESP001"}', FailureReason.BLOCKED, retryable=False)
SMALL, LARGE = 9, 25  # rows of a run copied at once, and of one copied by a control message
EITHER = pytest.mark.parametrize("count", [SMALL, LARGE])


@EITHER
async def test_a_full_rerun_does_every_task_again_under_the_same_ids(count: int) -> None:
    house, job_id, first = await _ended(count)

    second, retried, taken_over = await house.rerun(job_id)
    await house.handle_messages()

    before, after = await house.rows(first), await house.rows(second)
    assert (retried, taken_over) == (count, 0)
    assert [(row.id, row.index, row.spec) for row in after] == [
        (row.id, row.index, row.spec) for row in before
    ]
    assert {(row.status, row.source_run_id, row.attempts) for row in after} == {
        (TaskStatus.PENDING, None, 0)
    }
    await house.drain(second, _page)
    assert (await house.run(second)).status is RunStatus.COMPLETED
    await house.check_counts(second)


@EITHER
async def test_a_partial_rerun_does_what_matches_and_inherits_the_rest(count: int) -> None:
    house, job_id, first = await _ended(count)
    failed = len([row for row in await house.rows(first) if row.status is TaskStatus.FAILED])
    house.clock.advance(timedelta(hours=1))

    second, retried, taken_over = await house.rerun(job_id, "failed")
    early = await house.read.run(CALLER, job_id, second)
    await house.handle_messages()

    assert (retried, taken_over) == (failed, count - failed)
    run = await house.run(second)
    assert run.inherited == early.run.inherited, "stats are right from the first answer on"
    assert run.inherited == Inheritance(counts=Counts(successful=count - failed), sources=(first,))
    before = {row.id: row for row in await house.rows(first)}
    for row in await house.rows(second):
        was = before[row.id]
        if was.status is TaskStatus.FAILED:
            assert (row.status, row.source_run_id) == (TaskStatus.PENDING, None)
        else:
            assert row == structs.replace(was, run_id=second, source_run_id=first, claim_no=0,
                                          claimed_at=None, updated_at=house.clock.now(),
                                          scraped_at=was.updated_at)  # fmt: skip
    await house.drain(second, _page)
    view = await house.read.run(CALLER, job_id, second)
    assert view.run.status is RunStatus.COMPLETED
    assert view.run.frozen is not None
    assert (view.run.frozen.successful, view.run.frozen.failed) == (count, 0)
    assert (await house.run(first)).status is RunStatus.COMPLETED


async def test_the_source_of_a_body_is_the_run_that_owns_it() -> None:
    house, job_id, first = await _ended(SMALL)
    second, *_ = await house.rerun(job_id, "failed")
    await house.drain(second, lambda task: A_REFUSAL if task.index == 0 else A_PAGE)

    third, retried, _ = await house.rerun(job_id, "failed")

    assert retried == 1
    sources = {row.index: row.source_run_id for row in await house.rows(third)}
    assert sources[0] is None
    assert sources[1] == first
    assert sources[3] == second
    assert (await house.run(third)).inherited.sources == tuple(sorted((first, second)))


async def test_a_result_expires_by_when_it_was_scraped_however_often_it_is_copied() -> None:
    house, job_id, first = await _ended(SMALL)
    ttl = timedelta(days=(await house.job(job_id)).result_ttl_days)
    scraped_at = house.clock.now()
    for _ in range(2):
        house.clock.advance(ttl / 3)
        latest, *_ = await house.rerun(job_id, "failed")
        await house.drain(latest, lambda _: A_REFUSAL)
    job, rows = await house.job(job_id), await house.rows(latest)
    [kept, *_] = [row for row in rows if row.source_run_id and row.result]
    assert (kept.updated_at, kept.scraped_at) == (scraped_at + ttl / 3 * 2, scraped_at)
    assert (kept.source_run_id, kept.created_at) == (first, scraped_at)

    house.clock.advance(ttl / 3 - timedelta(seconds=1))
    assert not house.read.has_expired(job, kept)
    house.clock.advance(timedelta(seconds=1))
    assert house.read.has_expired(job, kept)


async def test_the_history_of_an_inherited_row_is_that_of_its_source() -> None:
    house, job_id, first = await _ended(SMALL)
    second, *_ = await house.rerun(job_id, "failed")
    [kept, *_] = [row for row in await house.rows(second) if row.source_run_id]

    lines = await house.read.history(CALLER, job_id, second, kept.id)

    assert len(lines) == 1
    assert lines == await house.read.history(CALLER, job_id, first, kept.id)
    assert (await house.read.content(CALLER, job_id, second, kept.id)).length == 4


@EITHER
async def test_what_a_stopped_run_left_open_is_done_again_only_when_asked_for(count: int) -> None:
    house, job_id, _ = await _stopped(count)

    second, retried, taken_over = await house.rerun(job_id, "failed")
    await house.handle_messages()

    assert (retried, taken_over) == (1, count - 1)
    run = await house.run(second)
    assert (run.inherited.counts.done, run.inherited.idle) == (1, count - 2)
    assert run_shown(run, ZERO).inherited_tasks == 1, "a run shows those that are final"
    await house.drain(second, _page)
    run = await house.run(second)
    assert run.status is RunStatus.COMPLETED, "it must not wait for rows it was told to leave"
    assert run.frozen is not None
    assert (run.frozen.done, run.total) == (2, count)

    third, retried, _ = await house.rerun(job_id, "pending")
    await house.handle_messages()
    assert retried == count - 2
    await house.drain(third, _page)
    run = await house.run(third)
    assert run.frozen is not None
    assert run.frozen.successful == run.total == count


@EITHER
@pytest.mark.parametrize(
    ("status", "retried"), [(None, None), ("pending", -2), ("processing", 1), ("failed", 1)]
)
async def test_a_row_still_processing_counts_as_pending(
    count: int, status: str | None, retried: int | None
) -> None:
    house, job_id, first = await _stopped(count, processing=1)

    second, did, taken_over = await house.rerun(job_id, status)
    await house.handle_messages()

    want = count if retried is None else retried + count if retried < 0 else retried
    assert (did, taken_over) == (want, count - want)
    rows = await house.rows(second)
    assert TaskStatus.PROCESSING not in {row.status for row in rows}
    await house.drain(second, _page)
    assert (await house.run(second)).status is RunStatus.COMPLETED
    assert first != second


async def test_what_settles_after_the_copy_is_the_older_runs_alone() -> None:
    house, job_id, first = await _stopped(SMALL, processing=1)
    [busy] = [row for row in await house.rows(first) if row.status is TaskStatus.PROCESSING]
    second, *_ = await house.rerun(job_id)
    job = await house.job(job_id)

    await house.settle.settle([FinishedAttempt(busy, an_assignment(job), A_PAGE)])

    assert [row.id for row in await house.rows(first) if row.result and row.index == busy.index]
    assert all(row.result is None for row in await house.rows(second))
    assert await house.done(second) == 0


async def test_a_row_that_settles_between_two_copies_of_it_is_counted_as_it_was_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized(monkeypatch, chunk_rows=10)
    house, job_id, first = await _stopped(LARGE, processing=1)
    [busy] = [row for row in await house.rows(first) if row.status is TaskStatus.PROCESSING]
    second, *_ = await house.rerun(job_id, "failed")
    house.trace.die_at("work.enqueue", 1)
    with pytest.raises(Crash):
        await house.ingest.run(second, 0)
    job = await house.job(job_id)
    await house.settle.settle([FinishedAttempt(busy, an_assignment(job), A_PAGE)])

    await house.handle_messages()

    run, rows = await house.run(second), await house.rows(second)
    assert run.inherited == inherited(rows)
    assert run.inherited.idle == LARGE - 2
    await house.drain(second, _page)
    assert (await house.run(second)).status is RunStatus.COMPLETED


async def test_a_rerun_closes_an_open_job() -> None:
    house = a_house()
    job_id, _ = await house.submit(2, status="open")
    await house.lifecycle.stop(CALLER, job_id)

    second, *_ = await house.rerun(job_id)

    assert (await house.job(job_id)).status is JobStatus.CLOSED
    assert (await house.run(second)).last_batch_received
    with pytest.raises(Exception, match="must be open"):
        await house.add_tasks.add(a_call(1), job_id, ids_as_reply)


async def test_runs_are_numbered_even_when_one_is_deleted() -> None:
    house, job_id, first = await _ended(2)
    second, *_ = await house.rerun(job_id)
    await house.drain(second, _page)
    await house.delete.run(CALLER, job_id, second)

    third, *_ = await house.rerun(job_id)

    assert [(await house.run(one)).sequence for one in (first, second, third)] == [1, 2, 3]
    assert (await house.job(job_id)).latest_run_id == third


async def test_a_run_without_tasks_is_not_repeated() -> None:
    house = a_house()
    job_id, _ = await house.submit(0, status="open")
    await house.lifecycle.close(CALLER, job_id)

    with pytest.raises(NoMatchingTasks, match=r"no tasks$"):
        await house.rerun(job_id)


async def test_the_key_of_the_rerun_is_the_one_forwarded() -> None:
    house, job_id, _ = await _ended(2)
    call = structs.replace(a_rerun(), gateway_key="a new key")
    await house.rerun_job.rerun(call, job_id, RerunRequest(), figures_as_answer)

    job = await house.job(job_id)
    assert (
        await house.encryption.decrypt(job.encrypted_gateway_key, context=f"{CALLER}|{job_id}")
        == "a new key"
    )


@pytest.mark.parametrize(
    ("text", "statuses"),
    [
        ("failed", {"failed"}),
        ("failed,pending", {"failed", "pending"}),
        (" successful , failed ", {"successful", "failed"}),
        ("processing", {"processing"}),
    ],
)
def test_statuses_are_read_from_a_list(text: str, statuses: set[str]) -> None:
    assert {str(one) for one in parse_statuses(text) or ()} == statuses
    assert parse_statuses(None) is None


@pytest.mark.parametrize("text", ["", ",", "failed,", "all", "Failed", "expired", "failed;pending"])
def test_an_unknown_or_empty_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="pending, processing, successful, failed") as refused:
        Selection(statuses=parse_statuses(text))
    assert refused.value.extras == {"field": "status"}


def test_what_is_expected_is_what_comes_of_the_rows() -> None:
    rows = [
        a_task(id=task_ids(RunId("R"))(n), index=n, status=status, reason=reason)
        for n, (status, reason) in enumerate(
            [
                (TaskStatus.SUCCESSFUL, None),
                (TaskStatus.FAILED, FailureReason.BLOCKED),
                (TaskStatus.FAILED, FailureReason.TIMEOUT),
                (TaskStatus.PENDING, None),
                (TaskStatus.PROCESSING, None),
            ]
        )
    ]
    tally = {TaskStatus.PENDING: 1, TaskStatus.PROCESSING: 1}
    source = structs.replace(a_run(), total=len(rows))
    counts = Counts(successful=1, blocked=1, timeout=1, credits=9)
    everything = [
        Selection(statuses=parse_statuses(text))
        for text in ("successful", "failed", "pending", "processing", "failed,pending")
    ]
    for selection in everything:
        again = {row.id for row in copy_rows(rows, selection, {}) if row.inherited is None}
        rest = [
            structs.replace(row, source_run_id=row.run_id) for row in rows if row.id not in again
        ]
        chosen = chosen_by_status(selection, counts, tally)
        assert chosen.total == len(again), selection
        assert expected(source, counts, selection, chosen) == inherited(rest), selection
    assert expected(source, counts, ALL, Chosen()) == Inheritance(sources=(source.id,))


@EITHER
@pytest.mark.parametrize(
    ("selection", "exact"),
    [
        (Selection(statuses=FAILED, reasons=(FailureReason.BLOCKED,)), True),
        (Selection(statuses=FAILED, codes=("RESP001",)), True),
        (Selection(statuses=FAILED, hosts=("ok.example",), codes=("RESP001",)), True),
        (Selection(hosts=("ok.example",)), False),
        (Selection(statuses=(TaskStatus.SUCCESSFUL,), hosts=("elsewhere.test",)), False),
    ],
)
async def test_a_rerun_does_the_selected_tasks_and_inherits_the_rest(
    selection: Selection, exact: bool, count: int
) -> None:
    house, job_id, first = await _ended(count)
    rows = await house.rows(first)
    wanted = {row.id for row in rows if matcher(selection)(row)}
    if not wanted and count == SMALL:
        with pytest.raises(NoMatchingTasks):
            await house.rerun(job_id, asked=RerunRequest(selection))
        assert list(await house.tasks.runs_held(limit=9)) == [first], "nothing is left"
        return

    second, retried, taken_over = await house.rerun(job_id, asked=RerunRequest(selection))
    await house.handle_messages()

    assert retried + taken_over == count
    assert (retried == len(wanted)) if exact or count == SMALL else (retried >= len(wanted))
    again = {row.id for row in await house.rows(second) if row.source_run_id is None}
    assert again == wanted
    assert (await house.run(second)).inherited.counts.done == count - len(wanted)
    await house.drain(second, _page)
    run = await house.run(second)
    assert run.status is RunStatus.COMPLETED
    assert run.frozen
    assert run.frozen.done == count


@EITHER
async def test_tasks_are_run_again_by_id_and_unknown_ones_do_not_count(count: int) -> None:
    house, job_id, first = await _ended(count)
    wanted = (task_ids(first)(0), task_ids(first)(4))
    asked = RerunRequest(Selection(task_ids=(*wanted, task_ids(RunId("another"))(1))))

    second, retried, taken_over = await house.rerun(job_id, asked=asked)
    await house.handle_messages()

    assert (retried, taken_over) == (2, count - 2)
    rows = await house.rows(second)
    assert tuple(row.id for row in rows if row.source_run_id is None) == wanted


@EITHER
async def test_pages_older_than_a_moment_are_scraped_again(count: int) -> None:
    house, job_id, _ = await _ended(count)
    house.clock.advance(timedelta(hours=1))
    moment = house.clock.now()
    second, *_ = await house.rerun(job_id, "failed")
    await house.handle_messages()
    await house.drain(second, _page)
    scraped = {row.id for row in await house.rows(second) if row.source_run_id is None}

    selection = Selection(statuses=tuple(sorted(FINAL)), scraped_before=moment)
    third, *_ = await house.rerun(job_id, asked=RerunRequest(selection))
    await house.handle_messages()

    rows = await house.rows(third)
    assert {row.id for row in rows if row.source_run_id} == scraped
    assert len(rows) == count


@EITHER
async def test_changed_parameters_reach_the_selected_tasks_alone(count: int) -> None:
    house, job_id, _ = await _ended(count)
    asked = RerunRequest(Selection(statuses=FAILED), {"premium_proxy": "true"})

    second, *_ = await house.rerun(job_id, asked=asked)
    await house.handle_messages()

    rows = (await house.tasks.page(second, limit=99, whole=True)).tasks
    assert {bool(row.source_run_id): row.spec.params for row in rows} == {
        False: '{"premium_proxy":"true"}',
        True: None,
    }


async def test_parameters_that_do_not_go_with_those_of_the_job_are_refused() -> None:
    house, job_id, first = await _ended(SMALL, zenrows_params={"js_render": "true"})
    with pytest.raises(InvalidArgument, match=r"`zenrows_params\.mode` is refused"):
        await house.rerun(job_id, asked=RerunRequest(params={"mode": "auto"}))
    assert list(await house.tasks.runs_held(limit=9)) == [first]
    await house.rerun(job_id, asked=RerunRequest(params={"mode": "auto", "js_render": REMOVED}))


async def test_a_strangers_job_is_not_there() -> None:
    house, job_id, _ = await _ended(2)
    with pytest.raises(NotFound):
        await house.rerun_job.rerun(
            structs.replace(a_rerun(), caller=STRANGER), job_id, RerunRequest(), figures_as_answer
        )


async def test_a_live_run_is_not_run_again() -> None:
    house = a_house()
    job_id, _ = await house.submit(2)
    with pytest.raises(RunNotTerminal):
        await house.rerun(job_id)


async def test_a_run_that_ended_before_its_rows_were_written_is_not_run_again_yet() -> None:
    house = a_house()
    job_id, _ = await house.submit(LARGE)
    await house.lifecycle.stop(CALLER, job_id)
    with pytest.raises(RunNotTerminal, match="being written"):
        await house.rerun(job_id)

    await house.handle_messages()

    # The stop came before the first row, and the list is still there.
    again, retried, _ = await house.rerun(job_id)
    await house.handle_messages()
    assert retried == len(await house.rows(again)) == LARGE


async def test_without_a_run_there_is_nothing_to_repeat() -> None:
    house, job_id, run_id = await _ended(2)
    await house.delete.run(CALLER, job_id, run_id)
    with pytest.raises(NoPriorRun):
        await house.rerun(job_id)


@EITHER
async def test_without_a_match_nothing_is_made(count: int) -> None:
    house, job_id, first = await _ended(count, failing=lambda _: False)
    with pytest.raises(NoMatchingTasks, match="failed or pending"):
        await house.rerun(job_id, "failed,pending")

    assert list(await house.tasks.runs_held(limit=9)) == [first]
    assert (await house.job(job_id)).latest_run_id == first


@EITHER
async def test_bodies_are_inherited_while_they_live(count: int) -> None:
    house, job_id, first = await _ended(count)
    house.clock.advance(timedelta(days=14) - timedelta(seconds=1))
    second, *_ = await house.rerun(job_id, "failed")
    await house.handle_messages()
    await house.drain(second, lambda task: A_REFUSAL if task.index == 0 else A_PAGE)
    house.clock.advance(timedelta(days=14))

    with pytest.raises(PartialRerunWindowExpired, match="14 days"):
        await house.rerun(job_id, "failed")

    assert list(await house.tasks.runs_held(limit=9)) == [first, second]
    third, retried, taken_over = await house.rerun(job_id, "successful")
    assert (retried, taken_over) == (count - 1, 1), "no body is taken over"
    await house.lifecycle.stop(CALLER, job_id)
    await house.handle_messages()
    assert (await house.run(third)).status is RunStatus.STOPPED
    await house.rerun(job_id)


@EITHER
async def test_the_same_key_gives_the_same_run(count: int) -> None:
    house, job_id, _ = await _ended(count)
    first = await house.rerun(job_id, "failed", key="k")
    await house.handle_messages()
    await house.drain(first[0], _page)

    assert await house.rerun(job_id, "failed", key="k") == first
    with pytest.raises(IdempotencyKeyConflict):
        await house.rerun(job_id, "pending", key="k")
    assert (await house.job(job_id)).runs == 2


@EITHER
async def test_of_two_reruns_at_once_one_is_made(count: int) -> None:
    house, job_id, first = await _ended(count)
    other = _another_process(house)
    winner: list[Answer] = []

    async def rerun_first() -> None:
        winner.append(await other.rerun(a_rerun(), job_id, RerunRequest(), figures_as_answer))

    house.trace.before("metadata.commit", 1, rerun_first)
    with pytest.raises(RunNotTerminal):
        await house.rerun(job_id)

    await house.handle_messages()
    runs = await house.metadata.runs(job_id, limit=9)
    assert len(winner) == 1
    assert len(runs) == 2
    assert set(await house.tasks.runs_held(limit=9)) == {first, runs[0].id}


MOMENTS = pytest.mark.parametrize(
    "moment", [("before", "metadata.commit"), ("after", "metadata.get(IdempotencyRecord)")]
)


@MOMENTS
async def test_of_two_reruns_with_one_key_both_get_the_first_answer(
    moment: tuple[str, str],
) -> None:
    house, job_id, _ = await _ended(SMALL)
    other = _another_process(house)
    winner: list[Answer] = []

    async def rerun_first() -> None:
        winner.append(
            await other.rerun(a_rerun(key="k"), job_id, RerunRequest(), figures_as_answer)
        )

    getattr(house.trace, moment[0])(moment[1], 1, rerun_first)
    answer = await house.rerun_job.rerun(
        a_rerun(key="k"), job_id, RerunRequest(), figures_as_answer
    )

    assert [answer] == winner
    assert len(await house.metadata.runs(job_id, limit=9)) == 2


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_rerun_and_a_stop(moment: Moment) -> None:
    """The stop is of the older run, which has ended, or of the new one: never of both."""
    house, job_id, first = await _stopped(SMALL)

    async def stop() -> None:
        await house.lifecycle.stop(CALLER, job_id)

    getattr(house.trace, moment)("metadata.commit", 1, stop)
    second, *_ = await house.rerun(job_id)

    run = await house.run(second)
    assert run.status is (RunStatus.RUNNING if moment == "before" else RunStatus.STOPPED)
    assert (await house.run(first)).status is RunStatus.STOPPED


@EITHER
async def test_a_rerun_and_a_delete_of_the_job(count: int) -> None:
    house, job_id, _ = await _ended(count)

    async def delete() -> None:
        await house.delete.job(CALLER, job_id)

    house.trace.before("metadata.commit", 1, delete)
    with pytest.raises(NotFound):
        await house.rerun(job_id)

    await house.handle_messages()
    assert list(await house.tasks.runs_held(limit=9)) == []


@EITHER
async def test_a_rerun_and_a_delete_of_its_source(count: int) -> None:
    house, job_id, first = await _ended(count)

    async def delete() -> None:
        await house.delete.run(CALLER, job_id, first)

    house.trace.before("metadata.commit", 1, delete)
    with pytest.raises(NoPriorRun):
        await house.rerun(job_id, "failed")

    await house.handle_messages()
    assert list(await house.tasks.runs_held(limit=9)) == []


@pytest.mark.parametrize("status", [None, "failed"])
async def test_a_stopped_copy_is_copied_to_its_end(
    status: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next rerun would have less to copy than there was."""
    sized(monkeypatch, chunk_rows=10)
    house, job_id, _ = await _ended(LARGE)

    async def stop() -> None:
        await house.lifecycle.stop(CALLER, job_id)

    house.trace.after("work.enqueue", 2, stop)
    second, *_ = await house.rerun(job_id, status)
    await house.handle_messages()

    run, rows = await house.run(second), await house.rows(second)
    assert (run.status, run.ingest_status) == (RunStatus.STOPPED, IngestStatus.DONE)
    assert run.total == len(rows) == LARGE
    assert run.inherited == inherited(rows)
    assert await house.work.claim({second: 9}) == []
    assert (await house.rerun(job_id))[1] == LARGE


async def test_a_copy_whose_source_is_gone_is_given_up_for_all_to_see() -> None:
    house, job_id, first = await _ended(LARGE)
    second, *_ = await house.rerun(job_id)
    await house.tasks.discard(first, limit=5)

    await house.handle_messages()

    run = await house.run(second)
    assert (run.status, run.total) == (RunStatus.STOPPED, LARGE - 5)
    [dead] = await house.control_queue.dead_letters(limit=9)
    assert "gone before they were copied" in dead.reason


async def test_of_reruns_in_one_process_one_copies_at_a_time() -> None:
    house, job_id, first = await _ended(SMALL)
    refusals: list[Exception] = []

    async def rerun_too() -> None:
        try:
            await house.rerun(job_id)
        except RunNotTerminal as refusal:
            refusals.append(refusal)

    house.trace.before("tasks.add", 1, rerun_too)
    second, *_ = await house.rerun(job_id)

    assert len(refusals) == 1
    assert set(await house.tasks.runs_held(limit=9)) == {first, second}


async def test_what_is_refused_writes_no_row() -> None:
    house, job_id, _ = await _ended(SMALL)
    house.trace.forget()
    with pytest.raises(NoMatchingTasks):
        await house.rerun(job_id, "pending")
    assert house.trace.of("tasks.add", "tasks.discard") == []


@pytest.mark.parametrize("moment", ["before", "after"])
@EITHER
async def test_a_rerun_whose_engine_is_away_is_made_or_not(count: int, moment: Moment) -> None:
    number = 0
    while True:
        house, job_id, first = await _ended(count)
        house.trace.forget()
        house.trace.break_at(number, moment, Unavailable("away"))
        with suppress(Unavailable):
            await house.rerun(job_id, "failed")
            if len(house.trace.calls) <= number:
                return
        await _check_after_death(house, job_id, first, count)
        number += 1


async def _check_after_death(house: House, job_id: JobId, first: RunId, count: int) -> None:
    house.trace.forget()
    await house.sweep_later()
    await house.handle_messages()
    runs = await house.metadata.runs(job_id, limit=9)
    held = set(await house.tasks.runs_held(limit=9))
    assert held == {run.id for run in runs}, "no rows without a run"
    assert len(runs) in (1, 2)
    if len(runs) == 2:
        [second, _] = runs
        await house.drain(second.id, _page)
        run = await house.run(second.id)
        assert run.status is RunStatus.COMPLETED
        assert run.total == len(await house.rows(run.id)) == count
        assert run.frozen is not None
        assert run.frozen.successful == count
    else:
        assert (await house.job(job_id)).latest_run_id == first


async def _ended(
    count: int, failing: Callable[[Task], bool] = lambda task: task.index % 3 == 0, **given: Any
) -> tuple[House, JobId, RunId]:
    """A completed run, a third of its tasks failed."""
    house = a_house()
    job_id, run_id = await house.submit(count, **given)
    await house.handle_messages()
    await house.drain(run_id, lambda task: A_REFUSAL if failing(task) else A_PAGE)
    return house, job_id, run_id


async def _stopped(count: int, *, processing: int = 0) -> tuple[House, JobId, RunId]:
    """A stopped run: one task failed, one successful, some still processing, the rest pending."""
    house = a_house()
    job_id, run_id = await house.submit(count)
    await house.handle_messages()
    job = await house.job(job_id)
    failed, done, *_ = await house.work.claim({run_id: 2 + processing})
    await house.settle.settle(
        [
            FinishedAttempt(failed, an_assignment(job), A_REFUSAL),
            FinishedAttempt(done, an_assignment(job), A_PAGE),
        ]
    )
    await house.lifecycle.stop(CALLER, job_id)
    return house, job_id, run_id


def _another_process(house: House) -> RerunJob:
    """The same engines, with a memory of its own."""
    idempotency = Idempotency(metadata=house.metadata, clock=house.clock)
    return replace(house.rerun_job, idempotency=idempotency, under_way=set())


def _page(_task: Task) -> CallResult:
    return A_PAGE
