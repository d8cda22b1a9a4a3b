"""How soon can a page of a job of a million rows be used, and what do 200 open dashboards cost?

Part one: pages of a job of a million rows in a real browser that has nothing cached, while the job
runs and after it was stopped. A page can be used when its buttons are drawn and the browser is idle.
Part two: 200 dashboards that follow a live job. Their requests are those that a real page was seen
to send in 31 s: its stream of events, and what it asks for again and again. Rounds without
dashboards, with 200 on the list of jobs, with 200 on the overview and with 200 on the failures take
turns.
"""

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import uvloop
from playwright.sync_api import Browser, Request, sync_playwright
from tests.e2e.conftest import CHROMIUM_FLAGS
from tests.harness.dashboard import visiting
from tests.harness.programs import Program, mock_gateway, service

from conveyor.steps.shared.timeline_reads import SHARED_FOR

ROWS = int(os.environ.get("BENCH_ROWS", "1000000"))
ROUNDS = 5
DASHBOARDS = 200
SEEN_FOR = 31.0  # seconds in which a page is watched; it repeats its requests every 5 or 15
SECONDS = 15.0  # of a round
SCRAPED = 5_000  # tasks done before the pages are opened
KEY = "benchmark"
HOSTS = 97
FAILING = ("permanent", "nohost", "blocked")  # at every host: more groups than a page shows
PAGES = {
    "overview": ("", ".heading .actions button"),
    "failures": ("/failures", ".group button"),
    "rows": ("/rows", "table.rows tbody button"),
    "rows that failed": ("/rows?status=failed", "table.rows tbody button"),
}
# Pages that stay open while a job is live: the list of jobs, and two pages of the job.
FOLLOWED = {
    "the list": ("", "table.jobs"),
    **{
        page: (f"jobs/{{job}}{PAGES[page][0]}", PAGES[page][1]) for page in ("overview", "failures")
    },
}
USABLE = """wanted => new Promise(resolve => {
    const look = () => document.querySelector(wanted)
        ? requestAnimationFrame(() => setTimeout(() => resolve(performance.now())))
        : requestAnimationFrame(look);
    look();
})"""


class Poll(msgspec.Struct, frozen=True):
    """A request of an open page."""

    head: bytes
    times: int  # while the page was watched; 0 is a stream, which is opened once


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("  left out: there is no Chromium on this machine")
        return
    print(f"  load average {os.getloadavg()[0]:.1f}")
    with (
        tempfile.TemporaryDirectory() as folder,
        mock_gateway() as gateway,
        service(
            gateway=gateway.url,
            data=Path(folder) / "data",
            flags=("--log-level", "warning", "--durability", "process"),
        ) as program,
        httpx.Client(base_url=program.url, headers={"X-API-Key": KEY}, timeout=600) as api,
    ):
        with _browser(chromium) as browser:
            _open_pages(browser, program, api)
            job_id = _slow_job(api)
            seen = {page: _watch(browser, program, job_id, page) for page in FOLLOWED}
        _follow(program, seen)


