"""A job's life: open, closed, deleted, and never back."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from conveyor.domain import job as job_rules
from conveyor.domain.ids import CallerId, JobId, RunId
from conveyor.domain.job import MOVES, Job, JobStatus
from conveyor.errors import IllegalMove

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)

ACTIONS: dict[JobStatus, Callable[[Job, datetime], Job]] = {
    JobStatus.CLOSED: job_rules.close,
    JobStatus.DELETED: job_rules.delete,
}


def a_job(status: JobStatus) -> Job:
    return Job(
        id=JobId("01HYYYYYYYYYYYYYYYYYYYYYYY"),
        caller=CallerId("someone"),
        status=status,
        format="html",
        latest_run_id=RunId("01HZZZZZZZZZZZZZZZZZZZZZZZ"),
        encrypted_gateway_key=b"encrypted",
        created_at=NOW,
        updated_at=NOW,
    )


@pytest.mark.parametrize("start", JobStatus)
@pytest.mark.parametrize("end", sorted(ACTIONS))
def test_each_action_makes_its_move_where_it_is_listed_and_nowhere_else(
    start: JobStatus, end: JobStatus
) -> None:
    if end in MOVES[start]:
        moved = ACTIONS[end](a_job(start), LATER)
        assert (moved.status, moved.updated_at) == (end, LATER)
        assert moved.created_at == NOW
    else:
        with pytest.raises(IllegalMove, match=f"{start} -> {end}"):
            ACTIONS[end](a_job(start), LATER)


def test_no_move_leads_back() -> None:
    order = list(JobStatus)
    assert set(MOVES) == set(order)
    for start, ends in MOVES.items():
        assert all(order.index(end) > order.index(start) for end in ends)


def test_a_job_does_as_the_service_does_unless_told_otherwise() -> None:
    job = a_job(JobStatus.OPEN)
    assert (job.max_inflight, job.retries, job.result_ttl_days) == (100, 3, 14)
