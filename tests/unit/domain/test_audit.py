"""Accounts of a run that moves while its rows are read."""

from conveyor.domain.audit import Ledger, RunSnapshot
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.run import RunStatus
from conveyor.domain.task import TaskStatus
from conveyor.testing.factories import a_run, a_task

DONE = Counts(successful=1)


def test_a_run_that_completes_while_its_rows_are_read_is_not_complained_of() -> None:
    before = RunSnapshot(a_run(last_batch_received=True), ZERO, [])
    after = RunSnapshot(a_run(status=RunStatus.COMPLETED, frozen=DONE), DONE, [])
    ledger = Ledger()
    ledger.add([a_task(status=TaskStatus.PROCESSING)])

    assert list(ledger.faults(before, after)) == []
    assert [code for code, _ in ledger.faults(after, after)][-1] == "unfinished_row"
