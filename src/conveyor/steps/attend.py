"""Attend: the messages of the control queue, each worked on under a lease that is kept alive.

Work that takes longer than a turn is done in turns: the message goes back to the queue, behind
those of other callers. That is no failure, and counts as no delivery.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import structlog

from conveyor.domain.places import Places, Share
from conveyor.errors import CallerFault, ConveyorError, Stale, Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.duties import Duties, Duty
from conveyor.steps.shared.turn import Turn

LEASE = timedelta(seconds=60)
MOST_DELIVERIES = 10
FIRST_DELAY = timedelta(seconds=1)
LONGEST_DELAY = timedelta(minutes=5)

ONE_PLACE = Share(places=1, per_caller=1)

log = structlog.get_logger()

About = Mapping[str, str]


class Standing(msgspec.Struct, frozen=True):
    """How it stands with what a duty is about, which was begun often and never ended."""

    is_over: bool = False  # somebody else has done it
    again: About | None = None  # it has come further: what the message is to say from now on


async def _stuck(_: About) -> Standing:
    return Standing()


@dataclass(frozen=True, slots=True)
class Handler:
    """How a kind of message is worked on, and what is left in order when it cannot be.

    `do` returns what the message is to say next, if its turn was over before the work was done.
    `standing` is asked before work is given up that is done in steps: if it has come further since
    the message was sent, deaths on the way are no reason to give up.
    """

    do: Callable[[About, Turn], Awaitable[About | None]]
    give_up: Callable[[About], Awaitable[None]]
    standing: Callable[[About], Awaitable[Standing]] = _stuck
    share: Share = ONE_PLACE


class Attend:
    """Works on one message in each `step`; as many steps may run at once as there are places."""

    def __init__(self, duties: Duties, handlers: Mapping[str, Handler], clock: Clock) -> None:
        self.duties = duties
        self.handlers = handlers
        self.places = Places({kind: handler.share for kind, handler in handlers.items()})
        self._clock = clock
        self._receiving = asyncio.Lock()

    async def step(self) -> int:
        """Work on a message, if there is one whose caller has a place; say how many there were."""
        received = await self._receive()
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
            finally:
                self.places.free(duty.line)
        return len(received)

    async def _receive(self) -> Sequence[Duty]:
        async with self._receiving:  # two at once would both see the same place free
            received = await self.duties.receive(
                1,
                lease=LEASE,
                kinds=self.places.open_kinds(),
                barred=self.places.full_lines(),
                served=self.places.served,
            )
            for duty in received:
                self.places.take(duty.line)
            return received

    async def _attend(self, duty: Duty) -> None:
        handler = self.handlers.get(duty.kind)
        if handler is None:
            await self._bury(duty, f"nobody knows a duty of kind {duty.kind!r}")
        elif duty.deliveries > MOST_DELIVERIES:
            await self._give_up(duty, handler, "it was begun again and again and never ended")
        else:
            await self._try(duty, handler)

    async def _try(self, duty: Duty, handler: Handler) -> None:
        outcome = await self._do(duty, handler)
        if outcome is None:
            await self.duties.ack(duty)
        elif not isinstance(outcome, Exception):
            await self.duties.resend(duty, outcome)
        else:
            await self._fail(duty, handler, outcome)

    async def _fail(self, duty: Duty, handler: Handler, failure: Exception) -> None:
        if isinstance(failure, CallerFault):
            await self._end(duty, handler, _reason(failure))
        elif duty.deliveries >= MOST_DELIVERIES:
            await self._give_up(duty, handler, _reason(failure))
        else:
            await self.duties.retry_later(duty, delay=_delay(duty.deliveries))

    async def _give_up(self, duty: Duty, handler: Handler, reason: str) -> None:
        """End what was tried often enough, unless it comes further all the same."""
        standing = await handler.standing(duty.about)
        if standing.again:
            await self.duties.resend(duty, standing.again)
        elif standing.is_over:
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

    async def _do(self, duty: Duty, handler: Handler) -> About | Exception | None:
        """Run the handler with its lease kept alive; return what is left to do, or what it raised.

        A bug is a failed delivery like any other: one message must not end the process, which
        would receive it again after every restart.
        """
        async with asyncio.TaskGroup() as group:
            keeper = group.create_task(self._keep_alive(duty), name=f"keep {duty.id}")
            try:
                return await handler.do(duty.about, Turn(self._clock))
            except ConveyorError as error:
                log.warning("duty.failed", duty=duty.id, kind=duty.kind, why=str(error))
                return error
            except Exception as error:
                log.exception("duty.bug", **_named(duty))
                return error
            finally:
                keeper.cancel()

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
