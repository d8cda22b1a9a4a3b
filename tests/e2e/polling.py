"""Waiting for what a real process does, by asking it, within a bound."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from threading import Event
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from tests.harness.programs import Program

T = TypeVar("T")
# Seconds. Asking costs the service and the test about 5 ms of CPU, which others need.
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.2


def until(ask: Callable[[], T | None], *, within: float = 200.0) -> T:
    """The first answer that is not None or False."""
    deadline = time.monotonic() + within
    pause = FIRST_PAUSE
    while time.monotonic() < deadline:
        answer = ask()
        if answer:
            return answer
        time.sleep(pause)
        pause = min(pause * 1.2, LONGEST_PAUSE)
    raise AssertionError(f"did not happen within {within:.0f} s")


def ended(api: httpx.Client, job_id: str, *, within: float = 200.0) -> dict[str, Any]:
    """The job's run once it is over."""

    def ask() -> dict[str, Any] | None:
        run: dict[str, Any] = api.get(f"/jobs/{job_id}").raise_for_status().json()["latest_run"]
        return None if run["status"] in {"running", "pending"} else run

    return until(ask, within=within)


def every_row(api: httpx.Client, job_id: str, **query: str) -> list[dict[str, Any]]:
    """All results of a job's latest run, page by page."""
    rows: list[dict[str, Any]] = []
    cursor = None
    while True:
        asked = {**query, **({"cursor": cursor} if cursor else {})}
        page = api.get(f"/jobs/{job_id}/results", params=asked).raise_for_status().json()
        rows += page["results"]
        cursor = page["next_cursor"]
        if cursor is None:
            return rows


@contextmanager
def waits(program: Program, *, pause: float = 0.01) -> Iterator[list[float]]:
    """How long /healthz takes, asked again and again.

    A wait counts as long as the process was running in it: on a busy machine the rest of it
    is other programs' turn.
    """
    took, done = list[float](), Event()

    def ask() -> None:
        address = urlsplit(program.url)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=200)
        while not done.wait(pause):
            began, worked = time.perf_counter(), program.cpu
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            took.append(min(time.perf_counter() - began, program.cpu - worked))
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield took
        finally:
            done.set()
            asking.result()
