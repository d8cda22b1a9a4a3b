"""Accounts of a run that moves while its rows are read."""

import msgspec
import pytest

from conveyor.domain import audit
from conveyor.domain.audit import Ledger, RunSnapshot, row_faults
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import FailureGroup
from conveyor.domain.ids import TaskId, task_ids
from conveyor.domain.run import IngestStatus, RunStatus
from conveyor.domain.task import Task, TaskStatus
from conveyor.domain.task_list.spec import SourceList
from conveyor.testing.factories import a_batch, a_problem, a_run, a_task, a_task_spec

DONE = Counts(successful=1)


def test_a_run_that_completes_while_its_rows_are_read_is_not_complained_of() -> None:
    before = RunSnapshot(a_run(last_batch_received=True), ZERO, [])
    after = RunSnapshot(a_run(status=RunStatus.COMPLETED, frozen=DONE), DONE, [])
    ledger = Ledger()
    ledger.add([a_task(status=TaskStatus.PROCESSING)])

    assert list(ledger.faults(before, after)) == []
    assert [code for code, _ in ledger.faults(after, after)][-1] == "unfinished_row"


def test_rows_of_a_list_may_be_ahead_of_their_run_while_it_is_read() -> None:
    run = a_run(total=1, next_index=1, ingest_status=IngestStatus.PENDING)
    at_work = RunSnapshot(run, ZERO, [a_batch(source_list=SourceList(blob="list"))])
    rows = [a_task(index=index, id=task_ids(run.id)(index)) for index in (0, 1)]
    ledger = Ledger()
    ledger.add(rows)

    assert list(row_faults(run, rows[1], [])) == []
    assert list(ledger.faults(at_work, at_work)) == []

    read = msgspec.structs.replace(run, ingest_status=IngestStatus.DONE)
    at_rest = RunSnapshot(read, ZERO, [])
    assert [code for code, _ in row_faults(read, rows[1], [])] == ["wrong_index"]
    assert "rows_too_many" in [code for code, _ in ledger.faults(at_rest, at_rest)]


def a_failed_task(host: str) -> Task:
    return a_task(
        spec=a_task_spec(url=f"https://{host}/"),
        status=TaskStatus.FAILED,
        problem=a_problem("RESP001"),
        reason=FailureReason.BLOCKED,
        due_at=None,
    )


def groups(**counts: int) -> list[FailureGroup]:
    """Groups of blocked tasks by host; `other` has none."""
    return [
        FailureGroup(
            host="" if host == "other" else host,
            reason=FailureReason.BLOCKED,
            code="other" if host == "other" else "RESP001",
            count=count,
            example=TaskId("example"),
        )
        for host, count in counts.items()
    ]


def differing(
    hosts: str, before: list[FailureGroup], after: list[FailureGroup] | None = None
) -> list[str]:
    """What is said about groups when the failed rows have these hosts, one letter each."""
    ledger = Ledger(before)
    ledger.add([a_failed_task(host) for host in hosts])
    first, second = (
        RunSnapshot(a_run(), Counts(blocked=len(hosts)), [], failures)
        for failures in (before, before if after is None else after)
    )
    return [what for code, what in ledger.faults(first, second) if code == "failure_group_differs"]


@pytest.mark.parametrize(
    ("hosts", "before", "after"),
    [
        ("", {}, {}),
        ("aab", {"a": 2, "b": 1}, None),
        ("aab", {"a": 1}, {"a": 2, "b": 1}),
        ("aab", {"a": 1, "b": 1}, {"a": 9, "b": 1, "c": 1}),
        ("aabcc", {"a": 2, "other": 3}, None),
        ("aab", {"a": 1, "other": 2}, None),  # of two writers, one had no room for the group
    ],
)
def test_groups_that_the_rows_bear_out_are_well(
    hosts: str, before: dict[str, int], after: dict[str, int] | None
) -> None:
    later = None if after is None else groups(**after)
    assert differing(hosts, groups(**before), later) == []


@pytest.mark.parametrize(
    ("hosts", "counted"),
    [
        ("aab", {"a": 3}),
        ("aab", {"a": 2}),
        ("aab", {"a": 2, "b": 1, "c": 1}),
        ("aab", {"b": 2, "a": 1}),
        ("aab", {"a": 2, "other": 2}),
        ("aab", {"other": 2}),
        ("", {"a": 1}),
    ],
)
def test_groups_that_the_rows_do_not_bear_out_are_told(hosts: str, counted: dict[str, int]) -> None:
    assert differing(hosts, groups(**counted))


def test_a_difference_names_host_reason_and_code() -> None:
    [one, other] = differing("aa", groups(a=3))
    assert one == "2 of its rows failed at a for `blocked` with code 'RESP001', and 3 were counted"
    assert other == "2 of its rows failed for `blocked`, and its groups count 3"


def test_sums_by_group_are_bounded_and_still_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_GROUPS", 1)
    assert differing("cdefa", groups(a=1, other=4)) == []
    assert differing("cdefaa", groups(a=1, other=4)) != []
