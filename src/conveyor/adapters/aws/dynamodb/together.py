"""Calls made at the same time, some of them at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

MOST_AT_ONCE = 16

Result = TypeVar("Result")


async def together(
    calls: Sequence[Callable[[], Awaitable[Result]]], *, most: int = MOST_AT_ONCE
) -> list[Result]:
    """Make calls and return their results in order.

    After an error no further call is begun. Those under way end before it is raised: a write that
    is cancelled may have taken effect or not.
    """
    if len(calls) == 1:  # the usual case needs no task
        return [await calls[0]()]
    places, errors = asyncio.Semaphore(most), list[Exception]()

    async def make(call: Callable[[], Awaitable[Result]]) -> Result | None:
        async with places:
            if errors:
                return None
            try:
                return await call()
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
                return None

    async with asyncio.TaskGroup() as group:
        made = [group.create_task(make(call)) for call in calls]
    if errors:
        raise errors[0]
    return [task.result() for task in made]  # type: ignore[misc]  # None only after an error
