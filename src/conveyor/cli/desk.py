"""How `doctor` and `dlq` reach the data: a folder at rest is opened, a running service is asked."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Protocol, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from conveyor.domain.finding import Event, Wanted
from conveyor.errors import ConveyorError
from conveyor.operating import Address, notice, open_at_rest, owner
from conveyor.ports.graves import BuriedDuty, Graves
from conveyor.settings import Settings

PAGE = 500
TIMEOUT = 120.0  # seconds without a byte
EVENT = msgspec.json.Decoder(Event)

T = TypeVar("T")


class OutOfReach(ConveyorError):
    """The folder is held by a process that cannot be asked."""


class Desk(Protocol):
    """What the commands for operators do."""

    def examine(self, wanted: Wanted, tell: Callable[[Event], None]) -> None: ...

    def buried(self) -> Iterator[BuriedDuty]: ...

    def find(self, duty_id: str) -> BuriedDuty | None: ...

    def revive(self, duty_id: str) -> bool: ...

    def drop(self, duty_id: str) -> bool: ...


def desk(settings: Settings) -> Desk:
    """Whoever can answer for the data folder."""
    process = owner(settings)
    if process is None:
        return AtRestDesk(settings)
    found = notice(settings)
    if found is None:
        raise OutOfReach(
            f"process {process} holds the data folder {settings.folder} and takes no questions: it "
            "is another `conveyor` command, or a service that is starting or stopping; try again "
            "when it is done"
        )
    return ServiceDesk(found, process)


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
    """Asks the process that holds the folder, over its own port."""

    def __init__(self, found: Address, process: str) -> None:
        self._url = found.url
        self._process = process
        self._headers = {"Authorization": f"Bearer {found.token}"}

    def examine(self, wanted: Wanted, tell: Callable[[Event], None]) -> None:
        query = {"job": wanted.job_id, "run": wanted.run_id, "bodies": str(wanted.bodies).lower()}
        given = urlencode({name: value for name, value in query.items() if value is not None})
        answer = self._answer("GET", f"doctor?{given}")
        event: Event | None = None
        try:
            for line in answer:
                event = EVENT.decode(line)
                tell(event)
        except (OSError, HTTPException, msgspec.MsgspecError):
            raise self._no_answer("broke off in the middle") from None

    def buried(self) -> Iterator[BuriedDuty]:
        after = ""
        while page := self._get(f"dlq?{urlencode({'after': after})}", list[BuriedDuty]):
            yield from page
            after = page[-1].id

    def find(self, duty_id: str) -> BuriedDuty | None:
        return self._get(f"dlq/{quote(duty_id, safe='')}", BuriedDuty | None)  # type: ignore[arg-type]

    def revive(self, duty_id: str) -> bool:
        return self._get(f"dlq/{quote(duty_id, safe='')}/retry", bool, "POST")

    def drop(self, duty_id: str) -> bool:
        return self._get(f"dlq/{quote(duty_id, safe='')}", bool, "DELETE")

    def _get(self, path: str, kind: type[T], method: str = "GET") -> T:
        answer = self._answer(method, path)
        try:
            return msgspec.json.decode(answer.read(), type=kind)
        except (OSError, HTTPException, msgspec.MsgspecError):
            raise self._no_answer("gives an answer that makes no sense") from None

    def _answer(self, method: str, path: str) -> HTTPResponse:
        address = urlsplit(self._url)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT)
        try:
            connection.request(method, f"/operator/{path}", headers=self._headers)
            answer = connection.getresponse()
        except (OSError, HTTPException):
            raise self._no_answer("does not answer") from None
        if answer.status != 200:
            raise self._no_answer(f"does not let us in ({answer.status})")
        return answer

    def _no_answer(self, how: str) -> OutOfReach:
        return OutOfReach(
            f"process {self._process} holds the data folder, and {self._url}, which is where its "
            f"operator.json says to ask, {how}: it may be starting or stopping; try again in a "
            "moment, and if that does not help stop that process and ask the folder at rest"
        )
