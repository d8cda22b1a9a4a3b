"""A caller's own list becomes exactly its good rows, and tells the bad ones."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from conveyor.domain.file_input import FILE_INPUT_LIFE, FileInput
from conveyor.domain.ids import JobId, RunId, task_ids
from conveyor.domain.job import Job
from conveyor.domain.run import IngestStatus, Run, RunStatus
from conveyor.domain.submission import Limits
from conveyor.domain.task_list.reader import BLANK_SHARE
from conveyor.errors import InvalidArgument, NotFound, TooLarge, Unavailable
from conveyor.steps.read import RunView
from conveyor.steps.shared.work_limits import TURN
from tests.harness.file_inputs import (
    CHUNK_LINES,
    packed,
    sent,
    small_chunks,
    submit_list,
    submitted_list,
    urls,
)
from tests.harness.memory_service import A_PAGE, CALLER, LIMITS, House, a_house, away, ids_in
from tests.harness.trace import Crash, Moment

COUNT = 11
BAD = (2, 5, 6)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)


async def report_of(house: House, job_id: JobId, run_id: RunId | None = None) -> list[Any]:
    lines = await house.read.bad_rows(CALLER, job_id, run_id)
    return [json.loads(line) for line in b"".join([part async for part in lines]).splitlines()]


async def seen(house: House, job_id: JobId, run_id: RunId) -> RunView:
    return await house.read.run(CALLER, job_id, run_id)


async def test_a_small_list_is_a_submission_like_any_other() -> None:
    house = a_house()
    file_input_id = await sent(house, packed(urls(5)))

    answer = await submit_list(house, file_input_id)

    job_id, run_id = ids_in(answer)
    assert (answer.status, answer.body.split()[-1]) == (201, b"5")
    rows = await house.rows(run_id)
    assert [row.spec.url for row in rows] == [f"https://ok.example/{n}" for n in range(5)]
    assert [row.id for row in rows] == [task_ids(run_id)(n) for n in range(5)]
    assert (await house.run(run_id)).ingest_status is None
    assert (await house.job(job_id)).source_list is None


async def test_a_small_list_taken_asynchronously_is_counted_at_once() -> None:
    house = a_house()
    answer = await submit_list(house, await sent(house, urls(5)), **{"async": True})
    _, run_id = ids_in(answer)
    assert (answer.status, answer.body.split()[-1]) == (202, b"5")
    assert (await house.run(run_id)).total == 5
    await house.handle_messages()
    assert len(await house.rows(run_id)) == 5


async def test_a_small_list_with_bad_rows_is_refused_and_all_are_named() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(8, bad=BAD))
    with pytest.raises(InvalidArgument) as refused:
        await submit_list(house, file_input_id)
    assert refused.value.extras["invalid_tasks"] == [
        {"index": n, "line": n + 1, "reason": "unsupported_scheme", "value": f"ftp://{n}"}
        for n in BAD
    ]
    assert await house.metadata.page(Job, limit=9) == []


@pytest.mark.parametrize("content", [b"", b"\n\n", b"# only a remark\n"])
async def test_a_list_without_a_row_is_refused(content: bytes) -> None:
    house = a_house()
    file_input_id = await sent(house, content)
    with pytest.raises(InvalidArgument, match="at least one row"):
        await submit_list(house, file_input_id)


async def test_a_large_list_is_answered_before_it_is_read_and_then_read_to_its_end() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(3 * CHUNK_LINES * LIMITS.sync_tasks, bad=BAD))

    answer = await submit_list(house, file_input_id)

    _, run_id = ids_in(answer)
    assert (answer.status, answer.body.split()[-1]) == (202, b"0")
    assert await house.rows(run_id) == []
    run = await house.run(run_id)
    assert (run.total, run.ingest_status, run.last_batch_received) == (
        0,
        IngestStatus.PENDING,
        False,
    )
    await house.handle_messages()
    count = 3 * CHUNK_LINES * LIMITS.sync_tasks
    run = await house.run(run_id)
    assert (run.total, run.ingest_status, run.last_batch_received, run.ingest_errors) == (
        count - len(BAD),
        IngestStatus.DONE,
        True,
        len(BAD),
    )
    assert await house.batches() == []


async def test_good_rows_keep_their_places_and_bad_ones_leave_gaps_and_are_told() -> None:
    house = a_house()
    job_id, run_id = await submitted_list(house, urls(COUNT, bad=BAD))

    await house.handle_messages()

    rows = await house.rows(run_id)
    good = [n for n in range(COUNT) if n not in BAD]
    assert [row.index for row in rows] == good
    assert [row.spec.url for row in rows] == [f"https://ok.example/{n}" for n in good]
    assert [row.id for row in rows] == [task_ids(run_id)(n) for n in good]
    run = await house.run(run_id)
    assert (run.total, run.next_index, run.ingest_errors) == (len(good), COUNT, len(BAD))
    assert await report_of(house, job_id) == [
        {"line": n + 1, "ordinal": n, "reason": "unsupported_scheme", "value": f"ftp://{n}"}
        for n in BAD
    ]


async def test_tasks_are_done_while_the_rest_still_comes_in_and_the_total_is_ahead() -> None:
    house = a_house()
    job_id, run_id = await submitted_list(house, urls(COUNT))
    house.trace.die_at("tasks.add", 3)
    with pytest.raises(Crash):
        await house.ingest.run(run_id, 0)

    await house.drain(run_id, lambda _: A_PAGE)

    run = await house.run(run_id)
    assert (run.total, await house.done(run_id), run.status) == (
        2 * CHUNK_LINES,
        2 * CHUNK_LINES,
        RunStatus.RUNNING,
    )
    await house.ingest.run(run_id, 0)
    await house.drain(run_id, lambda _: A_PAGE)
    assert (await house.run(run_id)).status is RunStatus.COMPLETED
    await house.check_counts(run_id)
    assert (await seen(house, job_id, run_id)).settled.done == COUNT


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "content", [urls(COUNT, bad=BAD), packed(urls(COUNT, bad=BAD))], ids=["plain", "packed"]
)
async def test_whoever_dies_where_the_rows_and_the_report_are_the_same_in_the_end(
    content: bytes, moment: Moment
) -> None:
    whole = a_house()
    job_id, run_id = await submitted_list(whole, content)
    whole.trace.forget()
    await whole.ingest.run(run_id, 0)
    calls = len(whole.trace.calls)
    want = (await whole.rows(run_id), await whole.run(run_id), await report_of(whole, job_id))

    for number in range(calls):
        house = a_house()
        job_id, run_id = await submitted_list(house, content)
        house.trace.break_at(number, moment, Crash())
        with pytest.raises(Crash):
            await house.ingest.run(run_id, 0)
        await house.ingest.run(run_id, 0)
        run = await house.run(run_id)
        assert await house.rows(run_id) == want[0], number
        assert _figures(run) == _figures(want[1]), number
        assert await report_of(house, job_id) == want[2], number


def _figures(run: Any) -> tuple[object, ...]:
    return run.total, run.next_index, run.ingest_errors, run.ingest_status, run.is_cut


async def test_three_deliveries_of_one_message_at_once_do_no_harm() -> None:
    house = a_house()
    job_id, run_id = await submitted_list(house, urls(COUNT, bad=BAD))
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(house.ingest.run(run_id, 0))
    await house.handle_messages()
    run = await house.run(run_id)
    assert (run.total, run.ingest_errors) == (COUNT - len(BAD), len(BAD))
    assert len(await house.rows(run_id)) == COUNT - len(BAD)
    assert len(await report_of(house, job_id)) == len(BAD)


async def test_a_change_of_the_run_meanwhile_does_not_stop_its_list() -> None:
    house = a_house()
    _, run_id = await submitted_list(house, urls(COUNT))

    async def touch() -> None:
        await house.metadata.commit(await house.run(run_id))

    for nth in (1, 2, 4):
        house.trace.before("metadata.commit", nth, touch)
    await house.ingest.run(run_id, 0)
    assert (await house.run(run_id)).total == COUNT
    await house.check_counts(run_id)


async def test_a_stop_cuts_the_list_and_a_full_rerun_reads_all_of_it() -> None:
    house = a_house()
    job_id, run_id = await submitted_list(house, urls(COUNT, bad=BAD))

    async def stop() -> None:
        await house.lifecycle.stop(CALLER, job_id)

    house.trace.before("metadata.commit", 2, stop)
    await house.handle_messages()
    run = await house.run(run_id)
    assert (run.status, run.ingest_status, run.is_cut) == (
        RunStatus.STOPPED,
        IngestStatus.DONE,
        True,
    )
    assert run.total == len(await house.rows(run_id)) < COUNT - len(BAD)

    house.clock.advance(FILE_INPUT_LIFE * 3)  # the list is kept for as long as the job
    await house.sweep_later()
    again, retried, inherited = await house.rerun(job_id)
    await house.handle_messages()

    assert (retried, inherited) == (0, 0)
    run = await house.run(again)
    assert (run.total, run.ingest_errors, run.is_cut) == (COUNT - len(BAD), len(BAD), False)
    assert len(await report_of(house, job_id, again)) == len(BAD)


async def test_a_partial_rerun_of_a_cut_run_copies_and_the_next_full_one_reads_the_list() -> None:
    house = a_house()
    job_id, run_id = await submitted_list(house, urls(COUNT))
    house.trace.after("metadata.commit", 1, lambda: _drain_and_stop(house, job_id, run_id))
    await house.handle_messages()
    copied, retried, inherited = await house.rerun(job_id, "successful")
    await house.handle_messages()
    assert (retried, inherited) == (CHUNK_LINES, 0)
    assert (await house.run(copied)).is_cut
    await house.lifecycle.stop(CALLER, job_id)

    again, *_ = await house.rerun(job_id)
    await house.handle_messages()
    assert (await house.run(again)).total == COUNT


async def _drain_and_stop(house: House, job_id: JobId, run_id: RunId) -> None:
    await house.drain(run_id, lambda _: A_PAGE)
    await house.lifecycle.stop(CALLER, job_id)


async def test_a_dead_lettered_ingest_leaves_a_stopped_run_that_can_be_run_again_whole() -> None:
    house = a_house()
    job_id, run_id = await submitted_list(house, urls(COUNT))
    with away(house.trace, "tasks.add", Unavailable("away")), pytest.raises(Unavailable):
        await house.ingest.run(run_id, 0)

    await house.ingest.abandon(run_id, 0)

    run = await house.run(run_id)
    assert (run.status, run.ingest_status, run.total) == (RunStatus.STOPPED, IngestStatus.DONE, 0)
    assert "run the job again" in (run.ingest_error or "")
    again, *_ = await house.rerun(job_id)
    await house.handle_messages()
    assert (await house.run(again)).total == COUNT


async def test_a_list_inline_is_read_again_as_well() -> None:
    house = a_house()
    job_id, run_id = await house.submit(COUNT)
    await house.ingest.abandon(run_id, 0)
    again, retried, _ = await house.rerun(job_id)
    assert (retried, (await house.run(again)).total) == (COUNT, COUNT)
    await house.handle_messages()
    assert len(await house.rows(again)) == COUNT
    await house.delete.job(CALLER, job_id)
    await house.handle_messages()
    assert await house.lists() == []


async def test_a_strict_list_with_a_bad_row_has_nothing_scraped_and_says_why() -> None:
    house = a_house()
    job_id, run_id = await submitted_list(
        house, urls(3 * CHUNK_LINES * LIMITS.sync_tasks, bad=[40]), on_invalid="fail"
    )
    await house.handle_messages()
    run = await house.run(run_id)
    assert (run.status, run.total, run.ingest_errors) == (RunStatus.STOPPED, 0, 1)
    assert run.ingest_error
    assert run.ingest_error.startswith("1 of the 120 rows")
    assert await house.rows(run_id) == []
    assert [line["line"] for line in await report_of(house, job_id)] == [41]


async def test_a_strict_list_without_a_bad_row_is_taken_whole() -> None:
    house = a_house()
    count = 3 * CHUNK_LINES * LIMITS.sync_tasks
    _, run_id = await submitted_list(house, urls(count), on_invalid="fail")
    await house.handle_messages()
    run = await house.run(run_id)
    assert (run.status, run.total, run.ingest_error) == (RunStatus.RUNNING, count, None)
    assert len(await house.rows(run_id)) == count


@pytest.mark.parametrize(
    ("content", "why"),
    [(urls(3, bad=range(3)), "None of the 3 rows"), (b"", "no row")],
)
async def test_a_list_without_a_good_row_completes_and_says_why(content: bytes, why: str) -> None:
    house = a_house()
    _, run_id = await submitted_list(house, content)
    await house.handle_messages()
    run = await house.run(run_id)
    assert (run.status, run.total, run.is_cut) == (RunStatus.COMPLETED, 0, False)
    assert why in (run.ingest_error or "")


async def test_a_list_cut_in_its_packing_stops_the_run_with_what_came_before() -> None:
    house = a_house()
    content = packed(urls(900))[:-20]
    _, run_id = await submitted_list(house, content)
    await house.handle_messages()
    run = await house.run(run_id)
    assert (run.status, run.is_cut, run.ingest_status) == (
        RunStatus.STOPPED,
        True,
        IngestStatus.DONE,
    )
    assert "cut short" in (run.ingest_error or "")
    assert run.total == len(await house.rows(run_id))
    assert not await house.work.claim({run_id: 9})


async def test_a_list_of_too_many_rows_ends_there() -> None:
    house = a_house(limits=Limits(sync_tasks=4, list_rows=3 * CHUNK_LINES))
    _, run_id = await submitted_list(house, urls(100))
    await house.handle_messages()
    run = await house.run(run_id)
    assert (run.status, run.total) == (RunStatus.STOPPED, 3 * CHUNK_LINES)
    assert run.ingest_error == "The list must have at most 12 rows, got more"


async def test_what_is_wrong_with_the_whole_of_a_large_list_is_told_at_submit() -> None:
    house = a_house()
    content = b"name;link\n" + b"".join(b"%d;https://ok.example/%d\n" % (n, n) for n in range(999))
    spec = {"csv": {"header": True, "fields": {"url": "link"}}}
    with pytest.raises(InvalidArgument, match="no column `link`"):
        await submit_list(house, await sent(house, content, "csv", **spec))
    bomb = packed(b"\0" * 70_000_000)
    with pytest.raises(TooLarge):
        await submit_list(house, await sent(house, bomb))


async def test_only_so_many_bad_rows_are_told_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("conveyor.domain.task_list.reader.MOST_REPORTED", 6)
    monkeypatch.setattr("conveyor.steps.ingest.MOST_REPORTED", 6)
    house = a_house()
    job_id, run_id = await submitted_list(house, urls(40, bad=range(40)))
    await house.handle_messages()
    assert (await house.run(run_id)).ingest_errors == 40
    assert [line["line"] for line in await report_of(house, job_id)] == [1, 2, 3, 4, 5, 6]


async def test_a_deleted_job_leaves_nothing_and_the_list_goes_with_its_last_job() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(COUNT, bad=BAD))
    answers = [await submit_list(house, file_input_id, on_invalid="skip") for _ in range(2)]
    await house.handle_messages()
    [first, second] = [ids_in(answer)[0] for answer in answers]
    house.clock.advance(FILE_INPUT_LIFE)

    await house.delete.job(CALLER, first)
    await house.handle_messages()
    file_input = await house.metadata.get(FileInput, file_input_id)
    assert file_input
    assert file_input.jobs == (second,)
    await house.delete.job(CALLER, second)
    await house.handle_messages()

    assert await house.lists() == []
    assert await house.metadata.get(FileInput, file_input_id) is None
    with pytest.raises(NotFound):
        await house.read.bad_rows(CALLER, first, None)


async def test_a_job_that_names_a_list_in_its_last_moment_keeps_it_from_a_purge() -> None:
    house = a_house()
    file_input_id = await sent(house, urls(COUNT))
    first, _ = ids_in(await submit_list(house, file_input_id, on_invalid="skip"))
    await house.handle_messages()
    await house.delete.job(CALLER, first)
    house.clock.advance(FILE_INPUT_LIFE - timedelta(seconds=1))
    about_to_commit, may_commit = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        about_to_commit.set()
        await may_commit.wait()

    house.trace.before("metadata.commit", 1, hold)
    submission = asyncio.create_task(submit_list(house, file_input_id, on_invalid="skip"))
    await about_to_commit.wait()
    house.clock.advance(timedelta(seconds=2))

    async def commit() -> None:
        may_commit.set()
        await submission

    house.trace.after(
        "metadata.get(FileInput)", 1, commit
    )  # the purge has seen the file input without it
    await house.purge.run(first)

    second, run_id = ids_in(submission.result())
    file_input = await house.metadata.get(FileInput, file_input_id)
    assert file_input
    assert file_input.jobs == (second,)
    await house.handle_messages()
    assert (await house.run(run_id)).total == COUNT


async def test_a_message_for_a_deleted_job_does_nothing() -> None:
    house = a_house()
    job_id, run_id = await submitted_list(house, urls(COUNT))
    await house.delete.job(CALLER, job_id)
    await house.purge.run(job_id)
    await house.ingest.run(run_id, 0)
    assert list(await house.tasks.runs_held(limit=9)) == []
    assert await house.batches() == []


# Lines that are no rows.

BLANKS = {"txt": b"\n# a comment\n \n", "ndjson": b"\n \n\r\n", "csv": b"\n  \n\n"}
ROW = {"txt": b"https://ok.example/\n", "ndjson": b'{"url":"https://ok.example/"}\n', "csv": b"https://ok.example/\n"}  # fmt: skip
KINDS = pytest.mark.parametrize("kind", BLANKS)
FEW = LIMITS.list_rows // BLANK_SHARE // 3  # times three lines


async def _listed(house: House, kind: str, content: bytes) -> Run:
    given = {"csv": {"fields": {"url": 0}}} if kind == "csv" else {}
    file_input_id = await sent(house, content, kind, **given)
    _, run_id = ids_in(await submit_list(house, file_input_id, on_invalid="skip"))
    await house.handle_messages()
    return await house.run(run_id)


@KINDS
async def test_blank_lines_and_comments_are_within_a_limit_that_grows_with_the_rows(
    kind: str,
) -> None:
    house = a_house()
    run = await _listed(house, kind, ROW[kind] * 20 + BLANKS[kind] * (FEW + 60))
    assert (run.status, run.total, run.ingest_error) == (RunStatus.RUNNING, 20, None)


@KINDS
async def test_a_list_of_too_many_blank_lines_and_comments_is_read_no_further(kind: str) -> None:
    house = a_house()
    run = await _listed(house, kind, ROW[kind] * 20 + BLANKS[kind] * (FEW + 70) + ROW[kind])
    assert (run.status, run.total, run.is_cut) == (RunStatus.STOPPED, 20, True)
    assert "304 blank lines and comments and 20 rows up to line 324" in (run.ingest_error or "")


async def test_blank_lines_are_counted_on_over_turns() -> None:
    house = a_house()
    file_input_id = await sent(house, b"\n" * 200)
    _, run_id = ids_in(await submit_list(house, file_input_id, on_invalid="skip"))

    async def take_long() -> None:
        house.clock.advance(TURN)
        house.trace.after("metadata.commit", 1, take_long)

    house.trace.after("metadata.commit", 1, take_long)
    assert await house.handle_messages() > 20
    assert "blank lines" in ((await house.run(run_id)).ingest_error or "")
