"""Encryption of stored credentials: a ring of keys, and where the keys come from."""

from contextlib import AbstractContextManager
from typing import Protocol


class KeyRing(Protocol):
    """Encrypts with the current key; decrypts with it and, during a rotation, with the one before."""

    def encrypt(self, secret: str, *, context: str) -> bytes:
        """Encrypt a secret so that it can be decrypted with the same context only."""
        ...

    def decrypt(self, encrypted: bytes, *, context: str) -> str:
        """Return the secret; `Unavailable` when neither key decrypts it in this context."""
        ...

    def is_current(self, encrypted: bytes) -> bool:
        """Return whether the current key encrypted it."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """Enclose everything from encrypting a secret to committing the row that holds it."""
        ...

    async def rotate(self) -> None:
        """Make a new key the current one, and keep the old one for decryption.

        Returns once every `writing()` block that began before has ended, so that nothing encrypted
        with the old key is still on its way to a row.

        A rotation that was begun and not finished is continued with its new key. After a crash
        there is the old key, or there are both. `Unavailable` when no new key can be had.
        """
        ...

    async def retire(self) -> None:
        """Delete the old key, once nothing stored is encrypted with it; without one, do nothing."""
        ...


class KeyProvider(Protocol):
    """Creates keys, and knows in which form a key may be stored in a file."""

    async def new_key(self) -> tuple[bytes, bytes]:
        """Return a new key of 32 bytes and its form to store; `Unavailable` when there is none."""
        ...

    async def unwrap(self, stored: bytes) -> bytes:
        """Return the key in its stored form; `Unavailable` when it cannot be unwrapped now."""
        ...
