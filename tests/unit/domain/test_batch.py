"""A list on its way into rows: how it is written down, where it lies, and who finishes it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.domain import batch as batch_rules
from conveyor.domain.batch import INGEST, LINES_AT_A_TIME, ingest_message, lines, list_key
from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.task import TaskSpec
from conveyor.testing.factories import JOB, OTHER_RUN, RUN, a_batch, a_task_spec

texts = st.text(max_size=20)
specs = st.builds(
    TaskSpec,
    url=texts,
    method=st.sampled_from(["GET", "POST"]),
    external_id=st.none() | texts,
    metadata=st.none() | texts,
    params=st.none() | texts,
    body=st.none() | texts,
)


def read(content: bytes) -> list[TaskSpec]:
    """As an ingester reads a list: one line, one task."""
    return [msgspec.json.decode(line, type=TaskSpec) for line in content.splitlines()]


@given(tasks=st.lists(specs, max_size=12))
def test_what_is_written_as_lines_is_read_back_in_order(tasks: list[TaskSpec]) -> None:
    assert read(b"".join(lines(tasks))) == tasks


@given(tasks=st.lists(specs, max_size=12))
def test_every_task_is_one_line_with_its_end(tasks: list[TaskSpec]) -> None:
    """Whatever stands in a URL: an ingester goes on from a byte where a line begins."""
    content = b"".join(lines(tasks))
    assert content.count(b"\n") == len(tasks)
    assert content.endswith(b"\n") or not tasks


@pytest.mark.parametrize(
    ("count", "portions"),
    [(0, []), (1, [1]), (4, [4]), (5, [4, 1]), (8, [4, 4]), (9, [4, 4, 1])],
)
def test_lines_come_in_portions_that_lose_and_repeat_nothing(
    monkeypatch: pytest.MonkeyPatch, count: int, portions: list[int]
) -> None:
    monkeypatch.setattr(batch_rules, "LINES_AT_A_TIME", 4)
    tasks = [a_task_spec(url=f"https://example.com/{n}") for n in range(count)]

    chunks = list(lines(tasks))

    assert [len(read(chunk)) for chunk in chunks] == portions
    assert read(b"".join(chunks)) == tasks


def test_a_portion_is_large_enough_to_be_worth_a_write_and_small_enough_to_hold() -> None:
    tasks = [a_task_spec()] * (LINES_AT_A_TIME + 1)
    assert [chunk.count(b"\n") for chunk in lines(tasks)] == [LINES_AT_A_TIME, 1]


def test_a_portion_of_long_lines_is_bounded_in_bytes() -> None:
    tasks = [a_task_spec(body='"' + "x" * 60_000 + '"')] * 100
    chunks = list(lines(tasks))
    assert max(map(len, chunks)) < batch_rules.BYTES_AT_A_TIME + 70_000
    assert read(b"".join(chunks)) == tasks


def test_what_was_not_asked_for_takes_no_room_in_a_line() -> None:
    assert list(lines([TaskSpec(url="https://a.example/")])) == [b'{"url":"https://a.example/"}\n']


def test_a_list_lies_under_its_job_and_its_run() -> None:
    assert list_key(JobId("j"), RunId("r"), "0") == "lists/j/r/0.ndjson"


def test_lists_never_share_a_place() -> None:
    places = {
        list_key(job_id, run_id, name)
        for job_id in (JOB, JobId("other"))
        for run_id in (RUN, OTHER_RUN)
        for name in ("0", "1")
    }
    assert len(places) == 8


def test_the_message_that_finishes_a_batch_names_it_and_how_far_it_was() -> None:
    payload = {"run_id": RUN, "first": "70", "version": "3"}
    batch = a_batch(run_id=RUN, first=70, version=3)
    assert ingest_message(batch, CallerId("me")) == ControlMessage(
        kind=INGEST, subject=f"{RUN}/70", caller="me", payload=payload
    )


def test_a_new_batch_has_nothing_written() -> None:
    batch = a_batch()
    assert (batch.written, batch.read, batch.version) == (0, 0, 0)
