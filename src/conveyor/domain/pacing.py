"""Who gets how much when there is not enough for all."""

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from conveyor.domain.ids import CallerId, RunId

KEPT_FREE = 5  # of the places that other callers do not hold, one in so many is kept free


class Want(msgspec.Struct, frozen=True):
    caller: CallerId
    tasks: int


def leaves_enough(holds: int, spare: int) -> bool:
    """Whether a caller that holds so many places leaves enough spare for those who come later.

    Each caller leaves a fifth of what the others do not hold: alone 100 places of 500. A second
    one may take 80 of those, and leaves 20. So a caller who comes late finds a place, although
    those before it want all there are and give none back.
    """
    return spare >= (holds + spare) // KEPT_FREE


def share(
    wants: Mapping[RunId, Want],
    free: int,
    *,
    held: Mapping[CallerId, int] | None = None,
    reserve: bool = False,
) -> dict[RunId, int]:
    """Divide free places so that callers hold as equally much as can be, then a caller's runs.

    What callers hold already counts, so that a caller that comes late catches up as places become
    free. With `reserve`, every caller that gets a place leaves enough of them spare. No run gets
    more than it asked for. The order of `wants` breaks ties: shuffled, the remainder is fair over
    time.
    """
    holds = held or {}
    by_caller: dict[CallerId, dict[RunId, int]] = defaultdict(dict)
    for run_id, want in wants.items():
        by_caller[want.caller][run_id] = want.tasks
    asked = {caller: sum(runs.values()) for caller, runs in by_caller.items()}
    granted: dict[RunId, int] = {}
    for caller, places in _level(asked, holds, free, reserve=reserve).items():
        granted |= _level(by_caller[caller], {}, places)
    return {run_id: places for run_id, places in granted.items() if places}


K = TypeVar("K", CallerId, RunId)


def _level(
    asked: Mapping[K, int], held: Mapping[K, int], free: int, *, reserve: bool = False
) -> dict[K, int]:
    """Water-filling: raise every share equally until it meets its demand or the total is spent."""

    def fits(level: int, spare: int) -> bool:
        return spare >= 0 and (not reserve or leaves_enough(level, spare))

    low, high = 0, max((held.get(key, 0) + amount for key, amount in asked.items()), default=0)
    while low < high:  # the highest level that leaves what must be left
        middle = (low + high + 1) // 2
        if fits(middle, free - sum(_poured(asked, held, middle).values())):
            low = middle
        else:
            high = middle - 1
    granted = _poured(asked, held, low)
    spare = free - sum(granted.values())
    for key, more in _poured(asked, held, low + 1).items():
        if more > granted[key] and fits(low + 1, spare - 1):
            granted[key] += 1
            spare -= 1
    return granted


def _poured(asked: Mapping[K, int], held: Mapping[K, int], level: int) -> dict[K, int]:
    return {key: min(amount, max(level - held.get(key, 0), 0)) for key, amount in asked.items()}