@contextmanager
def _browser(path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


# A job of a million rows


def _open_pages(browser: Browser, program: Program, api: httpx.Client) -> None:
    job_id = _large_job(api)
    for state in ("live", "stopped"):
        for page, (path, wanted) in PAGES.items():
            times = [
                _usable(browser, program, f"jobs/{job_id}{path}", wanted) for _ in range(ROUNDS)
            ]
            figure = f"{statistics.median(times):.0f} ms, at most {max(times):.0f}"
            _tell(f"{page} of {ROWS:,} rows, {state}", figure, "under 1,000 ms")
        times = [_timeline(api, job_id) for _ in range(ROUNDS)]
        figure = f"{statistics.median(times):.0f} ms, at most {max(times):.0f}"
        _tell(f"timeline of {ROWS:,} rows, {state}", figure)
        api.post(f"/jobs/{job_id}/stop").raise_for_status()
    api.delete(f"/jobs/{job_id}").raise_for_status()


def _large_job(api: httpx.Client) -> str:
    """A list of which one row in fifty fails, read to its end and scraped in part."""
    file_input = api.post("/job_inputs", json={"type": "txt"}).raise_for_status().json()
    upload = file_input["upload"]
    httpx.put(
        upload["url"], content=_lines(), headers=upload["headers"], timeout=600
    ).raise_for_status()
    body = {"file_input_id": file_input["file_input_id"], "max_inflight": 20, "name": "A million"}
    job_id = str(api.post("/jobs", json=body).raise_for_status().json()["job_id"])
    while (run := _run(api, job_id))["ingest_status"] != "done" or (
        run["stats"]["completed"] < min(SCRAPED, ROWS // 2)
    ):
        time.sleep(0.1)
    return job_id


def _timeline(api: httpx.Client, job_id: str) -> float:
    """Milliseconds of a reading that is not shared with the one before."""
    time.sleep(SHARED_FOR.total_seconds() + 0.1)
    began = time.perf_counter()
    api.get(f"/jobs/{job_id}/timeline").raise_for_status()
    return (time.perf_counter() - began) * 1_000


def _lines() -> Iterator[bytes]:
    for start in range(0, ROWS, 5_000):
        yield "".join(f"{_url(n)}\n" for n in range(start, min(ROWS, start + 5_000))).encode()


def _url(number: int) -> str:
    site = f"shop{number % HOSTS}.example"
    if number % 50:
        return f"https://slow.{site}/products/{number}?ms=50&size=300"
    return f"https://{FAILING[number // 50 % len(FAILING)]}.{site}/products/{number}"


def _usable(browser: Browser, program: Program, path: str, wanted: str) -> float:
    """Milliseconds from the navigation of a new tab until the page can be used."""
    root = program.url.removesuffix("/v1")
    with visiting(browser, root, KEY) as visitor:
        visitor.page.goto(f"{root}/#/{path}", wait_until="commit")
        return float(visitor.page.evaluate(USABLE, wanted))


# Two hundred dashboards


def _slow_job(api: httpx.Client) -> str:
    """Some twenty pages a second for as long as it takes, one in ten of which fail.

    A list of failures comes first, one of every kind at every host.
    """
    lost = [f"https://{kind}.shop{n}.example/" for kind in FAILING for n in range(HOSTS)]
    tasks = [
        f"https://slow.shop{n % HOSTS}.example/{n}?ms=1000"
        if n % 10
        else f"{lost[n % len(lost)]}{n}"
        for n in range(20_000)
    ]
    body = {"tasks": [{"url": url} for url in (*lost, *tasks)], "max_inflight": 20}
    job_id = str(api.post("/jobs", json=body).raise_for_status().json()["job_id"])
    while _run(api, job_id)["stats"]["failed"] < len(lost):
        time.sleep(0.1)
    return job_id


def _watch(browser: Browser, program: Program, job_id: str, page: str) -> list[Poll]:
    """What a page asks for while it is open and a job is live."""
    root = program.url.removesuffix("/v1")
    path, wanted = FOLLOWED[page]
    with visiting(browser, root, KEY) as visitor:
        sent: list[Request] = []
        # Playwright marks its handlers, which a built-in method does not allow.
        visitor.page.on("request", lambda request: sent.append(request))  # noqa: PLW0108
        visitor.open(path.format(job=job_id), wanted)
        visitor.page.wait_for_timeout(1_000)
        streams = [Poll(_head(one), 0) for one in sent if one.url.endswith("/events")]
        assert len(streams) == path.startswith("jobs/")
        opened = len(sent)
        visitor.page.wait_for_timeout(SEEN_FOR * 1_000)
        heads = [_head(one) for one in sent[opened:]]
        assert not [one for one in sent[opened:] if one.url.endswith("/events")]
        return [*streams, *(Poll(one, heads.count(one)) for one in set(heads))]


def _head(request: Request) -> bytes:
    """A request as the browser sent it."""
    address = urlsplit(request.url)
    target = address.path + (f"?{address.query}" if address.query else "")
    headers = {"host": address.netloc, **request.all_headers()}
    lines = [f"{request.method} {target} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def _follow(program: Program, seen: dict[str, list[Poll]]) -> None:
    used: dict[str, list[float]] = {"none": [], **{page: [] for page in seen}}
    for _ in range(ROUNDS):
        for page, shares in used.items():
            shares.append(uvloop.run(_cpu(program, seen.get(page, []))))
    print(f"  load average {os.getloadavg()[0]:.1f}")
    _tell("CPU of the service without dashboards", f"{statistics.median(used['none']):.1%}")
    for page, polls in seen.items():
        pairs = zip(used[page], used["none"], strict=True)
        added = statistics.median(many - none for many, none in pairs)
        asked = sum(poll.times for poll in polls) / SEEN_FOR * DASHBOARDS
        _tell(
            f"added by {DASHBOARDS} on {page}, {asked:.0f} polls/s",
            f"{added:.1%} of a core",
            "under 10 %",
        )


async def _cpu(program: Program, polls: list[Poll]) -> float:
    """The share of a core that the service uses while the dashboards are open."""
    opened = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_ask(program, poll, number / DASHBOARDS, opened))
            for number in range(DASHBOARDS)
            for poll in polls
        ]
        for _ in tasks:
            await opened.acquire()
        await asyncio.sleep(1)  # connecting is not what is measured
        began, cpu = time.perf_counter(), program.cpu
        await asyncio.sleep(SECONDS)
        share = (program.cpu - cpu) / (time.perf_counter() - began)
        for task in tasks:
            task.cancel()
    return share


async def _ask(program: Program, poll: Poll, phase: float, opened: asyncio.Semaphore) -> None:
    """Keep a stream open, or repeat a poll over one connection, from its own moment on."""
    address = urlsplit(program.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(poll.head)  # at once: the service closes a connection that sends nothing
        if not poll.times:
            opened.release()
            while await reader.read(65_536):
                pass
            raise RuntimeError("the stream has ended: the job is too short")
        await _answer(reader)
        opened.release()
        every = SEEN_FOR / poll.times
        await asyncio.sleep(phase * every)
        while True:
            writer.write(poll.head)
            await _answer(reader)
            await asyncio.sleep(every)
    finally:
        writer.transport.abort()


async def _answer(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    await reader.readexactly(length)


def _run(api: httpx.Client, job_id: str) -> dict[str, Any]:
    run: dict[str, Any] = api.get(f"/jobs/{job_id}").raise_for_status().json()["latest_run"]
    return run


def _tell(what: str, figure: str, goal: str = "") -> None:
    print(f"  {what:44s} {figure:>24s}   {f'goal: {goal}' if goal else ''}".rstrip())
    sys.stdout.flush()


if __name__ == "__main__":
    main()
