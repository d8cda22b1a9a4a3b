"""File inputs: a file that a caller uploads once and then names in jobs.

The file is kept unchanged for as long as a job may read it again. A file input that no job uses
expires after 24 hours.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from conveyor.domain.ids import CallerId, InputId, JobId
from conveyor.domain.task_list.spec import ListFormat, ListSpec, SourceList
from conveyor.errors import FileInputAlreadyUploaded, IllegalMove

FILE_INPUT_LIFE = timedelta(hours=24)
MOST_JOBS = 1_000  # that read one file input
CONTENT_TYPES = {
    ListFormat.CSV: "text/csv",
    ListFormat.NDJSON: "application/x-ndjson",
    ListFormat.TXT: "text/plain",
}


class FileInput(msgspec.Struct, frozen=True, kw_only=True):
    id: InputId
    caller: CallerId
    spec: ListSpec
    created_at: datetime
    blob: str | None = None  # where the file is, once it was uploaded
    length: int = 0  # of the file as it was sent
    encodings: tuple[str, ...] = ()  # the values of its `Content-Encoding`
    jobs: tuple[JobId, ...] = ()  # that read it, and may do so again
    version: int = 0

    @property
    def expires_at(self) -> datetime:
        return self.created_at + FILE_INPUT_LIFE


def is_open(file_input: FileInput, now: datetime) -> bool:
    """Whether it can still be uploaded to, and named by a new job."""
    return now < file_input.expires_at


def is_over(file_input: FileInput, now: datetime) -> bool:
    """Whether it can be removed: no job reads it, and no new one can name it."""
    return not (file_input.jobs or is_open(file_input, now))


def uploaded(file_input: FileInput, blob: str, length: int, encodings: Sequence[str]) -> FileInput:
    if file_input.blob is not None:
        raise FileInputAlreadyUploaded(
            "A file input accepts one upload, and this one has its file: create another"
        )
    return msgspec.structs.replace(file_input, blob=blob, length=length, encodings=tuple(encodings))


def used_by(file_input: FileInput, job_id: JobId) -> FileInput:
    if file_input.blob is None:
        raise IllegalMove(f"{file_input.id} was not uploaded")
    return msgspec.structs.replace(file_input, jobs=(*file_input.jobs, job_id))


def released_by(file_input: FileInput, job_id: JobId) -> FileInput:
    """The file input after a job that read it was deleted."""
    jobs = tuple(job for job in file_input.jobs if job != job_id)
    return msgspec.structs.replace(file_input, jobs=jobs)


def upload_key(file_input: FileInput, nonce: str) -> str:
    """The key of one upload. The nonce keeps concurrent uploads apart."""
    return f"inputs/{file_input.id}/{nonce}"


def source_list_of(file_input: FileInput, *, compressed: bool, strict: bool) -> SourceList:
    """The file as a job keeps it."""
    if file_input.blob is None:
        raise IllegalMove(f"{file_input.id} was not uploaded")
    return SourceList(
        blob=file_input.blob,
        spec=file_input.spec,
        encodings=file_input.encodings,
        compressed=compressed,
        file_input_id=file_input.id,
        strict=strict,
    )
