"""The client with lists it does not read: sent as they are, whole or not at all, and reported on."""

import gzip
import io
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from conveyor.client import (
    AsyncConveyor,
    BadRequestError,
    Conveyor,
    NotFoundError,
    Patience,
    UnreachableError,
)
from tests.e2e.threads import InThreads
from tests.harness.programs import Program

KEY = "an-api-key"
OK = "https://ok.example/"
FEW = Patience(first=0.001, longest=0.002, attempts=3)
LIST = f"{OK}\n".encode() * 100_000


@pytest.fixture
async def client(running: Program) -> AsyncIterator[AsyncConveyor]:
    async with AsyncConveyor(running.url, KEY) as client:
        yield client


@pytest.fixture
def sync(running: Program) -> Iterator[Conveyor]:
    with Conveyor(running.url, KEY) as client:
        yield client


async def test_a_file_is_uploaded_and_its_bad_rows_are_reported(
    client: AsyncConveyor, tmp_path: Path
) -> None:
    file = tmp_path / "pages.csv.gz"
    file.write_bytes(gzip.compress(f"n;link\na;{OK}1\nb;nowhere\nc;{OK}3\n".encode()))
    job = await client.submit_file(
        file, delimiter=";", url_column="link", id_column="n", on_invalid="skip", name="a file"
    )
    assert job.idempotency_key
    run = await client.wait(job.job_id)
    assert (run.status, run.stats.successful, run.ingest_errors) == ("completed", 2, 1)
    rows = [row async for row in client.results(job.job_id)]
    assert [(row.external_id, row.url) for row in rows] == [("a", f"{OK}1"), ("c", f"{OK}3")]
    assert (await client.job(job.job_id)).name == "a file"
    [bad] = [row async for row in client.errors(job.job_id, run_id=run.run_id)]
    assert (bad.line, bad.ordinal, bad.reason, bad.value) == (3, 1, "malformed_url", "nowhere")


def test_open_files_pipes_and_paths_are_lists(sync: Conveyor, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(f'{{"url": "{OK}", "external_id": "x"}}\n')
    with file.open("rb") as opened:
        jobs = [sync.submit_file(str(file)), sync.submit_file(opened)]
    jobs.append(sync.submit_file(io.BytesIO(f"x,{OK}".encode()), type="csv", header=False,
                                 url_column=1, id_column=0))  # fmt: skip
    for job in jobs:
        assert job.accepted_tasks == 1
        assert [row.external_id for row in sync.results(job.job_id, bodies=False)] == ["x"]
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe:  # noqa: PTH123 - it has no path
        feeding = threading.Thread(target=_feed, args=(writing, LIST))
        feeding.start()
        job = sync.submit_file(pipe)
        feeding.join()
    assert job.accepted_tasks == 0
    assert list(sync.errors(job.job_id)) == []
    sync.stop(job.job_id)


async def test_what_is_no_list_is_told_as_it_is(client: AsyncConveyor, tmp_path: Path) -> None:
    before = [job.job_id async for job in client.jobs()]
    with pytest.raises(FileNotFoundError):
        await client.submit_file(tmp_path / "nowhere.txt")
    with pytest.raises(TypeError, match="binary"):
        await client.submit_file(io.StringIO(OK))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="the disk is gone"):
        await client.submit_file(_Failing())
    with pytest.raises(BadRequestError, match="no column `link`"):
        await client.submit_file(io.BytesIO(b"url\n"), type="csv", url_column="link")
    with pytest.raises(BadRequestError) as refused:
        await client.submit_file(io.BytesIO(f"{OK}\nnowhere".encode()))
    assert [fault.index for fault in refused.value.invalid_tasks] == [1]
    with pytest.raises(NotFoundError):
        [row async for row in client.errors("nope")]
    assert [job.job_id async for job in client.jobs()] == before


