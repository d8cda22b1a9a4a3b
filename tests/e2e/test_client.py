"""The client against a real service."""

import asyncio
import io
import sqlite3
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from conveyor.client import (
    AsyncConveyor,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    Conveyor,
    ExportError,
    NotFoundError,
    Patience,
    UnfinishedError,
)
from conveyor.testing.local.ports import free_port
from tests.e2e.conftest import SHORT_GRACE
from tests.harness.programs import Program, service

KEY = "an-api-key"
QUICK = Patience(first=0.05, longest=0.5, attempts=40)
OK = "https://ok.example/{}"
SLOW = "https://slow.example/{}?ms=30000"
FEW = 2  # slow pages at once: they hold their places after their run was stopped


@pytest.fixture
async def client(running: Program) -> AsyncIterator[AsyncConveyor]:
    async with AsyncConveyor(running.url, KEY, patience=QUICK) as client:
        yield client


@pytest.fixture
def sync(running: Program) -> Iterator[Conveyor]:
    with Conveyor(running.url, KEY, patience=QUICK) as client:
        yield client


async def test_urls_go_in_and_pages_come_out_in_order(client: AsyncConveyor) -> None:
    urls = [OK.format(n) for n in range(30)] + ["https://permanent.example/"]
    job = await client.submit(urls, params={"js_render": True}, name="a name", retries=0)
    run = await client.wait(job.job_id)
    assert (run.status, run.stats.successful, run.stats.failed) == ("completed", 30, 1)
    assert job.accepted_tasks == 31
    results = [result async for result in client.results(job.job_id)]
    assert [result.url for result in results] == urls
    assert all(result.body and b"ok.example" in result.body for result in results[:30])
    assert results[30].body is None
    assert results[30].error
    assert results[30].error.code == "RESP002"
    found = await client.job(job.job_id)
    assert (found.name, found.zenrows_params) == ("a name", {"js_render": "true"})
    failed = [result async for result in client.results(job.job_id, status="failed")]
    assert [result.url for result in failed] == urls[30:]
    assert await client.history(job.job_id, results[0].task_id)
    assert job.job_id in {one.job_id async for one in client.jobs()}


async def test_large_pages_are_saved_without_being_held(
    client: AsyncConveyor, tmp_path: Path
) -> None:
    job = await client.submit(["https://big.example/?size=3000000"])
    await client.wait(job.job_id)
    [result] = [one async for one in client.results(job.job_id, bodies=False)]
    assert result.body is None
    assert await client.save(result, tmp_path / "page.html") == 3_000_000
    assert (tmp_path / "page.html").read_bytes() == await client.body(result)
    assert not (tmp_path / "page.html.part").exists()


async def test_a_list_longer_than_a_call_becomes_one_closed_job(client: AsyncConveyor) -> None:
    options: Any = {"idempotency_key": "long-list", "max_inflight": FEW}
    job = await client.submit((SLOW.format(n) for n in range(20_001)), **options)
    found = await client.job(job.job_id)
    assert found.latest_run
    assert (job.accepted_tasks, found.latest_run.stats.total) == (20_001, 20_001)
    assert (found.status, found.latest_run.last_batch_received) == ("closed", True)

    again = await client.submit((SLOW.format(n) for n in range(20_001)), **options)
    assert again == job
    found = await client.job(job.job_id)
    assert found.latest_run
    assert found.latest_run.stats.total == 20_001
    await client.stop(job.job_id)


async def test_a_list_that_raises_midway_leaves_an_open_job_to_go_on_with(
    client: AsyncConveyor,
) -> None:
    def broken(until: int) -> Iterator[str]:
        yield from (SLOW.format(n) for n in range(until))
        if until < 12_000:
            raise OSError("the disk is gone")

    with pytest.raises(UnfinishedError, match="the disk is gone") as error:
        await client.submit(broken(11_000), max_inflight=FEW)
    assert isinstance(error.value.__cause__, OSError)
    job_id = error.value.job_id
    assert error.value.accepted_tasks == 10_000
    assert (await client.job(job_id)).status == "open"

    job = await client.submit(
        broken(12_000), idempotency_key=error.value.idempotency_key, max_inflight=FEW
    )
    assert (job.job_id, job.accepted_tasks) == (job_id, 12_000)
    found = await client.job(job_id)
    assert found.latest_run
    assert (found.status, found.latest_run.stats.total) == ("closed", 12_000)
    await client.stop(job_id)


