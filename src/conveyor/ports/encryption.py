"""Encryption of stored credentials: a ring of keys, and where the keys come from."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class KeyRing(Protocol):
    """Encrypts with the current key. Decrypts with it and, during a rotation, with the old key.

    Encryption is authenticated: a value that was changed, or is used in another context, cannot be
    decrypted.
    """

    def encrypt(self, secret: str, *, context: str) -> bytes:
        """Encrypt a secret so that it can be decrypted only with the same context.

        The context names the caller and the row, such as `<caller>|<job id>`.
        """
        ...

    def decrypt(self, encrypted: bytes, *, context: str) -> str:
        """Return the secret. Raises `Unavailable` when neither key decrypts it in this context."""
        ...

    def is_current(self, encrypted: bytes) -> bool:
        """Return whether the value was encrypted with the current key."""
        ...

    def fingerprints(self) -> Sequence[str]:
        """Identify the keys that this ring decrypts with, without revealing them."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """Enclose everything from encrypting a secret to committing the row that holds it.

        `rotate` waits for the blocks that have begun.
        """
        ...

    async def rotate(self) -> None:
        """Make a new key the current one, and keep the old one for decryption.

        The call returns once every `writing()` block that began before it has ended. From then on
        no value that is encrypted with the old key can still be committed.

        A rotation that was begun and not finished continues with its new key. A crash leaves the
        old key alone, or both keys. Raises `Unavailable` when no new key can be created.
        """
        ...

    async def retire(self) -> None:
        """Delete the old key, if there is one.

        The caller must have re-encrypted every stored value before: no other key decrypts them.
        """
        ...


class KeyProvider(Protocol):
    """Creates encryption keys, and converts them to and from the form that may be stored."""

    async def new_key(self) -> tuple[bytes, bytes]:
        """Return a new key of 32 bytes, and its stored form. Raises `Unavailable`."""
        ...

    async def unwrap(self, stored: bytes) -> bytes:
        """Return the key of a stored form. Raises `Unavailable` when it cannot be unwrapped now."""
        ...
