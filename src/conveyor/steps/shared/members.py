"""Members: this process among the live ones, and the others as it last saw them.

Every process announces itself every few seconds. An announcement that is not repeated ends, so a
process that died leaves the list by itself. The list is short-lived state: a live process may be
missing from it for a while, so no stored state may depend on it. A process counts as dead once it was
missing from every read for the life of an announcement.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import structlog
from msgspec.structs import replace

from conveyor.errors import Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.coordination import Coordination, Member

ANNOUNCE_EVERY = timedelta(seconds=5)
LIFE = timedelta(seconds=15)  # of an announcement

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Members:
    coordination: Coordination
    clock: Clock
    me: Member
    is_shared: bool = True  # whether other processes have the same coordination
    # Fingerprints of the encryption keys that this process can decrypt with, which may change.
    keys: Callable[[], Sequence[str]] = lambda: ()
    live: Mapping[str, Member] = field(default_factory=dict)  # by id, as of the last read
    seen_at: dict[str, float] = field(default_factory=dict)  # by id, within the last `LIFE`
    read_since: float | None = None  # since when every read succeeded
    is_unavailable: bool = False

    async def step(self) -> None:
        """Announce this process, and read which others are alive."""
        self.me = replace(self.me, keys=tuple(self.keys()))
        try:
            await self.coordination.announce(self.me, life=LIFE)
            members = await self.coordination.members()
        except Unavailable as error:
            if not self.is_unavailable:  # once, not at every announcement
                log.warning("members.unavailable", why=str(error))
            self.is_unavailable, self.read_since = True, None
        else:
            self.live = {member.id: member for member in members}
            self.is_unavailable = False
            now = self.clock.monotonic()
            self.read_since = now if self.read_since is None else self.read_since
            seen_at = self.seen_at | dict.fromkeys(self.live, now)
            earliest = now - LIFE.total_seconds()
            self.seen_at = {name: at for name, at in seen_at.items() if at > earliest}

    async def leave(self) -> None:
        """Remove this process from the list, at the end of a clean stop."""
        with suppress(Unavailable):  # the announcement ends by itself
            await self.coordination.announce(self.me, life=timedelta())

    @property
    def count(self) -> int:
        """How many processes were alive at the last read; this one always counts."""
        return len(self.live.keys() | {self.me.id})

    def count_with(self, roles: Collection[str]) -> int:
        """How many processes with one of these roles were alive at the last read."""
        alive = {**self.live, self.me.id: self.me}
        return sum(member.role in roles for member in alive.values())

    def is_alive(self, incarnation: str) -> bool | None:
        """Whether a process is alive; None if that is not known. This one always is."""
        if incarnation == self.me.id or incarnation in self.live:
            return True
        if not (self.is_shared and incarnation) or self.read_since is None:
            return None
        missing_since = self.seen_at.get(incarnation, self.read_since)
        is_dead = self.clock.monotonic() - missing_since >= LIFE.total_seconds()
        return False if is_dead else None
