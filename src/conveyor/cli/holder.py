"""The process that holds a data folder, asked over its own port by the notice it left there."""

from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from conveyor.errors import ConveyorError, RefusedToStart
from conveyor.operating import Address, notice, owner
from conveyor.settings import Settings

TIMEOUT = 120.0  # seconds without a byte

T = TypeVar("T")


class OutOfReach(ConveyorError):
    """The folder is held by a process that cannot be asked."""


class Refusal(msgspec.Struct, frozen=True):
    """A problem document, as far as it matters here."""

    detail: str


def holder_of(settings: Settings) -> "Holder | None":
    """Who holds the folder; None when it is at rest."""
    process = owner(settings)
    if process is None:
        return None
    found = notice(settings)
    if found is None:
        raise OutOfReach(
            f"process {process} holds the data folder {settings.folder} and takes no questions: it "
            "is another `conveyor` command, or a service that is starting or stopping; try again "
            "when it is done"
        )
    return Holder(found, process)


class Holder:
    def __init__(self, found: Address, process: str) -> None:
        self._url = found.url
        self._process = process
        self._headers = {"Authorization": f"Bearer {found.token}"}

    def get(self, path: str, kind: type[T], method: str = "GET", body: bytes | None = None) -> T:
        answer = self._answer(method, path, body)
        try:
            return msgspec.json.decode(answer.read(), type=kind)
        except (OSError, HTTPException, msgspec.MsgspecError):
            raise self._no_answer("gives an answer that makes no sense") from None

    def lines(self, method: str, path: str, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
        """An answer of many lines, as they come."""
        answer = self._answer(method, path)
        try:
            for line in answer:
                yield decoder.decode(line)
        except (OSError, HTTPException, msgspec.MsgspecError):
            raise self._no_answer("broke off in the middle") from None

    def _answer(self, method: str, path: str, body: bytes | None = None) -> HTTPResponse:
        address = urlsplit(self._url)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=TIMEOUT)
        try:
            connection.request(method, f"/operator/{path}", body, headers=self._headers)
            answer = connection.getresponse()
            if answer.status == 400:
                raise RefusedToStart(msgspec.json.decode(answer.read(), type=Refusal).detail)
        except (OSError, HTTPException, msgspec.MsgspecError):
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
