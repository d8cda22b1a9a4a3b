"""A caller who does, without a pause, what an ordinary API allows and a service dreads.

Each attack is a loop in a process of its own. It ignores every answer: refusals are expected, and
whether they are the right ones is tested elsewhere. What matters here is what others notice.
"""

import gzip
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx

MIB = 1024 * 1024
SIDE_BY_SIDE = 4
ROWS = 2_000
ROW_BYTES = 60 * 1024  # just below what one task may hold


def heavy_rows(api: httpx.Client) -> None:
    """Rows at the size limit, copied by reruns, listed, and exported."""
    padding = "x" * ROW_BYTES
    row = (
        '{"url": "https://slow.example/%d?ms=5000", "zenrows_params": {"js_instructions": "%s"}}\n'
    )
    job_id = _submit_list(
        api, "ndjson", ((row % (number, padding)).encode() for number in range(ROWS))
    )
    if job_id is None:
        return
    for _ in range(5):
        api.get(f"/jobs/{job_id}/results", params={"limit": 1000})
        api.post(f"/jobs/{job_id}/stop")
        api.post(f"/jobs/{job_id}/rerun")
        run = api.get(f"/jobs/{job_id}").json().get("latest_run", {})
        api.post(f"/jobs/{job_id}/runs/{run.get('run_id')}/exports")
    api.post(f"/jobs/{job_id}/stop")
    api.delete(f"/jobs/{job_id}")


def tiny_members(api: httpx.Client) -> None:
    """Bodies of 50 MiB that decode to millions of objects."""
    members = b",".join(b'"%d":""' % number for number in range(1000))
    task = b'{"url":"https://ok.example/","metadata":{%s}}' % members
    body = b'{"tasks":[%s]}' % b",".join([task] * (50 * MIB // len(task)))
    _side_by_side(lambda _: api.post("/jobs", content=body))


def long_name(api: httpx.Client) -> None:
    """A field whose name is 60 MB long."""
    api.post("/jobs", content=b'{"%s": 1}' % (b"tasks" * (12 * MIB)))


def blank_lines(api: httpx.Client) -> None:
    """Lists that hold nothing but line ends, 400 MiB of them once unpacked."""
    _side_by_side(lambda _: _submit_list(api, "txt", [b"\n" * MIB] * 400))


def long_lists(api: httpx.Client) -> None:
    """Honest lists, long ones, several at once, deleted as soon as they are accepted."""

    def submit(number: int) -> None:
        rows = (b"https://ok.example/%d/%d\n" % (number, row) for row in range(300_000))
        if job_id := _submit_list(api, "txt", rows):
            api.delete(f"/jobs/{job_id}")

    _side_by_side(submit)


ATTACKS: dict[str, Callable[[httpx.Client], None]] = {
    "heavy_rows": heavy_rows,
    "tiny_members": tiny_members,
    "long_name": long_name,
    "blank_lines": blank_lines,
    "long_lists": long_lists,
}


def _side_by_side(do: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for done in [pool.submit(do, number) for number in range(SIDE_BY_SIDE)]:
            with suppress(httpx.HTTPError):
                done.result()


def _submit_list(api: httpx.Client, kind: str, lines: Iterator[bytes] | list[bytes]) -> str | None:
    answer = api.post("/job_inputs", json={"type": kind})
    if answer.status_code != 201:
        return None
    file_input = answer.json()
    content = gzip.compress(b"".join(lines), compresslevel=1, mtime=0)
    httpx.put(
        file_input["upload"]["url"],
        content=content,
        headers=file_input["upload"]["headers"],
        timeout=60,
    )
    job = {"file_input_id": file_input["file_input_id"], "max_inflight": 5}
    answer = api.post("/jobs", json=job)
    return str(answer.json()["job_id"]) if answer.is_success else None


def main(name: str, url: str, key: str, seconds: str) -> None:
    """Attack until the time is over, however it is received."""
    os.nice(10)  # an attacker does not share the service's machine, and here it must
    deadline = time.monotonic() + float(seconds)
    with httpx.Client(base_url=url, headers={"X-API-Key": key}, timeout=60) as api:
        while time.monotonic() < deadline:
            with suppress(httpx.HTTPError):
                ATTACKS[name](api)


if __name__ == "__main__":
    main(*sys.argv[1:])
