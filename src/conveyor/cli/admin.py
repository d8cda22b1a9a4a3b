"""Administration of a service: through the process that owns the data folder, or on the engines.

A running service holds its data folder. Operators' commands then call its operator API, by the
address and token in the file that it left in the folder. If none runs, or if processes share all
engines, the commands open the engines themselves.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Protocol, TypeVar

import msgspec

from conveyor.api.handlers.admin import RotationFailed
from conveyor.app.engines import (
    keeps_dead_letters,
    may_be_in_use,
    open_offline,
    open_offline_coordination,
    open_offline_keys,
    owner,
    running_service,
)
from conveyor.app.services import (
    build_api_key_admin,
    build_offline_doctor,
    build_rotate_encryption,
)
from conveyor.client import ApiError, Patience, UnreachableError
from conveyor.client.synchronous import HttpNetwork, drive
from conveyor.client.transport import Query, Transport, path_of
from conveyor.domain.api_key import NewKey
from conveyor.domain.audit import DoctorEvent, DoctorScope
from conveyor.domain.credentials import RotationEvent
from conveyor.domain.ids import ApiKeyId
from conveyor.errors import ConveyorError, RefusedToStart
from conveyor.ports.control_queue import DeadLetter, DeadLetters
from conveyor.settings import Settings
from conveyor.steps.api_keys import ApiKeyAdmin, ApiKeyInfo, CreatedApiKey
from conveyor.telemetry.logs import set_up_logs

PAGE = 500
TIMEOUT = 120.0  # seconds without a byte
FINDING = msgspec.json.Decoder(DoctorEvent)
ROTATION = msgspec.json.Decoder(RotationEvent | RotationFailed)

T = TypeVar("T")
OnFinding = Callable[[DoctorEvent], None]
OnRotation = Callable[[RotationEvent], None]


class OutOfReach(ConveyorError):
    """Another process holds the folder, and it does not answer."""


class NotRotated(ConveyorError):
    """The rotation of the encryption key was not completed."""


class Admin(Protocol):
    """The operations of operators' commands."""

    def examine(self, wanted: DoctorScope, on_event: OnFinding) -> None: ...

    def dead_letters(self) -> Iterator[DeadLetter]: ...

    def find_dead_letter(self, message_id: str) -> DeadLetter | None: ...

    def redrive(self, message_id: str) -> bool: ...

    def drop(self, message_id: str) -> bool: ...

    def create_key(self, wanted: NewKey) -> CreatedApiKey: ...

    def keys(self) -> Iterator[ApiKeyInfo]: ...

    def revoke_key(self, key_id: ApiKeyId) -> ApiKeyInfo | None: ...

    def rotate_encryption(self, on_event: OnRotation, *, force: bool) -> None: ...


def open_admin(settings: Settings) -> Admin:
    """The service that holds the data folder, or the engines themselves."""
    process = owner(settings)
    if process is None:
        set_up_logs("warning", json=not sys.stderr.isatty())
        return OfflineAdmin(settings)
    found = running_service(settings)
    if found is None:
        raise OutOfReach(
            f"process {process} holds the data folder {settings.folder} and has no operator API: it "
            "is another `conveyor` command, or a service that is starting or stopping; try again "
            "when it is done"
        )
    return ServiceAdmin(found.url, found.token, process)


