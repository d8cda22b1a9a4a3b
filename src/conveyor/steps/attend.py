"""Attend: background duties, one after another, each under a lease that is kept alive."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import structlog

from conveyor.errors import CallerFault, ConveyorError, Stale, Unavailable
from conveyor.ports.duties import Duties, Duty

LEASE = timedelta(seconds=60)
MOST_DELIVERIES = 10
FIRST_DELAY = timedelta(seconds=1)
LONGEST_DELAY = timedelta(minutes=5)

log = structlog.get_logger()

About = Mapping[str, str]


class Standing(msgspec.Struct, frozen=True):
    """How it stands with what a duty is about, which was begun often and never ended."""

    is_over: bool = False  # somebody else has done it
    again: About | None = None  # it has come further: the duty that is to take this one's place


async def _stuck(_: About) -> Standing:
    return Standing()


@dataclass(frozen=True, slots=True)
class Handler:
    """How a kind of duty is done, and what is left in order when it cannot be.

    `standing` is asked before work is given up that is done in steps: if it has come further since
    the duty was sent, deaths on the way are no reason to give up.
    """

    do: Callable[[About], Awaitable[None]]
    give_up: Callable[[About], Awaitable[None]]
    standing: Callable[[About], Awaitable[Standing]] = _stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class Attend:
    duties: Duties
    handlers: Mapping[str, Handler]
    long: frozenset[str] = frozenset()  # kinds that may take hours

    async def step(self) -> int:
        """Do what duties there are, and say how many."""
        return await self._step(None)

    async def short_step(self) -> int:
        """The same, but for those that may take hours: they keep no others waiting."""
        return await self._step(self.handlers.keys() - self.long)

    async def _step(self, kinds: Collection[str] | None) -> int:
        received = await self.duties.receive(1, lease=LEASE, kinds=kinds)
        for duty in received:
            try:
                await self._attend(duty)
            except Stale:
                log.warning("duty.passed_on", duty=duty.id, kind=duty.kind)
        return len(received)

    async def _attend(self, duty: Duty) -> None:
        handler = self.handlers.get(duty.kind)
        if handler is None:
            await self._bury(duty, f"nobody knows a duty of kind {duty.kind!r}")
        elif duty.deliveries > MOST_DELIVERIES:
            await self._give_up(duty, handler, "it was begun again and again and never ended")
        else:
            await self._try(duty, handler)

    async def _try(self, duty: Duty, handler: Handler) -> None:
        failure = await self._do(duty, handler)
        if failure is None:
            await self.duties.ack(duty)
        elif isinstance(failure, CallerFault):
            await self._end(duty, handler, f"{failure.code}: {failure}")
        elif duty.deliveries >= MOST_DELIVERIES:
            await self._give_up(duty, handler, f"{failure.code}: {failure}")
        else:
            await self.duties.retry_later(duty, delay=_delay(duty.deliveries))

    async def _give_up(self, duty: Duty, handler: Handler, reason: str) -> None:
        """End what was tried often enough, unless it comes further all the same."""
        standing = await handler.standing(duty.about)
        if standing.again:
            await self.duties.send(duty.kind, standing.again)
        if standing.again or standing.is_over:
            await self.duties.ack(duty)
        else:
            await self._end(duty, handler, reason)

    async def _end(self, duty: Duty, handler: Handler, reason: str) -> None:
        """Leave things in order, then bury: whoever dies in between does it again."""
        await handler.give_up(duty.about)
        await self._bury(duty, reason)

    async def _do(self, duty: Duty, handler: Handler) -> ConveyorError | None:
        """Run the handler with its lease kept alive; what it raised of ours is a value here."""
        async with asyncio.TaskGroup() as group:
            keeper = group.create_task(self._keep_alive(duty), name=f"keep {duty.id}")
            try:
                await handler.do(duty.about)
            except ConveyorError as error:
                log.warning("duty.failed", duty=duty.id, kind=duty.kind, why=str(error))
                return error
            finally:
                keeper.cancel()
        return None

    async def _keep_alive(self, duty: Duty) -> None:
        while True:
            await asyncio.sleep(LEASE.total_seconds() / 3)
            try:
                await self.duties.extend(duty, lease=LEASE)
            except (Stale, Unavailable) as error:
                log.warning("duty.lease", duty=duty.id, why=str(error))

    async def _bury(self, duty: Duty, reason: str) -> None:
        log.error("duty.buried", duty=duty.id, kind=duty.kind, about=dict(duty.about), why=reason)
        await self.duties.bury(duty, reason)


def _delay(deliveries: int) -> timedelta:
    doublings: int = 2 ** min(deliveries - 1, 20)
    return min(FIRST_DELAY * doublings, LONGEST_DELAY)
