"""Encryption of stored credentials: a ring of keys, and where the keys come from."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from conveyor.errors import Unavailable


class Undecryptable(Unavailable):
    """None of the keys decrypts a stored value, until an operator puts its key back."""


class KeyRing(Protocol):
    """Encrypts with the current key. Decrypts with it and with the other keys that are still kept.

    Encryption is authenticated: a value that was changed, or is used in another context, cannot be
    decrypted.

    Several processes may share the keys. Then each of them loads the keys again every few seconds,
    and at once when it is asked to decrypt a value under a key that it does not know.
    """

    def encrypt(self, secret: str, *, context: str) -> bytes:
        """Encrypt a secret so that it can be decrypted only with the same context.

        The context names the caller and the row, such as `<caller>|<job id>`.
        """
        ...

    async def decrypt(self, encrypted: bytes, *, context: str) -> str:
        """Return the secret. Raises `Undecryptable` when no key decrypts it in this context."""
        ...

    def reencrypted(self, encrypted: bytes, *, context: str) -> bytes:
        """Return the value under the current key; itself if it is. Raises `Unavailable`.

        It uses the keys as they were last loaded.
        """
        ...

    def writing(self) -> AbstractAsyncContextManager[None]:
        """Enclose everything from encrypting a secret to committing the row that holds it.

        Entering it loads the keys if they were not loaded for a while, so that a process that was
        stopped does not encrypt with a key that others have replaced.
        """
        ...

    def fingerprints(self) -> Sequence[str]:
        """Name the keys of this process, for its announcement to the other processes.

        The first is the key that it encrypts with. While a `writing()` block is open that began
        under an earlier key, that one comes first. The rest are keys that it can decrypt with, and
        the root keys that it was given.
        """
        ...

    async def reload(self) -> None:
        """Load the keys again, if other processes may have changed them. Raises `Unavailable`."""
        ...

    # A rotation: publish, promote, re-encrypt every stored value, retire. Each call may be repeated,
    # by this process or another one, and continues the rotation that is under way.

    async def publish(self) -> Sequence[str]:
        """Add a new key that decrypts, and is not used to encrypt yet.

        Returns what every process must name in its fingerprints before `promote`, first of all the
        new key. Returns nothing if no other process can use the keys. Raises `Unavailable` when no
        key can be created.
        """
        ...

    async def promote(self, fingerprint: str) -> None:
        """Make the published key the current one, and keep the old one for decryption.

        If the settings name another root key than the one that wraps the keys, it replaces it. The
        call returns once every `writing()` block of this process that began before it has ended.
        Raises `Conflict` if another rotation has replaced the key.
        """
        ...

    async def retire(self, fingerprint: str) -> None:
        """Retire all keys before the current one.

        The caller must have re-encrypted every stored value before. Where processes share the keys,
        retired keys decrypt for another day; else they are deleted at once.
        """
        ...

    async def has_expired_keys(self) -> bool:
        """Return whether a key was retired a day ago, so that it may be dropped."""
        ...

    async def drop_expired_keys(self) -> None:
        """Drop those keys. The caller has verified that no stored value needs them."""
        ...


class KeyProvider(Protocol):
    """Creates encryption keys, and converts them to and from the form that may be stored."""

    async def new_key(self) -> tuple[bytes, bytes]:
        """Return a new key of 32 bytes, and its stored form. Raises `Unavailable`."""
        ...

    async def unwrap(self, stored: bytes) -> bytes:
        """Return the key of a stored form. Raises `Unavailable` when it cannot be unwrapped now."""
        ...