async def test_a_list_that_raises_at_once_makes_no_job(client: AsyncConveyor) -> None:
    before = [job.job_id async for job in client.jobs()]
    with pytest.raises(OSError, match="gone"):
        await client.submit(_raising())
    with pytest.raises(ValueError, match="no task"):
        await client.submit([])
    assert [job.job_id async for job in client.jobs()] == before


def _raising() -> Iterator[str]:
    yield OK.format(1)
    raise OSError("gone")


async def test_bad_tasks_are_named_by_their_place_in_the_whole_list(client: AsyncConveyor) -> None:
    with pytest.raises(BadRequestError) as refused:
        await client.submit([OK.format(1), "ftp://no.example"])
    assert [fault.index for fault in refused.value.invalid_tasks] == [1]
    urls = [SLOW.format(n) for n in range(10_005)]
    urls[10_002] = "nonsense"
    with pytest.raises(UnfinishedError) as unfinished:
        await client.submit(iter(urls), max_inflight=FEW)
    assert [fault.index for fault in unfinished.value.invalid_tasks] == [10_002]
    assert unfinished.value.accepted_tasks == 10_000
    await client.stop(unfinished.value.job_id)


async def test_an_open_job_is_filled_turned_and_closed(client: AsyncConveyor) -> None:
    job_id = await client.open(name="open", max_inflight=2)
    assert (await client.add(job_id, [OK.format(1)])).accepted_tasks == 1
    assert (await client.pause(job_id)).pause_state == "paused"
    assert (await client.resume(job_id)).pause_state == "active"
    assert (await client.add(job_id, [OK.format(2)], last_batch=True)).accepted_tasks == 1
    assert (await client.close(job_id)).status == "closed"
    assert (await client.wait(job_id)).stats.successful == 2
    with pytest.raises(ConflictError) as refused:
        await client.add(job_id, [OK.format(3)])
    assert refused.value.code == "last_batch_received"
    with pytest.raises(ConflictError):
        await client.stop(job_id)


async def test_a_job_is_run_again_in_part_and_deleted(client: AsyncConveyor) -> None:
    job = await client.submit([OK.format(1), "https://permanent.example/"], retries=0)
    first = await client.wait(job.job_id)
    again = await client.rerun(job.job_id, status="failed", idempotency_key="once-more")
    assert (again.retried_tasks, again.inherited_tasks, again.rerun_of) == (1, 1, first.run_id)
    assert again == await client.rerun(job.job_id, status="failed", idempotency_key="once-more")
    second = await client.wait(job.job_id)
    assert (second.run_id, second.stats.total) == (again.latest_run.run_id, 2)
    results = [result async for result in client.results(job.job_id)]
    assert [result.status for result in results] == ["successful", "failed"]
    assert results[0].body
    old = [result async for result in client.results(job.job_id, run_id=first.run_id)]
    assert [result.run_id for result in old] == [first.run_id] * 2
    failed = results[1].task_id
    [before] = await client.history(job.job_id, failed, run_id=first.run_id)
    [since] = await client.history(job.job_id, failed)
    assert before.ended_at < since.started_at
    await client.delete_run(job.job_id, second.run_id)
    with pytest.raises(NotFoundError):
        await client.run(job.job_id, second.run_id)
    assert (await client.wait(job.job_id)).run_id == first.run_id
    await client.delete(job.job_id)
    with pytest.raises(NotFoundError):
        await client.job(job.job_id)


