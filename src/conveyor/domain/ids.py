"""Ids: ULIDs for jobs, runs and other records, derived ids for tasks."""

import hashlib
import re
from collections.abc import Callable
from typing import NewType

JobId = NewType("JobId", str)
RunId = NewType("RunId", str)
TaskId = NewType("TaskId", str)
CallerId = NewType("CallerId", str)
InputId = NewType("InputId", str)
ExportId = NewType("ExportId", str)
EventId = NewType("EventId", str)
ApiKeyId = NewType("ApiKeyId", str)

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
# What commands take for an id: the newest, or the beginning of a ULID, long enough not to be a word
# by accident.
LAST = "@last"
ID_PREFIX = re.compile(r"[0-9A-HJKMNP-TV-Z]{6,25}", re.ASCII | re.IGNORECASE)
TASK_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{24}")
MOST_TASKS = 2**32  # the index takes eight hex digits of a task id


def stands_for_id(text: str) -> bool:
    """Whether a text is `@last` or the beginning of an id."""
    return text == LAST or ID_PREFIX.fullmatch(text) is not None


def whole_id(text: str) -> str | None:
    """A ULID as it is stored; None if the text is none. People also type them in lower case."""
    return text.upper() if is_ulid(text.upper()) else None


def ulid(milliseconds: int, randomness: int) -> str:
    """The ULID of a time in milliseconds (48 bits) and 80 random bits."""
    value = (milliseconds << 80) | randomness
    return "".join(CROCKFORD[(value >> shift) & 31] for shift in range(125, -5, -5))


def ulid_milliseconds(text: str) -> int:
    """When a ULID was made, in milliseconds since the epoch."""
    value = 0
    for character in text[:10]:
        value = value * 32 + CROCKFORD.index(character)
    return value


def is_ulid(text: str) -> bool:
    return ULID.fullmatch(text) is not None


def task_ids(run_id: RunId) -> Callable[[int], TaskId]:
    """Return the function that makes the ids of a run's tasks: the index, then a hash of both.

    Ids are derived, so an ingest that resumes gives its tasks the same ids. The index comes first,
    so that ids sort in the order of submission, rows are inserted in key order, and a task is found
    by its id without another index.
    """
    # The hash of the run id is computed once: a run may have millions of tasks.
    prefix = hashlib.sha256(f"{run_id}:".encode())

    def task_id(index: int) -> TaskId:
        digest = prefix.copy()
        digest.update(b"%d" % index)
        return TaskId(f"{index:08x}-{digest.hexdigest()[:24]}")

    return task_id


def task_index(task_id: str) -> int | None:
    """The index in a task id; None when the text is not a task id."""
    return int(task_id[:8], 16) if TASK_ID.fullmatch(task_id) else None
