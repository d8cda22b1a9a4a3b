"""Root keys: what each process must be given to unwrap the encryption keys that processes share.

They come from the settings, from a file that the processes share, or from AWS KMS. A root key never
encrypts a credential. The first key wraps; the others are earlier ones, which are given along with
the new one while the root key is rotated.
"""

import os
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from conveyor.adapters.crypto.key_files import KEY_BYTES
from conveyor.adapters.shared.disk import PRIVATE, make_folder, sync_folder, write_all
from conveyor.domain.encryption_keys import EncryptionKeys
from conveyor.errors import RefusedToStart, Unavailable
from conveyor.ports.encryption import KeyProvider

NONCE_BYTES = 12
FINGERPRINT_BYTES = 8
FORM = f"{KEY_BYTES} bytes in base64, as `openssl rand -base64 {KEY_BYTES}` prints them"


class Root(NamedTuple):
    """A root key, and how the record names it."""

    key: bytes
    provider: str = ""
    wrapped: bytes = b""

    @property
    def fingerprint(self) -> str:
        """Identify the key without revealing it."""
        digest = sha256(b"conveyor root key\0" + self.key).digest()
        return digest[:FINGERPRINT_BYTES].hex()

    def wrap(self, content: bytes, purpose: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + AESGCM(self.key).encrypt(nonce, content, _bound(purpose))

    def unwrap(self, wrapped: bytes, purpose: str) -> bytes:
        nonce, rest = wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:]
        try:
            return AESGCM(self.key).decrypt(nonce, rest, _bound(purpose))
        except (InvalidTag, ValueError):
            raise Unavailable(
                "the record of the encryption keys is damaged: restore it from a backup"
            ) from None


class RootKeys:
    """The root keys of this process: keys that it was given, or those that KMS wraps."""

    def __init__(
        self,
        *keys: bytes,
        kms: str = "",
        provider: Callable[[str], KeyProvider] | None = None,
    ) -> None:
        self._given = [Root(key) for key in keys]
        self._kms, self._provider = kms, provider
        self._opened: dict[bytes, Root] = {}  # by the form that KMS wrapped: each asks KMS once

    @property
    def names(self) -> Sequence[str]:
        """Name what this process can unwrap the keys with, first what it would wrap them with."""
        given = [f"root:{root.fingerprint}" for root in self._given]
        return [f"root:{self._kms}", *given] if self._kms else given

    def wraps(self, record: EncryptionKeys) -> bool:
        """Return whether the record is wrapped as the settings of this process say."""
        if self._kms:
            return record.provider == self._kms
        return not record.provider and record.root == self._given[0].fingerprint

    async def new(self) -> Root:
        """Return the root key that this process wraps with."""
        if not self._kms:
            return self._given[0]
        key, wrapped = await self._kms_provider(self._kms).new_key()
        return Root(key, self._kms, wrapped)

    async def of(self, record: EncryptionKeys) -> Root:
        """Return the root key of the record. Raises `Unavailable` if this process does not have it."""
        if record.provider:
            return await self._unwrapped(record)
        for root in self._given:
            if root.fingerprint == record.root:
                return root
        mine = ", ".join(root.fingerprint for root in self._given)
        has = f"this process was given {mine}" if mine else "this process was given none"
        raise Unavailable(
            f"the encryption keys are wrapped by the root key with the fingerprint {record.root}, and "
            f"{has}: give every process the same key by encryption_key or `encryption = "
            "file:/path`; while you rotate the root key, the new one and then the earlier one"
        )

    async def _unwrapped(self, record: EncryptionKeys) -> Root:
        found = self._opened.get(record.wrapped_root)
        if found is None:
            key = await self._kms_provider(record.provider).unwrap(record.wrapped_root)
            found = Root(key, record.provider, record.wrapped_root)
            if found.fingerprint != record.root:
                raise Unavailable(
                    f"{record.provider} gave a root key with the fingerprint {found.fingerprint}, and "
                    f"the encryption keys are wrapped by {record.root}: restore their record from a "
                    "backup"
                )
            self._opened[record.wrapped_root] = found
        return found

    def _kms_provider(self, name: str) -> KeyProvider:
        assert self._provider, "a record under KMS is opened with its provider"
        return self._provider(name)


def parse_key(text: str) -> bytes | None:
    """Return the key that a text holds; None if it is malformed."""
    try:
        key = b64decode(text, validate=True)
    except (Base64Error, ValueError):
        return None
    return key if len(key) == KEY_BYTES else None


def read_root_file(path: Path, *, create: bool) -> Sequence[bytes]:
    """Return the keys of a file, one a line; with `create`, create it with a new key if it is missing.

    Of processes that create it at the same time one succeeds, and all return its key.
    """
    try:
        if create and not path.exists():
            _create(path)
        lines = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise RefusedToStart(f"the root key cannot be read from {path}: {why}") from None
    keys = [parse_key(line) for line in lines]
    if not keys or None in keys:
        raise RefusedToStart(f"{path} must hold a root key on each line: {FORM}")
    return [key for key in keys if key]


def _create(path: Path) -> None:
    make_folder(path.parent, sync=True)
    draft = path.with_name(f"{path.name}.{os.urandom(8).hex()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    try:
        write_all(descriptor, b64encode(os.urandom(KEY_BYTES)) + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    try:
        # Not a rename, which would replace the file that another process has created meanwhile.
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink()
        sync_folder(path.parent)


def _bound(purpose: str) -> bytes:
    return f"conveyor {purpose}".encode()
