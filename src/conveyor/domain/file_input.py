"""File inputs: a file that a caller uploads once and then names in jobs.

The file is kept unchanged for as long as a job may read it again. A file input that no job uses
expires after 24 hours.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from conveyor.domain.ids import CallerId, InputId, JobId
from conveyor.domain.task_list.spec import ListFormat, ListSpec, SourceList
from conveyor.errors import (
    FileInputAlreadyUploaded,
    FileInputNotUploaded,
    IllegalMove,
    TooLarge,
)

FILE_INPUT_LIFE = timedelta(hours=24)
UPLOAD_LIFE = timedelta(minutes=30)  # in which an upload must begin
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
    size: int | None = None  # of the file, if the caller declared it
    target: str | None = None  # where an upload that bypasses the service puts the file
    blob: str | None = None  # where the file is, once it is known to be there
    length: int = 0  # of the file as it was sent
    encodings: tuple[str, ...] = ()  # the values of its `Content-Encoding`
    jobs: tuple[JobId, ...] = ()  # that read it, and may do so again
    version: int = 0

    @property
    def expires_at(self) -> datetime:
        return self.created_at + FILE_INPUT_LIFE

    @property
    def key(self) -> str | None:
        """Where the file is, or may be."""
        return self.blob or self.target


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


def arrived(file_input: FileInput, length: int | None, most_bytes: int) -> FileInput:
    """A file input whose upload bypassed the service, with what was found at its target."""
    if file_input.target is None or length is None:
        raise FileInputNotUploaded("The file was not uploaded")
    if length > most_bytes:
        raise too_large(most_bytes)
    if file_input.size not in {None, length}:
        raise FileInputNotUploaded(
            f"The file must have the {file_input.size} bytes that were declared, has {length}: "
            "upload it to a new file input"
        )
    return uploaded(file_input, file_input.target, length, ())


def too_large(most_bytes: int) -> TooLarge:
    return TooLarge(
        f"A file must have at most {most_bytes} bytes as sent; compress it with gzip or zstd, or "
        "send it in parts, each as a job of its own"
    )


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
