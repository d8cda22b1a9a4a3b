"""Waiting for what a real process does, by asking it, within a bound."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

T = TypeVar("T")


def until(ask: Callable[[], T | None], *, within: float = 100.0) -> T:
    """The first answer that is not None or False."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"did not happen within {within:.0f} s")


def ended(api: httpx.Client, job_id: str, *, within: float = 100.0) -> dict[str, Any]:
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
