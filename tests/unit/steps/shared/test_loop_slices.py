"""Long computations take turns on the loop, and let everybody else run."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from conveyor.domain.json_bodies import Steps
from conveyor.steps.shared.loop_slices import SLICE, LoopSlices
from conveyor.testing.clock import FakeClock


class Working:
    """Computations of which each step takes some simulated time, and what ran when."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.slices = LoopSlices(clock=self.clock)
        self.ran: list[str] = []

    def steps(self, name: str, count: int, took: float = 2 * SLICE) -> Steps[str]:
        for _ in range(count):
            self.ran.append(name)
            self.clock.advance(timedelta(seconds=took))
            yield
        return name

    async def others(self, took: float) -> None:
        """Others that always have something to do."""
        while True:
            self.ran.append("others")
            self.clock.advance(timedelta(seconds=took))
            await asyncio.sleep(0)


async def test_what_is_done_within_a_slice_waits_for_nobody() -> None:
    working = Working()
    other = asyncio.create_task(working.others(SLICE))
    assert await working.slices.run(working.steps("a", 3, SLICE / 10)) == "a"
    other.cancel()
    assert working.ran == ["a", "a", "a"]


async def test_others_get_as_much_time_as_a_slice_took() -> None:
    working = Working()
    other = asyncio.create_task(working.others(SLICE / 2))
    await working.slices.run(working.steps("a", 3, SLICE * 2))
    other.cancel()
    assert [run(working.ran, name) for name in ("a", "others")] == [1, 4]


async def test_nobody_gets_a_second_slice_before_all_had_one() -> None:
    working = Working()
    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(working.slices.run(working.steps(name, 5)))
    later = working.ran[3:]
    assert [set(later[at : at + 3]) for at in range(0, 12, 3)] == [set("abc")] * 4


async def test_an_error_ends_it_and_the_next_goes_on() -> None:
    working = Working()

    def failing() -> Iterator[None]:
        yield from working.steps("a", 2)
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        await working.slices.run(failing())  # type: ignore[arg-type] # it returns nothing
    assert await working.slices.run(working.steps("b", 3)) == "b"


def run(ran: list[str], name: str) -> int:
    """The longest run of a name, but for the last, which nothing ends."""
    longest, count = 0, 0
    for one in ran:
        count = count + 1 if one == name else 0
        longest = max(longest, count)
    return longest
