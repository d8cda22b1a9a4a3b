"""Those who are told: servers of the callers' choosing, trusted with nothing."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol

import msgspec


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What came of telling one."""

    status: int | None = None  # of its answer, if there was one
    error: str | None = None  # why it was not taken, in words that tell nothing of our networks
    retry_after: timedelta | None = None  # what it asks for

    @property
    def is_taken(self) -> bool:
        return self.error is None


class Webhooks(Protocol):
    """Every mishap is a value; nothing is followed, and nothing is reached that is not public."""

    async def check(self, url: str) -> None:
        """Whether deliveries to this URL would be sent at all, as things stand.

        Raises `InvalidArgument` and its like: for a URL that is not allowed, or whose host has no
        address or one that is not public. `Overloaded` when there was no time to find that out.
        """
        ...

    def host(self, url: str) -> str:
        """Whose places and line it takes; empty for a URL that leads nowhere."""
        ...

    async def post(self, url: str, headers: Mapping[str, str], content: bytes) -> Reply:
        """Send it once, within the time there is for it."""
        ...
