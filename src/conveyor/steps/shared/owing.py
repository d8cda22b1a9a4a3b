"""What is owed to the outside when a run ends: written in the commit that ends it, sent afterwards.

The steps that end runs share it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conveyor.domain import notice, step_functions
from conveyor.domain.counts import ZERO, Counts
from conveyor.domain.ids import EventId
from conveyor.domain.job import Job
from conveyor.domain.outbox import Channel, EventType, OutboxEvent
from conveyor.domain.run import Run, RunStatus
from conveyor.ports.clock import Ids

# How runs end that their webhook is told of: a stop or a delete is the caller's own doing.
TOLD = {RunStatus.COMPLETED: EventType.RUN_COMPLETED, RunStatus.FAILED: EventType.RUN_FAILED}


def _nobody() -> None:
    """Nobody sends here: whoever does finds what is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owing:
    ids: Ids
    wake: Callable[[], None] = _nobody  # whoever sends

    def at_end(self, job: Job | None, run: Run, settled: Counts) -> list[OutboxEvent]:
        """What is owed for a run as it ended, to be written in the same commit as its end.

        The job is to be read after the run: whoever changes where its news go commits the live
        run too, so that an end which read the job before that is stale, and reads both again.
        """
        return [*self._webhook(job, run, settled), *self._token(job, run, settled)]

    def at_stop(self, run: Run) -> list[OutboxEvent]:
        """The same for a run that was stopped or deleted: only its token is told."""
        return self._token(None, run, ZERO)

    def announce(self, events: Sequence[OutboxEvent]) -> None:
        """What is owed is written: have it sent at once."""
        if events:
            self.wake()

    def _token(self, job: Job | None, run: Run, settled: Counts) -> list[OutboxEvent]:
        if not run.encrypted_token:
            return []
        return [step_functions.end_of(job, run, settled, EventId(self.ids.new()))]

    def _webhook(self, job: Job | None, run: Run, settled: Counts) -> list[OutboxEvent]:
        kind = TOLD.get(run.status)
        if kind is None or job is None or job.webhook is None or job.webhook.disabled_at:
            return []
        event_id = EventId(self.ids.new())
        return [
            OutboxEvent(
                id=event_id,
                caller=job.caller,
                job_id=job.id,
                run_id=run.id,
                channel=Channel.WEBHOOK,
                type=kind,
                occurred_at=run.updated_at,
                payload=notice.of_run(job, run, settled, event_id, kind),
                due_at=run.updated_at,
            )
        ]
