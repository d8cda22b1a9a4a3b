"""Failure groups: the failed tasks of a run, counted by host, reason and code.

A run has at most `MOST_GROUPS` groups, and for each reason one more, `other`: it counts the failures
that would have begun a further group. So the groups of a reason always add up to its count. A group
is never removed, so a failure whose group exists counts there, however many groups there are.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from conveyor.domain.failure import FailureReason
from conveyor.domain.ids import TaskId

MOST_GROUPS = 1_000
LONGEST_HOST = 260  # characters; a name in the DNS has 253 at most, and a port 5
LONGEST_CODE = 64
LONGEST_TOLD = 500  # of the title and the detail of an example: a gateway may send 64 KB
OTHER_HOST, OTHER_CODE = "", "other"  # of the group `other` of a reason; every URL has a host


class FailureKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """What the failures of one group have in common."""

    host: str  # with its port
    reason: FailureReason
    code: str  # of the problem document

    @property
    def is_other(self) -> bool:
        return self.host == OTHER_HOST

    @property
    def other(self) -> "FailureKey":
        return FailureKey(OTHER_HOST, self.reason, OTHER_CODE)


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Failures that count together. Its first three fields are its key."""

    host: str
    reason: FailureReason
    code: str
    count: int
    example: TaskId  # one of its tasks

    @property
    def key(self) -> FailureKey:
        return FailureKey(self.host, self.reason, self.code)


class FailureExample(msgspec.Struct, frozen=True, gc=False):
    """What a listing shows of the example of a group."""

    url: str
    title: str = ""  # of its problem document, like the detail
    detail: str = ""


class _Told(msgspec.Struct):
    title: str = ""
    detail: str = ""


class _Coded(msgspec.Struct):
    code: str = ""


CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_CODED = msgspec.json.Decoder(_Coded)
_TOLD = msgspec.json.Decoder(_Told)


def failure_key(host: str, reason: FailureReason | None, problem: str | None) -> FailureKey:
    """The group of a failed task, by the host of its URL, its reason and its problem document."""
    return FailureKey(
        host[:LONGEST_HOST], reason or FailureReason.OTHER, _code(problem)[:LONGEST_CODE]
    )


def with_failure(
    groups: Mapping[FailureKey, FailureGroup], key: FailureKey, example: TaskId
) -> FailureGroup:
    """The group in which a failure counts, with it; `groups` are those of its run."""
    if key not in groups and sum(not known.is_other for known in groups) >= MOST_GROUPS:
        key = key.other
    return _sum(groups.get(key), key, 1, example)


def listed(parts: Iterable[FailureGroup]) -> list[FailureGroup]:
    """The groups of a run, the largest first, those of `other` last.

    Engines with several writers count the groups of each of them, which together may be more than
    `MOST_GROUPS`: the smallest are then added to `other`.
    """
    groups: dict[FailureKey, FailureGroup] = {}
    for part in parts:
        groups[part.key] = _sum(groups.get(part.key), part.key, part.count, part.example)
    ordered = sorted(groups.values(), key=lambda group: (-group.count, group.key))
    own = [group for group in ordered if not group.key.is_other]
    others = {group.key: group for group in ordered if group.key.is_other}
    for group in own[MOST_GROUPS:]:
        key = group.key.other
        others[key] = _sum(others.get(key), key, group.count, group.example)
    return [*own[:MOST_GROUPS], *others.values()]


def failure_example(url: str, problem: str | None) -> FailureExample:
    """The example of a group, with the beginning of what its problem document says."""
    try:
        told = _TOLD.decode(problem or "{}")
    except msgspec.DecodeError:
        told = _Told()
    return FailureExample(url, told.title[:LONGEST_TOLD], told.detail[:LONGEST_TOLD])


def _sum(before: FailureGroup | None, key: FailureKey, count: int, example: TaskId) -> FailureGroup:
    return FailureGroup(
        host=key.host,
        reason=key.reason,
        code=key.code,
        count=count + (before.count if before else 0),
        example=before.example if before else example,
    )


def _code(problem: str | None) -> str:
    try:
        # Not every engine can store U+0000 in a key.
        return CONTROL.sub("", _CODED.decode(problem or "{}").code)
    except msgspec.DecodeError:
        return ""
