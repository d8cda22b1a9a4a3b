"""A delete: the row that records it, and the message that purges what was deleted."""

from datetime import datetime, timedelta

import msgspec

from conveyor.domain.control_queue import ControlMessage
from conveyor.domain.ids import CallerId, JobId, RunId

PURGE = "purge"  # the kind of message that removes what was deleted
TOMBSTONE_LIFE = timedelta(hours=24)  # how long a repeated delete is answered like the first


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted job, or one deleted run of a job, whose data must be purged.

    The delete itself stores it. When everything is purged it stays, with the tombstone, for a day.
    """

    id: str  # of the deleted run or job
    job_id: JobId
    sent_at: datetime  # when its message was last sent
    run_id: RunId | None = None
    done_at: datetime | None = None
    version: int = 0


def purge_message(deletion: Deletion, caller: CallerId | None) -> ControlMessage:
    return ControlMessage(
        kind=PURGE, subject=deletion.id, caller=caller or "", payload={"id": deletion.id}
    )
