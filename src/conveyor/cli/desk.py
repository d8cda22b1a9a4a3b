"""How `doctor` and `dlq` reach the data: a folder at rest is opened, a running service is asked."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from conveyor.cli.holder import Holder, holder_of
from conveyor.domain.finding import Event, Wanted
from conveyor.operating import open_at_rest
from conveyor.ports.graves import BuriedDuty, Graves
from conveyor.settings import Settings

PAGE = 500
EVENT = msgspec.json.Decoder(Event)

T = TypeVar("T")


class Desk(Protocol):
    """What the commands for operators do."""

    def examine(self, wanted: Wanted, tell: Callable[[Event], None]) -> None: ...

    def buried(self) -> Iterator[BuriedDuty]: ...

    def find(self, duty_id: str) -> BuriedDuty | None: ...

    def revive(self, duty_id: str) -> bool: ...

    def drop(self, duty_id: str) -> bool: ...


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

    def buried(self) -> Iterator[BuriedDuty]:
        async def listed(graves: Graves) -> list[BuriedDuty]:
            return [duty async for duty in _every(graves)]

        yield from self._ask(listed)

    def find(self, duty_id: str) -> BuriedDuty | None:
        return self._ask(lambda graves: graves.find(duty_id))

    def revive(self, duty_id: str) -> bool:
        return self._ask(lambda graves: graves.revive(duty_id), writable=True)

    def drop(self, duty_id: str) -> bool:
        return self._ask(lambda graves: graves.drop(duty_id), writable=True)

    def _ask(
        self, question: Callable[[Graves], Coroutine[object, object, T]], *, writable: bool = False
    ) -> T:
        async def ask() -> T:
            async with open_at_rest(self._settings, writable=writable) as opened:
                return await question(opened.graves)

        return asyncio.run(ask())


async def _every(graves: Graves) -> AsyncIterator[BuriedDuty]:
    after = ""
    while page := await graves.buried(limit=PAGE, after=after):
        for duty in page:
            yield duty
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

    def buried(self) -> Iterator[BuriedDuty]:
        after = ""
        while page := self._holder.get(f"dlq?{urlencode({'after': after})}", list[BuriedDuty]):
            yield from page
            after = page[-1].id

    def find(self, duty_id: str) -> BuriedDuty | None:
        return self._holder.get(f"dlq/{quote(duty_id, safe='')}", BuriedDuty | None)  # type: ignore[arg-type]

    def revive(self, duty_id: str) -> bool:
        return self._holder.get(f"dlq/{quote(duty_id, safe='')}/retry", bool, "POST")

    def drop(self, duty_id: str) -> bool:
        return self._holder.get(f"dlq/{quote(duty_id, safe='')}", bool, "DELETE")
