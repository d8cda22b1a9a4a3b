"""A slot for one list: asked for, filled once, read by the jobs that name it.

The list is where its slot says, and stays there unchanged for as long as a job may read it again.
A slot that no job uses is gone after a day.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from conveyor.domain.ids import CallerId, InputId, JobId
from conveyor.domain.list_shape import ListKind, ListSpec
from conveyor.domain.pinned import PinnedList
from conveyor.errors import FileInputAlreadyUploaded, IllegalMove

SLOT_LIFE = timedelta(hours=24)
MOST_JOBS = 1_000  # that read one list
CONTENT_TYPES = {
    ListKind.CSV: "text/csv",
    ListKind.NDJSON: "application/x-ndjson",
    ListKind.TXT: "text/plain",
}


class FileInput(msgspec.Struct, frozen=True, kw_only=True):
    id: InputId
    caller: CallerId
    spec: ListSpec
    created_at: datetime
    blob: str | None = None  # where the list is, once it has come
    length: int = 0  # of the list as it was sent
    encodings: tuple[str, ...] = ()  # what its `Content-Encoding` said
    jobs: tuple[JobId, ...] = ()  # that read it, and may do so again
    version: int = 0

    @property
    def expires_at(self) -> datetime:
        return self.created_at + SLOT_LIFE


def is_open(slot: FileInput, now: datetime) -> bool:
    """Whether it can still be filled, and named by a new job."""
    return now < slot.expires_at


def is_over(slot: FileInput, now: datetime) -> bool:
    """Whether nobody can have a use for it any more."""
    return not (slot.jobs or is_open(slot, now))


def filled(slot: FileInput, blob: str, length: int, encodings: Sequence[str]) -> FileInput:
    if slot.blob is not None:
        raise FileInputAlreadyUploaded(
            "A slot takes one list, and this one has it; ask for another"
        )
    return msgspec.structs.replace(slot, blob=blob, length=length, encodings=tuple(encodings))


def used_by(slot: FileInput, job_id: JobId) -> FileInput:
    if slot.blob is None:
        raise IllegalMove(f"the list of {slot.id} has not come")
    return msgspec.structs.replace(slot, jobs=(*slot.jobs, job_id))


def let_go(slot: FileInput, job_id: JobId) -> FileInput:
    """The slot after a job that read it was deleted."""
    return msgspec.structs.replace(slot, jobs=tuple(job for job in slot.jobs if job != job_id))


def list_blob(slot: FileInput, nonce: str) -> str:
    """Where a list on its way in is kept: two at the same time do not meet."""
    return f"inputs/{slot.id}/{nonce}"


def pinned_input(slot: FileInput, *, packed: bool, strict: bool) -> PinnedList:
    """The list of a slot, as a job keeps it."""
    if slot.blob is None:
        raise IllegalMove(f"the list of {slot.id} has not come")
    return PinnedList(
        blob=slot.blob,
        spec=slot.spec,
        encodings=slot.encodings,
        packed=packed,
        input_id=slot.id,
        strict=strict,
    )
