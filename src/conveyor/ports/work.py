"""Work: the dispatcher claims tasks under leases, renews the leases and settles the tasks."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Settlement, Task
from conveyor.errors import Unavailable

# Bytes of texts (`size_of`) that one claim returns. Other writes of the engine wait meanwhile.
CLAIM_BYTES = 4 * 1024 * 1024


class Held(msgspec.Struct, frozen=True, gc=False):
    """A claim that a worker holds."""

    run_id: RunId
    task_id: TaskId
    claim_no: int


class Released(Held, frozen=True, gc=False):
    """A claim that was released."""

    failed: bool  # its task, which had lost too many workers


class PartlyRenewed(Unavailable):
    """Some leases could not be extended. All others were, except those of the claims that fell."""

    def __init__(self, why: str, *, fallen: Collection[Held], unknown: Collection[Held]) -> None:
        super().__init__(why)
        self.fallen, self.unknown = fallen, unknown


class Work(Protocol):
    """Claims of tasks. `claim`, `renew`, `settle` and `release` of `domain/task.py` define them.

    Adapters may implement these rules in SQL: the contract tests compare them with the domain.

    A run is open from its first row until it is closed. The engine is opened with the length of a
    lease and with the name of the process. Number and holder fence a task: only the latest claim,
    by the process that made it, can renew or settle it.

    Each task is changed in one atomic step; a call with several tasks may change some of them and
    then raise. Every method raises `Unavailable`; a call that raised may be repeated.
    """

    async def close(self, run_id: RunId) -> None:
        """Allow no further claims of a run. Its live claims may still be renewed and settled.

        A closed run stays closed.
        """
        ...

    async def enqueue(self, run_id: RunId, task_ids: Sequence[TaskId]) -> None:
        """Send messages for rows that were added to the run.

        An engine whose rows are its queue does nothing. The call may be repeated: a task whose
        message is delivered twice is claimed once.
        """
        ...

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        """Claim up to the given number of due tasks of each open run.

        Of the tasks that were claimed before, the longest due come first. An engine whose rows are
        its queue may give them before the others.
        No two callers get the same claim. A task whose lease has lapsed is due too. Tasks are
        returned `as_claimed`.

        The result may include final tasks: a task that lost too many workers, which this call
        failed and counted, or a task whose message was delivered again, `as_redelivered`. For
        these the dispatcher only checks whether the run is complete, and calls `ack`.

        The call may return fewer tasks than are due. It returns at most twice `CLAIM_BYTES`, plus
        the first task of each run, which may have any size. An engine that claims runs
        concurrently may exceed that by `CLAIM_BYTES` for each of them.
        """
        ...

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        """Extend the leases of claims that still hold their tasks; return the other claims.

        The dispatcher stops the calls of the claims that are returned. An engine that renews claims
        one by one raises `PartlyRenewed` if it failed for some of them.
        """
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        """End claims with their decisions, and return for each whether it was written.

        The row, its history line, the counts and the failure groups of its run are written in one
        atomic step for each task. False means that the claim no longer held its task, and nothing
        was written. So a settle that is repeated after it took effect returns False. The messages
        of tasks that are now final stay until `ack`.
        """
        ...

    async def ack(self, final: Sequence[Held]) -> None:
        """Delete the messages of final tasks, after their runs were checked for completion.

        The caller passes all claims that it settled. Those whose tasks are not final are ignored:
        the message of a task that is due again must stay.

        This must come last. If a worker dies before it, the message is delivered again, and the
        worker that receives it makes the check. An engine whose rows are its queue does nothing.
        """
        ...

    async def release_lapsed(
        self, run_id: RunId, *, overdue: timedelta, limit: int
    ) -> Sequence[Released]:
        """Release at most `limit` claims of a run whose lease ended at least `overdue` ago.

        Return the claims that were released.

        Each release writes the row, its history line and, if the release fails the task, its count
        and its failure group in one atomic step. Claims of closed runs are released too.

        This is for the sweeper: a dispatcher takes lapsed claims over without it. A negative
        `overdue` also ends leases that have not lapsed. A process uses it at its start, when it
        knows that the holders are dead.
        """
        ...
