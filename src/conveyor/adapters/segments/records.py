"""The form of a segment: WARC 1.1 records, one a body, that any reader of WARC files can take.

A record names its body, so that a lost index can be rebuilt from the segments. Records keep their
place and their length. A removed body is erased in place, in two states that a reader of WARC files
skips, because it knows neither type:

| WARC-Type | Content | Meaning |
|---|---|---|
| resource | the body, its digest in the head | a body, if the index leads here |
| removing | the body, zeros or some of each; digest zeros | being erased: not a body, to be erased again |
| obsolete | zeros, on disk | erased |
"""

import os
import re
from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256

import msgspec

from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.ports.bodies import BodyName

ENGINE = "segments"  # the name in errors and of the thread
END = b"\r\n\r\n"
LONGEST_HEAD = 1024
LONGEST_NAME = 300
NO_DIGEST = b"0" * 64
_ZEROS = bytes(64 * 1024)

LIVE_START = b"WARC/1.1\r\nWARC-Type: resource\r\n"

_LIVE = LIVE_START + b"WARC-Payload-Digest: sha256:%b\r\n"
# Same lengths as in a live head. Without a payload digest, readers have nothing to check zeros against.
_REMOVING = _LIVE.replace(b"resource", b"removing").replace(b"Payload", b"Removed") % NO_DIGEST
_OBSOLETE = _REMOVING.replace(b"removing", b"obsolete")
_REST = (
    b"WARC-Record-ID: <urn:conveyor:%b>\r\n"
    b"WARC-Target-URI: urn:conveyor:%b\r\n"
    b"WARC-Date: %b\r\n"
    b"Content-Type: application/octet-stream\r\n"
    b"Content-Length: %d\r\n\r\n"
)
_INFO = (
    b"WARC/1.1\r\nWARC-Type: warcinfo\r\n"
    b"WARC-Record-ID: <urn:conveyor:segment:%d>\r\nWARC-Date: %b\r\n"
    b"Content-Type: application/warc-fields\r\nContent-Length: %d\r\n\r\n%b\r\n\r\n"
)
_FIELDS = b"software: Conveyor\r\nformat: WARC File Format 1.1\r\n"

_NAME = re.compile(r"[\w.-]+/[\w.-]+/[\w.-]+\.\d+", re.ASCII)
_HEAD = re.compile(
    rb"WARC/1\.1\r\nWARC-Type: ([^\r\n]+)\r\n(?:[^\r\n]+\r\n)*?"
    rb"WARC-Record-ID: <urn:conveyor:([^>\r\n]+)>\r\n(?:[^\r\n]+\r\n)*?"
    rb"Content-Length: (\d+)\r\n\r\n"
)


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record in a segment. Without a name it is not a body, or erased."""

    at: int
    size: int
    name: BodyName | None
    body_at: int
    is_resource: bool = True


def urn(name: BodyName) -> str:
    """A body's name as one word. Names consist of ids; one that could break a head is a bug."""
    text = f"{name.job_id}/{name.run_id}/{name.task_id}.{name.claim_no}"
    if len(text) > LONGEST_NAME or not _NAME.fullmatch(text):
        raise ValueError(f"not a name of a body: {text!r}")
    return text


def named(text: str) -> BodyName:
    """The name that `urn` wrote as a word."""
    job_id, run_id, rest = text.split("/")
    task_id, _, claim_no = rest.rpartition(".")
    return BodyName(JobId(job_id), RunId(run_id), TaskId(task_id), int(claim_no))


def head(name: str, digest: str, length: int, date: bytes) -> bytes:
    word = name.encode()
    return _LIVE % digest.encode() + _REST % (word, word, date, length)


def first_record(segment: int, date: bytes) -> bytes:
    """The record that every segment begins with."""
    return _INFO % (segment, date, len(_FIELDS), _FIELDS)


def date_of(moment: datetime) -> bytes:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ").encode()


def content_of(record: bytes, name: str) -> bytes | None:
    """The body in a whole record; None if the record is of another body or was removed."""
    found = _HEAD.match(record)
    if found is None or found[1] != b"resource" or found[2] != name.encode():
        return None
    return record[found.end() : found.end() + int(found[3])]


def is_sound(descriptor: int, record: Record) -> bool:
    """Whether a body matches its digest: a power cut may tear one that was not synced yet."""
    whole = os.pread(descriptor, record.size, record.at)
    content = whole[record.body_at - record.at : -len(END)]
    return whole.startswith(_LIVE % sha256(content).hexdigest().encode())


def erase(descriptor: int, record: Record) -> None:
    """Mark a record as being removed, then write zeros over its body.

    The mark is first, because a reader takes no lock: it reads the body, then looks for a mark.
    """
    write_all(descriptor, _REMOVING, record.at)
    end = record.at + record.size - len(END)
    for at in range(record.body_at, end, len(_ZEROS)):
        write_all(descriptor, _ZEROS[: end - at], at)


def mark_erased(descriptor: int, record: Record) -> None:
    """Mark a record whose zeros are on disk."""
    write_all(descriptor, _OBSOLETE, record.at)


def write_all(descriptor: int, content: bytes, at: int) -> None:
    """Write all of it: a single write may be short when the disk fills up."""
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written


def records(descriptor: int, start: int, end: int) -> Iterator[Record]:
    """Whole records between two offsets, up to the first that is not whole."""
    while start < end:
        found = _HEAD.match(os.pread(descriptor, LONGEST_HEAD, start))
        if found is None:
            return
        body_at = start + found.end()
        size = found.end() + int(found[3]) + len(END)
        if start + size > end or os.pread(descriptor, len(END), start + size - len(END)) != END:
            return
        word = found[2].decode(errors="replace")
        # A mark that a power cut has torn reads as neither type: that record is to be erased again.
        is_body = found[1] != b"obsolete" and _NAME.fullmatch(word)
        name = named(word) if is_body else None
        yield Record(start, size, name, body_at, found[1] == b"resource")
        start += size
