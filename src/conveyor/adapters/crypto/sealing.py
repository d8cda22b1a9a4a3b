"""Secrets sealed with AES-256-GCM."""

import hashlib
import os
import secrets
import string

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from conveyor.adapters.crypto.key_files import KeyFiles
from conveyor.errors import Unavailable

SIGNING_BYTES = 32
NONCE_BYTES = 12
MARK_BYTES = 8
FIRST, SECOND = b"\x01", b"\x02"
LETTERS = string.ascii_letters + string.digits
SECRET_LETTERS = 32  # of 62 kinds: 190 bits


class AesSealing:
    """Sealed form: a version byte, the key's fingerprint, a nonce, the ciphertext with its tag.

    The first version had no fingerprint, and is opened by trying. The last of `keys` seals.
    """

    def __init__(self, *keys: bytes, files: KeyFiles | None = None) -> None:
        self._files = files
        self._take(*keys)

    def seal(self, secret: str, *, context: str) -> bytes:
        head, nonce = SECOND + self._mark, os.urandom(NONCE_BYTES)
        bound = head + context.encode()
        return head + nonce + self._ciphers[self._mark].encrypt(nonce, secret.encode(), bound)

    def open(self, sealed: bytes, *, context: str) -> str:
        head, ciphers = self._openers(sealed)
        bound = (head if head != FIRST else b"") + context.encode()
        rest = sealed[len(head) :]
        for cipher in ciphers:
            try:
                return cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], bound).decode()
            except (InvalidTag, ValueError):
                continue
        raise Unavailable("a stored credential does not open with this sealing key")

    def is_current(self, sealed: bytes) -> bool:
        return sealed.startswith(SECOND + self._mark)

    async def turn(self) -> None:
        if self._files is None:
            raise Unavailable("the sealing key is in no file, and cannot be changed")
        self._take(*await self._files.turn())

    async def forget(self) -> None:
        """From the folder only: what was read a moment ago, and not opened yet, still opens."""
        if self._files:
            await self._files.forget()

    def _take(self, *keys: bytes) -> None:
        self._ciphers = {fingerprint(key): AESGCM(key) for key in keys}
        self._mark = fingerprint(keys[-1])

    def _openers(self, sealed: bytes) -> tuple[bytes, list[AESGCM]]:
        if sealed[:1] != SECOND:
            return FIRST, [*self._ciphers.values()]
        head = sealed[: 1 + MARK_BYTES]
        found = self._ciphers.get(head[1:])
        return head, [found] if found else []


def fingerprint(key: bytes) -> bytes:
    """Tells keys apart, and nothing of them."""
    return hashlib.sha256(b"conveyor sealing key\0" + key).digest()[:MARK_BYTES]


def new_signing_secret() -> bytes:
    """A key for signatures that nobody can guess."""
    return os.urandom(SIGNING_BYTES)


def new_token() -> str:
    """A secret that nobody can guess, for as long as a process lives."""
    return secrets.token_urlsafe(32)


def new_secret() -> str:
    """The secret part of a key that is given out: letters and digits, to be copied in one piece."""
    return "".join(secrets.choice(LETTERS) for _ in range(SECRET_LETTERS))
