"""A list of tasks on its way into rows, and the answer owed to a repeated call."""

from datetime import datetime, timedelta

import msgspec

from conveyor.domain.ids import CallerId, JobId, RunId

REPLAY_LIFE = timedelta(hours=24)


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A staged list whose rows are promised: its run's total already counts them.

    It is stored before its rows and removed after them, so whoever finds one finds unfinished
    work, and can finish it: line n of the list becomes the row with index `first + n`.
    """

    run_id: RunId
    job_id: JobId
    first: int
    count: int
    blob: str
    created_at: datetime
    written: int = 0  # lines whose rows exist: where a new ingester goes on
    version: int = 0


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the first call with an idempotency key, to be given again to the byte."""

    caller: CallerId
    key: str
    fingerprint: bytes
    status: int
    body: bytes
    expires_at: datetime
