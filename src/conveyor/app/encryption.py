"""The encryption keys of a process: in its data folder, or in a record that processes share.

The keys of the embedded engines are in files of the data folder. The record is used for engines
that processes share, and where the settings give a root key: by `encryption_key` or `file:/path`.
"""

from pathlib import Path
from typing import NamedTuple

import structlog

from conveyor.adapters.crypto.key_files import PLAIN, KeyFiles, PlainKeyProvider, load_or_create_key
from conveyor.adapters.crypto.key_record import KeyRecord
from conveyor.adapters.crypto.key_ring import AesKeyRing
from conveyor.adapters.crypto.root_keys import RootKeys, parse_key, read_root_file
from conveyor.domain.encryption_keys import RECORD, EncryptionKeys
from conveyor.errors import RefusedToStart, Unavailable
from conveyor.ports.clock import Clock
from conveyor.ports.encryption import KeyProvider
from conveyor.ports.metadata import Metadata
from conveyor.settings import Settings

KMS = "kms:"
LINKS = "links.key"

log = structlog.get_logger()


class OpenedKeys(NamedTuple):
    """The opened keys of a process."""

    ring: AesKeyRing
    link_secret: bytes


def check_encryption(settings: Settings, *, is_shared: bool) -> None:
    """Raise `RefusedToStart` if processes share the engines and not the key."""
    if is_shared and not _has_root(settings):
        raise RefusedToStart(
            f"settings: encryption must be kms: and a key, or {PLAIN}/path of a file that every process "
            f"can read, or encryption_key must be given, because processes share the engine of "
            f"metadata; got encryption = {settings.encryption!r}, a key in one data folder"
        )


async def open_keys(
    settings: Settings,
    metadata: Metadata,
    clock: Clock,
    *,
    is_shared: bool,
    any_provider: bool = False,
) -> OpenedKeys:
    """Open the keys that the settings name, and create them at the first start.

    `is_shared`: processes share the engine of metadata. `any_provider` also accepts a key file of a
    provider that the settings do not name, for a rotation that replaces it.
    """
    check_encryption(settings, is_shared=is_shared)
    try:
        record = await metadata.get(EncryptionKeys, RECORD)
        if record or is_shared or _gives_root(settings):
            return await _open_record(settings, metadata, clock, record, is_shared=is_shared)
        return await _open_files(settings, any_provider=any_provider)
    except Unavailable as error:
        raise RefusedToStart(str(error)) from None


async def _open_files(settings: Settings, *, any_provider: bool) -> OpenedKeys:
    files = KeyFiles(settings.folder, settings.encryption, key_provider)
    keys = await files.load(any_provider=any_provider)
    if files.is_rotating and not any_provider:
        log.warning("encryption.unfinished")
    return OpenedKeys(AesKeyRing(*keys, store=files), load_or_create_key(settings.folder / LINKS))


async def _open_record(
    settings: Settings,
    metadata: Metadata,
    clock: Clock,
    record: EncryptionKeys | None,
    *,
    is_shared: bool,
) -> OpenedKeys:
    if not _has_root(settings):
        assert record
        raise RefusedToStart(
            f"the encryption keys are wrapped by the root key with the fingerprint {record.root}"
            f"{f' of {record.provider}' if record.provider else ''}, and the settings name none: "
            "give it by encryption_key or encryption"
        )
    roots = _root_keys(settings, is_first=record is None)
    store = KeyRecord(metadata, clock, roots)
    folder = settings.folder
    if record is None and not is_shared and (folder / "encryption.key").exists():
        # The engines have been used with keys in the folder: they must stay readable.
        files = KeyFiles(folder, settings.encryption, key_provider)
        keys = await store.open(
            await files.load(any_provider=True), load_or_create_key(folder / LINKS)
        )
        log.warning("encryption.adopted", folder=str(folder))
    else:
        keys = await store.open()
    return OpenedKeys(AesKeyRing(*keys, store=store), store.link_secret)


def _has_root(settings: Settings) -> bool:
    return _gives_root(settings) or settings.encryption.startswith(KMS)


def _gives_root(settings: Settings) -> bool:
    return bool(settings.encryption_key) or settings.encryption.startswith(f"{PLAIN}/")


def _root_keys(settings: Settings, *, is_first: bool) -> RootKeys:
    keys = [key for text in settings.encryption_key if (key := parse_key(text))]
    kms = settings.encryption if settings.encryption.startswith(KMS) else ""
    path = settings.encryption.removeprefix(PLAIN)
    if not kms and path:
        # Only at the first start: later a missing file is a wrong path, and a new key opens nothing.
        keys = [*read_root_file(Path(path), create=is_first and not keys), *keys]
    return RootKeys(*keys, kms=kms, provider=key_provider)


def key_provider(encryption: str) -> KeyProvider:
    if encryption == PLAIN:
        return PlainKeyProvider()
    from conveyor.adapters.aws.kms import KmsKeyProvider  # noqa: PLC0415 - an extra

    return KmsKeyProvider(encryption.removeprefix(KMS))
