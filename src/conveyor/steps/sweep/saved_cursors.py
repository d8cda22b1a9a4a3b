"""The positions of the sweeper in long listings, for the process that sweeps next.

A pass over a long listing takes hours, and a repair two passes. Processes that restart more often
than that would never come to its end if each began again. The positions are in coordination, whose
loss costs no more than such a beginning.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from heapq import nsmallest

import msgspec

from conveyor.errors import Unavailable
from conveyor.ports.coordination import Coordination
from conveyor.steps.sweep.checks import SweepCursor

NAME = "sweeper"  # of the cached value
LIFE = timedelta(days=7)
MOST_SUSPECTS = 100  # of each listing and pass: the value must be small


class SavedCursor(msgspec.Struct, frozen=True, omit_defaults=True):
    after: str = ""
    suspects: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()


CURSORS = msgspec.json.Decoder(dict[str, SavedCursor])


@dataclass(slots=True, kw_only=True)
class SavedCursors:
    coordination: Coordination
    saved: bytes = b""  # as last read or written

    async def load(self) -> dict[str, SweepCursor]:
        """Read the cursors of the last sweeper; none if they are lost."""
        self.saved = (await self.coordination.recall([NAME])).get(NAME, b"")
        try:
            found = CURSORS.decode(self.saved) if self.saved else {}
        except msgspec.DecodeError:  # of another release
            found = {}
        return {
            name: SweepCursor(one.after, set(one.suspects), set(one.seen))
            for name, one in found.items()
        }

    async def save(self, cursors: Mapping[str, SweepCursor]) -> None:
        """Write cursors, if they have changed. Without coordination the earlier ones remain."""
        value = msgspec.json.encode(
            {name: _saved(cursor) for name, cursor in sorted(cursors.items())}
        )
        if value == self.saved:
            return
        with suppress(Unavailable):
            await self.coordination.remember({NAME: value}, life=LIFE)
            self.saved = value


def _saved(cursor: SweepCursor) -> SavedCursor:
    return SavedCursor(
        cursor.after,
        tuple(nsmallest(MOST_SUSPECTS, cursor.suspects)),
        tuple(nsmallest(MOST_SUSPECTS, cursor.seen)),
    )
