"""The control queue: its messages, and how callers share the slots in which they are handled.

Each kind of message has its own slots in a process, so no kind waits behind another. One caller may
occupy a bounded number of them. When a slot becomes free, the caller served longest ago is next: a
caller with a thousand messages and a caller with one are served in turn.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

MESSAGE_VERSION = 1  # of the messages that this release sends and understands
MOST_REMEMBERED = 10_000  # groups whose last turn is remembered

MessageGroup = tuple[str, str]  # a kind of message and a caller


class ControlMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of background work.

    At most one message of a kind and subject is live. Callers share the slots in which messages
    are handled; messages without a caller are shared out as if they had one caller.
    """

    kind: str
    subject: str
    payload: Mapping[str, str]
    caller: str = ""
    v: int = MESSAGE_VERSION

    @property
    def group(self) -> MessageGroup:
        return self.kind, self.caller


class SlotLimits(msgspec.Struct, frozen=True):
    """The slots for one kind of message in one process."""

    slots: int
    per_caller: int


class ControlSlots:
    def __init__(self, limits: Mapping[str, SlotLimits]) -> None:
        self._limits = limits
        self._taken: Counter[MessageGroup] = Counter()
        self._served: dict[MessageGroup, None] = {}  # in the order of their last turn

    @property
    def count(self) -> int:
        """How many messages this process can handle at once."""
        return sum(limits.slots for limits in self._limits.values())

    @property
    def served(self) -> list[MessageGroup]:
        """Groups that had a turn, longest ago first."""
        return list(self._served)

    def open_kinds(self) -> frozenset[str] | None:
        """The kinds with a free slot; None while all have one, so that unknown kinds come too."""
        taken: Counter[str] = Counter()
        for (kind, _), count in self._taken.items():
            taken[kind] += count
        free = {kind for kind, limits in self._limits.items() if taken[kind] < limits.slots}
        return None if free == self._limits.keys() else frozenset(free)

    def full_groups(self) -> frozenset[MessageGroup]:
        """Groups that occupy as many slots as one caller may."""
        return frozenset(
            group
            for group, count in self._taken.items()
            if group[0] in self._limits and count >= self._limits[group[0]].per_caller
        )

    def per_caller(self, kind: str) -> int | None:
        """How many slots of a kind one caller may occupy; None for a kind without slots."""
        limits = self._limits.get(kind)
        return limits.per_caller if limits else None

    def take(self, group: MessageGroup) -> None:
        self._taken[group] += 1
        self._served.pop(group, None)
        self._served[group] = None
        if len(self._served) > MOST_REMEMBERED:
            del self._served[next(iter(self._served))]

    def free(self, group: MessageGroup) -> None:
        self._taken[group] -= 1
        if not self._taken[group]:
            del self._taken[group]
