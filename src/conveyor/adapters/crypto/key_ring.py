"""Credentials encrypted with AES-256-GCM, and random secrets."""

import asyncio
import hashlib
import os
import secrets
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from conveyor.adapters.crypto.key_files import KeyFiles
from conveyor.errors import Unavailable

SIGNING_BYTES = 32
NONCE_BYTES = 12
FINGERPRINT_BYTES = 8
FIRST, SECOND = b"\x01", b"\x02"
LETTERS = string.ascii_letters + string.digits
SECRET_LETTERS = 32  # of 62 kinds: 190 bits


class AesKeyRing:
    """Encrypts and decrypts with the last of `keys`, and decrypts with the others too.

    A value is a version byte, the fingerprint of its key, a nonce, the ciphertext and its tag. Values
    of the first version have no fingerprint, so each key is tried on them.
    """

    def __init__(self, *keys: bytes, files: KeyFiles | None = None) -> None:
        self._files = files
        self._writers: set[asyncio.Event] = set()
        self._take(*keys)

    def encrypt(self, secret: str, *, context: str) -> bytes:
        head, nonce = SECOND + self._current, os.urandom(NONCE_BYTES)
        bound = head + context.encode()
        return head + nonce + self._ciphers[self._current].encrypt(nonce, secret.encode(), bound)

    def decrypt(self, encrypted: bytes, *, context: str) -> str:
        head, ciphers = self._candidates(encrypted)
        bound = (head if head != FIRST else b"") + context.encode()
        rest = encrypted[len(head) :]
        for cipher in ciphers:
            try:
                return cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], bound).decode()
            except (InvalidTag, ValueError):
                continue
        raise Unavailable("a stored credential cannot be decrypted with this encryption key")

    def is_current(self, encrypted: bytes) -> bool:
        return encrypted.startswith(SECOND + self._current)

    def fingerprints(self) -> Sequence[str]:
        return [key.hex() for key in self._ciphers]

    @contextmanager
    def writing(self) -> Iterator[None]:
        ended = asyncio.Event()
        self._writers.add(ended)
        try:
            yield
        finally:
            self._writers.discard(ended)
            ended.set()

    async def rotate(self) -> None:
        if self._files is None:
            raise Unavailable("the encryption key is in no file, and cannot be rotated")
        self._take(*await self._files.rotate())
        # A writer that began before may still commit a value under the old key. The caller rewrites
        # stored values next, and must not miss that one.
        for ended in [*self._writers]:
            await ended.wait()

    async def retire(self) -> None:
        # Only the file is removed. The cipher stays, for values that were read before they were
        # rewritten.
        if self._files:
            await self._files.retire()

    def _take(self, *keys: bytes) -> None:
        self._ciphers = {fingerprint(key): AESGCM(key) for key in keys}
        self._current = fingerprint(keys[-1])

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
