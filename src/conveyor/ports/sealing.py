"""Credentials at rest: sealed for one place, useless in any other."""

from typing import Protocol


class Sealing(Protocol):
    def seal(self, secret: str, *, context: str) -> bytes:
        """Encrypt a secret so that it opens only with the same context."""
        ...

    def open(self, sealed: bytes, *, context: str) -> str:
        """The secret again; `Unavailable` when it cannot be opened with the keys at hand."""
        ...
