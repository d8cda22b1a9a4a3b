"""Exports: all of a run in one file, whatever happens on the way."""

import io
import zipfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from starlette.datastructures import QueryParams

from conveyor.api.links import Links
from conveyor.domain.export import (
    EXPORT_LIFE,
    GAVE_UP,
    GIB,
    NO_ROOM,
    Export,
    ExportStatus,
    begun,
    completed,
    exports_of,
    too_large,
)
from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import ExportId, JobId, RunId
from conveyor.domain.task import AttemptFailed, Task
from conveyor.errors import IllegalMove, NotFound, StorageFull, Unavailable
from conveyor.steps import zip_export
from conveyor.steps.control import LEASE, LONGEST_DELAY, MOST_DELIVERIES
from conveyor.steps.shared.attempt import CallResult, Fetched, FinishedAttempt
from conveyor.testing.factories import a_problem, an_export
from tests.harness.memory_service import (
    CALLER,
    KEY,
    STRANGER,
    House,
    a_house,
    an_assignment,
    away,
    body_name,
    survives,
)
from tests.harness.signing_storage import SigningBlobs

A_MOMENT = timedelta(milliseconds=1)
AWAY = Unavailable("away")
Line = dict[str, Any]


@pytest.fixture(params=["small", "large"])
def _sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything again with results that are streamed, several pages and portions."""
    monkeypatch.setattr(zip_export, "PAGE", 2)
    if request.param == "large":
        monkeypatch.setattr(zip_export, "LARGE", 1)


pytestmark = pytest.mark.usefixtures("_sizes")


async def test_every_result_is_in_the_file_and_every_task_in_the_manifest() -> None:
    house, job_id, run_id = await _drained(5, external_ids=True)

    content, lines = await _exported(house, job_id, run_id)

    rows = await house.rows(run_id)
    assert list(content) == [f"{row.id}.html" for row in rows]
    assert set(content.values()) == {_page(row) for row in rows}
    assert lines == [
        {
            "id": row.id,
            "external_id": f"mine-{row.index}",
            "url": row.spec.url,
            "status": "successful",
            "entry": f"{row.id}.html",
            "content_type": "text/html; charset=utf-8",
            "size": len(_page(row)),
            "http_status": row.facts.http_status,
            "final_url": row.facts.final_url,
            "attempts": 1,
            "duration_ms": row.facts.duration_ms,
            "credits": row.spend and row.spend.credits,
            "cost": row.spend and row.spend.dollars,
            "error": None,
        }
        for row in rows
    ]


async def test_what_failed_or_is_not_done_is_in_the_manifest_only() -> None:
    house = a_house()
    job_id, run_id = await house.submit(5)
    problem = a_problem("RESP001")

    def result(task: Task) -> CallResult:
        if task.index == 1:
            return AttemptFailed(problem, FailureReason.BAD_TARGET, retryable=False)
        return Fetched(content=_page(task), format="html")

    await _settle(house, run_id, 3, result)

    content, lines = await _exported(house, job_id, run_id)

    assert [line["status"] for line in lines] == [
        *("successful", "failed", "successful", "pending", "pending")
    ]
    assert [line["entry"] is not None for line in lines] == [True, False, True, False, False]
    assert [line["entry"] for line in lines if line["entry"]] == list(content)
    assert lines[1]["error"] == msgspec.json.decode(problem)
    assert lines[3]["error"] is None


@pytest.mark.parametrize(
    ("kind", "extension"),
    [("html", "html"), ("json", "json"), ("markdown", "md"), ("plaintext", "txt"), ("pdf", "pdf")],
)
async def test_names_tell_what_is_in_them(kind: str, extension: str) -> None:
    house = a_house()
    job_id, run_id = await house.submit(1)
    await house.drain(run_id, lambda _: Fetched(content=b"x" * 500, format=kind))

    content, _ = await _exported(house, job_id, run_id)

    [row] = await house.rows(run_id)
    assert content == {f"{row.id}.{extension}": b"x" * 500}


async def test_a_run_without_results_has_a_manifest_all_the_same() -> None:
    house = a_house()
    job_id, run_id = await house.submit(0, status="open")

    content, lines = await _exported(house, job_id, run_id)

    assert (content, lines) == ({}, [])


async def test_a_result_that_is_gone_or_cut_short_is_told_and_kills_nothing() -> None:
    house, job_id, run_id = await _drained(4)
    job, rows = await house.job(job_id), await house.rows(run_id)
    await house.bodies.discard([body_name(job, rows[1])])
    _damage(house, rows[2])

    content, lines = await _exported(house, job_id, run_id)

    codes = [line["error"] and line["error"]["code"] for line in lines]
    assert codes == [None, "result_missing", "result_damaged", None]
    assert [line["status"] for line in lines] == ["successful"] * 4
    assert {line["entry"] for line in lines if line["entry"]} == content.keys()


async def test_results_past_their_retention_are_left_out() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3, result_ttl_days=2)
    await _settle(house, run_id, 2, _fetched)
    house.clock.advance(timedelta(days=2))
    await house.drain(run_id, _fetched)

    content, lines = await _exported(house, job_id, run_id)

    assert [line["status"] for line in lines] == ["expired", "expired", "successful"]
    assert lines[0]["error"]["code"] == "result_expired"
    assert list(content) == [lines[2]["entry"]]


async def test_inherited_results_are_in_the_export_of_a_rerun() -> None:
    house = a_house()
    job_id, run_id = await house.submit(3)
    refusal = AttemptFailed(a_problem("RESP001"), FailureReason.BAD_TARGET, retryable=False)
    await house.drain(run_id, lambda task: _fetched(task) if task.index else refusal)
    again, *_ = await house.rerun(job_id, "failed")
    await house.drain(again, _fetched)

    content, _ = await _exported(house, job_id, again)

    assert list(content.values()) == [_page(row) for row in await house.rows(again)]


@pytest.mark.parametrize("room", [0, -1])
async def test_results_up_to_the_cap_are_exported_and_not_a_byte_more(room: int) -> None:
    measured, job_id, run_id = await _drained(5)
    total = sum(row.result.length for row in await measured.rows(run_id) if row.result)
    house, job_id, run_id = await _drained(5, export_bytes=total + room)

    export = await _made(house, job_id, run_id)

    if room < 0:
        assert (export.status, export.error) == (ExportStatus.FAILED, too_large(total + room))
        assert await _files(house, job_id, run_id) == []
        with pytest.raises(NotFound):
            await house.exporting.open(export.id)
    else:
        assert export.status is ExportStatus.COMPLETED


@pytest.mark.parametrize(
    ("cap", "told"), [(100 * GIB, "100"), (GIB, "1"), (GIB // 2, "0.5"), (1000 * GIB, "1000")]
)
def test_the_cap_is_told_in_gib(cap: int, told: str) -> None:
    assert too_large(cap) == f"results are larger than {told} gb"


async def test_only_the_file_is_left_and_it_is_as_long_as_the_row_says() -> None:
    house, job_id, run_id = await _drained(5)

    export = await _made(house, job_id, run_id)

    [key] = await _files(house, job_id, run_id)
    assert await house.blobs.length(key) == export.length
    assert (await house.exporting.open(export.id)).length == export.length


async def test_others_cannot_see_an_export_nor_anyone_under_another_run() -> None:
    house, job_id, run_id = await _drained(1)
    other_job, other_run = await house.submit(1)
    export = await _made(house, job_id, run_id)

    for caller, job, run in (
        (STRANGER, job_id, run_id),
        (CALLER, other_job, other_run),
        (CALLER, job_id, other_run),
        (CALLER, other_job, run_id),
    ):
        with pytest.raises(NotFound):
            await house.exporting.find(caller, job, run, export.id)
        with pytest.raises(NotFound):
            await house.exporting.find(caller, job, run, ExportId("unknown"))
    with pytest.raises(NotFound):
        await house.exporting.start(STRANGER, job_id, run_id)
    with pytest.raises(NotFound):
        await house.exporting.start(CALLER, job_id, other_run)


async def test_an_export_is_gone_after_its_life() -> None:
    house, job_id, run_id = await _drained(1)
    export = await _made(house, job_id, run_id)
    late = await house.exporting.start(CALLER, job_id, run_id)

    house.clock.advance(EXPORT_LIFE)

    for one in (export, late):
        with pytest.raises(NotFound):
            await house.exporting.find(CALLER, job_id, run_id, one.id)
    with pytest.raises(NotFound):
        await house.exporting.open(late.id)
    await house.handle_messages()
    assert len(await _files(house, job_id, run_id)) == 1  # nothing is made that nobody can have


async def test_a_file_can_be_downloaded_for_a_day_after_its_last_link_was_given() -> None:
    house, job_id, run_id = await _drained(1)
    export = await _made(house, job_id, run_id)
    links = Links(b"secret", house.clock, life=timedelta(hours=24))
    house.clock.advance(EXPORT_LIFE - A_MOMENT)
    await house.exporting.find(CALLER, job_id, run_id, export.id)
    link = QueryParams(links.to_export("", export).partition("?")[2])

    house.clock.advance(timedelta(hours=24) - A_MOMENT)
    await house.sweep.step()
    links.check_export(export.id, link)
    assert (await house.exporting.open(export.id)).length

    house.clock.advance(timedelta(seconds=2))
    with pytest.raises(NotFound):
        links.check_export(export.id, link)
    with pytest.raises(NotFound):
        await house.exporting.open(export.id)


async def test_a_message_that_comes_again_does_nothing() -> None:
    house, job_id, run_id = await _drained(3)
    export = await _made(house, job_id, run_id)
    house.trace.forget()

    await house.exporting.run(export.id)
    await house.exporting.run(ExportId("unknown"))
    await house.exporting.abandon(export.id)

    assert house.trace.calls == ["metadata.get(Export)"] * 3


async def test_a_start_whose_message_cannot_be_sent_is_on_record() -> None:
    house, job_id, run_id = await _drained(1)

    with away(house.trace, "control_queue.send", AWAY):
        export = await house.exporting.start(CALLER, job_id, run_id)

    assert await house.metadata.get(Export, export.id)
    await house.exporting.run(export.id)
    assert (await _row(house, export)).status is ExportStatus.COMPLETED


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_failure_at_any_call_is_made_good_by_the_next_delivery(moment: Any) -> None:
    whole, job_id, run_id = await _drained(3)
    whole.trace.forget()
    await _made(whole, job_id, run_id)
    calls = len(whole.trace.calls)

    for number in range(calls):
        house, job_id, run_id = await _drained(3)
        house.trace.forget()
        house.trace.break_at(number, moment, AWAY)
        await _survive(house, job_id, run_id)

        for export in await house.metadata.page(Export, limit=9):
            house.clock.advance(LONGEST_DELAY + LEASE)
            await house.handle_messages()
            await house.exporting.run(export.id)
            assert (await _row(house, export)).status is ExportStatus.COMPLETED
            content, lines = await _read(house, export)
            assert len(content) == len(lines) == 3
        made, files = (
            await house.metadata.page(Export, limit=9),
            await _files(house, job_id, run_id),
        )
        assert len([file for file in files if file.endswith(".zip")]) == len(made), number
        # Spools that could not be removed go with the export.
        assert len(files) == len(made) or whole.trace.calls[number] == "blobs.delete"


@pytest.mark.parametrize("error", [AWAY, StorageFull("no room")])
async def test_an_export_that_can_never_be_made_fails_and_leaves_nothing(error: Exception) -> None:
    house, job_id, run_id = await _drained(3)
    export = await house.exporting.start(CALLER, job_id, run_id)

    with away(house.trace, "blobs.put", error):
        for _ in range(MOST_DELIVERIES):
            await house.handle_messages()
            house.clock.advance(LONGEST_DELAY)

    row = await _row(house, export)
    why = NO_ROOM if isinstance(error, StorageFull) else GAVE_UP
    assert (row.status, row.error) == (ExportStatus.FAILED, why)
    assert await _files(house, job_id, run_id) == []


async def test_a_maker_that_was_followed_by_another_leaves_the_others_file_alone() -> None:
    house, job_id, run_id = await _drained(4)
    export = await house.exporting.start(CALLER, job_id, run_id)
    house.trace.after("tasks.page", 2, lambda: house.exporting.run(export.id))

    await house.exporting.run(export.id)

    row = await _row(house, export)
    assert (row.status, row.claim_no) == (ExportStatus.COMPLETED, 2)
    assert len((await _read(house, export))[0]) == 4
    assert len(await _files(house, job_id, run_id)) == 1


@pytest.mark.parametrize("call", ["blobs.put", "blobs.read", "blobs.delete"])
async def test_a_maker_that_is_followed_late_leaves_nothing_of_its_own(call: str) -> None:
    house, job_id, run_id = await _drained(4)
    export = await house.exporting.start(CALLER, job_id, run_id)
    house.trace.before(call, 1, lambda: house.exporting.run(export.id))

    await house.exporting.run(export.id)

    assert (await _row(house, export)).status is ExportStatus.COMPLETED
    assert len((await _read(house, export))[0]) == 4
    assert len(await _files(house, job_id, run_id)) == 1


async def test_a_maker_that_was_followed_leaves_the_end_to_the_other() -> None:
    house, job_id, run_id = await _drained(4)
    export = await house.exporting.start(CALLER, job_id, run_id)

    async def follow() -> None:
        await house.metadata.commit(begun(await _row(house, export)))

    house.trace.before("blobs.delete", 1, follow)  # the file is there, and nobody was told
    await house.exporting.run(export.id)

    row = await _row(house, export)
    assert (row.status, row.claim_no) == (ExportStatus.RUNNING, 2)
    assert await _files(house, job_id, run_id) == []


async def test_a_row_that_was_written_meanwhile_is_completed_all_the_same() -> None:
    """As the sweeper writes it, when it sends the message once more."""
    house, job_id, run_id = await _drained(2)
    export = await house.exporting.start(CALLER, job_id, run_id)

    async def touch() -> None:
        row = await _row(house, export)
        await house.metadata.commit(msgspec.structs.replace(row, sent_at=house.clock.now()))

    house.trace.after("blobs.put", 1, touch)
    house.trace.before("metadata.commit", 3, touch)
    await house.exporting.run(export.id)

    row = await _row(house, export)
    assert (row.status, row.claim_no) == (ExportStatus.COMPLETED, 1)


@pytest.mark.parametrize("call", ["tasks.page", "blobs.put", "blobs.read", "metadata.commit"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_delete_meanwhile_leaves_nothing(call: str, moment: str) -> None:
    house, job_id, _ = await _drained(5)
    again, *_ = await house.rerun(job_id)
    await house.drain(again, _fetched)
    export = await house.exporting.start(CALLER, job_id, again)

    async def delete() -> None:
        await house.delete.run(CALLER, job_id, again)
        await house.purge.run(again)

    plan = house.trace.before if moment == "before" else house.trace.after
    plan(call, 2 if call == "metadata.commit" and moment == "after" else 1, delete)
    await house.exporting.run(export.id)

    assert await _files(house, job_id, again) == []
    assert await house.metadata.get(Export, export.id) is None
    with pytest.raises(NotFound):
        await house.exporting.find(CALLER, job_id, again, export.id)
    with pytest.raises(NotFound):
        await house.exporting.open(export.id)


async def test_a_deleted_job_takes_its_exports_along() -> None:
    house, job_id, run_id = await _drained(3)
    export = await _made(house, job_id, run_id)
    unmade = await house.exporting.start(CALLER, job_id, run_id)

    await house.delete.job(CALLER, job_id)
    with pytest.raises(NotFound):
        await house.exporting.open(export.id)
    await house.handle_messages()

    assert await _files(house, job_id, run_id) == []
    assert await house.metadata.get(Export, unmade.id) is None


async def test_an_export_that_grows_too_old_while_it_is_made_leaves_nothing() -> None:
    house, job_id, run_id = await _drained(5)
    export = await house.exporting.start(CALLER, job_id, run_id)

    async def wait() -> None:
        house.clock.advance(EXPORT_LIFE)

    house.trace.after("tasks.page", 1, wait)
    await house.exporting.run(export.id)

    assert await _files(house, job_id, run_id) == []


async def test_no_credential_is_in_the_file() -> None:
    house, job_id, run_id = await _drained(3)
    export = await _made(house, job_id, run_id)
    download = await house.exporting.open(export.id)
    whole = b"".join([chunk async for chunk in download.read(0)])
    content, lines = await _read(house, export)
    for text in (whole, *content.values(), msgspec.json.encode(lines)):
        assert KEY.encode() not in text
        assert KEY.encode().hex().encode() not in text


def test_what_has_ended_moves_no_more() -> None:
    for status in (ExportStatus.COMPLETED, ExportStatus.FAILED):
        with pytest.raises(IllegalMove):
            begun(an_export(status=status))


async def _drained(
    count: int, *, export_bytes: int = GIB, external_ids: bool = False
) -> tuple[House, JobId, RunId]:
    house = a_house(export_bytes=export_bytes)
    job_id, run_id = await house.submit(count)
    if external_ids:
        tasks = [
            {"url": f"https://ok.example/{n}", "external_id": f"mine-{n}"} for n in range(count)
        ]
        job_id, run_id = await house.submit(count, tasks=tasks)
    await house.drain(run_id, _fetched)
    return house, job_id, run_id


def _page(task: Task) -> bytes:
    return f"<html>{task.index} ".encode() * (task.index + 40)


def _fetched(task: Task) -> Fetched:
    return Fetched(content=_page(task), format="html")


async def _settle(
    house: House, run_id: RunId, count: int, result: Callable[[Task], CallResult]
) -> None:
    """Settle the first tasks of a run only."""
    job = await house.job((await house.run(run_id)).job_id)
    tasks = await house.work.claim({run_id: count})
    await house.settle.settle(
        [FinishedAttempt(task, an_assignment(job), result(task)) for task in tasks]
    )


async def _made(house: House, job_id: JobId, run_id: RunId) -> Export:
    export = await house.exporting.start(CALLER, job_id, run_id)
    await house.handle_messages()
    return await house.exporting.find(CALLER, job_id, run_id, export.id)


async def _survive(house: House, job_id: JobId, run_id: RunId) -> None:
    try:
        await survives(_made(house, job_id, run_id))
    except (Unavailable, NotFound):
        return


async def _exported(
    house: House, job_id: JobId, run_id: RunId
) -> tuple[dict[str, bytes], list[Line]]:
    export = await _made(house, job_id, run_id)
    assert export.status is ExportStatus.COMPLETED
    return await _read(house, export)


async def _read(house: House, export: Export) -> tuple[dict[str, bytes], list[Line]]:
    download = await house.exporting.open(export.id)
    whole = b"".join([chunk async for chunk in download.read(0)])
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert archive.testzip() is None
        content = {name: archive.read(name) for name in archive.namelist()}
    lines = content.pop("manifest.ndjson").splitlines()
    return content, [msgspec.json.decode(line) for line in lines]


async def _row(house: House, export: Export) -> Export:
    row = await house.metadata.get(Export, export.id)
    assert row is not None
    return row


async def _files(house: House, job_id: JobId, run_id: RunId) -> list[str]:
    return list(await house.blobs.keys(exports_of(job_id, run_id), limit=99))


def _damage(house: House, task: Task) -> None:
    kept = house.bodies._port._kept  # type: ignore[attr-defined]
    assert task.result
    name, content = kept[task.result.locator]
    kept[task.result.locator] = (name, content[:-1])


@pytest.mark.parametrize(("asked", "given"), [(24, 24), (72, 27)])
async def test_a_link_to_storage_lasts_no_longer_than_the_file(asked: int, given: int) -> None:
    house = a_house(blobs=SigningBlobs())
    export = completed(begun(an_export()), 3)
    house.clock.advance(export.created_at - house.clock.now() + timedelta(hours=9))
    url = house.exporting.storage_link(export, life=timedelta(hours=asked))
    assert url
    assert url.endswith(f"?life={given * 3600}&type=application/zip&name={export.run_id}.zip")
    short = SigningBlobs(timedelta(hours=1))
    assert a_house(blobs=short).exporting.storage_link(export, life=timedelta(hours=2)) is None
