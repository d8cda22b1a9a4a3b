"""Awaits many calls, a hundred at a time, for peers that take one task a call."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence

GROUP = 100


async def in_groups(
    numbers: Sequence[int], call: Callable[[int], Coroutine[object, object, object]]
) -> None:
    for start in range(0, len(numbers), GROUP):
        await asyncio.gather(*(call(number) for number in numbers[start : start + GROUP]))
