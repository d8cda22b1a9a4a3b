"""How `conveyor keys` reaches the data: a folder at rest is opened, a running service is asked."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from conveyor.admitting import api_keys_at_rest, rotate_at_rest
from conveyor.api.api_keys import RotationFailed
from conveyor.cli.holder import Holder, holder_of
from conveyor.domain.api_key import NewKey
from conveyor.domain.credentials import RotationProgress, RotationResult
from conveyor.domain.ids import KeyId
from conveyor.errors import ConveyorError
from conveyor.settings import Settings
from conveyor.steps.api_keys import ApiKeyAdmin, ApiKeyInfo, CreatedApiKey
from conveyor.telemetry import set_up_logs

PAGE = 500
EVENT = msgspec.json.Decoder(RotationProgress | RotationResult | RotationFailed)

T = TypeVar("T")
Tell = Callable[[RotationProgress | RotationResult], None]


class NotRotated(ConveyorError):
    """The change of the encryption key came to no end."""


class KeyDesk(Protocol):
    """What the commands for keys do."""

    def create(self, wanted: NewKey) -> CreatedApiKey: ...

    def keys(self) -> Iterator[ApiKeyInfo]: ...

    def revoke(self, key_id: KeyId) -> ApiKeyInfo | None: ...

    def rotate(self, tell: Tell, *, force: bool) -> None: ...


def key_desk(settings: Settings) -> KeyDesk:
    """Whoever can answer for the data folder."""
    holder = holder_of(settings)
    return KeysAtRest(settings) if holder is None else ServiceKeys(holder)


class KeysAtRest:
    """Opens the folder for each question."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        set_up_logs("warning", json=not sys.stderr.isatty())

    def create(self, wanted: NewKey) -> CreatedApiKey:
        encrypts = wanted.gateway_key is not None
        return self._ask(lambda admin: admin.create(wanted), writable=True, encrypts=encrypts)

    def keys(self) -> Iterator[ApiKeyInfo]:
        async def listed(admin: ApiKeyAdmin) -> list[ApiKeyInfo]:
            found = list[ApiKeyInfo]()
            while page := await admin.page(limit=PAGE, after=found[-1].id if found else ""):
                found += page
            return found

        yield from self._ask(listed)

    def revoke(self, key_id: KeyId) -> ApiKeyInfo | None:
        return self._ask(lambda admin: admin.revoke(key_id), writable=True)

    def rotate(self, tell: Tell, *, force: bool) -> None:
        async def rotate() -> None:
            async with rotate_at_rest(self._settings) as rotate_encryption:
                async for event in rotate_encryption.rotate(force=force):
                    tell(event)

        asyncio.run(rotate())

    def _ask(
        self,
        question: Callable[[ApiKeyAdmin], Awaitable[T]],
        *,
        writable: bool = False,
        encrypts: bool = False,
    ) -> T:
        async def ask() -> T:
            async with api_keys_at_rest(
                self._settings, writable=writable, encrypts=encrypts
            ) as admin:
                return await question(admin)

        return asyncio.run(ask())


class ServiceKeys:
    """Asks the process that holds the folder."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    def create(self, wanted: NewKey) -> CreatedApiKey:
        return self._holder.get("keys", CreatedApiKey, "POST", msgspec.json.encode(wanted))

    def keys(self) -> Iterator[ApiKeyInfo]:
        after = ""
        while page := self._holder.get(f"keys?{urlencode({'after': after})}", list[ApiKeyInfo]):
            yield from page
            after = page[-1].id

    def revoke(self, key_id: KeyId) -> ApiKeyInfo | None:
        return self._holder.get(f"keys/{quote(key_id, safe='')}", ApiKeyInfo | None, "DELETE")  # type: ignore[arg-type]

    def rotate(self, tell: Tell, *, force: bool) -> None:
        path = f"encryption/rotate?{urlencode({'force': str(force).lower()})}"
        for event in self._holder.lines("POST", path, EVENT):
            if isinstance(event, RotationFailed):
                raise NotRotated(f"{event.why}; both keys are kept: run the command again")
            tell(event)
