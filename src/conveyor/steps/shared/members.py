"""Members: this process among the live ones, and the others as it last saw them.

Every process announces itself every few seconds. An announcement that is not repeated ends, so a
process that died leaves the list by itself. The list is short-lived state: a live process may be
missing from it for a while, so no stored state may depend on it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import structlog
from msgspec.structs import replace

from conveyor.errors import Unavailable
from conveyor.ports.coordination import Coordination, Member

ANNOUNCE_EVERY = timedelta(seconds=5)
LIFE = timedelta(seconds=15)  # of an announcement

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Members:
    coordination: Coordination
    me: Member
    # Fingerprints of the encryption keys that this process can decrypt with, which may change.
    keys: Callable[[], Sequence[str]] = lambda: ()
    live: Mapping[str, Member] = field(default_factory=dict)  # by id, as of the last read
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
            self.is_unavailable = True
        else:
            self.live = {member.id: member for member in members}
            self.is_unavailable = False

    async def leave(self) -> None:
        """Remove this process from the list, at the end of a clean stop."""
        with suppress(Unavailable):  # the announcement ends by itself
            await self.coordination.announce(self.me, life=timedelta())

    @property
    def count(self) -> int:
        """How many processes were alive at the last read; this one always counts."""
        return len(self.live.keys() | {self.me.id})

    def is_alive(self, incarnation: str) -> bool:
        """Whether a process was in the list at the last read; this one always is."""
        return incarnation == self.me.id or incarnation in self.live
