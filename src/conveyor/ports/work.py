"""What the dispatcher sees of an engine: take tasks, keep them, settle them."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import msgspec

from conveyor.domain.ids import RunId, TaskId
from conveyor.domain.task import Settlement, Task

# Bytes of texts (`size_of`) that one claim gives: others wait for the engine meanwhile.
CLAIM_BYTES = 4 * 1024 * 1024


class Held(msgspec.Struct, frozen=True, gc=False):
    """Which claim a worker holds."""

    run_id: RunId
    task_id: TaskId
    claim_no: int


class Work(Protocol):
    """Claims of tasks, as the domain's `claim`, `renew` and `settle` describe them.

    A run is open from its first row on, until it is closed. The lease's length is the engine's,
    given when it is opened. Raises `Unavailable`; a call that raised may be repeated.
    """

    async def open(self, run_id: RunId) -> None:
        """Let a closed run's tasks be claimed again. Repeating it changes nothing."""
        ...

    async def close(self, run_id: RunId) -> None:
        """Let none of the run's tasks be claimed from now on. Claims that stand may settle."""
        ...

    async def enqueue(self, run_id: RunId, task_ids: Sequence[TaskId]) -> None:
        """Say that rows exist and may be due, after they were added.

        An engine whose rows are its queue has nothing to do. Repeating it does no harm.
        """
        ...

    async def claim(self, wants: Mapping[RunId, int]) -> Sequence[Task]:
        """Take up to so many due tasks of each open run, the longest due first.

        No two callers get the same claim. A task whose lease lapsed is due too. Among what is
        given may be tasks that are final: one that lost a worker too many and was failed and
        counted by this call, or one of which a message came round again. There is nothing to do
        for those but to check whether their run is complete, and to `ack` them. Tasks are
        `as_claimed`. May give fewer than there are: of many that are large no more than
        twice `CLAIM_BYTES`, beside the first of each run, which may be of any size.
        """
        ...

    async def renew(self, held: Sequence[Held]) -> Sequence[Held]:
        """Lengthen the leases of claims that still stand; give back those that do not."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        """End claims with their decisions, each with its history line and its run's counts.

        One atomic step for each task; messages of tasks that are final now stay until `ack`. False where the claim no longer held its task, and then
        nothing was written for it. Repeating a settle that took effect gives False and changes
        nothing.
        """
        ...

    async def ack(self, final: Sequence[Held]) -> None:
        """Forget the messages of final tasks, after their runs were checked for completion.

        Last of all, so that whoever dies before it leaves a message that brings the check about
        again. An engine whose rows are its queue has nothing to do.
        """
        ...

    async def release_lapsed(self, *, overdue: timedelta, limit: int) -> Sequence[Held]:
        """Make tasks claimable whose lease ran out at least `overdue` ago and that nobody took.

        As the domain's `release`, with its history line and, for a task failed by it, its
        count. Tasks of closed runs are freed too: they are nobody's, though no one may claim
        them. Gives the claims that ended so. For the sweeper: a dispatcher that is alive takes
        lapsed claims over by itself. A negative `overdue` ends leases that still run, for who
        knows that their holders are dead.
        """
        ...