async def test_a_job_that_is_deleted_while_followed_ends_as_such(client: AsyncConveyor) -> None:
    job = await client.submit([SLOW.format(1)])
    async with aclosing(client.progress(job.job_id)) as states:
        assert (await anext(states)).status == "running"
        await client.delete(job.job_id)
        assert [state.status async for state in states][-1] == "deleted"
    with pytest.raises(NotFoundError):
        await client.wait(job.job_id)


async def test_refusals_have_their_kinds(client: AsyncConveyor, running: Program) -> None:
    for call in (client.job("nope"), client.wait("nope"), client.stop("nope")):
        with pytest.raises(NotFoundError):
            await call
    async with AsyncConveyor(running.url) as nobody:
        with pytest.raises(AuthenticationError) as refused:
            await nobody.job("x")
    assert (refused.value.status, refused.value.code) == (401, "unauthenticated")


async def test_progress_is_followed_to_the_end(client: AsyncConveyor) -> None:
    urls = (f"https://slow.example/{n}?ms={n * 40}" for n in range(60))
    job = await client.submit(urls)
    states = [state async for state in client.progress(job.job_id)]
    done = [state.stats.completed for state in states]
    assert done == sorted(done)
    assert [state.has_ended for state in states] == [False] * (len(states) - 1) + [True]
    assert any(state.rate for state in states)
    assert any(state.eta_seconds for state in states)


async def test_progress_goes_on_over_a_restart_of_the_service(
    gateway: Program, tmp_path: Path
) -> None:
    port = free_port()
    seen: list[int] = []
    with service(data=tmp_path, gateway=gateway.url, port=port, environ=SHORT_GRACE) as first:
        async with AsyncConveyor(first.url, KEY, patience=QUICK) as client:
            job_id = await client.open()
            async with aclosing(client.progress(job_id)) as states:
                seen.append((await anext(states)).stats.total)
                await asyncio.to_thread(first.kill)
                with service(data=tmp_path, gateway=gateway.url, port=port, environ=SHORT_GRACE):
                    await client.add(job_id, [OK.format(1)], last_batch=True)
                    seen += [state.stats.total async for state in states]
                    assert (await client.wait(job_id)).status == "completed"
    assert seen[0] == 0
    assert set(seen[1:]) == {1}


async def test_an_error_of_the_caller_leaves_the_client_as_it_is(running: Program) -> None:
    async def fail() -> None:
        async with AsyncConveyor(running.url, KEY) as client:
            job = await client.submit([OK.format(n) for n in range(20)])
            await client.wait(job.job_id)
            async for _ in client.results(job.job_id):
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # in no group, though bodies are on their way
        await fail()


def test_the_same_without_an_event_loop(sync: Conveyor, tmp_path: Path) -> None:
    job = sync.submit((OK.format(n) for n in range(20)), name="sync")
    states = list(sync.progress(job.job_id))
    assert states[-1].status == "completed"
    results = list(sync.results(job.job_id))
    assert [result.url for result in results] == [OK.format(n) for n in range(20)]
    assert all(result.body for result in results)
    assert sync.save(results[0], tmp_path / "a") == len(results[0].body or b"")
    assert sync.body(results[1]) == results[1].body
    assert sync.wait(job.job_id).stats.successful == 20
    for first in sync.results(job.job_id, bodies=False):
        assert first.url == OK.format(0)
        break
    with pytest.raises(NotFoundError):
        sync.job("nope")
    with pytest.raises(OSError, match="gone"):
        sync.submit(_raising())
    assert sync.submit.__doc__ == AsyncConveyor.submit.__doc__


def test_lists_are_read_in_the_callers_thread(sync: Conveyor) -> None:
    rows = sqlite3.connect(":memory:")  # refuses to be used from any other
    rows.execute("CREATE TABLE urls (url TEXT)")
    rows.executemany("INSERT INTO urls VALUES (?)", [(SLOW.format(n),) for n in range(2500)])
    urls = (url for (url,) in rows.execute("SELECT url FROM urls"))
    job = sync.submit(urls, max_inflight=FEW)
    assert job.accepted_tasks == 2500
    sync.stop(job.job_id)
    rows.close()


