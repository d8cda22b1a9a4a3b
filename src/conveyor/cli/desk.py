"""How `doctor` and `dlq` reach the data: a folder at rest is opened, a running service is asked."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from conveyor.cli.holder import Holder, holder_of
from conveyor.domain.finding import Event, Wanted
from conveyor.operating import open_at_rest
from conveyor.ports.control_queue import DeadLetter, DeadLetters
from conveyor.settings import Settings

PAGE = 500
EVENT = msgspec.json.Decoder(Event)

T = TypeVar("T")


class Desk(Protocol):
    """What the commands for operators do."""

    def examine(self, wanted: Wanted, tell: Callable[[Event], None]) -> None: ...

    def dead_letters(self) -> Iterator[DeadLetter]: ...

    def find(self, message_id: str) -> DeadLetter | None: ...

    def redrive(self, message_id: str) -> bool: ...

    def drop(self, message_id: str) -> bool: ...


def desk(settings: Settings) -> Desk:
    """Whoever can answer for the data folder."""
    holder = holder_of(settings)
    return AtRestDesk(settings) if holder is None else ServiceDesk(holder)


class AtRestDesk:
    """Opens the folder for each question, and leaves it as it was."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def examine(self, wanted: Wanted, tell: Callable[[Event], None]) -> None:
        async def look() -> None:
            async with open_at_rest(self._settings) as opened:
                async for event in opened.doctor.examine(wanted):
                    tell(event)

        asyncio.run(look())

    def dead_letters(self) -> Iterator[DeadLetter]:
        async def listed(control_queue: DeadLetters) -> list[DeadLetter]:
            return [message async for message in _every(control_queue)]

        yield from self._ask(listed)

    def find(self, message_id: str) -> DeadLetter | None:
        return self._ask(lambda control_queue: control_queue.find_dead_letter(message_id))

    def redrive(self, message_id: str) -> bool:
        return self._ask(lambda control_queue: control_queue.redrive(message_id), writable=True)

    def drop(self, message_id: str) -> bool:
        return self._ask(lambda control_queue: control_queue.drop(message_id), writable=True)

    def _ask(
        self,
        question: Callable[[DeadLetters], Coroutine[object, object, T]],
        *,
        writable: bool = False,
    ) -> T:
        async def ask() -> T:
            async with open_at_rest(self._settings, writable=writable) as opened:
                return await question(opened.control_queue)

        return asyncio.run(ask())


async def _every(control_queue: DeadLetters) -> AsyncIterator[DeadLetter]:
    after = ""
    while page := await control_queue.dead_letters(limit=PAGE, after=after):
        for message in page:
            yield message
        after = page[-1].id


class ServiceDesk:
    """Asks the process that holds the folder."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    def examine(self, wanted: Wanted, tell: Callable[[Event], None]) -> None:
        query = {"job": wanted.job_id, "run": wanted.run_id, "bodies": str(wanted.bodies).lower()}
        given = urlencode({name: value for name, value in query.items() if value is not None})
        for event in self._holder.lines("GET", f"doctor?{given}", EVENT):
            tell(event)

    def dead_letters(self) -> Iterator[DeadLetter]:
        after = ""
        while page := self._holder.get(f"dlq?{urlencode({'after': after})}", list[DeadLetter]):
            yield from page
            after = page[-1].id

    def find(self, message_id: str) -> DeadLetter | None:
        return self._holder.get(f"dlq/{quote(message_id, safe='')}", DeadLetter | None)  # type: ignore[arg-type]

    def redrive(self, message_id: str) -> bool:
        return self._holder.get(f"dlq/{quote(message_id, safe='')}/redrive", bool, "POST")

    def drop(self, message_id: str) -> bool:
        return self._holder.get(f"dlq/{quote(message_id, safe='')}", bool, "DELETE")
