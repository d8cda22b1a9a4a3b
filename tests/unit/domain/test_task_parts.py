"""A task in parts: the hot part is small, and nothing is lost."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from conveyor.domain.counts import Spend
from conveyor.domain.failure import FailureReason
from conveyor.domain.page_facts import PageFacts
from conveyor.domain.problem import encoded, problem
from conveyor.domain.task import Attempt, StoredBody, Task, TaskStatus
from conveyor.domain.task_parts import (
    ELSEWHERE,
    HOT_BYTES,
    MOST_LINES,
    SHORT_DETAIL,
    TaskParts,
    hot_size,
    in_short,
    joined,
    split,
)
from conveyor.testing.clock import NOON
from conveyor.testing.factories import JOB, RUN, a_task_spec, new_tasks

LENGTHS = st.sampled_from([0, 1, 60, 150, 390, 5_000])


def a_task(spec: int = 0, detail: int = 0, final_url: int = 0) -> Task:
    [new] = new_tasks(RUN, 1)
    return Task(
        run_id=RUN,
        id=new.id,
        index=10_000_000,
        spec=a_task_spec(metadata="ü" * (spec // 2) if spec else None, method="POST"),
        created_at=NOON,
        updated_at=NOON,
        due_at=NOON,
        claimed_at=NOON,
        scraped_at=NOON,
        holder=JOB,
        status=TaskStatus.FAILED,
        claim_no=1_000,
        attempts=100,
        lost=9,
        result=StoredBody(
            locator="l" * 120,
            length=2**31,
            checksum="c" * 64,
            format="html",
            content_type="text/html; charset=utf-8",
        ),
        problem=a_problem(detail) if detail else None,
        reason=FailureReason.GATEWAY_ERROR,
        facts=PageFacts(
            http_status=200,
            duration_ms=180_000,
            final_url=f"https://example.com/{'u' * final_url}" if final_url else None,
        ),
        source_run_id=RUN,
    )


def a_problem(detail: int) -> str:
    return encoded(problem(status=422, code="RESP001", detail="ü" * (detail // 2 + 1)))


def a_line(number: int, detail: int) -> Attempt:
    return Attempt(
        attempt=number,
        started_at=NOON,
        ended_at=NOON + timedelta(seconds=number),
        problem=a_problem(detail) if detail else None,
        spend=Spend(25, 10**9),
        http_status=503,
        duration_ms=180_000,
    )


@given(
    spec=LENGTHS,
    detail=LENGTHS,
    final_url=LENGTHS,
    lines=st.lists(LENGTHS, max_size=100),
)
def test_the_hot_part_fits_and_the_parts_make_the_whole(
    spec: int, detail: int, final_url: int, lines: list[int]
) -> None:
    task = a_task(spec, detail, final_url)
    history = [a_line(number, length) for number, length in enumerate(lines, 1)]

    parts = split(task, history)

    assert hot_size(parts) <= HOT_BYTES
    assert len(parts.lines) <= MOST_LINES
    assert joined(parts) == (task, history)


def test_a_small_task_is_all_hot() -> None:
    task, history = a_task(100), [a_line(1, 0), a_line(2, 20)]
    assert split(task, history) == TaskParts(hot=task, lines=dict(enumerate(history)))


@pytest.mark.parametrize("part", ["spec", "problem", "final_url"])
def test_only_what_is_large_is_beside(part: str) -> None:
    large = {
        "spec": a_task(spec=5_000),
        "problem": a_task(detail=5_000),
        "final_url": a_task(0, 0, 999),
    }

    parts = split(large[part], [])

    beside = {"spec": parts.spec, "problem": parts.problem, "final_url": parts.final_url}
    assert [name for name, value in beside.items() if value is not None] == [part]


def test_a_hot_part_whose_spec_is_beside_shows_none() -> None:
    assert split(a_task(5_000), []).hot.spec == ELSEWHERE


def test_the_newest_lines_are_in_the_hot_part() -> None:
    parts = split(a_task(), [a_line(number, 0) for number in range(1, 21)])

    newest = max(parts.lines)
    assert newest == 19
    assert set(parts.lines) == set(range(newest - len(parts.lines) + 1, newest + 1))


def test_a_long_problem_is_told_in_short() -> None:
    whole = encoded(problem(status=422, code="RESP001", detail="ü" * 1_000, instance="/there"))

    told = msgspec.json.decode(in_short(whole))

    assert (told["status"], told["code"]) == (422, "RESP001")
    assert told["detail"] == "ü" * (SHORT_DETAIL // 2)


@pytest.mark.parametrize(
    "text", ['{"status": "x", "code": 7}', '{"status": 10000000000000000}', "{}", "[]", "no JSON"]
)
def test_a_strange_problem_is_told_in_short_too(text: str) -> None:
    assert len(in_short(text)) < 300


def test_a_split_can_be_split_again() -> None:
    task = replace(a_task(5_000, 5_000, 5_000), attempts=1)
    whole, _ = joined(split(task, []))
    assert split(whole, []) == split(task, [])
