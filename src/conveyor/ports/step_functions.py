"""Callbacks to states of AWS Step Functions that wait for a task token."""

from typing import Protocol

import msgspec


class Sent(msgspec.Struct, frozen=True):
    """The state received the call."""


class TaskClosed(msgspec.Struct, frozen=True):
    """No state waits for the token, or none ever did: do not call again.

    This is also the answer when an earlier call succeeded and its response was lost.
    """

    why: str


class RetryLater(msgspec.Struct, frozen=True):
    """The state may or may not have received the call: call again later."""

    why: str
    status_code: int | None = None


Answer = Sent | TaskClosed | RetryLater


class StepFunctions(Protocol):
    """Every failure is an answer, and none raises. No answer quotes the token.

    Calls are safe to repeat: the state continues with the first one, and later calls are answered
    `TaskClosed`.
    """

    async def succeed(self, token: str, output: str) -> Answer:
        """End the state with this output: JSON of at most 262,144 characters."""
        ...

    async def fail(self, token: str, *, error: str, cause: str) -> Answer:
        """Fail the state with an error (at most 256 characters) and a cause (at most 32,768)."""
        ...

    async def heartbeat(self, token: str) -> Answer:
        """Keep the state waiting until its next heartbeat is due."""
        ...
