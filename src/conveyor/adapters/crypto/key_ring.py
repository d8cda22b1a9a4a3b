"""Credentials encrypted with AES-256-GCM, and random secrets."""

import asyncio
import hashlib
import os
import secrets
import string
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from conveyor.errors import Unavailable
from conveyor.ports.encryption import Undecryptable

SIGNING_BYTES = 32
NONCE_BYTES = 12
FINGERPRINT_BYTES = 8
FIRST, SECOND = b"\x01", b"\x02"
LETTERS = string.ascii_letters + string.digits
SECRET_LETTERS = 32  # of 62 kinds: 190 bits


class KeyStore(Protocol):
    """Where the keys of a ring are kept.

    Calls that change or read the keys return all that decrypt, the current one last; nothing if
    they are as before.
    """

    roots: Sequence[str]  # names of the root keys that this process can use

    def is_fresh(self) -> bool:
        """Return whether the keys were read recently enough to encrypt with the current one."""
        ...

    async def reload(self) -> Sequence[bytes]: ...

    async def publish(self) -> tuple[Sequence[str], Sequence[bytes]]:
        """Return what processes must name before the new key is promoted, too."""
        ...

    async def promote(self, fingerprint: str) -> Sequence[bytes]: ...

    async def retire(self, fingerprint: str) -> Sequence[bytes]: ...

    async def has_expired_keys(self) -> bool: ...

    async def drop_expired_keys(self) -> None: ...


class AesKeyRing:
    """Encrypts and decrypts with the last of `keys`, and decrypts with the others too.

    A value is a version byte, the fingerprint of its key, a nonce, the ciphertext and its tag. Values
    of the first version have no fingerprint, so each key is tried on them.
    """

    def __init__(self, *keys: bytes, store: KeyStore | None = None) -> None:
        self._store = store
        self._ciphers: dict[bytes, AESGCM] = {}
        # Open `writing()` blocks, oldest first, with the key that was current when each began.
        self._writers: dict[asyncio.Event, bytes] = {}
        self._take(keys)

    def encrypt(self, secret: str, *, context: str) -> bytes:
        head, nonce = SECOND + self._current, os.urandom(NONCE_BYTES)
        bound = head + context.encode()
        return head + nonce + self._ciphers[self._current].encrypt(nonce, secret.encode(), bound)

    async def decrypt(self, encrypted: bytes, *, context: str) -> str:
        if not self._candidates(encrypted)[1]:
            await self.reload()
        return self._decrypted(encrypted, context)

    def reencrypted(self, encrypted: bytes, *, context: str) -> bytes:
        if self.is_current(encrypted):
            return encrypted
        return self.encrypt(self._decrypted(encrypted, context), context=context)

    def is_current(self, encrypted: bytes) -> bool:
        return encrypted.startswith(SECOND + self._current)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        if self._store and not self._store.is_fresh():
            await self.reload()
        ended = asyncio.Event()
        self._writers[ended] = self._current
        try:
            yield
        finally:
            del self._writers[ended]
            ended.set()

    def fingerprints(self) -> Sequence[str]:
        first = next(iter(self._writers.values()), self._current)
        others = [one for one in self._ciphers if one != first]
        return [
            *(one.hex() for one in (first, *others)),
            *(self._store.roots if self._store else ()),
        ]

    async def reload(self) -> None:
        if self._store:
            self._take(await self._store.reload())

    async def publish(self) -> Sequence[str]:
        names, keys = await self._kept.publish()
        self._take(keys)
        return names

    async def promote(self, fingerprint: str) -> None:
        self._take(await self._kept.promote(fingerprint))
        # A writer that began before may still commit a value under the old key. The caller rewrites
        # stored values next, and must not miss that one.
        for ended in [*self._writers]:
            await ended.wait()

    async def retire(self, fingerprint: str) -> None:
        self._take(await self._kept.retire(fingerprint))

    async def has_expired_keys(self) -> bool:
        return self._store is not None and await self._store.has_expired_keys()

    async def drop_expired_keys(self) -> None:
        await self._kept.drop_expired_keys()

    @property
    def _kept(self) -> KeyStore:
        if self._store is None:
            raise Unavailable("the encryption key is not stored, and cannot be rotated")
        return self._store

    def _take(self, keys: Sequence[bytes]) -> None:
        """Use these keys. Ciphers of keys that are gone stay, for values that were read before."""
        if keys:
            self._ciphers |= {fingerprint(key): AESGCM(key) for key in keys}
            self._current = fingerprint(keys[-1])

    def _decrypted(self, encrypted: bytes, context: str) -> str:
        head, ciphers = self._candidates(encrypted)
        bound = (head if head != FIRST else b"") + context.encode()
        rest = encrypted[len(head) :]
        for cipher in ciphers:
            try:
                return cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], bound).decode()
            except (InvalidTag, ValueError):
                continue
        raise Undecryptable("a stored credential cannot be decrypted with this encryption key")

    def _candidates(self, encrypted: bytes) -> tuple[bytes, list[AESGCM]]:
        if encrypted[:1] != SECOND:
            return FIRST, [*self._ciphers.values()]
        head = encrypted[: 1 + FINGERPRINT_BYTES]
        found = self._ciphers.get(head[1:])
        return head, [found] if found else []


def fingerprint(key: bytes) -> bytes:
    """Identify a key without revealing it."""
    # The text is part of every stored value, so it cannot follow a change of words.
    return hashlib.sha256(b"conveyor sealing key\0" + key).digest()[:FINGERPRINT_BYTES]


def new_signing_secret() -> bytes:
    return os.urandom(SIGNING_BYTES)


def new_token() -> str:
    """Return a random secret for the life of a process."""
    return secrets.token_urlsafe(32)


def new_secret() -> str:
    """Return the secret part of an API key: letters and digits, which a double click selects whole."""
    return "".join(secrets.choice(LETTERS) for _ in range(SECRET_LETTERS))
