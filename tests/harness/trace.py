"""Calls of ports, watched: each is on record, and any of them can be made to fail."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

P = TypeVar("P")
T = TypeVar("T")
Moment = Literal["before", "after"]


class Crash(BaseException):
    """The process died here. No step catches it, not even as a bug, so none can tidy up after it."""


class Trace:
    """Every call of a port in order, and the faults that are to befall them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.broken: dict[str, BaseException] = {}  # calls that fail until they are mended
        self._plans: list[_Plan] = []
        self._faults: dict[int, tuple[Moment, BaseException]] = {}

    def break_at(self, number: int, moment: Moment, error: BaseException) -> None:
        """Let the call of that number, counted from now, fail once: before or after its effect."""
        self._faults[len(self.calls) + number] = (moment, error)

    def before(self, name: str, nth: int, action: Callable[[], Awaitable[object]]) -> None:
        """Let something happen just before the nth call of that name from now."""
        self._plans.append(_Plan("before", name, nth, action))

    def after(self, name: str, nth: int, action: Callable[[], Awaitable[object]]) -> None:
        """Let something happen when the nth call of that name from now has taken effect."""
        self._plans.append(_Plan("after", name, nth, action))

    def die_at(self, name: str, nth: int) -> None:
        """Let the process die just before the nth call of that name from now."""
        self.before(name, nth, _die)

    def of(self, *names: str) -> list[str]:
        return [call for call in self.calls if call in names]

    def forget(self) -> None:
        self.calls.clear()
        self._faults.clear()
        self._plans.clear()

    async def around(self, name: str, effect: Callable[[], Awaitable[T]]) -> T:
        moment, error = self._faults.get(len(self.calls), ("before", self.broken.get(name)))
        self.calls.append(name)
        await self._follow("before", name)
        if error and moment == "before":
            raise error
        result = await effect()
        await self._follow("after", name)
        if error:
            raise error
        return result

    def at_once(self, name: str, effect: Callable[[], T]) -> T:
        """As `around`, of a call that waits for nothing; no action can come in between."""
        moment, error = self._faults.get(len(self.calls), ("before", self.broken.get(name)))
        self.calls.append(name)
        if error and moment == "before":
            raise error
        result = effect()
        if error:
            raise error
        return result

    async def _follow(self, moment: Moment, name: str) -> None:
        due = []
        for plan in self._plans:
            if (plan.moment, plan.name) == (moment, name):
                plan.left -= 1
                due += [] if plan.left else [plan]
        for plan in due:
            self._plans.remove(plan)
        for plan in due:
            await plan.action()


@dataclass(slots=True)
class _Plan:
    moment: Moment
    name: str
    left: int
    action: Callable[[], Awaitable[object]]


async def _die() -> None:
    raise Crash


class _Watched:
    """A port whose calls go through a trace."""

    def __init__(self, port: object, name: str, trace: Trace) -> None:
        self._port, self._name, self._trace = port, name, trace

    def __getattr__(self, method: str) -> Any:
        target = getattr(self._port, method)
        if not callable(target):
            return target
        name = f"{self._name}.{method}"
        if inspect.isasyncgenfunction(target):
            return lambda *given, **named: self._stream(name, target(*given, **named))
        if inspect.iscoroutinefunction(target):
            return lambda *given, **named: self._trace.around(
                _with_kind(name, given), lambda: target(*given, **named)
            )
        return lambda *given, **named: self._trace.at_once(name, lambda: target(*given, **named))

    async def _stream(self, name: str, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        await self._trace.around(name, _nothing)
        async for part in content:
            yield part


def _with_kind(name: str, given: tuple[object, ...]) -> str:
    """The name of a call; with the kind of row in brackets, where it takes one: a job's point read
    is `metadata.get(Job)`.
    """
    return f"{name}({given[0].__name__})" if given and isinstance(given[0], type) else name


async def _nothing() -> None:
    return None


def watched(port: P, name: str, trace: Trace) -> P:
    return cast("P", _Watched(port, name, trace))