class Slots:
    """A service that breaks off so many uploads and reports."""

    def __init__(self) -> None:
        self.breaks = 0
        self.given = 0
        self.elsewhere = False  # another host takes the uploads
        self.taken: list[bytes] = []
        self.keys: list[str | None] = []
        self.lengths: list[int | None] = []
        self.sizes: list[int | None] = []  # as they were declared
        self.submitted: list[dict[str, Any]] = []

    async def slot(self, request: web.Request) -> web.StreamResponse:
        self.given += 1
        self.sizes.append(json.loads(await request.read()).get("size"))
        host = request.host.replace("127.0.0.1", "localhost") if self.elsewhere else request.host
        url = f"http://{host}/put?n={self.given}%2B"
        slot = {"file_input_id": f"slot-{self.given}", "upload": {"url": url, "headers": {}}}
        return web.json_response(slot)

    async def put(self, request: web.Request) -> web.StreamResponse:
        self.keys.append(request.headers.get("X-API-Key"))
        self.lengths.append(request.content_length)
        if self.breaks:
            self.breaks -= 1
            await request.content.read(1000)
            assert request.transport
            request.transport.abort()
            return web.Response()
        self.taken.append(await request.read())
        return web.Response()

    async def submit(self, request: web.Request) -> web.StreamResponse:
        self.submitted.append(json.loads(await request.read()))
        return web.json_response({"job_id": "j", "accepted_tasks": 0})

    async def report(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for line in range(5):
            if self.breaks and line == 3:
                self.breaks -= 1
                assert request.transport
                request.transport.abort()
                return answer
            await answer.write(b'{"line": %d, "reason": "r"}\n' % line)
        return answer


@pytest.fixture(params=[AsyncConveyor, Conveyor])
async def slots(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Slots, AsyncConveyor]]:
    slots = Slots()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/job_inputs", slots.slot)
    app.router.add_put("/put", slots.put)
    app.router.add_post("/v1/jobs", slots.submit)
    app.router.add_get("/v1/jobs/j/ingest_errors", slots.report)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    if request.param is AsyncConveyor:
        async with AsyncConveyor(url, KEY, patience=FEW) as client:
            yield slots, client
    else:
        with Conveyor(url, KEY, patience=FEW) as blocking:
            yield slots, cast("AsyncConveyor", InThreads(blocking))
    await runner.cleanup()


async def test_a_broken_upload_is_sent_again_whole_to_another_slot(
    slots: tuple[Slots, AsyncConveyor], tmp_path: Path
) -> None:
    service, client = slots
    (tmp_path / "urls").write_bytes(LIST)
    behind_a_mark = io.BytesIO(b"skipped" + LIST)
    behind_a_mark.seek(7)
    for file in (tmp_path / "urls", behind_a_mark):
        service.breaks = 2
        await client.submit_file(file)
        assert service.taken.pop() == LIST
        assert service.submitted.pop() == {"file_input_id": f"slot-{service.given}"}
    assert service.given == 6
    assert set(service.keys) == {None}
    assert service.lengths == service.sizes == [len(LIST)] * 6


async def test_what_cannot_be_read_again_is_sent_once(slots: tuple[Slots, AsyncConveyor]) -> None:
    service, client = slots
    service.breaks = 1
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe:  # noqa: ASYNC230, PTH123 - it has no path
        feeding = threading.Thread(target=_feed, args=(writing, LIST))
        feeding.start()
        with pytest.raises(UnreachableError):
            await client.submit_file(pipe)
    feeding.join()
    assert (service.given, service.taken, service.submitted) == (1, [], [])


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_what_goes_to_storage_elsewhere_has_a_length_even_if_it_comes_from_a_pipe(
    slots: tuple[Slots, AsyncConveyor], elsewhere: bool
) -> None:
    service, client = slots
    service.elsewhere = elsewhere
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe:  # noqa: ASYNC230, PTH123 - it has no path
        feeding = threading.Thread(target=_feed, args=(writing, LIST))
        feeding.start()
        await client.submit_file(pipe)
    feeding.join()
    assert service.taken == [LIST]
    assert service.lengths == [len(LIST) if elsewhere else None]
    assert service.sizes == [None]


async def test_a_report_that_is_cut_is_gone_on_with(slots: tuple[Slots, AsyncConveyor]) -> None:
    service, client = slots
    service.breaks = 2
    assert [row.line async for row in client.errors("j")] == [0, 1, 2, 3, 4]
    service.breaks = 100
    with pytest.raises(UnreachableError):
        [row async for row in client.errors("j")]


class _Failing(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError("the disk is gone")


def _feed(end: int, content: bytes) -> None:
    """Into a pipe, until it is read or closed."""
    try:
        with open(end, "wb") as pipe:
            pipe.write(content)
    except BrokenPipeError:
        return