class OfflineAdmin:
    """Opens the engines for each call."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def examine(self, wanted: DoctorScope, on_event: OnFinding) -> None:
        async def examine() -> None:
            async with open_offline(self._settings) as stores:
                in_use = await may_be_in_use(self._settings, stores)
                doctor = build_offline_doctor(self._settings, stores, in_use=in_use)
                async for event in doctor.examine(wanted):
                    on_event(event)

        asyncio.run(examine())

    def dead_letters(self) -> Iterator[DeadLetter]:
        async def listed(control_queue: DeadLetters) -> list[DeadLetter]:
            return [message async for message in _all_dead_letters(control_queue)]

        yield from self._on_dead_letters(listed)

    def find_dead_letter(self, message_id: str) -> DeadLetter | None:
        return self._on_dead_letters(lambda queue: queue.find_dead_letter(message_id))

    def redrive(self, message_id: str) -> bool:
        return self._on_dead_letters(lambda queue: queue.redrive(message_id), writable=True)

    def drop(self, message_id: str) -> bool:
        return self._on_dead_letters(lambda queue: queue.drop(message_id), writable=True)

    def create_key(self, wanted: NewKey) -> CreatedApiKey:
        encrypts = wanted.gateway_key is not None
        return self._on_keys(lambda keys: keys.create(wanted), writable=True, encrypts=encrypts)

    def keys(self) -> Iterator[ApiKeyInfo]:
        async def listed(keys: ApiKeyAdmin) -> list[ApiKeyInfo]:
            found = list[ApiKeyInfo]()
            while page := await keys.page(limit=PAGE, after=found[-1].id if found else ""):
                found += page
            return found

        yield from self._on_keys(listed)

    def revoke_key(self, key_id: ApiKeyId) -> ApiKeyInfo | None:
        return self._on_keys(lambda keys: keys.revoke(key_id), writable=True)

    def rotate_encryption(self, on_event: OnRotation, *, force: bool) -> None:
        async def rotate() -> None:
            settings = self._settings
            async with (
                AsyncExitStack() as stack,
                open_offline(settings, writable=True) as stores,
            ):
                keys = await open_offline_keys(settings, stores, any_provider=True)
                others = await open_offline_coordination(settings, stores, stack)
                rotation = build_rotate_encryption(settings, stores, keys.ring, others)
                async for event in rotation.rotate(force=force):
                    on_event(event)

        asyncio.run(rotate())

    def _on_dead_letters(
        self, act: Callable[[DeadLetters], Coroutine[object, object, T]], *, writable: bool = False
    ) -> T:
        if not keeps_dead_letters(self._settings):
            raise RefusedToStart(
                "dead letters are in the memory of the service, because control_queue is memory:. Its "
                "log says why messages failed (control.failed, control.bug)"
            )

        async def opened() -> T:
            async with open_offline(self._settings, writable=writable) as stores:
                return await act(stores.control_queue)

        return asyncio.run(opened())

    def _on_keys(
        self,
        act: Callable[[ApiKeyAdmin], Awaitable[T]],
        *,
        writable: bool = False,
        encrypts: bool = False,
    ) -> T:
        async def opened() -> T:
            async with open_offline(self._settings, writable=writable) as stores:
                keys = await open_offline_keys(self._settings, stores) if encrypts else None
                ring = keys.ring if keys else None
                return await act(build_api_key_admin(self._settings, stores, ring))

        return asyncio.run(opened())


async def _all_dead_letters(control_queue: DeadLetters) -> AsyncIterator[DeadLetter]:
    after = ""
    while page := await control_queue.dead_letters(limit=PAGE, after=after):
        for message in page:
            yield message
        after = page[-1].id


class ServiceAdmin:
    """Calls the operator API of the service that holds the folder."""

    def __init__(self, url: str, token: str, process: str) -> None:
        self._url, self._process = url, process
        self._headers = {"Authorization": f"Bearer {token}"}
        network = HttpNetwork(url)
        once = Patience(attempts=1)
        base = f"{url}/operator"
        self._transport = Transport(base, None, network, timeout=TIMEOUT, patience=once)

    def examine(self, wanted: DoctorScope, on_event: OnFinding) -> None:
        query = {"job": wanted.job_id, "run": wanted.run_id, "bodies": str(wanted.bodies).lower()}
        for event in self._lines("GET", "doctor", query=query, decoder=FINDING):
            on_event(event)

    def dead_letters(self) -> Iterator[DeadLetter]:
        after = ""
        while page := self._call("GET", "dlq", query={"after": after}, kind=list[DeadLetter]):
            yield from page
            after = page[-1].id

    def find_dead_letter(self, message_id: str) -> DeadLetter | None:
        return self._call("GET", "dlq", message_id, kind=DeadLetter | None)  # type: ignore[arg-type]

    def redrive(self, message_id: str) -> bool:
        return self._call("POST", "dlq", message_id, "redrive", kind=bool)

    def drop(self, message_id: str) -> bool:
        return self._call("DELETE", "dlq", message_id, kind=bool)

    def create_key(self, wanted: NewKey) -> CreatedApiKey:
        return self._call("POST", "keys", body=msgspec.json.encode(wanted), kind=CreatedApiKey)

    def keys(self) -> Iterator[ApiKeyInfo]:
        after = ""
        while page := self._call("GET", "keys", query={"after": after}, kind=list[ApiKeyInfo]):
            yield from page
            after = page[-1].id

    def revoke_key(self, key_id: ApiKeyId) -> ApiKeyInfo | None:
        return self._call("DELETE", "keys", key_id, kind=ApiKeyInfo | None)  # type: ignore[arg-type]

    def rotate_encryption(self, on_event: OnRotation, *, force: bool) -> None:
        query = {"force": str(force).lower()}
        for event in self._lines("POST", "encryption", "rotate", query=query, decoder=ROTATION):
            if isinstance(event, RotationFailed):
                raise NotRotated(f"{event.why}; both keys are kept: repeat the command")
            on_event(event)

    def _call(
        self,
        method: str,
        *path: str,
        kind: type[T],
        query: Query | None = None,
        body: bytes | None = None,
    ) -> T:
        target = path_of(*path, query=query)
        with self._errors("does not answer"):
            raw = drive(self._transport.call_once(method, target, body, self._headers))
            return msgspec.json.decode(raw, type=kind)

    def _lines(
        self, method: str, *path: str, query: Query, decoder: msgspec.json.Decoder[T]
    ) -> Iterator[T]:
        """A response of many lines, as they come."""
        target = path_of(*path, query=query)
        with self._errors("did not answer to the end"):
            response = self._transport.response(method, target, headers=self._headers)
            lines = drive(response.__aenter__()).lines()
            try:
                while line := drive(anext(lines, b"")):
                    yield decoder.decode(line)
            finally:
                drive(response.__aexit__(None, None, None))

    @contextmanager
    def _errors(self, how: str) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            if error.status == 400:
                raise RefusedToStart(error.detail) from None
            raise self._out_of_reach(f"refuses ({error.status})") from None
        except (UnreachableError, msgspec.MsgspecError):
            raise self._out_of_reach(how) from None

    def _out_of_reach(self, how: str) -> OutOfReach:
        return OutOfReach(
            f"process {self._process} holds the data folder, and {self._url}, its address in "
            f"operator.json, {how}: it may be starting or stopping; try again in a moment, and if "
            "that does not help stop that process and repeat the command"
        )
