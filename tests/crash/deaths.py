"""Where a life ends: a trace that counts calls of ports and dies at one of them."""

import os
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TypeVar

import msgspec

import conveyor
from tests.harness.trace import Crash, Trace

T = TypeVar("T")
DEAD = 77  # how a process ends that died where it was told to
ASTRAY = 78  # it came to another call than the one it was to die at
STEPS = str(Path(conveyor.__file__).parent / "steps")

PAGING = "shared/pagination.py"  # it pages for a step: that step makes the call


class When(StrEnum):
    BEFORE = "before"  # the call never happens
    EFFECT = "effect"  # the engine has done it, and nobody hears of it
    ANSWER = "answer"  # the caller has heard, and comes to nothing more


class Crossing(msgspec.Struct, frozen=True):
    """A call of a port, the step's file that makes it, and whether it begins something."""

    call: str
    step: str
    first: bool


class Point(msgspec.Struct, frozen=True):
    """The nth call of a life, by its number from 0."""

    number: int
    call: str
    when: When

    def __str__(self) -> str:
        return f"{self.when} {self.call} (call {self.number})"


class Deaths(Trace):
    """Counts from `begin` on, and ends the process at a point, without a word to anyone."""

    def __init__(self, point: Point | None = None, *, counting: bool = False) -> None:
        super().__init__()
        self.crossed: list[Crossing] = []
        self._point = point
        self._counting = counting
        self._doomed = False
        self.is_dead = False
        self._fresh = True  # nothing was called since somebody outside had an answer

    def begin(self) -> None:
        self._counting = True

    def end(self) -> None:
        """What follows is no part of the scenario, unless the process is to die by then."""
        self.step_is_over()
        self._counting = False

    def step_is_over(self) -> None:
        """Whoever asked has the answer, and the process has not begun anything else."""
        self._die_if_doomed()
        self._fresh = True

    async def around(self, name: str, effect: Callable[[], Awaitable[T]]) -> T:
        dies = self._come_to(name)

        async def last() -> T:
            try:
                return await effect()
            finally:
                self._reach(dies, When.EFFECT)

        try:
            return await super().around(name, last)
        finally:
            self._reach(dies, When.EFFECT)  # of a call that was made to fail
            self._doomed |= dies is When.ANSWER

    def at_once(self, name: str, effect: Callable[[], T]) -> T:
        dies = self._come_to(name)

        try:
            return super().at_once(name, effect)
        finally:
            self._reach(dies, When.EFFECT)
            self._doomed |= dies is When.ANSWER

    def _come_to(self, name: str) -> When | None:
        """Count a call; say at which moment of it the process is to die, if it is."""
        if self.is_dead:
            raise Crash
        self._die_if_doomed()
        if not self._counting:
            return None
        number = len(self.crossed)
        self.crossed.append(Crossing(name, _step(sys._getframe()), self._fresh))
        self._fresh = False
        if self._point is None or self._point.number != number:
            return None
        if self._point.call != name:
            self._end(ASTRAY)
        self._reach(self._point.when, When.BEFORE)
        return self._point.when

    def _die_if_doomed(self) -> None:
        if self._doomed:
            self._end(DEAD)

    def _reach(self, dies: When | None, moment: When) -> None:
        if dies is moment:
            self._end(DEAD)

    def _end(self, code: int) -> None:
        os._exit(code)


class DeathOfOne(Deaths):
    """Ends one of several services of this process: none of its calls happens any more."""

    def _end(self, code: int) -> None:
        if code == ASTRAY:
            raise AssertionError(f"it came to another call than {self._point}")
        self.is_dead = True
        raise Crash


def _step(frame: FrameType | None) -> str:
    """The nearest file of a step that is on the way to this call."""
    while frame:
        path = frame.f_code.co_filename
        if path.startswith(STEPS) and not path.endswith(PAGING):
            return Path(path).name
        frame = frame.f_back
    return ""
