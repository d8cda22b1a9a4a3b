"""States that wait for a task token, and are told by it."""

from typing import Protocol

import msgspec


class Sent(msgspec.Struct, frozen=True):
    """The state has heard it."""


class TaskClosed(msgspec.Struct, frozen=True):
    """No state waits for the token any more, or none ever did: it is no use to ask again.

    So it is told, too, when an earlier call got through and its answer was lost.
    """

    why: str


class RetryLater(msgspec.Struct, frozen=True):
    """Nobody knows whether the state has heard it: ask again later."""

    why: str
    status_code: int | None = None


Answer = Sent | TaskClosed | RetryLater


class StepFunctions(Protocol):
    """What goes wrong is an answer and not an error; none of them quotes the token.

    Telling a token twice has the effect of once: the state goes on with the first, and the second
    is answered `TaskClosed`.
    """

    async def succeed(self, token: str, output: str) -> Answer:
        """The state succeeds with this output, a JSON text of at most 262,144 characters."""
        ...

    async def fail(self, token: str, *, error: str, cause: str) -> Answer:
        """The state fails with this error, at most 256 characters, and cause, at most 32,768."""
        ...

    async def heartbeat(self, token: str) -> Answer:
        """The state is to go on waiting, for as long as it allows between two of these."""
        ...
