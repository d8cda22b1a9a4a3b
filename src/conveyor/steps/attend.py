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
            except Unavailable:
                raise
            except Exception:
                # Outside of the handler, such as in a driver: the lease runs out, and the message
                # comes again.
                log.exception("duty.bug", **_named(duty))
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
            await self._end(duty, handler, _reason(failure))
        elif duty.deliveries >= MOST_DELIVERIES:
            await self._give_up(duty, handler, _reason(failure))
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
        try:
            await handler.give_up(duty.about)
        except ConveyorError:
            raise
        except Exception:
            # A dead letter at least: otherwise the message would come again forever.
            log.exception("duty.bug", **_named(duty))
        await self._bury(duty, reason)

    async def _do(self, duty: Duty, handler: Handler) -> Exception | None:
        """Run the handler with its lease kept alive; return what it raised.

        A bug is a failed delivery like any other: one message must not end the process, which
        would receive it again after every restart.
        """
        async with asyncio.TaskGroup() as group:
            keeper = group.create_task(self._keep_alive(duty), name=f"keep {duty.id}")
            try:
                await handler.do(duty.about)
            except ConveyorError as error:
                log.warning("duty.failed", duty=duty.id, kind=duty.kind, why=str(error))
                return error
            except Exception as error:
                log.exception("duty.bug", **_named(duty))
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
            except Exception:
                log.exception("duty.bug", **_named(duty))

    async def _bury(self, duty: Duty, reason: str) -> None:
        log.error("duty.buried", duty=duty.id, kind=duty.kind, about=dict(duty.about), why=reason)
        await self.duties.bury(duty, reason)


def _named(duty: Duty) -> dict[str, object]:
    return {"duty": duty.id, "kind": duty.kind, "deliveries": duty.deliveries}


def _reason(failure: Exception) -> str:
    """Why a message is dead. The text of a bug stays in the log: it may hold what a row holds."""
    if isinstance(failure, ConveyorError):
        return f"{failure.code}: {failure}"
    return f"bug: {type(failure).__name__}, logged as duty.bug"


def _delay(deliveries: int) -> timedelta:
    doublings: int = 2 ** min(deliveries - 1, 20)
    return min(FIRST_DELAY * doublings, LONGEST_DELAY)