def test_leaving_ends_the_iterators_that_are_open(
    running: Program, caplog: pytest.LogCaptureFixture
) -> None:
    with Conveyor(running.url, KEY) as client:
        done = client.submit([OK.format(n) for n in range(20)]).job_id
        client.wait(done)
        slow = client.submit([SLOW.format(1)]).job_id
        opened = [client.progress(slow), client.results(done), client.jobs()]
        for iterator in opened:
            next(iterator)
    assert [record.getMessage() for record in caplog.records] == []
    for iterator in opened:
        with pytest.raises(RuntimeError, match="closed"):
            next(iterator)
    assert "conveyor" not in {thread.name for thread in threading.enumerate()}
    with Conveyor(running.url, KEY) as client:
        client.stop(slow)


def test_leaving_ends_an_iterator_that_another_thread_waits_for(
    running: Program, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []
    told = threading.Event()

    def follow(client: Conveyor, job_id: str) -> None:
        try:
            for _ in client.progress(job_id):
                told.set()
        except RuntimeError:
            ended.append(job_id)

    with Conveyor(running.url, KEY) as client:
        job_id = client.submit([SLOW.format(1)]).job_id
        following = threading.Thread(target=follow, args=(client, job_id))
        following.start()
        assert told.wait(10)
    following.join(10)
    assert not following.is_alive()
    assert ended == [job_id]
    assert [record.getMessage() for record in caplog.records] == []
    with Conveyor(running.url, KEY) as client:
        client.stop(job_id)


def test_a_client_without_a_loop_serves_several_threads_and_leaves_none(running: Program) -> None:
    with Conveyor(running.url, KEY) as client:
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda: found.append(client.submit([OK.format(1)]).job_id))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == 8
    assert "conveyor" not in {thread.name for thread in threading.enumerate()}


async def test_a_run_is_saved_as_one_file(running: Program, tmp_path: Path) -> None:
    async with AsyncConveyor(running.url, "an-api-key") as conveyor:
        job = await conveyor.submit([f"https://ok.example/{n}" for n in range(3)])
        await conveyor.wait(job.job_id)
        export = await conveyor.start_export(job.job_id)
        ready = await conveyor.wait_export(export, poll_every=0.05)
        assert (await conveyor.export(export)).status == ready.status == "completed"

        length = await conveyor.save_export(export, tmp_path / "all.zip")
        whole = (tmp_path / "all.zip").read_bytes()
        assert length == len(whole)
        assert len(zipfile.ZipFile(io.BytesIO(whole)).namelist()) == 4

        # What an earlier call left is not fetched again: a mark in it stays.
        part = tmp_path / f"again.zip.{export.export_id}.part"
        part.write_bytes(b"mark" + whole[4:9])
        await conveyor.save_export(export, tmp_path / "again.zip")
        assert (tmp_path / "again.zip").read_bytes() == b"mark" + whole[4:]
        part.write_bytes(whole * 2)
        await conveyor.save_export(export, tmp_path / "again.zip")
        assert (tmp_path / "again.zip").read_bytes() == whole


def test_an_export_that_cannot_be_made_says_why(gateway: Program, tmp_path: Path) -> None:
    cap = {"CONVEYOR_EXPORT_BYTES": "1"}
    with (
        service(data=tmp_path, gateway=gateway.url, environ=cap) as program,
        Conveyor(program.url, "an-api-key") as conveyor,
    ):
        job = conveyor.submit(["https://ok.example/1"])
        conveyor.wait(job.job_id)
        with pytest.raises(ExportError, match="larger than") as error:
            conveyor.save_export(conveyor.start_export(job.job_id), tmp_path / "all.zip")
    assert error.value.reason.endswith(" gb")
    assert not list(tmp_path.glob("all.zip*"))
