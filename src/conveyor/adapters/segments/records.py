"""The form of a segment: WARC 1.1 records, one a body, that any reader of WARC files can take.

A record tells whose body it is, so that a lost index can be made again. It is never moved within its
segment, and changed in one way only: a body that is no more has its type and digest written over
in place, which keeps all lengths, so that readers of the whole file pass over it.
"""

import os
import re
from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256

import msgspec

from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.ports.bodies import BodyName

END = b"\r\n\r\n"
LONGEST_HEAD = 1024
LONGEST_NAME = 300
NO_DIGEST = b"0" * 64

LIVE_START = b"WARC/1.1\r\nWARC-Type: resource\r\n"

_LIVE = LIVE_START + b"WARC-Payload-Digest: sha256:%b\r\n"
_DEAD = _LIVE.replace(b"resource", b"obsolete").replace(b"Payload", b"Removed") % NO_DIGEST
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
    """A record where it lies; without a name it is no body, or no longer one."""

    at: int
    size: int
    name: BodyName | None
    body_at: int


def urn(name: BodyName) -> str:
    """A body's name as one word. Names hold ids only; one that could break a head is a bug."""
    text = f"{name.job_id}/{name.run_id}/{name.task_id}.{name.claim_no}"
    if len(text) > LONGEST_NAME or not _NAME.fullmatch(text):
        raise ValueError(f"not a name of a body: {text!r}")
    return text


def named(text: str) -> BodyName:
    """The name that `urn` made a word of."""
    job_id, run_id, rest = text.split("/")
    task_id, _, claim_no = rest.rpartition(".")
    return BodyName(JobId(job_id), RunId(run_id), TaskId(task_id), int(claim_no))


def head(name: str, digest: str, length: int, date: bytes) -> bytes:
    word = name.encode()
    return _LIVE % digest.encode() + _REST % (word, word, date, length)


def first_record(segment: int, date: bytes) -> bytes:
    """What every segment begins with."""
    return _INFO % (segment, date, len(_FIELDS), _FIELDS)


def date_of(moment: datetime) -> bytes:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ").encode()


def content_of(record: bytes, name: str) -> bytes | None:
    """The body in a whole record; None when it is another's, or nobody's any more."""
    found = _HEAD.match(record)
    if found is None or found[1] != b"resource" or found[2] != name.encode():
        return None
    return record[found.end() : found.end() + int(found[3])]


def is_sound(descriptor: int, record: Record) -> bool:
    """Whether a body is what its digest says: of one that was never synced, parts may be missing."""
    whole = os.pread(descriptor, record.size, record.at)
    content = whole[record.body_at - record.at : -len(END)]
    return whole.startswith(_LIVE % sha256(content).hexdigest().encode())


def mark_dead(descriptor: int, record: Record) -> None:
    """Write over what makes a record a body. Cut short anywhere, it is none either."""
    os.pwrite(descriptor, _DEAD, record.at)


def records(descriptor: int, start: int, end: int) -> Iterator[Record]:
    """Whole records from one place to another, up to the first that is not whole."""
    while start < end:
        found = _HEAD.match(os.pread(descriptor, LONGEST_HEAD, start))
        if found is None:
            return
        body_at = start + found.end()
        size = found.end() + int(found[3]) + len(END)
        if start + size > end or os.pread(descriptor, len(END), start + size - len(END)) != END:
            return
        live = found[1] == b"resource" and _NAME.fullmatch(found[2].decode(errors="replace"))
        yield Record(start, size, named(found[2].decode()) if live else None, body_at)
        start += size
