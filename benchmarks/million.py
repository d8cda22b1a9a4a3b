"""A million URLs in one list: how soon accepted, how fast taken in, listed, copied, deleted?

One process on the embedded engine, with validation on, and paused, so that nothing is scraped
meanwhile. All in one run; memory is that of the process over what it held at rest.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

import apsw
import httpx
import msgspec
from tests.harness.programs import Program, mock_gateway, service

COUNT = int(os.environ.get("BENCH_ROWS", "1000000"))
SMALL = COUNT // 10
SUBMITS = 10
SAMPLE_EVERY = 0.05


class Rate(msgspec.Struct, frozen=True):
    """How a long piece of work went, and how readers fared meanwhile."""

    rows: float  # a second
    page: float  # 99th percentile of a results page, in milliseconds
    memory: float  # the most, over what there was at rest, in MB


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, mock_gateway() as gateway:
        data = Path(folder) / "data"
        flags = ("--log-level", "warning", "--durability", "process")
        with (
            service(gateway=gateway.url, data=data, flags=flags) as program,
            httpx.Client(
                base_url=program.url, headers={"X-API-Key": "benchmark"}, timeout=600
            ) as api,
        ):
            _measure(program, api, data)


def _measure(program: Program, api: httpx.Client, data: Path) -> None:
    idle = program.memory
    small, _ = _ingested(program, api, _sent(api, SMALL), SMALL, idle)
    started = time.perf_counter()
    file_input_id = _sent(api, COUNT)
    sent = COUNT / (time.perf_counter() - started)
    accepted = [_accept_and_stop(api, file_input_id) for _ in range(SUBMITS)]
    rate, job_id = _ingested(program, api, file_input_id, COUNT, idle)
    at_rest = _p99([_page(api, job_id, n * 997 % COUNT) for n in range(200)])
    _tell("sent and made, rows a second", f"{sent:,.0f}")
    _tell("accepted, median of 10", f"{median(accepted) * 1000:.1f} ms", "under 100 ms")
    _tell("taken in, rows a second", f"{rate.rows:,.0f}", "80,000")
    _tell("  against a list of a tenth", f"{rate.rows / small.rows:.2f}", "0.8")
    _tell("  memory over idle", f"{rate.memory:.0f} MB (idle {idle:.0f})", "150 MB")
    _tell("results page, p99, meanwhile", f"{rate.page:.1f} ms", "under 50 ms")
    _tell("results page, p99, afterwards", f"{at_rest:.1f} ms", "under 50 ms")
    _go_on(program, api, data, job_id, idle)


def _go_on(program: Program, api: httpx.Client, data: Path, job_id: str, idle: float) -> None:
    with _watched(program, idle) as listing:
        rows, listing_rate = _timed(lambda: _listed(api, job_id))
    assert rows == COUNT
    _tell("listed, rows a second", f"{listing_rate:,.0f}; {listing():.0f} MB")
    api.post(f"/jobs/{job_id}/stop").raise_for_status()
    with _watched(program, idle) as copying:
        _, copy_rate = _timed(lambda: _copied(api, job_id))
    _tell("copied by a full rerun, rows a second", f"{copy_rate:,.0f}; {copying():.0f} MB")
    with _watched(program, idle) as deleting:
        _, delete_rate = _timed(lambda: _deleted(api, job_id, data), rows=2 * COUNT)
    _tell("deleted, rows a second", f"{delete_rate:,.0f}; {deleting():.0f} MB")


def _lines(count: int) -> Iterator[bytes]:
    for start in range(0, count, 5_000):
        yield b"".join(
            b'{"url":"https://shop%d.example/products/%d?page=%d","external_id":"sku-%d"}\n'
            % (n % 97, n, n % 10, n)
            for n in range(start, min(count, start + 5_000))
        )


def _sent(api: httpx.Client, count: int) -> str:
    file_input = api.post("/job_inputs", json={"type": "ndjson"}).raise_for_status().json()
    upload = file_input["upload"]
    httpx.put(
        upload["url"], content=_lines(count), headers=upload["headers"], timeout=600
    ).raise_for_status()
    return str(file_input["file_input_id"])


def _accept_and_stop(api: httpx.Client, file_input_id: str) -> float:
    started = time.perf_counter()
    answer = api.post("/jobs", json={"file_input_id": file_input_id})
    taken = time.perf_counter() - started
    assert answer.status_code == 202, answer.text
    job_id = answer.json()["job_id"]
    api.post(f"/jobs/{job_id}/stop").raise_for_status()
    _until(lambda: _run(api, job_id)["ingest_status"] == "done")
    api.delete(f"/jobs/{job_id}").raise_for_status()
    return taken


def _ingested(
    program: Program, api: httpx.Client, file_input_id: str, count: int, idle: float
) -> tuple[Rate, str]:
    """Take a list in, and read pages of it all the while."""
    with _watched(program, idle) as most:
        started = time.perf_counter()
        job_id = str(api.post("/jobs", json={"file_input_id": file_input_id}).json()["job_id"])
        api.post(f"/jobs/{job_id}/pause").raise_for_status()
        pages: list[float] = []
        while (run := _run(api, job_id))["ingest_status"] != "done":
            pages.append(_page(api, job_id, len(pages) * 997 % max(run["stats"]["total"], 1)))
            time.sleep(SAMPLE_EVERY)
        taken = time.perf_counter() - started
    assert run["stats"]["total"] == count, run
    return Rate(count / taken, _p99(pages), most()), job_id


def _page(api: httpx.Client, job_id: str, after: int) -> float:
    cursor = {"cursor": _cursors.get(job_id, "")} if after % 2 else {}
    started = time.perf_counter()
    page = api.get(f"/jobs/{job_id}/results", params={"limit": 100, **cursor}).json()
    taken = time.perf_counter() - started
    _cursors[job_id] = page["next_cursor"] or ""
    return taken


_cursors: dict[str, str] = {}


def _listed(api: httpx.Client, job_id: str) -> int:
    rows = 0
    cursor: str | None = ""
    while cursor is not None:
        asked: dict[str, Any] = {"limit": 1000, **({"cursor": cursor} if cursor else {})}
        page = msgspec.json.decode(
            api.get(f"/jobs/{job_id}/results", params=asked).raise_for_status().content
        )
        rows += len(page["results"])
        cursor = page["next_cursor"]
    return rows


def _copied(api: httpx.Client, job_id: str) -> None:
    answer = api.post(f"/jobs/{job_id}/rerun")
    assert answer.status_code == 202, answer.text
    assert answer.json()["retried_tasks"] == COUNT
    api.post(f"/jobs/{job_id}/pause").raise_for_status()
    _until(lambda: _run(api, job_id)["ingest_status"] == "done")


def _deleted(api: httpx.Client, job_id: str, data: Path) -> None:
    """Until not a row of it is left."""
    runs = [run["run_id"] for run in api.get(f"/jobs/{job_id}/runs").json()["runs"]]
    api.delete(f"/jobs/{job_id}").raise_for_status()
    connection = apsw.Connection(str(data / "conveyor.db"), flags=apsw.SQLITE_OPEN_READONLY)
    query = "SELECT count(*) FROM run_no WHERE run_id IN (SELECT value FROM json_each(?))"
    wanted = msgspec.json.encode(runs).decode()
    _until(lambda: connection.execute(query, (wanted,)).fetchone() == (0,))
    connection.close()


def _timed(work: Callable[[], Any], *, rows: int = COUNT) -> tuple[Any, float]:
    started = time.perf_counter()
    result = work()
    return result, rows / (time.perf_counter() - started)


@contextmanager
def _watched(program: Program, idle: float) -> Iterator[Callable[[], float]]:
    """The most memory the program held meanwhile, over what it held at rest."""
    over, most = Event(), [program.memory]

    def watch() -> None:
        while not over.wait(SAMPLE_EVERY):
            most.append(program.memory)

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield lambda: max(most) - idle
    finally:
        over.set()
        watcher.join()


def _run(api: httpx.Client, job_id: str) -> dict[str, Any]:
    run: dict[str, Any] = api.get(f"/jobs/{job_id}").raise_for_status().json()["latest_run"]
    return run


def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(SAMPLE_EVERY)


def _p99(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100] * 1000


def _tell(what: str, figure: str, goal: str = "") -> None:
    print(f"  {what:40s} {figure:>24s}   {f'goal: {goal}' if goal else ''}".rstrip())
    sys.stdout.flush()


if __name__ == "__main__":
    main()
