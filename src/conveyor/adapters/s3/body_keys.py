"""The keys of bodies and segments, and the locators that rows keep.

    jobs/<job>/runs/<run>/<task id>.<claim number, 8 digits>.<nonce>
    jobs/<job>/runs/<run>/segments/<first index>-<last index>.<bodies>.<index offset>.<nonce>

Keys of bodies sort by task and claim number. A locator is `s3:` and a key; for a body in a segment
`#<offset>+<length>` follows.
"""

import re

import msgspec

from conveyor.domain.ids import JobId, RunId, TaskId
from conveyor.ports.bodies import BodyName

SCHEME = "s3:"
JOBS = "jobs/"
SEGMENTS = "segments/"
LAST = "~"  # sorts after every character of a key
RUN = re.compile(r"jobs/(?P<job>[^/]+)/runs/(?P<run>[^/]+)/")
BODY = re.compile(r"(?P<task>.+)\.(?P<claim>\d{8,})\.[^.]+")
SEGMENT = re.compile(
    r"(?P<first>[0-9a-f]{8})-(?P<last>[0-9a-f]{8})\.(?P<count>\d+)\.(?P<index>\d+)\.[^.]+"
)
INDEX_DIGITS = 8  # the index of a task, with which its id begins

Span = tuple[int, int]  # offset and length


class SegmentKey(msgspec.Struct, frozen=True):
    """What the key of a segment says."""

    key: str
    first: str  # the index of its first task, in hex
    last: str
    count: int  # of bodies
    index: int  # where its index begins


def run_folder(job_id: JobId, run_id: RunId) -> str:
    return f"{JOBS}{job_id}/runs/{run_id}/"


def run_of(key: str) -> tuple[JobId, RunId] | None:
    """The run that an object belongs to; None if it is not Conveyor's."""
    found = RUN.match(key)
    return (JobId(found["job"]), RunId(found["run"])) if found else None


def body_prefix(name: BodyName) -> str:
    """What the keys of all objects under one claim begin with."""
    folder = run_folder(name.job_id, name.run_id)
    return f"{folder}{name.task_id}.{name.claim_no:08d}."


def body_of(job_id: JobId, run_id: RunId, key: str) -> BodyName:
    """The body under a key. What is none has its own name as task id."""
    file = key.removeprefix(run_folder(job_id, run_id))
    found = BODY.fullmatch(file)
    if found is None:
        return BodyName(job_id, run_id, TaskId(file), 0)
    return BodyName(job_id, run_id, TaskId(found["task"]), int(found["claim"]))


def segment_key(names: list[BodyName], *, index: int, nonce: str) -> str:
    indexes = sorted(name.task_id[:INDEX_DIGITS] for name in names)
    folder = run_folder(names[0].job_id, names[0].run_id)
    return f"{folder}{SEGMENTS}{indexes[0]}-{indexes[-1]}.{len(names)}.{index}.{nonce}"


def segment_of(key: str) -> SegmentKey | None:
    """The segment under a key; None if it is another object."""
    folder, _, file = key.rpartition("/")
    found = SEGMENT.fullmatch(file) if folder.endswith(f"/{SEGMENTS[:-1]}") else None
    if found is None:
        return None
    return SegmentKey(key, found["first"], found["last"], int(found["count"]), int(found["index"]))


def locator_of(key: str, span: Span | None = None) -> str:
    return f"{SCHEME}{key}" + (f"#{span[0]}+{span[1]}" if span else "")


def located(locator: str) -> tuple[str, Span | None] | None:
    """The key of a locator, and the part of the object if it is a segment.

    None for a locator of another engine: the setting `bodies` was changed.
    """
    if not locator.startswith(SCHEME):
        return None
    key, _, part = locator.removeprefix(SCHEME).partition("#")
    offset, _, length = part.partition("+")
    return key, (int(offset), int(length)) if part else None
