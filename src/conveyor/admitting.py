"""Composition of authentication, API keys and encryption."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from conveyor.adapters.crypto.key_files import PLAIN, KeyFiles, PlainKeyProvider
from conveyor.adapters.crypto.key_ring import AesKeyRing, new_secret
from conveyor.adapters.sqlite.engine import visit_engine
from conveyor.adapters.system.clock import SystemClock, SystemIds
from conveyor.api.api_keys import ApiKeyRoutes
from conveyor.api.auth import Callers, ForwardedKeys, OwnKeys
from conveyor.errors import RefusedToStart, Unavailable
from conveyor.operating import Engines
from conveyor.ports.encryption import KeyProvider
from conveyor.settings import DIRECT, Auth, Settings
from conveyor.steps.api_keys import ApiKeyAdmin
from conveyor.steps.auth import Authenticate
from conveyor.steps.rotate_encryption import RotateEncryption

KMS = "kms:"

log = structlog.get_logger()


def check_callers(settings: Settings) -> None:
    """Refuse an address at which anyone could use the service."""
    if settings.is_local:
        return
    if settings.mode is Auth.DEV:
        raise RefusedToStart(
            f"anyone could use this service on {settings.host}. Choose who may: CONVEYOR_AUTH=keys "
            "takes keys that you make with `conveyor keys create`; CONVEYOR_AUTH=forward takes "
            "callers' own gateway keys, of which CONVEYOR_API_KEYS lists the only ones; or bind "
            "to 127.0.0.1"
        )
    if settings.mode is Auth.FORWARD and settings.gateway == DIRECT and not settings.api_keys:
        raise RefusedToStart(
            f"anyone could use this service on {settings.host}: {DIRECT} has no gateway that would "
            "refuse a key. Set CONVEYOR_AUTH=keys, list the keys you accept in CONVEYOR_API_KEYS, "
            "or bind to 127.0.0.1"
        )


async def open_key_ring(settings: Settings, *, any_provider: bool = False) -> AesKeyRing:
    """Open the key ring of a data folder; with `any_provider` also one the settings do not name."""
    files = KeyFiles(settings.folder, settings.encryption, _provider)
    try:
        keys = await files.load(any_provider=any_provider)
    except Unavailable as error:
        raise RefusedToStart(str(error)) from None
    if files.is_rotating and not any_provider:
        log.warning("encryption.unfinished")
    return AesKeyRing(*keys, files=files)


def _provider(encryption: str) -> KeyProvider:
    if encryption == PLAIN:
        return PlainKeyProvider()
    from conveyor.adapters.aws.kms import KmsKeyProvider  # noqa: PLC0415 - an extra

    return KmsKeyProvider(encryption.removeprefix(KMS))


def wire_authenticate(engines: Engines) -> Authenticate:
    return Authenticate(
        metadata=engines.metadata,
        encryption=engines.encryption,
        clock=engines.clock,
    )


def wire_callers(settings: Settings, authenticate: Authenticate) -> Callers:
    if settings.mode is not Auth.KEYS:
        return ForwardedKeys(settings.api_keys)
    return OwnKeys(
        authenticate,
        gateway_key=settings.gateway_key or None,
        takes_key=settings.gateway != DIRECT,
    )


def wire_api_key_routes(settings: Settings, engines: Engines) -> ApiKeyRoutes:
    admin = ApiKeyAdmin(
        metadata=engines.metadata,
        encryption=engines.encryption,
        clock=engines.clock,
        ids=engines.ids,
        new_secret=new_secret,
        auth=settings.mode,
    )
    rotate_encryption = RotateEncryption(
        metadata=engines.metadata,
        encryption=engines.encryption,
    )
    return ApiKeyRoutes(admin=admin, rotate_encryption=rotate_encryption)


@asynccontextmanager
async def api_keys_at_rest(
    settings: Settings, *, writable: bool, encrypts: bool = False
) -> AsyncIterator[ApiKeyAdmin]:
    """Open the API keys of a folder at rest; its key ring only if something will be encrypted."""
    clock = SystemClock()
    ids = SystemIds(clock)
    async with visit_engine(settings.folder, clock=clock, ids=ids, writable=writable) as rows:
        yield ApiKeyAdmin(
            metadata=rows.metadata,
            encryption=await open_key_ring(settings) if encrypts else None,
            clock=clock,
            ids=ids,
            new_secret=new_secret,
            auth=settings.mode,
        )


@asynccontextmanager
async def rotate_at_rest(settings: Settings) -> AsyncIterator[RotateEncryption]:
    """Open a folder at rest to rotate its encryption key to the provider that the settings name."""
    clock = SystemClock()
    ids = SystemIds(clock)
    async with visit_engine(settings.folder, clock=clock, ids=ids, writable=True) as rows:
        yield RotateEncryption(
            metadata=rows.metadata,
            encryption=await open_key_ring(settings, any_provider=True),
        )
