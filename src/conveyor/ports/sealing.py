"""Credentials at rest: sealed for one place, useless in any other."""

from typing import Protocol


class Sealing(Protocol):
    """Seals with one key, and opens with that and with the one before it while a change is on."""

    def seal(self, secret: str, *, context: str) -> bytes:
        """Encrypt a secret so that it opens only with the same context."""
        ...

    def open(self, sealed: bytes, *, context: str) -> str:
        """The secret again; `Unavailable` when it cannot be opened with the keys at hand."""
        ...

    def is_current(self, sealed: bytes) -> bool:
        """Whether it was sealed with the key that seals now."""
        ...

    async def turn(self) -> None:
        """Seal with a new key from now on; the old one opens still, and is kept.

        When a change was begun and not brought to its end, it is that change that goes on.
        Whoever dies here has the old key, or both. `Unavailable` when no new one is to be had.
        """
        ...

    async def forget(self) -> None:
        """Keep the old key no longer: for when nothing is sealed with it. Without one, nothing."""
        ...


class Vault(Protocol):
    """Makes keys, and knows in which form they may be kept in a file."""

    async def new(self) -> tuple[bytes, bytes]:
        """A new key of 32 bytes, and its form to keep. `Unavailable` when none is to be had."""
        ...

    async def open(self, kept: bytes) -> bytes:
        """The key again. `Unavailable` when it does not open, or nobody can be asked."""
        ...
